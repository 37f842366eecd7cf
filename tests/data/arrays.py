"""Images and labels that tests hand over in every form."""

from pathlib import Path

import numpy as np
import torch

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 10, 9, 3), np.uint8)
LABELS = np.arange(12) % 3
EXPECTED = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)


def as_npz(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "data.npz"
    np.savez_compressed(path, **arrays)
    return path


def as_npy(folder: Path, array: np.ndarray) -> Path:
    path = folder / "data.npy"
    np.save(path, array)
    return path
