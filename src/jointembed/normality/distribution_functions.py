"""Tests that compare the empirical distribution function F_N with that of N(0, 1), Phi.

All are ``N * integral (F_N - Phi)^2 weight dPhi``, which needs no quadrature: F_N is constant between sorted samples.
They sort each column once; the gradient is that of the sorted values, defined everywhere but at ties.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jointembed.normality.univariate import UnivariateTest, constant


@constant
def _midpoints(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """p_i = (2i - 1) / 2N, the middle of F_N's i-th jump (N,)."""
    return ((torch.arange(n, dtype=torch.float64) + 0.5) / n).to(device, dtype)


def _deviations(rows: Tensor) -> Tensor:
    """Phi(x_(i)) - p_i of the sorted samples: (..., M, N) -> (..., M, N)."""
    phi = torch.special.ndtr(rows.sort(dim=-1).values)
    return phi - _midpoints(rows.shape[-1], rows.dtype, rows.device)


class CramerVonMises(UnivariateTest):
    r"""Cramér–von Mises :math:`W^2 = N \int (F_N - \Phi)^2 d\Phi`; its mean is 1/6 under N(0, 1), for every N."""

    fewest = 1

    def statistic(self, rows: Tensor) -> Tensor:
        return _deviations(rows).square().sum(-1) + 1 / (12 * rows.shape[-1])


class Watson(UnivariateTest):
    r"""Watson's :math:`U^2 = W^2 - N (\overline{\Phi(x)} - 1/2)^2`; its mean is 1/12 under N(0, 1), every N.

    It is Cramér–von Mises with the mean deviation of the distribution functions taken off: less sensitive to the mean.
    """

    fewest = 1

    def statistic(self, rows: Tensor) -> Tensor:
        deviations = _deviations(rows)
        centred = deviations - deviations.mean(-1, keepdim=True)  # no difference of two large numbers
        return centred.square().sum(-1) + 1 / (12 * rows.shape[-1])


# In the textbook's A^2 = -N - 2 sum_i p_i log Phi(x_(i)) + (1 - p_i) log Phi(-x_(i)) the sum nearly cancels N, and with
# it float32's digits where N is large. It is a sum of cross-entropies of coins, p_i against Phi(x_(i)); less the coins'
# own entropies h_i the terms are small, and 2 sum_i h_i - N is a constant, known in float64.


@constant
def _coins(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, float]:
    """p_i (N,); log p_i (N,); log (1 - p_i) (N,); 2 sum_i h_i - N."""
    p = _midpoints(n, torch.float64, torch.device("cpu"))
    log_p, log_q = p.log(), torch.log1p(-p)
    constant = -2 * float((p * log_p + (1 - p) * log_q).sum()) - n
    return p.to(device, dtype), log_p.to(device, dtype), log_q.to(device, dtype), constant


class AndersonDarling(UnivariateTest):
    r"""Anderson–Darling :math:`A^2 = N \int (F_N - \Phi)^2 / (\Phi (1 - \Phi)) d\Phi`; mean 1 under N(0, 1), every N.

    The weight looks at the tails, where log Phi is taken directly: values 100 standard deviations out are no trouble,
    in float32 either.
    """

    fewest = 1

    def statistic(self, rows: Tensor) -> Tensor:
        p, log_p, log_q, constant = _coins(rows.shape[-1], rows.dtype, rows.device)
        ordered = rows.sort(dim=-1).values
        left = p * (log_p - torch.special.log_ndtr(ordered))
        right = (1 - p) * (log_q - torch.special.log_ndtr(-ordered))
        return 2 * (left + right).sum(-1) + constant
