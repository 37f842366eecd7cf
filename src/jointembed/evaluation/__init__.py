"""Evaluation of frozen models: accuracy of the features, detection of strange images, and honest uncertainty."""

from .confusion import confusion, per_class_accuracy
from .detection import OneClassResult, detection_metrics, one_class, out_of_distribution
from .few_shot import FewShot, draw_per_class, few_shot
from .fine_tune import FineTuned, fine_tune
from .geometry import feature_geometry
from .knn import knn_accuracy
from .linear import linear_accuracy, linear_accuracy_sgd, linear_predict, linear_predict_sgd
from .protocol import evaluate, labelled_splits
from .selection import Selection, select
from .uncertainty import aurc, corrupt, corruption_response, error_tracking, reliability, risk_coverage
from .views import embed_views

__all__ = [
    "FewShot",
    "FineTuned",
    "OneClassResult",
    "Selection",
    "aurc",
    "confusion",
    "corrupt",
    "corruption_response",
    "detection_metrics",
    "draw_per_class",
    "embed_views",
    "error_tracking",
    "evaluate",
    "feature_geometry",
    "few_shot",
    "fine_tune",
    "knn_accuracy",
    "labelled_splits",
    "linear_accuracy",
    "linear_accuracy_sgd",
    "linear_predict",
    "linear_predict_sgd",
    "one_class",
    "out_of_distribution",
    "per_class_accuracy",
    "reliability",
    "risk_coverage",
    "select",
]
