"""k-NN accuracy of features."""

from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from jointembed.metrics import knn_predict


def knn_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, k: int = 30, temperature: float = 0.07
) -> float:
    """Share of the test features (Q, D) that their k nearest training features (N, D) classify rightly."""
    scores = knn_predict(train, train_labels, test, k, temperature)
    return top1(scores.argmax(1), test_labels)


def top1(predicted: Tensor, labels: Tensor) -> float:
    """Share of the predictions (Q,) that are right."""
    classes = int(max(predicted.max(), labels.max())) + 1
    return float(multiclass_accuracy(predicted, labels, classes, average="micro"))
