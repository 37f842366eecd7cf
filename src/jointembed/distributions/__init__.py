"""Probability distributions of embeddings: exact log-densities, nothing about training."""

from .polar import PolarStudentT
from .student import MultivariateStudentT

__all__ = ["MultivariateStudentT", "PolarStudentT"]
