"""Models that need no training, for tests of what is measured of them."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from jointembed.model import Config, Model

OPTIONS = {"lejepa": {"dim": 8, "projector_width": 16, "num_slices": 16}, "vje": {}}


def narrow_network() -> nn.Module:
    """(N, 1, 8, 8) -> (N, 6): too few features, drawn at random, to tell ten digits apart."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 6),
    )


def untrained_model(network: nn.Module, **training: Any) -> Model:
    return Config("lejepa", OPTIONS["lejepa"], None, 1, 8, [0.3], [0.4], training=training).build(network)


def write_run(folder: Path, method: str = "vje", seed: int = 0, **training: Any) -> Path:
    """A run folder of a model with a named backbone, as it is before the first step."""
    torch.manual_seed(seed)
    Config(method, OPTIONS[method], "resnet10-tiny", 1, 8, [0.3], [0.4], training=training).build().save(folder)
    return folder
