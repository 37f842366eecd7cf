"""One image file or PIL image to uint8 pixels.

- Rotation stored in EXIF is applied.
- Alpha, also of a palette or of one transparent colour, is laid on white: what a person sees, not what lies hidden.
- 16-bit grey is scaled by the range of its type: 65,535 becomes 255 (`white` names another value, for 12-bit cameras).
  Whole numbers beyond 16 bits, and floats outside [0, 1], have no range of their own: each image's lowest and highest
  finite value become 0 and 255.
- Of an animation the first frame counts.
"""

from __future__ import annotations

import importlib
import os
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# Registered here, once: Pillow would load all its plug-ins at the first file, from several threads at a time.
Image.preinit()
for plugin in ("TiffImagePlugin", "WebPImagePlugin"):
    importlib.import_module(f"PIL.{plugin}")

# The decoders offered to Pillow, whatever a file's ending says; others (EPS starts a program) stay out of reach.
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM")
EXTENSIONS = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm")
MAX_PIXELS = 89_478_485  # Pillow's own limit of caution, a quarter of a gigabyte as RGB; here it is a refusal
GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Header(NamedTuple):
    """What is known of an image before its pixels are: its size as it will be decoded, and whether it is grey."""

    height: int
    width: int
    grey: bool


def read_header(path: str | os.PathLike[str], short_side: int | None, max_pixels: int = MAX_PIXELS) -> Header:
    with Image.open(path, formats=FORMATS) as image:
        width, height = _checked_size(image, max_pixels)
        if _orientation(image) >= 5:
            width, height = height, width
        width, height = capped(width, height, short_side)
        return Header(height, width, is_grey(image))


def decode(
    path: str | os.PathLike[str],
    channels: int,
    short_side: int | None,
    white: int = 65535,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """The file's pixels, uint8 (channels, H, W), shrunk to `short_side` if they are larger."""
    with Image.open(path, formats=FORMATS) as image:
        width, height = _checked_size(image, max_pixels)
        if image.format in ("JPEG", "MPO"):
            # Let the JPEG decoder drop what shrinking would: by 2, 4 or 8, and never below twice the size needed.
            target = capped(width, height, short_side)
            image.draft(None, (2 * target[0], 2 * target[1]))
        orientation = _orientation(image)
        turned = (height, width) if orientation >= 5 else (width, height)
        return to_pixels(image, channels, capped(*turned, short_side), orientation, white)


def to_pixels(
    image: Image.Image,
    channels: int,
    size: tuple[int, int] | None = None,
    orientation: int | None = None,
    white: int = 65535,
) -> Tensor:
    """A PIL image as uint8 (channels, H, W), at `size` (W, H) if given."""
    orientation = _orientation(image) if orientation is None else orientation
    image = _flatten(image, channels, white)
    if orientation in TURNS:
        image = image.transpose(TURNS[orientation])
    if size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)  # Pillow's filters widen when shrinking: antialiased
    # Turned by numpy: torch would start threads of its own inside every decoding thread, and they wait for each other.
    pixels = np.array(image, np.uint8)  # a copy: Pillow's own buffer is read-only
    return torch.from_numpy(pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def capped(width: int, height: int, short_side: int | None) -> tuple[int, int]:
    """The size with its shorter side brought down to `short_side`, its shape kept; smaller ones stay as they are."""
    short = min(width, height)
    if short_side is None or short <= short_side:
        return width, height
    return max(1, round(width * short_side / short)), max(1, round(height * short_side / short))


def is_grey(image: Image.Image) -> bool:
    """Whether one channel holds all there is, told without decoding; a palette of greys counts as grey."""
    if image.mode != "P" or image.palette is None:
        return image.mode in GREY_MODES
    order, data = image.palette.getdata()
    if order == "RGB;L":  # three planes, as TIFF has them
        colours = np.frombuffer(data, np.uint8).reshape(3, -1).T
    else:  # three colours, or four with the last unused
        width = len(order.split(";")[0])
        colours = np.frombuffer(data, np.uint8, len(data) // width * width).reshape(-1, width)[:, :3]
    return bool((colours == colours[:, :1]).all())


def _checked_size(image: Image.Image, max_pixels: int) -> tuple[int, int]:
    width, height = image.size
    if width < 1 or height < 1:
        raise ValueError(f"no pixels: {width} x {height}")
    if width * height > max_pixels:
        raise ValueError(f"{width} x {height} pixels, more than the {max_pixels:,} allowed")
    return width, height


def _orientation(image: Image.Image) -> int:
    # Pillow turns TIFFs itself when it loads them, and looks for the EXIF of a PNG behind its pixels,
    # which would decode every PNG twice; only what stands before the pixels is asked for.
    if image.format == "TIFF" or "exif" not in image.info:
        return 1
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF raises anything; the picture is still good
        return 1
    return value if value in TURNS else 1


def _flatten(image: Image.Image, channels: int, white: int) -> Image.Image:
    """8-bit grey or RGB without alpha."""
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        image = Image.fromarray(_deep_to_bytes(np.asarray(image), image.mode, white))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        backdrop = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(backdrop, rgba)
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _deep_to_bytes(values: np.ndarray, mode: str, white: int) -> np.ndarray:
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        raise ValueError("no finite pixel value")
    low, high = float(finite.min()), float(finite.max())
    unit = mode == "F" and low >= 0 and high <= 1
    if unit:
        low, high = 0.0, 1.0
    elif mode != "F" and low >= 0 and high <= 65535:
        low, high = 0.0, float(white)
    scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return np.nan_to_num(scaled, nan=0.0).round().clip(0, 255).astype(np.uint8)
