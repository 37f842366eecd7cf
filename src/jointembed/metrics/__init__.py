"""Measures of a feature matrix, for the callbacks that watch a training and for evaluation afterwards."""

from .geometry import Geometry, effective_rank, geometry
from .neighbours import knn_distance, knn_predict

__all__ = ["Geometry", "effective_rank", "geometry", "knn_distance", "knn_predict"]
