"""How far one cloud of features is from another, by their means and covariances."""

import torch
from torch import Tensor

from .checks import checked


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Of the Gaussians with the moments of features a (N, D) and b (M, D), in double precision:

    |m_a - m_b|^2 + Tr(S_a + S_b - 2 (S_a S_b)^(1/2)). With the features of an Inception network it is the FID.
    """
    a, b = checked("a", a), checked("b", b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"b: expected {a.shape[1]} columns as a has, got {b.shape[1]}")
    (root_a, trace_a), (root_b, trace_b) = (_root(x.mT.cov()) for x in (a, b))
    # Tr (S_a S_b)^(1/2) is the sum of the singular values of R_a R_b, R = S^(1/2): no root is taken of rounding errors.
    shared = torch.linalg.svdvals(root_a @ root_b).sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + trace_a + trace_b - 2 * shared)


def _root(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """S^(1/2) and Tr S."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0)
    return vectors * values.sqrt() @ vectors.mT, values.sum()
