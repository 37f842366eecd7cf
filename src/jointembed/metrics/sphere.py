"""Features on the unit sphere: do views of an image meet there, and do images spread over it? (Wang and Isola 2020)"""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import checked


def alignment(views: Tensor, alpha: float = 2.0) -> float:
    """E |x - y|^alpha over pairs of views x, y of an image, both of length 1: 0 where all agree (arXiv 2005.10242).

    Args:
        views: V views of N images, (N, V, D); every two of them are a pair.
        alpha: the power.
    """
    if not alpha > 0:
        raise ValueError(f"alpha: expected a number above 0, got {alpha}")
    x = F.normalize(checked("views", views, "(N, V, D)", (1, 2, 1)), dim=2)
    pairs = combinations(range(x.shape[1]), 2)
    return float(torch.stack([(x[:, i] - x[:, j]).norm(dim=1).pow(alpha).mean() for i, j in pairs]).mean())


def uniformity(z: Tensor, t: float = 2.0, chunk: int = 1024) -> float:
    """log E exp(-t |x - y|^2) over all pairs of different rows of z (N, D), of length 1 (same paper).

    0 where all features point one way, lower is more uniform; uniform ones in many dimensions come to -2 t. Pairs are
    taken chunk x N at a time.
    """
    if not t > 0:
        raise ValueError(f"t: expected a number above 0, got {t}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1, got {chunk}")
    x = F.normalize(checked("z", z), dim=1)
    n, total = len(x), 0.0
    square = x.square().sum(1)  # 1, and 0 for rows of zeros, which stay where they are
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        distance = square[rows, None] + square[None, start:] - 2 * x[rows] @ x[start:].mT  # (chunk, N - start)
        kernel = distance.clamp_min_(0).mul_(-t).exp_()
        total += float(kernel.triu_(1).sum())  # each pair once, no row with itself
    return float(torch.tensor(total / (n * (n - 1) / 2), dtype=torch.float64).log())
