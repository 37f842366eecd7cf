"""Tests of the whole distribution at once, for reference: quadratic cost in N where `SIGReg` is linear.

Each is an integral over t in R^D of a squared (or, for `COMB`, plain) difference between an empirical transform of the
samples and what it would be for N(0, I), in closed form:

    psi_n(t) = mean_j exp(i t.y_j), characteristic function; M_n(t) = mean_j exp(t.y_j), moment generating function

The N^2 pairs of samples are summed over ``chunk_size`` rows at a time, and so is their gradient (first order only), in
O(N chunk_size) memory. M_n grows with the exponential of the samples' squared length: wide data overflows float32.

The null is N(0, I), fully specified; ``standardise=True`` first maps the sample mean to 0 and the sample covariance
(divisor N) to I, which makes each an affine invariant test of any normal distribution, as the papers have it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from jointembed.normality.univariate import as_samples

Rows = Callable[[Tensor, Tensor], Tensor]  # (..., n, D), (..., N, D) -> (..., n)


def _standardised(x: Tensor) -> Tensor:
    """L^-1 (x - mean), covariance L L^T. Any other square root differs by a rotation, which no test here sees."""
    centred = x - x.mean(-2, keepdim=True)
    factor, info = torch.linalg.cholesky_ex(centred.mT @ centred / x.shape[-2])
    if bool(((info != 0) & x.isfinite().all(-1).all(-1)).any()):
        raise ValueError("x must have a sample covariance of full rank if standardise=True, got a singular one")
    return torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT


def _squared_lengths(y: Tensor) -> Tensor:
    return y.square().sum(-1)


def _pairs(block: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y_j.y_k (..., n, N); |y_j|^2 (..., n, 1); |y_k|^2 (..., 1, N)."""
    return block @ y.mT, _squared_lengths(block).unsqueeze(-1), _squared_lengths(y).unsqueeze(-2)


