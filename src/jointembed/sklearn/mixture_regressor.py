"""Regression where one x may have several y."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from jointembed.distributions import GaussianMixture
from jointembed.pairs import FITS, fit_pairs


class MixtureRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The density of y given x as a mixture of Gaussians: `jointembed.fit_pairs` as a scikit-learn regressor.

    `predict` gives the mean, which lies between the values where there are several; `predict_modes` gives these.

    Args:
        method: "gmje-mdn", "gmje-em", "gmje-gng", or any other of `fit_pairs`.
        components: of the mixture, for the methods that take a number.
        options: further options of the method.
        random_state: of everything random.

    Attributes:
        pairs_: what `fit_pairs` found.
    """

    def __init__(
        self,
        method: str = "gmje-mdn",
        components: int = 3,
        options: dict[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.method, self.components, self.options, self.random_state = method, components, options, random_state

    def fit(self, X: Any, y: Any) -> "MixtureRegressor":
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=3, order="C"
        )
        if self.method not in FITS:
            raise ValueError(f"method: expected one of {', '.join(FITS)}, got {self.method!r}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        sized = {"components": self.components} if self.method in ("gmje-mdn", "gmje-em") else {}
        self.pairs_ = fit_pairs(X, y, self.method, seed, **sized, **(self.options or {}))
        self._flat = y.ndim == 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The mean (N,) or (N, outputs) of y given x."""
        mean = self.predict_distribution(X).mean.numpy()
        return mean[:, 0] if self._flat else mean

    def predict_distribution(self, X: Any) -> GaussianMixture:
        """The density of y given each row of X: a mixture with batch shape (N,)."""
        X = self._checked(X)
        return self.pairs_.condition(X)

    def predict_modes(self, X: Any, least: float = 0.01) -> list[np.ndarray]:
        """For each row of X the values of y that stand out, the likeliest first: N arrays (modes, outputs)."""
        X = self._checked(X)
        return [found.numpy() for found in self.pairs_.modes(X, least)]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Values of y for each row of X, (N, n_samples) or (N, outputs, n_samples), as Gaussian processes have it."""
        X = self._checked(X)
        drawn = self.pairs_.sample(X, n_samples, random_state).permute(1, 2, 0).numpy()
        return drawn[:, 0] if self._flat else drawn

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Log-density (N,) of y given x, row by row. (`score` is R^2 of the mean, as in every regressor.)"""
        X = self._checked(X)
        return self.pairs_.log_prob(X, y).numpy()

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)
