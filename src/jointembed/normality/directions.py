"""Unit directions, random or low-discrepancy, as a pure function of (seed, step, dim).

They are the same on every rank, device and resumed run.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

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


def _key(*numbers: int) -> int:
    key = 0
    for number in numbers:
        key = _mix((key + number) % 2**64)
    return key


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
    key = _key(seed, step, dim)
    pairs = (dim * num_slices + 1) // 2
    kernels = _native.kernels() if compiled and torch.device(device).type == "cpu" else None
    normals = _normals(key, pairs, device) if kernels is None else kernels.normals(key, _radius_table(), pairs)
    columns = normals.flatten()[: dim * num_slices].view(num_slices, dim)
    return columns.div_(torch.linalg.vector_norm(columns, dim=1, keepdim=True)).mT


# Scrambling a Sobol sequence costs far more than drawing from it. It is done once per (seed, dim); at each step the
# points' bits are flipped by a fresh random word per dimension, which makes every point uniform and keeps the points
# evenly spread among each other. 23 bits: (word + 1/2) / 2^23 is exact in float32, and never 0 or 1.
BITS = 23


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def _sobol_words(dim: int, num_slices: int, seed: int) -> Tensor:
    """(M, D) int32, the first bits of M points of a scrambled Sobol sequence."""
    engine = SobolEngine(dim, scramble=True, seed=_key(seed, dim) % 2**63)
    return engine.draw(num_slices, dtype=torch.float64).mul_(2**BITS).int()


def sobol_directions(dim: int, num_slices: int, seed: int, step: int, device: torch.device | str = "cpu") -> Tensor:
    """(D, M) float32 of M unit columns, each uniform on the sphere, together more even than independent ones."""
    if dim > SobolEngine.MAXDIM:
        raise ValueError(f"dim must be at most {SobolEngine.MAXDIM} with directions='sobol', got {dim}")
    flips = _random_words(dim, _key(seed, step, dim), "cpu").bitwise_and_(2**BITS - 1).int()
    uniform = (_sobol_words(dim, num_slices, seed) ^ flips).float().add_(0.5).mul_(2.0**-BITS)
    columns = torch.special.ndtri(uniform)
    return columns.div_(torch.linalg.vector_norm(columns, dim=1, keepdim=True)).to(device).mT
