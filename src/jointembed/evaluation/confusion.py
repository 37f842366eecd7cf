"""Which classes are recognised, and which are taken for which."""

import math

import torch
from sklearn.metrics import recall_score
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix


def confusion(predicted: Tensor, labels: Tensor, classes: int | None = None) -> Tensor:
    """Counts (classes, classes) of predictions (Q,): a row for each true class, a column for each predicted one.

    `classes` is their number; by default the largest of both and one.
    """
    return multiclass_confusion_matrix(predicted, labels, _number(predicted, labels, classes)).cpu()


def per_class_accuracy(predicted: Tensor, labels: Tensor, classes: int | None = None) -> Tensor:
    """Share (classes,) of each class's images that are predicted rightly; NaN for a class without images."""
    numbers = range(_number(predicted, labels, classes))
    truth, said = labels.cpu().numpy(), predicted.cpu().numpy()
    return torch.from_numpy(recall_score(truth, said, labels=numbers, average=None, zero_division=math.nan))


def _number(predicted: Tensor, labels: Tensor, classes: int | None) -> int:
    for name, values in (("predicted", predicted), ("labels", labels)):
        if values.ndim != 1 or not len(values) or values.is_floating_point() or values.min() < 0:
            shape = f"{values.dtype} of shape {tuple(values.shape)}"
            raise ValueError(f"{name}: expected class numbers from 0 of shape (Q,), at least one, got {shape}")
    if len(predicted) != len(labels):
        raise ValueError(f"labels: expected one for each of the {len(predicted)} predictions, got {len(labels)}")
    seen = int(max(predicted.max(), labels.max())) + 1
    if classes is not None and classes < seen:
        raise ValueError(f"classes: expected at least {seen}, which are in predicted and labels, got {classes}")
    return max(classes or seen, 2)  # what torchmetrics takes for several
