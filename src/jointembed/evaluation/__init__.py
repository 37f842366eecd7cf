"""Evaluation of frozen models: accuracy of the features, detection of strange images, and honest uncertainty."""

from .detection import OneClassResult, detection_metrics, one_class, out_of_distribution
from .knn import knn_accuracy
from .linear import linear_accuracy, linear_accuracy_sgd, linear_predict
from .protocol import evaluate, labelled_splits
from .uncertainty import aurc, corrupt, corruption_response, error_tracking, risk_coverage

__all__ = [
    "OneClassResult",
    "aurc",
    "corrupt",
    "corruption_response",
    "detection_metrics",
    "error_tracking",
    "evaluate",
    "knn_accuracy",
    "labelled_splits",
    "linear_accuracy",
    "linear_accuracy_sgd",
    "linear_predict",
    "one_class",
    "out_of_distribution",
    "risk_coverage",
]
