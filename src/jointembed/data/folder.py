"""A folder of images: decoded once, in parallel, into a memory-mapped cache; streamed where that would be too large."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import PackedSource, Source, common_size
from .cache import Decoding, decode_checked, find_or_build, identity
from .decode import EXTENSIONS
from .listing import Listing, labels_of, list_images

log = logging.getLogger("jointembed")


def folder_source(
    root: Path, split: str, cache: Path | None, cache_limit: float, decoding: Decoding, listing: Listing | None = None
) -> Source:
    """The images under `root`; `cache` is the folder that holds caches, None to stream."""
    everything = listing or list_images(root)
    folders = everything.splits()
    listing = everything.of_split(folders[split]) if folders else everything
    if not listing.names:
        raise _no_images(root, listing)
    fingerprint = listing.fingerprint()
    place = None if cache is None else cache / "folders" / identity(root, split, decoding)
    index = find_or_build(place, fingerprint, listing, cache_limit, decoding)
    kept = [i for i in range(len(listing.names)) if i not in index.failed]
    names = [listing.names[i] for i in kept]
    skipped = listing.unreadable + [(listing.names[i], reason) for i, reason in sorted(index.failed.items())]
    for name, reason in skipped:
        log.warning("skipped %r: %s", name, reason)
    if skipped:
        log.warning("skipped %d of %d images in %s", len(skipped), len(kept) + len(skipped), root)
    labels, class_names = labels_of(names, everything.names, depth=1 if folders else 0)
    about: dict[str, Any] = {"labels": labels, "class_names": class_names, "names": names, "skipped": skipped}
    if place is not None and index.pixels is not None:
        return MappedSource(
            str(root), place / index.pixels, index.offsets()[kept], index.sizes[kept], index.channels, **about
        )
    return StreamingSource(str(root), root, index.sizes[kept], index.channels, decoding, **about)


class MappedSource(PackedSource):
    """The cache of a folder. Pickled as a path: a worker maps the same file again."""

    def __init__(
        self, name: str, path: Path, offsets: np.ndarray, sizes: np.ndarray, channels: int, **about: Any
    ) -> None:
        super().__init__(name, np.memmap(path, np.uint8, "r"), offsets, sizes, channels, **about)
        self._path = path

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flat": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _flat=np.memmap(state["_path"], np.uint8, "r"))


class StreamingSource(Source):
    """Decodes the files it is asked for, every time."""

    def __init__(
        self,
        name: str,
        root: Path,
        sizes: np.ndarray,
        channels: int,
        decoding: Decoding,
        names: Sequence[str],
        **about: Any,
    ) -> None:
        super().__init__(name, len(names), channels, common_size(sizes), names=names, in_memory=False, **about)
        self._root, self._sizes, self._decoding, self._files = root, sizes, decoding, names

    def _read(self, indices: np.ndarray) -> Tensor | list[Tensor]:
        images = [self._decode(i) for i in indices.tolist()]
        if self.image_size is None:
            return images
        return torch.stack(images) if images else torch.empty(0, self.channels, *self.image_size, dtype=torch.uint8)

    def _decode(self, i: int) -> Tensor:
        size = tuple(self._sizes[i].tolist())
        try:
            return decode_checked(self._root / self._files[i], self.channels, size, self._decoding)
        except Exception as error:
            # Every file was read when the source was opened; one that has gone since must not end a week's training.
            log.warning("%r can no longer be read, a grey image stands in for it: %s", self._files[i], error)
            return torch.full((self.channels, *size), 128, dtype=torch.uint8)


def _no_images(root: Path, listing: Listing) -> ValueError:
    found = "nothing"
    if listing.unreadable:
        found = f"{len(listing.unreadable)} unreadable ones, such as {listing.unreadable[0]}"
    elif listing.others:
        found = f"{len(listing.others)} other files, such as {', '.join(map(repr, sorted(listing.others)[:3]))}"
    return ValueError(f"data: expected images ({' '.join(EXTENSIONS)}) in the folder {str(root)!r}, found {found}")
