"""Mixtures of every form, and the same by torch's own classes."""

import numpy as np
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from jointembed.distributions import GaussianMixture

FORMS = ["full", "shared", "diagonal", "shared diagonal", "isotropic", "shared isotropic"]
K, D = 3, 4


def spd(*shape, seed=0, condition=30.0):
    """Random covariance matrices (*shape) with the eigenvalues from 1/condition to 1."""
    g = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(*shape, dtype=torch.float64, generator=g)).Q
    values = torch.logspace(0, -np.log10(condition), shape[-1], dtype=torch.float64)
    s = q * values @ q.mT
    return (s + s.mT) / 2


def parameters(form, batch=(), count=K, dim=D, seed=0):
    """Weights, means, and what the constructor of the form takes; float64."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(*batch, count, dtype=torch.float64, generator=g).add(0.2)
    means = 2 * torch.randn(*batch, count, dim, dtype=torch.float64, generator=g)
    number = 1 if "shared" in form else count
    shape = {"diagonal": (number, dim), "isotropic": (number,)}.get(form.split()[-1])
    scales = spd(*batch, number, dim, dim) if shape is None else torch.rand(*batch, *shape, generator=g).double() + 0.2
    return weights / weights.sum(-1, keepdim=True), means, scales


def constructor(form):
    return {"diagonal": GaussianMixture.diagonal, "isotropic": GaussianMixture.isotropic}.get(
        form.split()[-1], GaussianMixture
    )


def mixture(form, batch=(), **options):
    return constructor(form)(*parameters(form, batch, **options))


def points(*shape, seed=5):
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def reference(m):
    """The same mixture by torch's own classes, with a full matrix for every component."""
    covariances = m.covariances.expand(*m.batch_shape, *m.means.shape[-2:], m.event_shape[0])
    return MixtureSameFamily(Categorical(m.weights), MultivariateNormal(m.means, covariances))