class _SumOfRows(torch.autograd.Function):
    """Each chunk's gradient is taken with its value, so that no chunk is kept; the backward pass only scales."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, rows: Rows, chunk_size: int) -> Tensor:
        total = left.new_zeros(left.shape[:-2])
        slopes = []
        whole_slope = torch.zeros_like(right)
        for chunk in left.split(chunk_size, dim=-2):
            if not any(ctx.needs_input_grad):
                total += rows(chunk, right).sum(-1)
                continue
            with torch.enable_grad():
                block, whole = chunk.detach().requires_grad_(), right.detach().requires_grad_()
                part = rows(block, whole).sum(-1)
            total += part.detach()
            slope, slope_of_whole = torch.autograd.grad(part, (block, whole), torch.ones_like(part))
            slopes.append(slope)
            whole_slope += slope_of_whole
        if slopes:
            ctx.save_for_backward(torch.cat(slopes, dim=-2), whole_slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, right = ctx.saved_tensors
        scale = grad_output[..., None, None]
        return left * scale, right * scale, None, None


class MultivariateTest(nn.Module, ABC):
    """A test of each set of N samples in D dimensions, (..., N, D) -> (...). NaN in, NaN out; each rank by itself.

    Args:
        standardise: Test normality with any mean and covariance, those of the sample, not N(0, I). Needs N > D.
        chunk_size: Rows of the N x N matrix of pairs that are held in memory at a time.
    """

    def __init__(self, standardise: bool = False, chunk_size: int = 256) -> None:
        super().__init__()
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.standardise = standardise
        self.chunk_size = chunk_size

    def forward(self, x: Tensor) -> Tensor:
        """x (..., N, D) -> (...). Half precision is computed, and returned, in float32."""
        with torch.autocast(x.device.type, enabled=False):
            y = as_samples(x, 1, "(..., N, D)")
            if self.standardise:
                if x.shape[-2] <= x.shape[-1]:
                    raise ValueError(f"x must have N > D samples if standardise=True, got shape {tuple(x.shape)}")
                y = _standardised(y)
            return self.statistic(y)

    @abstractmethod
    def statistic(self, y: Tensor) -> Tensor:
        """y (..., N, D) -> (...)."""

    def sum_rows(self, rows: Rows, left: Tensor, right: Tensor) -> Tensor:
        """Sum over j of ``rows(left, right)``."""
        if not torch.is_grad_enabled():
            left, right = left.detach(), right.detach()
        return _SumOfRows.apply(left, right, rows, self.chunk_size)

    def extra_repr(self) -> str:
        return f"standardise={self.standardise}, chunk_size={self.chunk_size}"


class BHEP(MultivariateTest):
    r"""Baringhaus–Henze–Epps–Pulley, :math:`N \int |\psi_n(t) - e^{-|t|^2/2}|^2 w(t) dt`, w density of N(0, beta^2 I).

    In one dimension with beta = 1 it is `EppsPulley`'s exact integral over sqrt(2 pi). Its mean under N(0, I) is
    ``1 - (1 + 2 beta^2)^(-D/2)``. Henze & Wagner (1997), https://doi.org/10.1006/jmva.1997.1684.
    """

    def __init__(self, beta: float = 1.0, standardise: bool = False, chunk_size: int = 256) -> None:
        super().__init__(standardise, chunk_size)
        if not beta > 0:
            raise ValueError(f"beta must be positive, got {beta}")
        self.beta = beta

    def statistic(self, y: Tensor) -> Tensor:
        return _bhep(self, y, self.beta)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, {super().extra_repr()}"


def _bhep(test: MultivariateTest, y: Tensor, beta: float) -> Tensor:
    d, square = y.shape[-1], beta**2
    constant = (1 + 2 * square) ** (-d / 2)

    def rows(block: Tensor, y: Tensor) -> Tensor:
        dot, left, right = _pairs(block, y)
        within = torch.exp(-square / 2 * (left + right - 2 * dot)).mean(-1)
        cross = (1 + square) ** (-d / 2) * torch.exp(-square / (2 + 2 * square) * left.squeeze(-1))
        return within - 2 * cross + constant

    return test.sum_rows(rows, y, y)


class HenzeZirkler(MultivariateTest):
    """`BHEP` with ``beta = ((2 D + 1) N / 4)^(1 / (D + 4)) / sqrt 2``, the best bandwidth of a kernel density estimate.

    Henze & Zirkler (1990), https://doi.org/10.1080/03610929008830400, who standardise: so does ``standardise=True``.
    """

    def statistic(self, y: Tensor) -> Tensor:
        n, d = y.shape[-2:]
        return _bhep(self, y, ((2 * d + 1) * n / 4) ** (1 / (d + 4)) / math.sqrt(2))


class BHEPM(MultivariateTest):
    r"""BHEP with moment generating functions, :math:`N \int (M_n(t) - e^{|t|^2/2})^2 e^{-\beta |t|^2} dt`.

    The integral needs beta > 1. Its mean under N(0, I), ``(pi / (beta - 2))^(D/2) - (pi / (beta - 1))^(D/2)``, and its
    limit distribution need beta > 2. Henze & Jiménez-Gamero (2019), https://arxiv.org/abs/1711.07199.
    """

    def __init__(self, beta: float = 5.0, standardise: bool = False, chunk_size: int = 256) -> None:
        super().__init__(standardise, chunk_size)
        if not beta > 1:
            raise ValueError(f"beta must be greater than 1, got {beta}")
        self.beta = beta

    def statistic(self, y: Tensor) -> Tensor:
        beta, half = self.beta, y.shape[-1] / 2
        constant = (math.pi / (beta - 1)) ** half

        def rows(block: Tensor, y: Tensor) -> Tensor:
            dot, left, right = _pairs(block, y)
            # The power of pi / beta goes into the exponent: alone it underflows where the exponential overflows.
            within = torch.exp((left + right + 2 * dot) / (4 * beta) + half * math.log(math.pi / beta)).mean(-1)
            cross = torch.exp(left.squeeze(-1) / (4 * beta - 2) + half * math.log(math.pi / (beta - 0.5)))
            return within - 2 * cross + constant

        return self.sum_rows(rows, y, y)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, {super().extra_repr()}"


class HV(MultivariateTest):
    r"""Henze–Visagie, :math:`N \int |\nabla M_n(t) - t M_n(t)|^2 e^{-\gamma |t|^2} dt`: only N(0, I) has M' = t M.

    Its mean under N(0, I) is ``(pi / (gamma - 2))^(D/2) D (1 + 1 / (2 gamma - 4))``, for gamma > 2; for gamma -> inf it
    becomes, rescaled, a sum of two measures of skewness. Henze & Visagie (2020), https://arxiv.org/abs/1901.03986.
    """

    def __init__(self, gamma: float = 5.0, standardise: bool = False, chunk_size: int = 256) -> None:
        super().__init__(standardise, chunk_size)
        if not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma}")
        self.gamma = gamma

    def statistic(self, y: Tensor) -> Tensor:
        gamma, d = self.gamma, y.shape[-1]

        def rows(block: Tensor, y: Tensor) -> Tensor:
            dot, left, right = _pairs(block, y)
            # e^{t.s - gamma |t|^2}, s = y_j + y_k, is a Gaussian in t: the mean of (y_j - t).(y_k - t) over it.
            s2 = left + right + 2 * dot
            weight = torch.exp(s2 / (4 * gamma) + d / 2 * math.log(math.pi / gamma))
            return (weight * (dot + (1 / (4 * gamma**2) - 1 / (2 * gamma)) * s2 + d / (2 * gamma))).mean(-1)

        return self.sum_rows(rows, y, y)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, {super().extra_repr()}"


class COMB(MultivariateTest):
    r"""Both transforms combined: :math:`U_n(t) = \sqrt N (\mathrm{Re}\, \psi_n(t) M_n(t) - 1)`, 0 for N(0, I) alone.

    The simplified statistic is :math:`\int U_n(t) e^{-\gamma |t|^2} dt`. **It has a sign**, and departures of opposite
    sign at different t can cancel: its size counts, so square it to make a loss. Otherwise it is
    :math:`\int U_n(t)^2 e^{-\gamma |t|^2} dt`, a sum over quadruples of samples: time O(N^4), memory O(N^2 chunk_size).
    Henze, Jiménez-Gamero & Meintanis (2019), https://arxiv.org/abs/1706.03029.
    """

    def __init__(
        self, gamma: float = 1.5, simplified: bool = True, standardise: bool = False, chunk_size: int = 256
    ) -> None:
        super().__init__(standardise, chunk_size)
        if not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma}")
        self.gamma = gamma
        self.simplified = simplified

    def _integrals(self, block: Tensor, y: Tensor) -> Tensor:
        """(gamma / pi)^(D/2) times the integral of exp(t.a) cos(t.b) exp(-gamma |t|^2), mean over b in y, less 1."""
        dot, left, right = _pairs(block, y)
        return (torch.exp((left - right) / (4 * self.gamma)) * torch.cos(dot / (2 * self.gamma))).mean(-1) - 1

    def statistic(self, y: Tensor) -> Tensor:
        n, d = y.shape[-2:]
        scale = (math.pi / self.gamma) ** (d / 2)
        mean = self.sum_rows(self._integrals, y, y) / n  # of Re psi_n M_n - 1
        if self.simplified:
            return scale * math.sqrt(n) * mean
        # M_n^2 is a mean over exp(t.(y_j + y_k)), and cos cos = (cos of the difference + cos of the sum) / 2.
        sums = (y.unsqueeze(-2) + y.unsqueeze(-3)).flatten(-3, -2)  # (..., N^2, D)
        differences = (y.unsqueeze(-2) - y.unsqueeze(-3)).flatten(-3, -2)
        of_sums, of_differences = (self.sum_rows(self._integrals, sums, other) / n**2 for other in (sums, differences))
        return scale * n * ((of_sums + of_differences) / 2 - 2 * mean)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, simplified={self.simplified}, {super().extra_repr()}"
