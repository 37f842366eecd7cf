"""What every univariate test shares: the shape of its input, its precision and its errors."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

P = ParamSpec("P")
T = TypeVar("T")


def constant(make: Callable[P, T]) -> Callable[P, T]:
    """Remember the tensors ``make`` returns. They serve autograd even if asked for first in inference mode."""
    return functools.lru_cache(maxsize=32)(torch.inference_mode(False)(make))  # type: ignore[return-value]


def as_samples(x: Tensor, fewest: int, shape: str = "(..., N, M)") -> Tensor:
    """x, in float32 or float64; a ``ValueError`` if it does not hold at least ``fewest`` samples of real numbers."""
    if x.ndim < 2:
        raise ValueError(f"x must have shape {shape}, got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be of a real floating dtype, got {x.dtype}")
    if x.shape[-2] < fewest:
        raise ValueError(f"x must have at least {fewest} samples in dimension -2, got shape {tuple(x.shape)}")
    return x if x.dtype == torch.float64 else x.float()


class UnivariateTest(nn.Module, ABC):
    """A test of N(0, 1) of each column of x. Subclasses define ``statistic``, and ``fewest``, the samples it needs.

    A NaN makes the statistic of its own column NaN, and leaves the others alone. In `torch.distributed` each rank tests
    its own samples; only `EppsPulley` sees those of all ranks as one batch.
    """

    fewest = 2

    def forward(self, x: Tensor) -> Tensor:
        """x (..., N, M) -> (..., M). Half precision is computed, and returned, in float32."""
        with torch.autocast(x.device.type, enabled=False):
            return self.statistic(as_samples(x, self.fewest).mT)

    @abstractmethod
    def statistic(self, rows: Tensor) -> Tensor:
        """rows (..., M, N), the samples of a variable side by side -> (..., M)."""
