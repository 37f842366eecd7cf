"""Measures of a feature matrix, for the callbacks that watch a training and for evaluation afterwards."""

from .frechet import frechet_distance
from .gaussianity import Gaussianity, gaussianity
from .geometry import Geometry, effective_rank, geometry
from .neighbours import knn_distance, knn_predict
from .spectrum import alpha_req, information, isotropy, lidar, rank_me
from .sphere import alignment, uniformity

__all__ = [
    "Gaussianity",
    "Geometry",
    "alignment",
    "alpha_req",
    "effective_rank",
    "frechet_distance",
    "gaussianity",
    "geometry",
    "information",
    "isotropy",
    "knn_distance",
    "knn_predict",
    "lidar",
    "rank_me",
    "uniformity",
]
