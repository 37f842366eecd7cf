"""Where a run is watched: TensorBoard, Weights & Biases, a CSV file or any logger of Lightning's, pictures too."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from torch import Tensor

NAMES = ("tensorboard", "wandb", "csv", "none")
SIDE, MARGIN = 360, 12  # pixels
COLOURS = np.array(
    [
        (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
        (140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
    ],
    np.uint8,
)  # fmt: skip


def make_loggers(logger: Any, folder: Path) -> list[Logger]:
    """Lightning's loggers for a name, a logger, or several of either."""
    given = logger if isinstance(logger, list | tuple) else [logger]
    found: list[Logger] = []
    for one in given:
        if isinstance(one, Logger):
            found.append(one)
        elif one not in NAMES:
            raise ValueError(f"logger: expected {', '.join(NAMES)} or a logger of Lightning's, got {one!r}")
        elif one == "wandb" and importlib.util.find_spec("wandb") is None:
            raise ValueError("logger: wandb needs the package of that name: pip install jointembed[wandb]")
        elif one != "none":
            found.append(_named(one, folder))
    return found


def _named(name: str, folder: Path) -> Logger:
    if name == "wandb":
        return WandbLogger(name=folder.name, save_dir=folder, project="jointembed")
    kind = TensorBoardLogger if name == "tensorboard" else CSVLogger
    return kind(folder, name="", version=name)


def log_picture(loggers: Sequence[Logger], name: str, picture: np.ndarray, step: int) -> None:
    """Show a picture (H, W, 3) to those who take pictures; the others go without."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, picture, step, dataformats="HWC")
        elif hasattr(logger, "log_image"):
            logger.log_image(key=name, images=[picture], step=step)


def embedding_picture(z: Tensor, labels: Tensor | None) -> np.ndarray:
    """The two first principal components of embeddings (N, D) as dots, coloured by class where it is known: (H, W, 3).

    Plain and quick, to look at during training; `jointembed.report.embedding_map` takes more care.
    """
    picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
    centred = z.double() - z.double().mean(0)
    if not centred.isfinite().all():
        return picture
    _, axes = torch.linalg.eigh(centred.mT @ centred)
    flat = centred @ axes[:, -2:].flip(1)
    flat = flat / flat.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    places = (SIDE / 2 + (SIDE / 2 - MARGIN) * flat).round().long().numpy()
    classes = np.zeros(len(z), int) if labels is None else labels.numpy()
    for (x, y), c in zip(places, classes, strict=True):
        picture[y - 2 : y + 3, x - 2 : x + 3] = COLOURS[c % len(COLOURS)] if c >= 0 else 200
    return picture
