"""Training: the Lightning module, the callbacks that watch it, and `train`, which puts everything together."""

from .module import Diverged, TrainingModule
from .run import train

__all__ = ["Diverged", "TrainingModule", "train"]
