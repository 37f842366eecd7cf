"""`open_source`: whatever a person calls their images, as a `Source`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .arrays import array_source, file_source, file_splits, to_labels
from .base import Source
from .cache import Decoding
from .folder import folder_source
from .items import dataset_source, images_source, is_image
from .listing import list_images
from .named import cache_folder, canonical, named_source, named_splits, unknown

__all__ = ["Source", "open_source", "splits"]


def open_source(
    data: Any,
    split: str = "train",
    labels: Any = None,
    root: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | bool = True,
    cache_limit: float = 8e9,
    short_side: int | None = 256,
    channels: int | None = None,
    white: int = 65535,
    layout: str | None = None,
    minimum: int = 2,
) -> Source:
    """Open images for reading.

    Args:
        data: a folder of images, an `.npz` or `.npy` file, an array or tensor of images, a tuple (images, labels), a
            list of PIL images or arrays, a torch Dataset, the name of a data set, or a `Source`, which is returned.
        split: which part, where `splits(data)` names several.
        labels: one whole number (-1: none) or string per image, instead of those that come with the data.
        root: where the files of a named data set are, or go when they are downloaded.
        cache: the folder for decoded images; True for `~/.cache/jointembed`, False to decode at every reading.
        cache_limit: bytes of decoded images above which they are not kept but read whenever they are needed.
        short_side: images in folders are shrunk until their shorter side is at most this; None to keep their size.
        channels: 1 or 3, to turn image files and PIL images into grey or colour; None for grey where all are grey.
        white: the value of 16-bit pixels that becomes 255.
        layout: `"NCHW"` or `"NHWC"` for arrays whose shape does not tell.
        minimum: fewer images are an error.
    """
    _check_arguments(split, short_side, channels, white)
    source = _open(data, split, labels, root, cache, cache_limit, Decoding(short_side, white, channels), layout)
    if len(source) < minimum:
        raise ValueError(f"data: expected at least {minimum} images, found {len(source)} in {source.name!r}")
    return source


def splits(data: Any, root: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The names that `open_source(data, split=...)` takes; `("train",)` where there is but one part."""
    if not isinstance(data, (str, os.PathLike)):
        return ("train",)
    path = _existing(data)
    if path is None:
        return named_splits(_known(data), root)
    return tuple(list_images(path).splits()) or ("train",) if path.is_dir() else file_splits(path)


def _open(
    data: Any, split: str, labels: Any, root: Any, cache: Any, limit: float, decoding: Decoding, layout: str | None
) -> Source:
    if isinstance(data, Source):
        return data if labels is None else _relabelled(data, labels)
    if isinstance(data, (str, os.PathLike)):
        path = _existing(data)
        if path is not None and path.is_dir():
            return _open_folder(path, split, labels, cache, limit, decoding)
        _check_split(split, splits(data, root))
        if path is not None:
            return file_source(path, split, labels, layout)
        source = named_source(
            _known(data), split, root, lambda dataset, name: dataset_source(dataset, labels, name, limit)
        )
        return source if labels is None else _relabelled(source, labels)
    _check_split(split, ("train",))
    if isinstance(data, tuple) and len(data) == 2 and not _two_images(*data):
        if labels is not None:
            raise ValueError("labels: given twice, in data=(images, labels) and as labels")
        return _open(data[0], split, data[1], root, cache, limit, decoding, layout)
    if isinstance(data, (np.ndarray, Tensor)):
        return array_source(data, labels, layout=layout)
    if isinstance(data, (list, tuple)):
        return images_source(data, labels, channels=decoding.channels)
    if isinstance(data, DataLoader):
        raise ValueError("data: expected a Dataset, found a DataLoader; pass its .dataset")
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return dataset_source(data, labels, type(data).__name__, limit)
    raise ValueError(
        "data: expected a folder, an .npz or .npy file, an array, a tensor, a list of PIL images, a torch Dataset or "
        f"the name of a data set, found {type(data).__name__}"
    )


def _open_folder(path: Path, split: str, labels: Any, cache: Any, limit: float, decoding: Decoding) -> Source:
    listing = list_images(path)
    _check_split(split, tuple(listing.splits()) or ("train",))
    place = cache_folder() if cache is True else None if cache is False else Path(cache).expanduser()
    source = folder_source(path, split, place, limit, decoding, listing)
    return source if labels is None else _relabelled(source, labels)


def _relabelled(source: Source, labels: Any) -> Source:
    source = source.subset(range(len(source)))  # the caller's own source keeps its labels
    source.labels, source.class_names = to_labels(labels, len(source))
    return source


def _two_images(first: Any, second: Any) -> bool:
    """Whether a pair is two images rather than images and labels."""
    return is_image(first) and is_image(second) and (np.ndim(first) == np.ndim(second) or not hasattr(first, "ndim"))


def _existing(data: str | os.PathLike[str]) -> Path | None:
    """The path, if something is there. A name of a data set wins only where no file or folder is called so."""
    try:
        path = Path(data).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no home
        raise ValueError(f"data: {str(data)[:200]!r} cannot be a path: {error}") from None


def _known(data: str | os.PathLike[str]) -> str:
    name = canonical(str(data))
    if name is None:
        raise unknown(str(data))
    return name


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise ValueError(f"split: expected one of {', '.join(known)}, found {split!r}")


def _check_arguments(split: Any, short_side: Any, channels: Any, white: Any) -> None:
    if not isinstance(split, str):
        raise ValueError(f"split: expected a name such as 'train', found {split!r}")
    if short_side is not None and (not isinstance(short_side, int) or short_side < 1):
        raise ValueError(f"short_side: expected a whole number of at least 1, or None, found {short_side!r}")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels: expected 1, 3 or None, found {channels!r}")
    if not isinstance(white, int) or not 1 <= white <= 65535:
        raise ValueError(f"white: expected a whole number from 1 to 65535, found {white!r}")
