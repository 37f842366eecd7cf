"""The few collectives the library needs; every one is a no-op in a single process."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` over all ranks, in place, outside autograd."""
    if world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor
