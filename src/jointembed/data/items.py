"""Images that come one by one: a list of PIL images or arrays, or any map-style torch Dataset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from .arrays import channel_axis, to_images, to_labels
from .base import ArraySource, PackedSource, Source, common_size, pack
from .decode import is_grey, to_pixels
from .parallel import progress

log = logging.getLogger("jointembed")


def is_image(item: Any) -> bool:
    return isinstance(item, (Image.Image, np.ndarray, Tensor))


def item_pixels(item: Any, what: str, channels: int | None = None) -> Tensor:
    """One image as uint8 (C, H, W). PIL images take 1 or 3 `channels`; arrays bring their own."""
    if isinstance(item, Image.Image):
        if 0 in item.size:
            raise ValueError(f"{what}: expected an image, found one of {item.size[0]} x {item.size[1]} pixels")
        return to_pixels(item, channels or (1 if is_grey(item) else 3))
    if not isinstance(item, (np.ndarray, Tensor)):
        raise ValueError(f"{what}: expected a PIL image, an array or a tensor, found {type(item).__name__}")
    if item.ndim == 2:
        return to_images(item[None], what)[0]
    if item.ndim != 3:
        raise ValueError(f"{what}: expected (H, W), (C, H, W) or (H, W, C), found shape {tuple(item.shape)}")
    try:
        layout = "NCHW" if channel_axis((1, *item.shape), what) == 1 else "NHWC"
    except ValueError:  # undecided by its shape: the habit of each library
        layout = "NCHW" if isinstance(item, Tensor) else "NHWC"
    return to_images(item[None], what, layout)[0]


def images_source(images: Sequence[Any], labels: Any, name: str = "images", channels: int | None = None) -> Source:
    """Images of any sizes in memory; grey PIL images become RGB where others are."""
    if channels is None and any(isinstance(image, Image.Image) and not is_grey(image) for image in images):
        channels = 3
    pixels = [item_pixels(image, f"data[{i}]", channels) for i, image in enumerate(images)]
    return packed_source(pixels, labels, name)


def packed_source(pixels: list[Tensor], labels: Any, name: str, class_names: Sequence[str] | None = None) -> Source:
    if not pixels:
        raise ValueError(f"data: expected images, found none in {name!r}")
    counts = sorted({image.shape[0] for image in pixels})
    if len(counts) > 1:
        raise ValueError(f"data: expected images of one number of channels, found {counts}")
    if labels is not None:
        labels, found = to_labels(labels, len(pixels))
        class_names = found or class_names
    if common_size(np.array([image.shape[-2:] for image in pixels])) is not None:
        return ArraySource(name, torch.stack(pixels), labels=labels, class_names=class_names)
    return PackedSource(name, *pack(pixels), counts[0], labels=labels, class_names=class_names)


def dataset_source(dataset: Dataset[Any], labels: Any, name: str, limit: float) -> Source:
    """A torch Dataset whose items are images or tuples that begin with one, a label next.

    Up to `limit` bytes (guessed from the first item) it is read once and kept in memory: a Dataset that augments gives
    one fixed view of each image. Beyond that its items are read whenever they are needed.
    """
    length = _length(dataset)
    first = _item_of(dataset, 0, None)
    classes = getattr(dataset, "classes", None)
    class_names = [str(c) for c in classes] if isinstance(classes, (list, tuple)) else None
    if labels is None and first[0].numel() * length > limit:
        labels = _declared_labels(dataset, length)
        if labels is None and first[1] is not None:
            log.warning("%s: its labels are not used: finding them would read all %d items", name, length)
    if first[0].numel() * length > limit:
        if labels is not None:
            labels, found = to_labels(labels, length)
            class_names = list(found) if found else class_names
        return DatasetSource(name, dataset, first[0].shape[0], labels=labels, class_names=class_names)
    pixels, found_labels = _read_all(dataset, length)
    return packed_source(pixels, found_labels if labels is None else labels, name, class_names)


class DatasetSource(Source):
    """A Dataset too large for memory. Sizes are unknown before reading, so a batch is always a list."""

    def __init__(self, name: str, dataset: Dataset[Any], channels: int, **about: Any) -> None:
        super().__init__(name, _length(dataset), channels, None, in_memory=False, **about)
        self._dataset = dataset

    def _read(self, indices: np.ndarray) -> list[Tensor]:
        images = [_item_of(self._dataset, i, self.channels)[0] for i in indices.tolist()]
        for i, image in zip(indices.tolist(), images, strict=True):
            if len(image) != self.channels:
                raise ValueError(f"data[{i}]: expected {self.channels} channels as in data[0], found {len(image)}")
        return images


def _read_all(dataset: Dataset[Any], length: int) -> tuple[list[Tensor], list[int | str] | None]:
    items = []
    with progress("Reading images", length) as advance:
        for i in range(length):
            items.append(_item_of(dataset, i, None))
            advance(1)
    if len({len(image) for image, _ in items}) > 1:  # grey and coloured PIL images: all in colour
        items = [_item_of(dataset, i, 3) for i in range(length)]
    labels = [label for _, label in items if label is not None]
    return [image for image, _ in items], labels if len(labels) == length else None


def _item_of(dataset: Dataset[Any], i: int, channels: int | None) -> tuple[Tensor, int | str | None]:
    try:
        item = dataset[i]
    except Exception as error:
        raise ValueError(f"data[{i}]: the Dataset raised {type(error).__name__}: {error}") from error
    label = None
    if isinstance(item, (tuple, list)):
        if not item:
            raise ValueError(
                f"data[{i}]: expected an image or (image, label, ...), found an empty {type(item).__name__}"
            )
        if len(item) > 1 and _is_label(item[1]):
            label = item[1] if isinstance(item[1], str) else int(item[1])
        item = item[0]
    return item_pixels(item, f"data[{i}]", channels), label


def _is_label(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 0 and np.asarray(value).dtype.kind in "iu"
    return isinstance(value, (int, np.integer, str)) and not isinstance(value, bool)


def _declared_labels(dataset: Dataset[Any], length: int) -> Any:
    for name in ("targets", "labels", "_labels"):
        labels = getattr(dataset, name, None)
        if labels is not None and hasattr(labels, "__len__") and len(labels) == length:
            return labels
    return None


def _length(dataset: Dataset[Any]) -> int:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(f"data: expected a Dataset with a length and numbered items, found {type(dataset).__name__}")
    length = len(dataset)
    if length < 1:
        raise ValueError(f"data: expected images, found an empty {type(dataset).__name__}")
    return length
