"""Evaluation of frozen features: k-NN and linear accuracy from one feature extraction."""

from .knn import knn_accuracy
from .linear import linear_accuracy, linear_accuracy_sgd
from .protocol import evaluate, labelled_splits

__all__ = ["evaluate", "knn_accuracy", "labelled_splits", "linear_accuracy", "linear_accuracy_sgd"]
