"""The decoded images of a folder on disk: one flat file of pixels and an index, both whole or not there.

A changed name, size or time of change of any file makes the cache unread; nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from .._files import atomic, leftovers
from .._text import printable
from .decode import MAX_PIXELS, Header, decode, read_header
from .listing import Listing
from .parallel import in_parallel

log = logging.getLogger("jointembed")

FORMAT = 1  # another number here makes every older cache unread
MAX_FAILED = 0.05  # share of unreadable files above which something is wrong with the folder, not with a few files


@dataclass(frozen=True)
class Decoding:
    """How the files of a folder become pixels. Part of the cache's identity."""

    short_side: int | None = 256
    white: int = 65535
    channels: int | None = None
    max_pixels: int = MAX_PIXELS


@dataclass
class Index:
    """What one pass over the files found: the size of each (0, 0 if unread), and why some were left out."""

    channels: int
    sizes: np.ndarray  # (files, 2), int64
    failed: dict[int, str]
    pixels: str | None  # the cache file, or None where images are streamed

    def offsets(self) -> np.ndarray:
        lengths = self.sizes.prod(1) * self.channels
        return np.cumsum(lengths) - lengths

    def bytes(self) -> int:
        return int(self.sizes.prod(1).sum()) * self.channels


def find_or_build(place: Path | None, fingerprint: str, listing: Listing, limit: float, decoding: Decoding) -> Index:
    if place is None:
        return _build(None, fingerprint, listing, limit, decoding)
    try:
        with _locked(place):
            for path in leftovers(place):  # of builders that were killed, each as large as a cache
                path.unlink(missing_ok=True)
            index = _load_index(place, fingerprint, limit, len(listing.names))
            return index or _build(place, fingerprint, listing, limit, decoding)
    except OSError as error:
        log.warning("no cache in %s (%s): images are decoded whenever they are needed", place, error)
        return _build(None, fingerprint, listing, limit, decoding)


def _build(place: Path | None, fingerprint: str, listing: Listing, limit: float, decoding: Decoding) -> Index:
    index = _read_headers(listing, decoding)
    size = index.bytes()
    if place is None or size > limit:
        if place is not None:
            log.info(
                "the cache of %s would take %.1f GB, more than %.1f: images stream",
                listing.root,
                size / 1e9,
                limit / 1e9,
            )
        _decode_all(listing, index, decoding, None)
    else:
        free = shutil.disk_usage(place).free
        if size > 0.95 * free:
            raise OSError(f"it would take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
        index.pixels = f"pixels-{fingerprint[:24]}.bin"
        with atomic(place / index.pixels) as temporary:
            _decode_all(listing, index, decoding, temporary)
    if place is not None:
        _save_index(place, fingerprint, index)
    return index


def _read_headers(listing: Listing, decoding: Decoding) -> Index:
    def header(i: int) -> Header:
        return read_header(listing.root / listing.names[i], decoding.short_side, decoding.max_pixels)

    sizes = np.zeros((len(listing.names), 2), np.int64)
    failed: dict[int, str] = {}
    grey = True
    for i, result in in_parallel(header, len(listing.names), "Looking at images"):
        if isinstance(result, Exception):
            failed[i] = _reason(result)
        else:
            sizes[i] = result.height, result.width
            grey = grey and result.grey
    _refuse_if_many_failed(listing, failed)
    return Index(decoding.channels or (1 if grey else 3), sizes, failed, None)


def _decode_all(listing: Listing, index: Index, decoding: Decoding, path: Path | None) -> None:
    """Decode every file, into `path` if given; what fails is added to `index.failed` and leaves a hole in the file."""

    def pixels(i: int) -> Tensor | None:
        if i in known:
            return None
        size = tuple(index.sizes[i].tolist())
        decoded = decode_checked(listing.root / listing.names[i], index.channels, size, decoding)
        return None if path is None else decoded  # only tried, not kept, where nothing is written

    known, offsets = frozenset(index.failed), index.offsets()
    with nullcontext() if path is None else path.open("r+b") as file:
        if file is not None:
            file.truncate(max(1, index.bytes()))  # a map of nothing is an error
        for i, result in in_parallel(pixels, len(listing.names), "Decoding images"):
            if isinstance(result, Exception):
                index.failed[i] = _reason(result)
            elif file is not None and result is not None:
                file.seek(int(offsets[i]))
                file.write(result.numpy().data)
    _refuse_if_many_failed(listing, index.failed)


def _refuse_if_many_failed(listing: Listing, failed: dict[int, str]) -> None:
    bad = listing.unreadable + [(listing.names[i], reason) for i, reason in sorted(failed.items())]
    total = len(listing.names) + len(listing.unreadable)
    if len(bad) > MAX_FAILED * total:
        shown = "; ".join(f"{name!r}: {reason}" for name, reason in bad[:5])
        raise ValueError(
            f"data: expected at most {MAX_FAILED:.0%} unreadable images in {str(listing.root)!r}, "
            f"found {len(bad)} of {total}: {shown}{'; ...' if len(bad) > 5 else ''}"
        )


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split()))[:200] or type(error).__name__


def _save_index(place: Path, fingerprint: str, index: Index) -> None:
    content = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "channels": index.channels,
        "sizes": index.sizes.tolist(),
        "failed": {str(i): reason for i, reason in index.failed.items()},
        "pixels": index.pixels,
    }
    with atomic(place / "index.json") as temporary:
        temporary.write_text(json.dumps(content))
    for old in place.glob("pixels-*.bin"):  # of the folder as it was; a process that has it mapped keeps it
        if old.name != index.pixels:
            old.unlink(missing_ok=True)


def _load_index(place: Path, fingerprint: str, limit: float, files: int) -> Index | None:
    """The index of this very folder and of pixels that are really there, else None: everything can be made again."""
    try:
        content = json.loads((place / "index.json").read_text())
        sizes = np.array(content["sizes"], np.int64).reshape(-1, 2)
        failed = {int(i): str(reason) for i, reason in content["failed"].items()}
        name = f"pixels-{fingerprint[:24]}.bin"
        index = Index(int(content["channels"]), sizes, failed, name if content["pixels"] else None)
        current = content["format"] == FORMAT and content["fingerprint"] == fingerprint
        current &= len(sizes) == files and index.channels in (1, 3) and 0 <= sizes.min() <= sizes.max() <= MAX_PIXELS
        whole = index.pixels is None or (place / name).stat().st_size == max(1, index.bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    if not (current and whole):
        return None
    if index.bytes() > limit:
        index.pixels = None  # there is a cache, made under a higher limit: left alone for whoever made it
    elif index.pixels is None:
        return None  # was too large under a lower limit
    return index


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """One builder at a time: the ranks of a distributed run wait for the first, then find its cache."""
    if place.is_symlink():
        raise OSError("a link, which may lead anywhere")
    place.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: two builders write the same cache twice, each whole
        yield
        return
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def decode_checked(path: Path, channels: int, size: tuple[int, ...], decoding: Decoding) -> Tensor:
    pixels = decode(path, channels, decoding.short_side, decoding.white, decoding.max_pixels)
    if tuple(pixels.shape[1:]) != size:
        raise ValueError(f"decoded to {tuple(pixels.shape[1:])}, its header says {size}")
    return pixels


def identity(root: Path, split: str, decoding: Decoding) -> str:
    described = json.dumps([FORMAT, os.path.realpath(root), split, asdict(decoding)])
    return hashlib.sha256(described.encode()).hexdigest()[:24]
