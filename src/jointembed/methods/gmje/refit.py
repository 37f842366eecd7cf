"""EM from a mixture that is there: what GMJE learned of views, made the density of the images themselves."""

import torch
from torch import Tensor

from jointembed.distributions import GaussianMixture

CHUNK = 8192  # embeddings whose distances to all components are held at once


@torch.no_grad()
def refitted(mixture: GaussianMixture, z: Tensor, steps: int = 20, prior: float | None = None) -> GaussianMixture:
    """The mixture after some steps of EM on z (N, D), each component with a covariance of its own.

    Each also counts `prior` embeddings, by default D, that lie about its mean as all do about theirs (a prior as in
    linear discriminant analysis): a component of few images then has the covariance that all share.

    Args:
        mixture: where to begin.
        z: embeddings.
        steps: of EM.
        prior: how many embeddings the shared covariance stands for, in each component.
    """
    if z.ndim != 2 or not len(z) or z.shape[1:] != mixture.event_shape:
        raise ValueError(f"z: expected (N, {mixture.event_shape[0]}) as the mixture has, got shape {tuple(z.shape)}")
    dim = z.shape[1]
    prior = float(dim) if prior is None else prior
    for _ in range(steps):
        r = torch.cat([mixture.responsibilities(chunk) for chunk in z.split(CHUNK)])  # (N, K)
        counts = r.sum(0)  # (K,)
        # A component without images stays where it is.
        means = (r.mT @ z + 1e-6 * mixture.means) / (counts + 1e-6)[:, None]
        scatter = torch.stack([(r[:, k, None] * (z - m)).mT @ (z - m) for k, m in enumerate(means)])  # (K, D, D)
        shared = scatter.sum(0) / len(z)
        floor = 1e-6 * shared.diagonal().mean().clamp_min(torch.finfo(z.dtype).tiny) * torch.eye(dim).to(z)
        covariances = (scatter + prior * shared) / (counts + prior).clamp_min(1e-6)[:, None, None] + floor
        mixture = GaussianMixture(counts / len(z), means, covariances, validate_args=False)
    return mixture
