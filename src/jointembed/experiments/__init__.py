"""The papers' tables and figures, one file each, at sizes an ordinary computer finishes (`jointembed reproduce`)."""

import importlib
from collections.abc import Callable
from typing import Any

EXPERIMENTS = {
    "lejepa-cifar10": "LeJEPA with the narrow ResNet-10 on CIFAR-10, 15 epochs",
}


def get(name: str) -> Callable[..., Any]:
    """The function that runs the experiment of that name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"name: expected one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return importlib.import_module(f"jointembed.experiments.{name.replace('-', '_')}").run
