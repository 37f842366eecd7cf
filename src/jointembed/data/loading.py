"""From a source to batches: whose order and random numbers are functions of (seed, epoch, step, rank)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .sources import Source
from .views import Views


class BatchKey(NamedTuple):
    """Which batch this is, and of which images."""

    epoch: int
    step: int
    indices: Tensor


@dataclass
class Start:
    """Where a run begins, or goes on."""

    epoch: int = 0
    step: int = 0


class EpochBatches(Sampler[BatchKey]):
    """The batches of one epoch on one rank. A resumed run needs no replay: `set_epoch` says all there is to know.

    Those of all ranks, joined in the order of ranks, are one process's with a batch `world_size` times as large. What
    would not fill a batch on every rank is dropped: no rank is ever short of images, or of a step.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: Start | None = None,
    ) -> None:
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.start = start or Start()
        self.epoch: int | None = None  # Lightning's workers begin to read before it says which

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[BatchKey]:
        epoch = self.start.epoch if self.epoch is None else self.epoch
        first = self.start.step if epoch == self.start.epoch else 0
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.length, generator=generator)
        for step in range(first, len(self)):  # the incomplete last batch is dropped: batch statistics want a full one
            start = (step * self.world_size + self.rank) * self.batch_size
            yield BatchKey(epoch, step, order[start : start + self.batch_size])


class GrowingViews:
    """Views of growing size: each stage takes an equal share of the epochs, the cheap small ones first."""

    def __init__(self, stages: list[Views], epochs: int) -> None:
        self.stages, self.epochs = stages, epochs
        self.num_global = stages[0].num_global
        self.sizes = {size for one in stages for size in ((one.size, one.local_size) if one.num_local else (one.size,))}

    def __call__(self, images: Tensor | list[Tensor], key: tuple[int, int, int, int]) -> list[Tensor]:
        """Views for the key (seed, epoch, step, rank)."""
        stage = min(key[1] * len(self.stages) // self.epochs, len(self.stages) - 1)
        return self.stages[stage](images, key)


class BatchReader(Dataset[Any]):
    """Reads whole batches of a source. Images of different sizes cannot be one tensor, so their views are cut here,
    in the worker; images of one size go out as they are, and their views are made on the training device."""

    def __init__(self, source: Source, views: GrowingViews | None = None, seed: int = 0, rank: int = 0) -> None:
        self.source, self.views, self.seed, self.rank = source, views, seed, rank

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: BatchKey) -> Any:
        images = self.source.batch(key.indices)
        if self.views is None or isinstance(images, Tensor):
            return images
        return self.views(images, (self.seed, key.epoch, key.step, self.rank))


def num_workers(source: Source) -> int:
    """Worker processes for a source: none where reading costs nothing, else one per core, at most eight."""
    cut_here = source.image_size is None  # cropping photographs is work even when they are decoded
    return 0 if source.in_memory and not cut_here else min(os.cpu_count() or 1, 8)


def read_batches(source: Source, batch_size: int) -> Iterator[Tensor | list[Tensor]]:
    """All images in order, in batches."""
    keys = [BatchKey(0, i, indices) for i, indices in enumerate(torch.arange(len(source)).split(batch_size))]
    workers = 0 if source.in_memory else min(num_workers(source), len(keys))
    yield from DataLoader(BatchReader(source), sampler=keys, batch_size=None, num_workers=workers)


def channel_statistics(source: Source, limit: int = 2000) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in [0, 1], over at most `limit` images spread through the source."""
    indices = torch.linspace(0, len(source) - 1, min(limit, len(source))).long()
    pixels = [source.batch(chunk) for chunk in indices.split(256)]
    flat = torch.cat([image.flatten(1).float() for batch in pixels for image in batch], dim=1) / 255  # (C, pixels)
    std = flat.std(1).clamp_min(1e-3)  # a constant channel is left alone rather than blown up
    return flat.mean(1).tolist(), std.tolist()
