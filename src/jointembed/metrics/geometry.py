"""How a cloud of features lies in its space: what collapse looks like in numbers."""

from typing import NamedTuple

import torch
from torch import Tensor


class Geometry(NamedTuple):
    """Effective rank, root-mean-square deviation per dimension, and mean norm of (N, D) features."""

    effective_rank: float
    std: float
    norm: float


def effective_rank(z: Tensor) -> float:
    """exp of the entropy of the normalised singular values of centred z (N, D): from 1 up to min(N, D)."""
    singular = torch.linalg.svdvals((z - z.mean(0)).double())
    total = singular.sum()
    if total == 0:
        return 1.0
    return float(torch.distributions.Categorical(singular / total).entropy().exp())


def geometry(z: Tensor) -> Geometry:
    """All three for features z (N, D)."""
    z = z.detach().double()
    return Geometry(effective_rank(z), float(z.var(0).mean().sqrt()), float(z.norm(dim=1).mean()))
