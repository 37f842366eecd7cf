"""What every data source is: a numbered set of uint8 images, with labels and file names where there are any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Indices = Tensor | np.ndarray | Sequence[int]


class Source(ABC):
    """Images by number. `batch` gives uint8: one tensor (B, C, H, W) if all have one size, else a list of (C, H, W).

    A label of -1 means that this image has none. Subclasses implement `_read` for a checked int64 array of indices.
    """

    def __init__(
        self,
        name: str,
        length: int,
        channels: int,
        image_size: tuple[int, int] | None,
        labels: Tensor | None = None,
        class_names: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        skipped: Sequence[tuple[str, str]] = (),
        in_memory: bool = True,
        factors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.name = name
        self.channels = channels
        self.image_size = image_size
        self.labels = labels
        self.class_names = None if class_names is None else tuple(class_names)
        self.names = names
        self.skipped = list(skipped)
        self.in_memory = in_memory
        self.factors = None if factors is None else dict(factors)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        size = "mixed sizes" if self.image_size is None else "{}x{}".format(*self.image_size)
        return f"{type(self).__name__}({self.name!r}, {len(self)} images, {self.channels} channels, {size})"

    def batch(self, indices: Indices) -> Tensor | list[Tensor]:
        return self._read(self._check(indices))

    def subset(self, indices: Indices) -> Source:
        """The images at `indices`, in that order; labels, names and factors follow, pixels stay where they are."""
        return _Subset(self, self._check(indices))

    @abstractmethod
    def _read(self, indices: np.ndarray) -> Tensor | list[Tensor]:
        """The images at these checked indices."""

    def _check(self, indices: Indices) -> np.ndarray:
        rows = np.asarray(indices)
        if rows.size == 0:
            rows = rows.astype(np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"indices: expected whole numbers, shape (B,), found {rows.dtype} of shape {rows.shape}")
        if rows.size and (rows.min() < -len(self) or rows.max() >= len(self)):
            raise IndexError(f"indices: {self.name!r} has {len(self)} images, asked for {rows.min()} to {rows.max()}")
        return np.where(rows < 0, rows + len(self), rows).astype(np.int64)


class _Subset(Source):
    def __init__(self, parent: Source, rows: np.ndarray) -> None:
        # A subset of a subset points at the first source, so that reading never walks a chain.
        self._parent: Source = parent._parent if isinstance(parent, _Subset) else parent
        self._rows: np.ndarray = parent._rows[rows] if isinstance(parent, _Subset) else rows
        index = torch.from_numpy(rows)
        super().__init__(
            parent.name,
            len(rows),
            parent.channels,
            parent.image_size,
            None if parent.labels is None else parent.labels[index],
            parent.class_names,
            None if parent.names is None else [parent.names[i] for i in rows.tolist()],
            parent.skipped,
            parent.in_memory,
            None if parent.factors is None else {key: value[index] for key, value in parent.factors.items()},
        )

    def _read(self, indices: np.ndarray) -> Tensor | list[Tensor]:
        return self._parent._read(self._rows[indices])


class ArraySource(Source):
    """Images of one size in one uint8 tensor (N, C, H, W), in memory or memory-mapped."""

    def __init__(self, name: str, images: Tensor, **about: Any) -> None:
        super().__init__(name, len(images), images.shape[1], (images.shape[2], images.shape[3]), **about)
        self._images = images

    def _read(self, indices: np.ndarray) -> Tensor:
        return self._images[torch.from_numpy(indices)].contiguous()


class PackedSource(Source):
    """Images one after the other in one flat uint8 array, image i of shape (channels, *sizes[i]) from offsets[i]."""

    def __init__(
        self, name: str, flat: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, channels: int, **about: Any
    ) -> None:
        super().__init__(name, len(offsets), channels, common_size(sizes), **about)
        self._flat, self._offsets, self._sizes = flat, offsets, sizes

    def _read(self, indices: np.ndarray) -> Tensor | list[Tensor]:
        spans = [
            (start, start + self.channels * height * width, height, width)
            for start, (height, width) in zip(
                self._offsets[indices].tolist(), self._sizes[indices].tolist(), strict=True
            )
        ]
        if self.image_size is not None:
            out = np.empty((len(spans), self.channels, *self.image_size), np.uint8)
            for row, (start, stop, _, _) in zip(out, spans, strict=True):
                row.reshape(-1)[:] = self._flat[start:stop]
            return torch.from_numpy(out)
        # Copied, because a view into a read-only map must not reach code that may write to it.
        return [
            torch.from_numpy(np.array(self._flat[start:stop]).reshape(self.channels, height, width))
            for start, stop, height, width in spans
        ]


def common_size(sizes: np.ndarray) -> tuple[int, int] | None:
    """The one (H, W) that all rows of `sizes` share, if they do."""
    if len(sizes) and bool((sizes == sizes[0]).all()):
        return int(sizes[0][0]), int(sizes[0][1])
    return None


def pack(images: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay (C, H, W) images one after the other: flat pixels, offsets (N,), sizes (N, 2)."""
    sizes = np.array([image.shape[-2:] for image in images], np.int64).reshape(-1, 2)
    lengths = np.array([image.numel() for image in images], np.int64)
    flat = np.concatenate([image.numpy().reshape(-1) for image in images])
    return flat, np.cumsum(lengths) - lengths, sizes
