"""jointembed: joint-embedding self-supervised learning in which an embedding is a probability distribution.

>>> import jointembed as je
>>> model = je.train("shapes", method="lejepa", backbone="resnet10-narrow", epochs=10, out="runs/x")
>>> features = model.embed("path/to/images")
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jointembed import backbones, data, distributions, evaluation, methods, metrics, normality
    from jointembed.evaluation.protocol import evaluate
    from jointembed.model import Model, load
    from jointembed.pairs import fit_pairs
    from jointembed.training import train

# Everything is imported when first asked for: timm and Lightning take longer to import than torch itself.
_ROOMS = ("backbones", "data", "distributions", "evaluation", "methods", "metrics", "normality")
_NAMES = {"Model": "model", "load": "model", "train": "training", "evaluate": "evaluation", "fit_pairs": "pairs"}

__all__ = [
    "Model",
    "backbones",
    "data",
    "distributions",
    "evaluate",
    "evaluation",
    "fit_pairs",
    "load",
    "methods",
    "metrics",
    "normality",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"jointembed.{_NAMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"jointembed.{name}")
    raise AttributeError(f"module 'jointembed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
