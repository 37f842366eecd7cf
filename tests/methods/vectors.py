"""Directions to test contrastive losses and banks with."""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(x, dim=-1).to(dtype)
