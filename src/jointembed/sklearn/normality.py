"""SIGReg as a test of multivariate normality."""

from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from jointembed.metrics import gaussianity


class SIGRegTest(BaseEstimator):
    """Are the rows a sample of a Gaussian? Epps and Pulley's statistic along random directions, p-value by simulation.

    Args:
        scale: "whitened": of any Gaussian; "standardised": of one with independent columns; "raw": of N(0, I).
        num_slices: directions.
        draws: simulated samples; the p-value cannot be below 1 / (draws + 1).
        random_state: of directions and samples.

    Attributes:
        statistic_: the mean over directions.
        pvalue_: the share of Gaussian samples of this size with a statistic as high.
        null_: the statistics (draws,) of these samples, sorted.
    """

    def __init__(
        self,
        scale: Literal["raw", "standardised", "whitened"] = "whitened",
        num_slices: int = 256,
        draws: int = 999,
        random_state: Any = None,
    ) -> None:
        self.scale, self.num_slices, self.draws, self.random_state = scale, num_slices, draws, random_state

    def fit(self, X: Any, y: Any = None) -> "SIGRegTest":
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        seed = int(check_random_state(self.random_state).randint(2**31))
        found = gaussianity(torch.tensor(X), self.scale, self.num_slices, self.draws, seed)
        self.statistic_, self.pvalue_, self.null_ = found.value, found.p_value, found.null.numpy()
        return self
