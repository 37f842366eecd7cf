"""Probability distributions of embeddings: exact log-densities, nothing about training."""

from .maxima import modes
from .mixture import GaussianMixture
from .polar import PolarStudentT
from .spherical import HypersphericalUniform, PowerSpherical
from .student import MultivariateStudentT

__all__ = [
    "GaussianMixture",
    "HypersphericalUniform",
    "MultivariateStudentT",
    "PolarStudentT",
    "PowerSpherical",
    "modes",
]
