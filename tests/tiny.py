"""A network small enough to train in seconds, and settings to go with it."""

from torch import nn


def tiny_network(channels: int = 1) -> nn.Module:
    """(N, C, 8, 8) -> (N, 32): with BatchNorm, and with dropout so that forgotten random states show."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 32),
    )


TINY = {
    "projector_width": 32,
    "dim": 16,
    "num_slices": 64,
    "view_options": {"crop_scale": (0.5, 1.0), "flip": 0.0},
    "hold_out": 0.0,
}
