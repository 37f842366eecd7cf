"""The modes of Gaussian mixtures: the values that stand out, where the mean lies between them."""

import torch
from torch import Tensor

from .mixture import GaussianMixture


@torch.no_grad()
def modes(mixture: GaussianMixture, least: float = 0.01, steps: int = 500, tolerance: float = 1e-6) -> list[Tensor]:
    """The local maxima of each mixture of a batch (N,), or of a single one: a list of (modes, D), the highest first.

    Every component's mean climbs to a maximum by the fixed point of a vanishing gradient (Carreira-Perpiñán, 2000),

        y = (sum_k r_k S_k^-1)^-1 sum_k r_k S_k^-1 mu_k,    r the responsibilities at y,

    and those that meet are one mode.

    Args:
        mixture: with batch shape (N,) or ().
        least: leave out modes with less than this share of the density of the highest.
        steps: at most.
        tolerance: stop when nothing moves by more, in units of the mixture's own standard deviations.
    """
    if len(mixture.batch_shape) > 1:
        raise ValueError(f"mixture: expected a batch shape of at most one dimension, got {tuple(mixture.batch_shape)}")
    count, dim = mixture.means.shape[-2:]
    batch = mixture.batch_shape or torch.Size([1])
    means = mixture.means.double().expand(*batch, count, dim)
    factors = torch.linalg.cholesky(mixture.covariances.double())
    precisions = torch.cholesky_inverse(factors)  # (..., K|1, D, D): sums of these have to be solved with
    pulls = torch.einsum("...kij,...kj->...ki", precisions.expand(*means.shape[:-1], dim, dim), means)
    unit = mixture.variance.double().sqrt().expand(*batch, dim)  # (N, D)
    y = means.transpose(0, 1).contiguous()  # (K, N, D): from every mean
    for _ in range(steps):
        r = mixture.responsibilities(y.to(mixture.means)).double().expand(count, *batch, count)
        weight = torch.einsum("snk,nkij->snij", r, precisions.expand(*batch, count, dim, dim))
        moved = torch.linalg.solve(weight, torch.einsum("snk,nki->sni", r, pulls))
        change = ((moved - y) / unit).abs().max()
        y = moved
        if change < tolerance:
            break
    height = mixture.log_prob(y.to(mixture.means)).double().expand(count, *batch)
    order = height.argsort(0, descending=True)  # (K, N)
    height = height.gather(0, order).T  # (N, K)
    y = y.gather(0, order[..., None].expand_as(y)).transpose(0, 1)  # (N, K, D)
    apart = ((y[:, :, None] - y[:, None]) / unit[:, None, None]).norm(dim=-1)  # (N, K, K)
    met = (apart < max(1e-3, 100 * tolerance)).tril(-1).any(-1)  # with a higher one
    kept = ~met & (height - height[:, :1] >= torch.tensor(least, dtype=torch.float64).log())
    return list(y.to(mixture.means)[kept].split(kept.sum(1).tolist()))
