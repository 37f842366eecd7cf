"""Thumbnails in a few large pictures: thousands of images in one file, without thousands of files in it."""

import base64
import io
import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from jointembed.data import Source

from .contact import _displayed

COLUMNS, PER_SHEET = 32, 1024
PIXELS = 6_000_000  # of all thumbnails together: about as many bytes as 5,000 CIFAR images take
LARGEST = 96  # side of a thumbnail
BLOCK = 16  # what WebP compresses as one: thumbnails that begin at its multiples do not bleed into each other
QUALITY = 88
SHARP = 20  # up to this side nothing may be lost


def sprites(source: Source) -> dict[str, Any]:
    """Thumbnails of all images as data URLs of WebP sheets, with what finds one in them.

    Thumbnail i is in sheet i // per_sheet, at column i % columns and row i % per_sheet // columns of square cells;
    `sizes` has width and height of each, or of all of them where they have but one size.
    """
    limit = min(LARGEST, max(int(math.sqrt(PIXELS / max(len(source), 1))), 8))
    sheets, sizes = [], []
    cell = limit if source.image_size is None else min(limit, max(source.image_size))
    cell = cell if cell <= SHARP else -(-cell // BLOCK) * BLOCK
    for rows in torch.arange(len(source)).split(PER_SHEET):
        tiles = [_thumbnail(pixels, limit) for part in rows.split(16) for pixels in source.batch(part)]
        sheets.append(_sheet(tiles, cell))
        sizes += [tile.size for tile in tiles]
    one = len(set(sizes)) == 1
    found = {"sheets": sheets, "cell": cell, "columns": COLUMNS, "per_sheet": PER_SHEET}
    return found | {"sizes": sizes[:1] if one else sizes}


def picture_sheet(pictures: Tensor) -> dict[str, Any]:
    """The same of uint8 pictures (N, C, H, W) that come from no source."""
    from jointembed.data import open_source

    return sprites(open_source(pictures, layout="NCHW", minimum=1))


def _thumbnail(pixels: Tensor, limit: int) -> Image.Image:
    """One image (C, H, W), no side above the limit, in its own proportions."""
    image = Image.fromarray(np.ascontiguousarray(_displayed(pixels).round().astype(np.uint8))).convert("RGB")
    scale = min(1.0, limit / max(image.size))
    size = tuple(max(round(side * scale), 1) for side in image.size)
    return image if size == image.size else image.resize((size[0], size[1]), Image.Resampling.LANCZOS)


def _sheet(tiles: list[Image.Image], cell: int) -> str:
    sheet = Image.new("RGB", (min(len(tiles), COLUMNS) * cell, -(-len(tiles) // COLUMNS) * cell))
    for place, tile in enumerate(tiles):
        margin = ((0, cell - tile.height), (0, cell - tile.width), (0, 0))
        filled = np.pad(np.asarray(tile), margin, "edge")  # what lies beside it would shine through
        sheet.paste(Image.fromarray(filled), (place % COLUMNS * cell, place // COLUMNS * cell))
    file = io.BytesIO()
    sheet.save(file, "WEBP", quality=QUALITY, lossless=cell <= SHARP, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")
