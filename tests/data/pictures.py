"""Pictures that tests write to folders and read back."""

from pathlib import Path

import numpy as np
from PIL import Image

from jointembed.data import open_source

COLOUR = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
GREY = COLOUR[..., 0]


def save(folder: Path, name: str, pixels: np.ndarray | Image.Image, **options: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def only(folder: Path, **options: object) -> np.ndarray:
    """The one image of a folder, (C, H, W)."""
    return open_source(folder, minimum=1, **options).batch([0])[0].numpy()
