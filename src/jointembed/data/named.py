"""Data sets that have a name: two that need no file, and torchvision's."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from .arrays import array_source, file_source, file_splits
from .base import ArraySource, Source
from .shapes import SHAPES, render_shapes

SHAPES_IMAGES = {"train": 10_000, "test": 2_000}
DOWNLOAD_TIMEOUT = 30  # seconds without a byte, after which a network counts as closed


def digits(split: str) -> ArraySource:
    """scikit-learn's 1,797 8x8 digits, 0..16 stretched to 0..255; a fifth of each class is the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits().images, load_digits().target
    rows = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    chosen = np.sort(rows[0 if split == "train" else 1])
    pixels = np.round(images[chosen] * (255 / 16)).astype(np.uint8)
    return array_source(pixels, labels[chosen], "digits", class_names=[str(digit) for digit in range(10)])


def shapes(split: str) -> ArraySource:
    images, labels, factors = render_shapes(SHAPES_IMAGES[split], seed=0 if split == "train" else 1)
    return ArraySource("shapes", images, labels=labels, class_names=tuple(SHAPES), factors=factors)


EMBEDDED: dict[str, Callable[[str], ArraySource]] = {"digits": digits, "shapes": shapes}


@dataclass(frozen=True)
class _Torchvision:
    """How torchvision calls a data set: its class, and the arguments that select each split."""

    class_name: str
    splits: dict[str, dict[str, Any]]
    layout: str | None = None  # of its `.data` array, where it holds all images in one


_BY_FLAG = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}

TORCHVISION = {
    "cifar10": _Torchvision("CIFAR10", _BY_FLAG, "NHWC"),
    "cifar100": _Torchvision("CIFAR100", _BY_FLAG, "NHWC"),
    "mnist": _Torchvision("MNIST", _BY_FLAG, "NHW"),
    "fashion-mnist": _Torchvision("FashionMNIST", _BY_FLAG, "NHW"),
    "kmnist": _Torchvision("KMNIST", _BY_FLAG, "NHW"),
    "usps": _Torchvision("USPS", _BY_FLAG, "NHW"),
    "svhn": _Torchvision("SVHN", {**_BY_NAME, "extra": {"split": "extra"}}, "NCHW"),
    "stl10": _Torchvision(
        "STL10",
        {**_BY_NAME, "unlabeled": {"split": "unlabeled"}, "train+unlabeled": {"split": "train+unlabeled"}},
        "NCHW",
    ),
    "flowers102": _Torchvision("Flowers102", {**_BY_NAME, "val": {"split": "val"}}),
    "food101": _Torchvision("Food101", _BY_NAME),
    "dtd": _Torchvision("DTD", {**_BY_NAME, "val": {"split": "val"}}),
    "gtsrb": _Torchvision("GTSRB", _BY_NAME),
    "oxford-iiit-pet": _Torchvision("OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}),
}


def canonical(name: str) -> str | None:
    """`name` as the tables spell it, however its words are joined (`FashionMNIST`, `fashion_mnist`), or None."""

    def bare(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    return next((known for known in (*EMBEDDED, *TORCHVISION) if bare(known) == bare(name)), None)


def unknown(name: str) -> ValueError:
    known = [*EMBEDDED, *TORCHVISION]
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    ordered = close + [other for other in known if other not in close]
    return ValueError(
        f"data: expected a folder of images, an .npz or .npy file, or one of {', '.join(ordered)}; "
        f"found {name!r}, which is none of these names and no existing path"
    )


def named_splits(name: str, root: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    if name in EMBEDDED:
        return ("train", "test")
    archive = _archive(name, _root(root))
    return file_splits(archive) if archive else tuple(TORCHVISION[name].splits)


def named_source(
    name: str, split: str, root: str | os.PathLike[str] | None, open_dataset: Callable[[Dataset[Any], str], Source]
) -> Source:
    """The data set called `name`; `open_dataset` turns a torchvision data set of image files into a source."""
    if name in EMBEDDED:
        return EMBEDDED[name](split)
    archive = _archive(name, _root(root))
    if archive is not None:
        return file_source(archive, split, layout="NHWC" if name in ("cifar10", "cifar100") else None)
    entry = TORCHVISION[name]
    dataset = _torchvision(name, entry, split, _root(root))
    classes = getattr(dataset, "classes", None)
    if entry.layout is None:
        return open_dataset(dataset, name)
    labels = getattr(dataset, "targets", None)
    labels = getattr(dataset, "labels", None) if labels is None else labels
    layout = None if entry.layout == "NHW" else entry.layout
    return array_source(dataset.data, labels, name, layout, name, classes)


def _root(root: str | os.PathLike[str] | None) -> Path:
    return cache_folder() / "datasets" if root is None else Path(root).expanduser()


def cache_folder() -> Path:
    """Where files that can be made again are kept: $XDG_CACHE_HOME/jointembed, else ~/.cache/jointembed."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jointembed"


def _archive(name: str, root: Path) -> Path | None:
    spellings = (name, name.replace("-", "_"), name.replace("-", ""))
    return next((path for spelling in spellings if (path := root / f"{spelling}.npz").is_file()), None)


def _torchvision(name: str, entry: _Torchvision, split: str, root: Path) -> Any:
    from torchvision import datasets

    make = getattr(datasets, entry.class_name)
    arguments = entry.splits[split]
    try:
        return make(root, download=False, **arguments)
    except Exception as error:  # "not found or corrupted" is a RuntimeError here, an OSError there
        missing = error
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return make(root, download=True, **arguments)
    except Exception as error:
        raise ValueError(
            f"data: {name!r} could not be had. Tried {root / f'{name}.npz'} (no such file), torchvision's files in "
            f"{root} ({_line(missing)}), and downloading it there ({_line(error)}). "
            "Put either form of it in a folder and pass that as root."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
