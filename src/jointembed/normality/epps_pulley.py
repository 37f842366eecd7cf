"""The Epps–Pulley test of N(0, 1): distance between empirical and Gaussian characteristic functions."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from jointembed import _distributed
from jointembed.normality import _native
from jointembed.normality.univariate import as_samples

# The grid is k h, so e^{i k h x} = (e^{i h x})^k: one cos/sin pair per element gives every point. With sums
# Z_k = sum_n e^{i k h x_n} the statistic is a function of Z alone, and its gradient is a trigonometric polynomial,
# dT/dx_n = Re sum_k d_k e^{i k h x_n}, evaluated by Horner. Nothing of size N x M x K is ever formed.


def _unit_circle(rows: Tensor, step: float) -> Tensor:
    angle = rows * step
    return torch.complex(angle.cos(), angle.sin_())


def _block_length(rows: Tensor) -> int:
    """Rows per block: on a CPU 2^16 elements, small for memory's sake; larger blocks are a little faster."""
    return max(1, (2**16 if rows.device.type == "cpu" else 2**24) // rows.shape[1])


def sums(rows: Tensor, step: float, num_terms: int) -> Tensor:
    """``Z[m, k-1] = sum_n exp(i k step rows[m, n])``: rows (M, N) -> (M, num_terms), complex."""
    result = torch.empty(len(rows), num_terms, dtype=rows.dtype.to_complex(), device=rows.device)
    for block, out in zip(rows.split(_block_length(rows)), result.split(_block_length(rows)), strict=True):
        e = _unit_circle(block, step)
        power = e.clone() if num_terms > 1 else e
        out[:, 0] = e.sum(-1)
        for k in range(1, num_terms):
            out[:, k] = power.mul_(e).sum(-1)
    return result


def gradient(rows: Tensor, step: float, coefficients: Tensor) -> Tensor:
    """``Re sum_k d[m, k-1] exp(i k step rows[m, n])``: rows (M, N), d (M, K) complex -> (M, N)."""
    result = torch.empty_like(rows)
    length = _block_length(rows)
    for block, d, out in zip(rows.split(length), coefficients.split(length), result.split(length), strict=True):
        e = _unit_circle(block, step)
        polynomial = e * d[:, -1:]
        for k in range(d.shape[1] - 2, -1, -1):
            polynomial.add_(d[:, k : k + 1]).mul_(e)
        out.copy_(polynomial.real)
    return result


def _squares(z: Tensor) -> Tensor:
    """(M, K) complex -> (M, 2K), real and imaginary parts squared, as weighted by `_grid`'s weights."""
    return torch.view_as_real(z).flatten(1).square()


@functools.lru_cache(maxsize=32)
def _grid(step: float, num_terms: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """phi_k (K,); trapezoid weights w_k, each twice, for `_squares` (2K,); 2 i t_k w_k (K,)."""
    t = step * torch.arange(1, num_terms + 1, dtype=torch.float64)
    phi = torch.exp(-0.5 * t**2)
    # Trapezoid on [-t_max, t_max], folded onto t > 0; t = 0 contributes nothing, both functions being 1 there.
    weights = 2 * step * phi
    weights[-1] /= 2
    turn = (2j * t * weights).to(dtype.to_complex())
    return phi.to(device, dtype), weights.repeat_interleave(2).to(device, dtype), turn.to(device)


class _Statistic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, test: EppsPulley) -> Tensor:
        native = test.compiled and x.device.type == "cpu" and x.dtype == torch.float32
        kernels = (_native.kernels(test.num_terms) if native else None) or _PYTORCH
        # (..., N, M) -> (M, N): samples of a slice side by side; no copy if x was made that way, as SIGReg does.
        rows = x.mT.reshape(-1, x.shape[-2]).contiguous()
        z, n = _over_all_ranks(kernels.sums(rows, test.step, test.num_terms), x.shape[-2])
        phi, weights, turn = _grid(test.step, test.num_terms, x.dtype, x.device)
        difference = z / n - phi
        statistic = n * (_squares(difference) @ weights)
        if test.unbiased:
            # |Z|^2 holds n terms e^{i t (x_n - x_n)} = 1; leaving them out lowers T by n/(n-1) (1 - |phi_hat|^2).
            statistic = statistic - n / (n - 1) * (weights.sum() / 2 - _squares(z / n) @ weights)
            difference = z / (n - 1) - phi
        if ctx.needs_input_grad[0]:
            # dT/dZ_k = 2 w_k (Z_k/n - phi_k) as a vector in the plane (n - 1 for n if unbiased), and e^{i t x} moves at
            # right angles to itself, at speed t: d_k = i t_k conj(dT/dZ_k). DDP averages over ranks a sum: undo that.
            ctx.save_for_backward(rows, difference.conj() * (turn * _distributed.world_size()))
            ctx.kernels, ctx.step, ctx.shape = kernels, test.step, x.mT.shape
        return statistic.reshape(*x.shape[:-2], x.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        rows, d = ctx.saved_tensors
        return ctx.kernels.gradient(rows, ctx.step, d * grad_output.reshape(-1, 1)).view(ctx.shape).mT, None


class _PyTorchKernels:
    sums = staticmethod(sums)
    gradient = staticmethod(gradient)


_PYTORCH = _PyTorchKernels()


def _over_all_ranks(z: Tensor, n: int) -> tuple[Tensor, float | Tensor]:
    """Sums and sample count of all ranks together, in one collective."""
    if _distributed.world_size() == 1:
        return z, float(n)
    flat = torch.view_as_real(z).flatten()
    flat = _distributed.all_reduce_sum(torch.cat([flat, flat.new_tensor([n])]))
    return torch.view_as_complex(flat[:-1].view(*z.shape, 2)), flat[-1]


class EppsPulley(nn.Module):
    r"""Epps–Pulley statistic :math:`T = N \int |\hat\varphi(t) - e^{-t^2/2}|^2 e^{-t^2/2} dt` of each column of x.

    The integral is a trapezoid sum over ``num_points`` points, step ``h = 2 t_max / (num_points - 1)``. Time is O(N M
    num_points), memory O(N M), one cos/sin pair per element; the gradient is closed-form (first order only).

    - Under N(0, 1), E[T] = sqrt(2 pi) (1 - 1/sqrt 3) = 1.059 for every N: T does not vanish, T / N does.
    - Whatever the data, |dT/dx_n| <= 8 (times the number of ranks, see below; the unbiased form may exceed it for
      small N).
    - **T is periodic in every x_n with period 2 pi / h** (10.05 by default): the test is faithful only for |x| well
      below half of that, and values further out alias back in. Wider data wants more points, which are cheap.

    In `torch.distributed` T is that of the samples of all ranks together (unequal numbers are fine), and its gradient
    is multiplied by the world size, so that DDP's mean over ranks is the gradient of one process on the whole batch.

    Args:
        t_max: The integral runs over [-t_max, t_max].
        num_points: Grid points on [-t_max, t_max], odd. Only the (num_points - 1) / 2 positive ones are evaluated.
        unbiased: Use the U-statistic, whose mean is zero under N(0, 1) (so it can be negative), not the V-statistic.
        compiled: Run float32 CPU data through a small C++ kernel, built on first use (about a second) and then cached
            on disk. Without a C++ compiler, on a GPU or in float64 the PyTorch version runs; the results agree.

    Example:
        >>> test = EppsPulley()
        >>> test(torch.randn(256, 10)).shape
        torch.Size([10])

    Paper: LeJEPA, https://arxiv.org/abs/2511.08544.
    """

    def __init__(
        self, t_max: float = 5.0, num_points: int = 17, unbiased: bool = False, compiled: bool = False
    ) -> None:
        super().__init__()
        if not (math.isfinite(t_max) and t_max > 0):
            raise ValueError(f"t_max must be positive and finite, got {t_max}")
        if num_points < 3 or num_points % 2 == 0:
            raise ValueError(f"num_points must be odd and at least 3, so that the grid contains 0, got {num_points}")
        self.t_max = float(t_max)
        self.num_points = num_points
        self.unbiased = unbiased
        self.compiled = compiled

    @property
    def num_terms(self) -> int:
        """K, the number of positive grid points."""
        return (self.num_points - 1) // 2

    @property
    def step(self) -> float:
        """h, the distance between grid points."""
        return self.t_max / self.num_terms

    def forward(self, x: Tensor) -> Tensor:
        """x (..., N, M) -> (..., M). Half precision is computed, and returned, in float32."""
        fewest = 2 if self.unbiased and _distributed.world_size() == 1 else 1
        with torch.autocast(x.device.type, enabled=False):
            return _Statistic.apply(as_samples(x, fewest), self)

    def extra_repr(self) -> str:
        return f"t_max={self.t_max}, num_points={self.num_points}, unbiased={self.unbiased}, compiled={self.compiled}"
