"""Random unit directions as a pure function of (seed, step, dim): the same on every rank, device and resumed run."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from jointembed.normality import _native

# torch's CPU generator is serial, and drawing would cost as much as half the projection. Instead word i of a draw is
# splitmix64(key + i golden) (Steele, Lea & Flood 2014), which every core or GPU thread computes by itself; its four
# 16-bit parts feed Box–Muller twice. 16 bits: angles uniform on a grid of 65536, tails cut at 4.9 sigma.
GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def _mix(word: int) -> int:
    for shift, factor in MIX:
        word = ((word ^ word >> shift) * factor) % 2**64
    return word


def _signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63


def _random_words(count: int, key: int, device: torch.device | str | None) -> Tensor:
    words = torch.arange(count, device=device).mul_(_signed(GOLDEN)).add_(_signed(key))
    shifted = torch.empty_like(words)
    for shift, factor in MIX:
        # int64 shifts copy the sign bit, splitmix64 is unsigned: mask the copies away.
        torch.bitwise_right_shift(words, shift, out=shifted).bitwise_and_(2 ** (64 - shift) - 1)
        words.bitwise_xor_(shifted)
        if factor != 1:
            words.mul_(_signed(factor))
    return words


def _radius(half: Tensor) -> Tensor:
    """sqrt(-2 log u), u uniform in (0, 1), of random int16."""
    return half.float().add_(2**15 + 0.5).mul_(2**-16).log_().mul_(-2).sqrt_()


@functools.cache
def _radius_table() -> Tensor:
    return _radius(torch.arange(-(2**15), 2**15, dtype=torch.int16))


def _normals(key: int, pairs: int, device: torch.device | str | None) -> Tensor:
    bits = _random_words((pairs + 1) // 2, key, device).view(torch.int16)
    normals = torch.empty(2, pairs, device=bits.device)
    angle = normals[1].copy_(bits[-pairs:]).mul_(2 * math.pi / 2**16)
    radius = _radius(bits[:pairs])
    torch.cos(angle, out=normals[0])
    angle.sin_()
    return normals.mul_(radius)


def random_directions(
    dim: int,
    num_slices: int,
    seed: int,
    step: int,
    device: torch.device | str = "cpu",
    compiled: bool = False,
) -> Tensor:
    """(D, M) float32 of M unit columns, independent and uniform on the sphere."""
    key = _mix(_mix(_mix(seed % 2**64) + step) + dim)
    pairs = (dim * num_slices + 1) // 2
    kernels = _native.kernels() if compiled and torch.device(device).type == "cpu" else None
    normals = _normals(key, pairs, device) if kernels is None else kernels.normals(key, _radius_table(), pairs)
    columns = normals.flatten()[: dim * num_slices].view(num_slices, dim)
    return columns.div_(torch.linalg.vector_norm(columns, dim=1, keepdim=True)).mT
