"""Stacks of embeddings (V, N, D), the global views first: what the losses over views share."""

import torch
from torch import Tensor

from jointembed._distributed import means_over_ranks, world_size


def check_stack(name: str, z: Tensor, num_global: int | None = None, least: int = 1) -> None:
    """z is (V, N, D), with at least two views where `num_global` of them are global, of at least `least` images."""
    if z.ndim != 3 or 0 in z.shape:
        raise ValueError(f"{name}: expected (V, N, D), got shape {tuple(z.shape)}")
    if num_global is not None:
        if len(z) < 2:
            raise ValueError(f"{name}: expected at least two views, got {len(z)}")
        if not 1 <= num_global <= len(z):
            raise ValueError(f"num_global: expected 1 to {len(z)}, the number of views in {name}, got {num_global}")
    if z.shape[1] < least and world_size() == 1:  # one is enough where other ranks have more
        raise ValueError(f"{name}: expected at least {least} images, got {z.shape[1]}")


def check_targets(predictions: Tensor, targets: Tensor) -> None:
    """Predictions are (V, N, D), of at least two views, and targets (G, N, D), of the first G of them."""
    check_stack("predictions", predictions, num_global=1)
    rows = tuple(predictions.shape[1:])
    if targets.ndim != 3 or targets.shape[1:] != rows or not 1 <= len(targets) <= len(predictions):
        raise ValueError(
            f"targets: expected (G, {rows[0]}, {rows[1]}) with G from 1 to {len(predictions)}, as predictions have "
            f"images, dimensions and views, got shape {tuple(targets.shape)}"
        )


def check_above_zero(**values: float) -> None:
    """Temperatures and the like."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}: expected a number above 0, got {value}")


def check_not_negative(**values: float) -> None:
    """Weights and durations."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {value}")


def check_counts(**values: int) -> None:
    """Widths of layers, numbers of things."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")


def directed_pairs(num_views: int, num_global: int) -> list[tuple[int, int]]:
    """All (i, j) in which view i predicts another view j, a global one; of two views both directions."""
    return [(i, j) for i in range(num_views) for j in range(num_global) if i != j]


def unordered_pairs(num_views: int, num_global: int) -> list[tuple[int, int]]:
    """Each two views once, (global, other), unless both are local."""
    return [(j, i) for i, j in directed_pairs(num_views, num_global) if j < i]


def average(terms: list[dict[str, Tensor]], images: int | None = None) -> dict[str, Tensor]:
    """The mean of each named term; over ranks too, where they are means over so many images of this one."""
    found = {name: torch.stack([one[name] for one in terms]).mean() for name in terms[0]}
    return found if images is None else means_over_ranks(found, images)
