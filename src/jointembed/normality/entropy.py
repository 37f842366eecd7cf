"""Distance of the entropy from a normal's: no distribution of the same second moment has more than N(0, 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jointembed.normality.univariate import UnivariateTest


class Entropy(UnivariateTest):
    r"""``log(2 pi)/2 + mean(x^2)/2 - H``: the divergence KL(P || N(0, 1)) of a column's distribution P, estimated.

    H is Vasicek's estimate of the entropy of P from spacings of the sorted samples,
    :math:`H = \frac1N \sum_i \log \frac{N}{2w} (x_{(i+w)} - x_{(i-w)})`, indices cut off at 1 and N. Where a column has
    mean 0 and variance 1 the statistic is N(0, 1)'s entropy, log(2 pi e)/2, less its own. It does not grow with N.

    The estimate is biased: its mean under N(0, 1) is 0.08 at N = 100, 0.04 at N = 256, within 0.01 of 0 from N = 1000
    on, where it can be a little negative. Tied samples (constant columns, half precision) have spacing 0: it counts as
    the smallest positive float and has no gradient, so the statistic stays finite, below 90 in float32.

    Args:
        window: w, less than N / 2. By default ``floor(sqrt(N) + 1/2)``, as in `scipy.stats.differential_entropy`.
    """

    fewest = 3

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window

    def statistic(self, rows: Tensor) -> Tensor:
        n = rows.shape[-1]
        w = min(math.floor(math.sqrt(n) + 0.5), (n - 1) // 2) if self.window is None else self.window
        if 2 * w >= n:
            raise ValueError(f"window must be less than half the number of samples, {n}, got {w}")
        ordered = rows.sort(dim=-1).values
        ends = [*ordered.shape[:-1], w]
        above = torch.cat([ordered[..., w:], ordered[..., -1:].expand(ends)], dim=-1)
        below = torch.cat([ordered[..., :1].expand(ends), ordered[..., :-w]], dim=-1)
        spacings = (above - below).clamp(min=torch.finfo(rows.dtype).tiny)
        entropy = spacings.log().mean(-1) + math.log(n / (2 * w))
        return 0.5 * (math.log(2 * math.pi) + rows.square().mean(-1)) - entropy

    def extra_repr(self) -> str:
        return f"window={self.window}"
