"""The few collectives the library needs; every one is a no-op in a single process.

What they have in common, and what makes methods exact: every rank's loss is that of the images of all ranks, and every
backward pass is the adjoint of its forward pass over all ranks together. Backpropagation then gives the gradient of
the sum of the ranks' losses, world size times that of the loss, and DDP's mean over ranks the gradient that one process
would have with the whole batch. Ranks may have unequal numbers of rows, one at least each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone = False


@contextmanager
def alone() -> Iterator[None]:
    """In here this process is the only one: for what a rank does by itself, such as looking at the model."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def is_distributed() -> bool:
    return not _alone and dist.is_available() and dist.is_initialized()


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` over all ranks, in place, outside autograd."""
    if world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_reduce_sum(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return _Sum.apply(grad_output)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        # A reduce-scatter, which not all backends have.
        return _Sum.apply(grad_output).chunk(world_size())[rank()]


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum over ranks of x, of the same shape on all."""
    return _Sum.apply(x) if world_size() > 1 else x


def mean_over_ranks(mean: Tensor, count: int) -> Tensor:
    """The mean over the rows of all ranks, from this rank's mean over its own `count` rows."""
    if world_size() == 1:
        return mean
    sums = sum_over_ranks(torch.cat([mean.flatten() * count, mean.new_full((1,), count)]))
    return (sums[:-1] / sums[-1]).view_as(mean)


def means_over_ranks(means: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """`mean_over_ranks` of several numbers, in one collective."""
    if world_size() == 1:
        return means
    return dict(zip(means, mean_over_ranks(torch.stack(list(means.values())), count), strict=True))


def rows_of_all_ranks(x: Tensor, dim: int = 0) -> int | Tensor:
    """The length of x along `dim`, summed over ranks: a tensor then, so that no device has to be waited for."""
    if world_size() == 1:
        return x.shape[dim]
    return all_reduce_sum(x.new_full((), x.shape[dim]))


def var_mean(x: Tensor, dim: int, correction: int = 1) -> tuple[Tensor, Tensor]:
    """`torch.var_mean` over the rows of all ranks, with `keepdim`."""
    if world_size() == 1:
        return torch.var_mean(x, dim, correction=correction, keepdim=True)
    mean = mean_over_ranks(x.mean(dim, keepdim=True), x.shape[dim])
    squares = sum_over_ranks((x - mean).square().sum(dim, keepdim=True))
    return squares / (rows_of_all_ranks(x, dim) - correction), mean


def covariance(x: Tensor) -> Tensor:
    """(D, D), with the divisor N, of the rows x (N, D) of all ranks."""
    if world_size() == 1:
        return x.mT.cov(correction=0)
    centred = x - mean_over_ranks(x.mean(0), len(x))
    with torch.autocast(x.device.type, enabled=False):
        return sum_over_ranks(centred.mT @ centred) / rows_of_all_ranks(x)


def counts(count: int, device: torch.device) -> list[int]:
    """`count` of every rank."""
    if world_size() == 1:
        return [count]
    found = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    dist.all_gather(found, torch.full((1,), count, device=device))
    return [int(one) for one in found]


def gather_rows(x: Tensor, dim: int = 0) -> tuple[Tensor, int]:
    """x of all ranks, joined along `dim` in the order of ranks, and where this rank's own begins."""
    if world_size() == 1:
        return x, 0
    lengths = counts(x.shape[dim], x.device)
    rows = x.movedim(dim, 0)
    if missing := max(lengths) - len(rows):
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    everyone = _Gather.apply(rows).split(max(lengths))
    joined = torch.cat([part[:length] for part, length in zip(everyone, lengths, strict=True)])
    return joined.movedim(0, dim), sum(lengths[: rank()])


def log_softmax_over_ranks(x: Tensor) -> Tensor:
    """`torch.log_softmax` of x (N, K) along its rows, those of all ranks."""
    if world_size() == 1:
        return x.log_softmax(0)
    return x - _Gather.apply(x.logsumexp(0, keepdim=True)).logsumexp(0)


def from_first_rank(x: Tensor) -> Tensor:
    """Rank 0's x: for what is drawn at random, or decided on the last digit."""
    if world_size() > 1:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(x, 0)
    return x


def everywhere(condition: Tensor) -> bool:
    """Whether the condition, one boolean, holds on all ranks: what they do next they must do together."""
    return int(all_reduce_sum((~condition).int())) == 0
