"""What a file from elsewhere may ask for: names and sizes are checked before memory is taken for them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

MAX_BYTES = 2**20  # of a JSON file
MAX_NUMBERS = 2**24  # in one image: 2,300 pixels square in colour
SPARE = 2**29  # bytes beside the weights: one batch of the largest images, and whatever initialisation leaves behind
MAX_INFLATION = 200  # of an array in an .npz beyond SPARE; deflate can do a thousand, which only one value all over is
FACTORIES = (
    torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand, torch.randn, torch.zeros,
)  # fmt: skip


class Budget(TorchFunctionMode):
    """Refuses to make tensors of more than so many bytes in all, before it makes them."""

    def __init__(self, size: int, what: str) -> None:
        super().__init__()
        self.size, self.what, self.spent = size, what, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in FACTORIES:
            where = {k: v for k, v in kwargs.items() if k not in ("generator", "device")} | {"device": "meta"}
            planned = function(*args, **where)
            self.spent += planned.numel() * planned.element_size()
            if self.spent > self.size:
                raise ValueError(f"{self.what} asks for more than {self.size / 1e6:,.0f} MB, many times its weights")
        return function(*args, **kwargs)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a small JSON file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}")
    except (ValueError, RecursionError) as error:  # broken JSON and broken Unicode are ValueErrors
        raise ValueError(f"{path}: expected {what}, got {error}") from None
    return values


def read_member(archive: ZipFile, name: str, size: int) -> np.ndarray:
    """An array of an .npz of so many bytes. Its size is said in two places: they must agree, and ask for little enough.

    Nothing is unpacked before that, nor more than the archive's directory says afterwards: zipfile stops there.
    """
    member = archive.getinfo(name)
    most = max(SPARE, MAX_INFLATION * min(member.compress_size, size))
    if member.file_size > most:
        raise ValueError(
            f"expected arrays of at most {most / 1e6:,.0f} MB, got {name} of {member.file_size / 1e6:,.0f} MB, over "
            f"{MAX_INFLATION} times what the file holds of it; an array meant to be so empty can come as an .npy"
        )
    with archive.open(member) as stream:
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        held = member.file_size - stream.tell()
    if math.prod(shape) * dtype.itemsize != held and not dtype.hasobject:  # objects are refused below
        raise ValueError(f"expected {name} to hold {dtype} of shape {shape}, as it says, got {held:,} bytes")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def check_config(path: Path, values: dict[str, Any]) -> None:
    """Refuse values that no configuration of ours has: they would fail later, inside torch, or not at all."""
    count = values["channels"]
    expected: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "method": ("a name", lambda v: isinstance(v, str)),
        "method_options": ("options by name", lambda v: isinstance(v, dict) and all(map(_is_option, v.values()))),
        "backbone": ("a name or null", lambda v: isinstance(v, str | None)),
        "channels": ("a whole number above 0", is_whole),
        "image_size": ("a whole number above 0", is_whole),
        "mean": (f"{count} finite numbers", lambda v: _are_numbers(v, count)),
        "std": (f"{count} finite numbers above 0", lambda v: _are_numbers(v, count) and min(v) > 0),
        "source_size": ("two whole numbers or null", lambda v: v is None or _are_numbers(v, 2)),
        "training": ("settings by name", lambda v: isinstance(v, dict)),
    }
    for name, (words, holds) in expected.items():
        if name in values and not holds(values[name]):
            raise ValueError(f"{path}: {name}: expected {words}, got {values[name]!r:.80}")


def check_image(channels: int, image_size: int) -> None:
    """Refuse images that no network takes, and no memory."""
    if channels * image_size**2 > MAX_NUMBERS:
        shape = f"{channels} x {image_size} x {image_size}"
        raise ValueError(f"image_size: expected images of at most {MAX_NUMBERS:,} numbers, got {shape}")


def _is_option(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, bool | int | float | str | None) for v in values)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _are_numbers(values: Any, count: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    )
