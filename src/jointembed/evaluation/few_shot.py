"""Few-shot accuracy: what a handful of labelled images per class is enough for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from .knn import top1
from .linear import _logistic

SHOTS = (1, 2, 5, 10, 100)


class FewShot(NamedTuple):
    """Mean and standard deviation (of a sample: divided by draws - 1) of the test accuracy, and that of each draw."""

    mean: float
    std: float
    accuracies: list[float]


def few_shot(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    draws: int = 5,
    strength: float = 0.1,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> dict[int, FewShot]:
    """Test accuracy of a logistic regression on k labelled images per class, over several draws, for each k of `shots`.

    The features are standardised by those of all training images, labelled or not: that takes no label. The strength is
    fixed, since one image per class leaves none to choose it with; on digits 0.1 to 10 gave much the same.

    Args:
        train: training features (N, D) to draw from.
        train_labels: their classes (N,).
        test: test features (Q, D), the same ones at every draw.
        test_labels: their classes (Q,).
        shots: numbers of images per class.
        draws: how many random choices of the images for each number, at least two.
        strength: scikit-learn's C; less is smoother.
        seed: of the draws.
        class_names: for error messages.
    """
    check_shots(train_labels, shots, draws, class_names)
    if not strength > 0:
        raise ValueError(f"strength: expected a number above 0, got {strength}")
    scaler = StandardScaler().fit(train.float().numpy())
    x, x_test = scaler.transform(train.float().numpy()), scaler.transform(test.float().numpy())
    result = {}
    for k in shots:
        accuracies = []
        for draw in range(draws):
            rows = draw_per_class(train_labels, k, (seed, k, draw))
            probe = _logistic(strength, x[rows], train_labels[rows].numpy())
            accuracies.append(top1(torch.from_numpy(probe.predict(x_test)), test_labels))
        std, mean = torch.std_mean(torch.tensor(accuracies, dtype=torch.float64))
        result[k] = FewShot(float(mean), float(std), accuracies)
    return result


def draw_per_class(labels: Tensor, k: int, seed: int | tuple[int, ...]) -> Tensor:
    """Indices (k classes,) of k random images of each class, class after class."""
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels.numpy() == c) for c in labels.unique()]
    return torch.from_numpy(np.concatenate([generator.choice(rows, k, replace=False) for rows in members]))


def check_shots(labels: Tensor, shots: Sequence[int], draws: int, class_names: Sequence[str] | None = None) -> None:
    """An error, by name, where there are too few images of a class."""
    if not shots or not all(isinstance(k, int) and k >= 1 for k in shots):
        raise ValueError(f"shots: expected whole numbers of at least 1, got {shots!r}")
    if draws < 2:
        raise ValueError(f"draws: expected at least 2, to tell how much they differ, got {draws}")
    classes, counts = labels.unique(return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"train_labels: expected at least two classes, got {classes.tolist()}")
    few = [(int(c), int(n)) for c, n in zip(classes, counts, strict=True) if n < max(shots)]
    if few:
        names = ", ".join(f"{class_names[c] if class_names else c} ({n})" for c, n in few[:5])
        more = f" and {len(few) - 5} other classes" if len(few) > 5 else ""
        raise ValueError(f"shots: expected at least {max(shots)} training images of every class, got {names}{more}")
