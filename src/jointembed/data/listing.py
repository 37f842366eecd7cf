"""Which images lie under a folder, in which splits and classes."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .decode import EXTENSIONS

# A split answers to the first of these folder names that exists.
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation"),
    "val": ("val", "valid", "validation"),
}
SPLIT_FOLDERS = frozenset(folder for folders in SPLITS.values() for folder in folders)


@dataclass
class Listing:
    """The image files under a folder, sorted by name, and what else was met on the way. Names are relative, with /."""

    root: Path
    names: list[str] = field(default_factory=list)
    stamps: list[tuple[int, int]] = field(default_factory=list)  # size in bytes, time of change in ns
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # name, reason
    others: list[str] = field(default_factory=list)

    def fingerprint(self) -> str:
        """Changes whenever a name, a size or a time of change does."""
        digest = hashlib.sha256()
        for name, stamp in zip(self.names, self.stamps, strict=True):
            digest.update(os.fsencode(name) + b"\0%d %d\0" % stamp)
        return digest.hexdigest()

    def splits(self) -> dict[str, str]:
        """The folder of each split, where all images lie in split folders and one of those is `train`; else empty."""
        tops = {name.split("/", 1)[0] if "/" in name else "" for name in self.names}
        if not any(folder in tops for folder in SPLITS["train"]) or not tops <= SPLIT_FOLDERS:
            return {}
        found = {
            split: next((folder for folder in folders if folder in tops), None) for split, folders in SPLITS.items()
        }
        return {split: folder for split, folder in found.items() if folder is not None}

    def of_split(self, folder: str) -> Listing:
        kept = [i for i, name in enumerate(self.names) if name.startswith(folder + "/")]
        return Listing(
            self.root,
            [self.names[i] for i in kept],
            [self.stamps[i] for i in kept],
            [(name, reason) for name, reason in self.unreadable if name.startswith(folder + "/")],
            [name for name in self.others if name.startswith(folder + "/")],
        )


def list_images(root: Path) -> Listing:
    """Walk `root`, following links but entering no folder twice, passing over hidden files and folders."""
    listing = Listing(root)
    seen: set[tuple[int, int]] = set()
    found: list[tuple[str, tuple[int, int]]] = []
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            status = os.stat(root / prefix)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(root / prefix) as scan:
                entries = [entry for entry in scan if not entry.name.startswith(".") and entry.name != "__MACOSX"]
        except OSError as error:
            if not prefix:
                raise ValueError(f"data: cannot read the folder {str(root)!r}: {error.strerror}") from None
            listing.unreadable.append((prefix.rstrip("/"), str(error.strerror)))
            continue
        # Last in is first out: reversed, so that of two links to one folder the first by name is taken.
        for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
            name = prefix + entry.name
            try:
                if entry.is_dir():
                    waiting.append(name + "/")
                elif not entry.name.lower().endswith(EXTENSIONS):
                    listing.others.append(name)
                else:
                    status = entry.stat()
                    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
                        raise OSError(0, "not a regular file")
                    found.append((name, (status.st_size, status.st_mtime_ns)))
            except OSError as error:  # a broken link, a loop of links
                if entry.name.lower().endswith(EXTENSIONS):
                    listing.unreadable.append((name, str(error.strerror)))
    found.sort()
    listing.names = [name for name, _ in found]
    listing.stamps = [stamp for _, stamp in found]
    return listing


def labels_of(names: list[str], all_names: list[str], depth: int) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Labels from the folder at `depth` in each name, numbered over `all_names` so that splits agree.

    An image beside the class folders gets -1; with fewer than two class folders there are no labels.
    """

    def folder(name: str) -> str | None:
        parts = name.split("/")
        return parts[depth] if len(parts) > depth + 1 else None

    classes = sorted({found for name in all_names if (found := folder(name)) is not None})
    number: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([number.get(folder(name), -1) for name in names], dtype=torch.int64)
    if len(classes) < 2 or bool((labels < 0).all()):
        return None, None
    return labels, tuple(classes)
