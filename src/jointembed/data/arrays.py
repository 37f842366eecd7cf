"""Arrays as images: which axis holds the channels, what values are allowed, what labels may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jointembed._limits import read_member

from .base import ArraySource

FEW = range(1, 5)  # an axis this short is taken for channels: grey, grey + alpha, colour, colour + alpha
IMAGE_KEYS = ("images", "x", "X", "data")
LABEL_KEYS = ("labels", "y", "Y", "targets")
MOST_CLASSES = 1_000_000  # scores are kept for each class: a number such as an item's id is no class


def channel_axis(shape: Sequence[int], what: str = "data", layout: str | None = None) -> int:
    """Which of the last three axes of (N, a, b, c) holds the channels: 1 for (N, C, H, W), 3 for (N, H, W, C).

    Told by two signs: one end, and only one, is 1 to 4 long; the image is square when the other end is left out.
    One sign is enough, two must agree. With neither, the end shorter than both other axes holds the channels.
    """
    if layout is not None:
        if layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout: expected 'NCHW', 'NHWC' or None, found {layout!r}")
        return 1 if layout == "NCHW" else 3
    first, middle, last = shape[-3:]
    if first == middle == last == 1:
        return 1  # one pixel, one channel: every reading is the same
    signs = set()
    if (first in FEW) != (last in FEW):
        signs.add(1 if first in FEW else 3)
    if (middle == last) != (first == middle):
        signs.add(1 if middle == last else 3)
    if not signs and first != last and min(first, last) < middle and first not in FEW:
        signs.add(1 if first < last else 3)
    if len(signs) != 1:
        raise ValueError(
            f"{what}: cannot tell which axis of shape {tuple(shape)} holds the channels; "
            "pass layout='NCHW' or layout='NHWC'"
        )
    return signs.pop()


def to_images(array: np.ndarray | Tensor, what: str = "data", layout: str | None = None) -> Tensor:
    """An array of images as uint8 (N, C, H, W); copied only where values or layout have to change."""
    expected = f"{what}: expected images (N, H, W), (N, H, W, C) or (N, C, H, W) as uint8 or floats in [0, 1]"
    tensor = _as_tensor(array, expected)
    if tensor.ndim not in (3, 4):
        raise ValueError(f"{expected}, found shape {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise ValueError(f"{expected}, found shape {tuple(tensor.shape)}, which holds no pixel")
    axis = 1 if tensor.ndim == 3 else channel_axis(tensor.shape, what, layout)
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor
    tensor = tensor.movedim(axis, 1)
    return tensor if tensor.dtype == torch.uint8 else _unit_to_bytes(tensor, expected)


def _as_tensor(array: np.ndarray | Tensor, expected: str) -> Tensor:
    if isinstance(array, Tensor):
        if array.layout != torch.strided or not (array.dtype == torch.uint8 or array.is_floating_point()):
            raise ValueError(f"{expected}, found a {array.layout} tensor of {array.dtype}")
        return array.detach().cpu()
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        hint = "; divide by its largest possible value" if array.dtype.kind in "iu" else ""
        raise ValueError(f"{expected}, found dtype {array.dtype}{hint}")
    if array.dtype.kind == "f" and array.dtype.str not in ("<f2", "<f4", "<f8"):
        array = array.astype(np.float64)  # other byte orders and long doubles, which torch has not
    if any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.copy()  # torch has no negative strides, and warns about arrays it may not write to
    return torch.from_numpy(array)


def _unit_to_bytes(tensor: Tensor, expected: str) -> Tensor:
    out = torch.empty(tensor.shape, dtype=torch.uint8)
    for start in range(0, len(tensor), 4096):  # in slices: the float copies of a large array would not fit twice
        part = (
            tensor[start : start + 4096].double()
            if tensor.dtype == torch.float64
            else tensor[start : start + 4096].float()
        )
        low, high = part.aminmax()
        if not torch.isfinite(low + high):
            kind = "NaN" if bool(part.isnan().any()) else "infinite values"
            raise ValueError(f"{expected}, found {kind} at or after image {start}")
        if low < 0 or high > 1:
            raise ValueError(
                f"{expected}, found values from {low.item():.6g} to {high.item():.6g} at or after image {start}"
            )
        out[start : start + 4096] = (part * 255).round().to(torch.uint8)
    return out


def to_labels(labels: Any, length: int, what: str = "labels") -> tuple[Tensor, tuple[str, ...] | None]:
    """Labels as int64 (N,) and, where they were strings, the sorted class names they number. -1 means unlabelled."""
    try:
        array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{what}: expected one whole number or string per image, found {error}") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # the (N, 1) columns that some .npz files hold
    if array.shape != (length,):
        raise ValueError(f"{what}: expected one per image, shape ({length},), found shape {array.shape}")
    if array.dtype.kind == "f" and bool(((np.abs(array) < 2**53) & (array == np.round(array))).all()):
        array = array.astype(np.int64)
    if array.dtype.kind in "US":
        names, codes = np.unique(array, return_inverse=True)
        return torch.from_numpy(codes.astype(np.int64)), tuple(
            name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names
        )
    if array.dtype.kind not in "iub":
        raise ValueError(f"{what}: expected whole numbers or strings, found dtype {array.dtype}")
    if array.size and (int(array.min()) < -1 or int(array.max()) >= MOST_CLASSES):
        raise ValueError(
            f"{what}: expected class numbers from 0 (or -1 for none) to {MOST_CLASSES - 1:,}, "
            f"found {array.min()}..{array.max()}"
        )
    return torch.from_numpy(array.astype(np.int64)), None


def array_source(
    images: np.ndarray | Tensor,
    labels: Any = None,
    name: str = "array",
    layout: str | None = None,
    what: str = "data",
    class_names: Sequence[str] | None = None,
) -> ArraySource:
    pixels = to_images(images, what, layout)
    if not (isinstance(images, np.memmap)):
        pixels = pixels.contiguous()  # once here, not at every batch; a map stays on disk
    found: tuple[str, ...] | None = None
    if labels is not None:
        labels, found = to_labels(labels, len(pixels))
    return ArraySource(name, pixels, labels=labels, class_names=found or class_names)


def file_splits(path: Path) -> tuple[str, ...]:
    """The splits in an .npz: those with an x_<split> array if x_train or x_test is one, else all of it is `train`."""
    if path.suffix.lower() == ".npz":
        with _load(path) as arrays:
            return _split_names(arrays.files) or ("train",)
    return ("train",)


def _split_names(keys: Sequence[str]) -> tuple[str, ...]:
    found = tuple(key[2:] for key in keys if key.startswith("x_"))
    return found if "train" in found or "test" in found else ()


def file_source(path: Path, split: str = "train", labels: Any = None, layout: str | None = None) -> ArraySource:
    """Images, and labels if there are any, of an .npz or .npy; nothing in them is ever unpickled."""
    if path.suffix.lower() == ".npy":
        return array_source(_load(path), labels, path.stem, layout, str(path))
    with _load(path) as arrays:
        keys = list(arrays.files)
        label_keys: tuple[str, ...] = LABEL_KEYS
        if _split_names(keys):
            image_key, label_keys = f"x_{split}", (f"y_{split}",)
        else:
            image_key = next((key for key in IMAGE_KEYS if key in keys), keys[0] if len(keys) == 1 else "")
        if image_key not in keys:
            raise ValueError(
                f"{path}: expected x_{split}[, y_{split}], images[, labels], x[, y], or a single array, found {keys}"
            )
        label_key = next((key for key in label_keys if key in keys), None)
        try:
            images = _member(path, arrays, image_key)
            if labels is None and label_key is not None:
                labels = _member(path, arrays, label_key)
        except Exception as error:  # zlib, zipfile, numpy and struct errors of damaged or pickled members
            raise ValueError(f"{path}: cannot read its arrays: {error}") from None
    return array_source(images, labels, path.stem, layout, f"{path} [{image_key}]")


def _member(path: Path, arrays: Any, key: str) -> np.ndarray:
    names = arrays.zip.namelist()
    return read_member(arrays.zip, key if key in names else f"{key}.npy", path.stat().st_size)


def _load(path: Path) -> Any:
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ValueError(f"data: expected a folder of images, an .npz or an .npy file, found the file {str(path)!r}")
    try:
        # Copy-on-write: torch wants writable memory, and nothing ever reaches the file.
        loaded = np.load(path, mmap_mode="c" if path.suffix.lower() == ".npy" else None, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy raises whatever its zip, header and pickle readers raise
        raise ValueError(f"{path}: not an array file that can be read without pickle: {error}") from None
    is_archive = isinstance(loaded, np.lib.npyio.NpzFile)
    if is_archive != (path.suffix.lower() == ".npz"):
        raise ValueError(f"{path}: the content is not what its ending {path.suffix!r} says")
    return loaded
