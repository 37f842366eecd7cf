"""SIGReg: sketched isotropic Gaussian regularisation of embeddings (LeJEPA, https://arxiv.org/abs/2511.08544)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from jointembed._distributed import counts, gather_rows
from jointembed.normality.directions import random_directions, sobol_directions
from jointembed.normality.epps_pulley import EppsPulley

Directions = Literal["gaussian", "sobol"]

# x is made, tested and forgotten one block of slices at a time, so that nothing of size N x M lives, whatever the test.
# That takes each block's gradient in the forward pass; the backward pass only scales the sum.
BLOCK_ELEMENTS = {"cpu": 2**18}  # 1 MB of float32, cache-sized
BLOCK_ELEMENTS_ELSEWHERE = 2**26


class _MeanOverSlices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, directions: Tensor, test: nn.Module) -> Tensor:
        rows = z.shape[:-1].numel()  # V N
        elements = BLOCK_ELEMENTS.get(z.device.type, BLOCK_ELEMENTS_ELSEWHERE)
        # Fewer slices at a time would make products and overheads inefficient. Ranks test the same ones together.
        width = max(256, elements // max(counts(rows, z.device)))
        differentiate = ctx.needs_input_grad[0]
        total = z.new_zeros(())
        gradient = None
        for a in directions.split(width, dim=1):  # (D, m)
            # Made as (..., m, N), shown as (..., N, m): the samples of a slice lie side by side, for the test's sums.
            x = (a.mT @ z.mT).mT
            with torch.enable_grad() if differentiate else nullcontext():
                statistic = test(x.requires_grad_(differentiate)).sum()
            total += statistic.detach()
            if differentiate:
                (slope,) = torch.autograd.grad(statistic, x)
                part = slope @ a.mT  # (..., N, D)
                gradient = part if gradient is None else gradient.add_(part)
        count = rows // z.shape[-2] * directions.shape[1]
        if gradient is not None:
            ctx.save_for_backward(gradient.div_(count))
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grad_output, None, None


class SIGReg(nn.Module):
    """Mean of a univariate normality test over random projections of the embeddings: small iff they are N(0, I).

    Each call in training mode draws new directions, a pure function of (seed, dim, step): all ranks draw the same, and
    a run resumed from its ``state_dict``, which holds ``step``, goes on with the directions it would have drawn. In
    eval mode ``step`` stands still. In `torch.distributed` all ranks' embeddings are tested as one batch: `EppsPulley`
    exchanges its sums over them, for other tests the embeddings themselves are.

    Args:
        test: A module (..., N, M) -> (..., M), by default ``EppsPulley(compiled=compiled)``.
        num_slices: M, the number of directions drawn at each call.
        seed: Selects the sequence of directions.
        compiled: Draw directions (and run the default test) on the CPU in C++ kernels, built on first use (about a
            second), then cached on disk. Without a C++ compiler the PyTorch version runs; results agree to rounding.
        directions: "gaussian": independent and uniform on the sphere. "sobol": a scrambled Sobol sequence, mapped to
            the sphere by the inverse normal distribution function, which covers it more evenly where M is large beside
            D, best for M a power of two. Always drawn on the CPU in PyTorch, 1.5 to 4 times slower than "gaussian".
            D is at most 21201.

    Example:
        >>> sigreg = SIGReg(num_slices=256)
        >>> z = torch.randn(2, 128, 64, requires_grad=True)  # (V, N, D)
        >>> sigreg(z).backward()
    """

    step: Tensor

    def __init__(
        self,
        test: nn.Module | None = None,
        num_slices: int = 1024,
        seed: int = 0,
        compiled: bool = False,
        directions: Directions = "gaussian",
    ) -> None:
        super().__init__()
        if num_slices < 1:
            raise ValueError(f"num_slices must be at least 1, got {num_slices}")
        if directions not in get_args(Directions):
            raise ValueError(f"directions must be one of {', '.join(get_args(Directions))}, got {directions!r}")
        self.test = EppsPulley(compiled=compiled) if test is None else test
        self.compiled = compiled
        self.num_slices = num_slices
        self.seed = seed
        self.sampling = directions
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def directions(self, dim: int, step: int | None = None) -> Tensor:
        """(D, M), unit columns: those of the given step, by default of the next call."""
        step = int(self.step) if step is None else step
        if self.sampling == "sobol":
            return sobol_directions(dim, self.num_slices, self.seed, step, self.step.device)
        return random_directions(dim, self.num_slices, self.seed, step, self.step.device, self.compiled)

    def forward(self, z: Tensor) -> Tensor:
        """z (N, D) or (V, N, D) -> scalar; each view is tested by itself, on the same directions, then averaged."""
        if z.ndim not in (2, 3) or 0 in z.shape:
            raise ValueError(f"z must be non-empty, of shape (N, D) or (V, N, D), got {tuple(z.shape)}")
        if not z.is_floating_point():
            raise ValueError(f"z must be of a real floating dtype, got {z.dtype}")
        z = z if z.dtype == torch.float64 else z.float()
        directions = self.directions(z.shape[-1]).to(z)
        if self.training:
            self.step += 1
        if not torch.is_grad_enabled():
            z = z.detach()  # or its gradient would be taken, for nothing
        if not isinstance(self.test, EppsPulley):
            z, _ = gather_rows(z, -2)
        with torch.autocast(z.device.type, enabled=False):
            return _MeanOverSlices.apply(z, directions, self.test)

    def extra_repr(self) -> str:
        settings = f"num_slices={self.num_slices}, seed={self.seed}, compiled={self.compiled}"
        return f"{settings}, directions={self.sampling!r}"
