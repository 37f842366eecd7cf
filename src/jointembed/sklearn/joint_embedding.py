"""Self-supervised features and an outlier score of images, or of any rows two views of which can be made."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.covariance import LedoitWolf
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from jointembed import methods
from jointembed.data import open_source
from jointembed.model import Model
from jointembed.training import train

View = Callable[[Tensor, torch.Generator], Tensor]  # standardised rows (N, D) to another view of each


class NoisyView:
    """A view of rows about which nothing is known: some values dropped, noise on the others."""

    def __init__(self, noise: float = 0.3, dropped: float = 0.2) -> None:
        self.noise, self.dropped = noise, dropped

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        kept = torch.rand(x.shape, generator=generator) >= self.dropped
        return kept * (x + self.noise * torch.randn(x.shape, generator=generator, dtype=x.dtype))


class JointEmbedding(ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, BaseEstimator):
    """Learn an embedding without labels: `transform` gives features, `score_samples` a log-density, `predict` outliers.

    X is an array of images (N, C, H, W), anything else `jointembed.train` takes but a two-dimensional array, or rows
    (N, D), which a small network sees in two views made by `view`.

    Args:
        method: one of `jointembed.methods.names()`.
        view: for rows: a function of standardised rows (N, D) and a torch Generator that gives another view of each;
            by default noise, and some values dropped.
        epochs: passes over X.
        batch_size: rows or images per step.
        lr: peak learning rate.
        width: for rows: of the network's two hidden layers.
        features: for rows: dimension of the features.
        backbone: for images: what `jointembed.train` takes.
        contamination: share of X to be outliers to `predict`.
        options: further options of the method, and for images of `jointembed.train`.
        random_state: of everything random.

    Attributes:
        offset_: the log-density below which a row is an outlier.
    """

    def __init__(
        self,
        method: str = "lejepa",
        view: View | None = None,
        epochs: int = 20,
        batch_size: int = 128,
        lr: float = 2e-3,
        width: int = 128,
        features: int = 32,
        backbone: str | nn.Module = "resnet10-narrow",
        contamination: float = 0.05,
        options: dict[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.method, self.view, self.epochs, self.batch_size, self.lr = method, view, epochs, batch_size, lr
        self.width, self.features, self.backbone = width, features, backbone
        self.contamination, self.options, self.random_state = contamination, options, random_state

    def fit(self, X: Any, y: Any = None) -> "JointEmbedding":
        if not 0 < self.contamination <= 0.5:
            raise ValueError(f"contamination: expected a share above 0 and at most 0.5, got {self.contamination}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        self.model_: Model | methods.Method
        if _are_images(X):
            self.model_ = self._train_images(X, seed)
        else:
            X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
            self.mean_, std = X.mean(0), X.std(0)
            self.scale_ = np.where(std > 1e-12 * (1 + np.abs(self.mean_)), std, 1.0)
            self.model_ = self._train_rows(self._standardised(X), seed)
            # Of rows, the features tell the strange from the usual better than the projections the loss sees.
            self.density_ = LedoitWolf().fit(self.transform(X))
        one = self.model_.open(X).subset(range(1)) if isinstance(self.model_, Model) else X[:1]
        self._n_features_out = self.transform(one).shape[1]
        self.offset_ = float(np.percentile(self.score_samples(X), 100 * self.contamination))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features (N, D)."""
        check_is_fitted(self)
        if isinstance(self.model_, Model):
            return self.model_.embed(X, progress=False).numpy()
        X = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            return self.model_.encode(self._standardised(X))[self.model_.spaces[0]].numpy()

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density (N,), of rows up to a constant: the lower, the stranger."""
        check_is_fitted(self)
        if isinstance(self.model_, Model):
            return -self.model_.anomaly_score(X, progress=False).double().numpy()
        return -0.5 * self.density_.mahalanobis(self.transform(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-density above `offset_` (N,): negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """-1 for outliers, 1 for the others (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _train_images(self, X: Any, seed: int) -> Model:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"hold_out": 0.0, "progress": False, **(self.options or {})}
            shared: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr, "seed": seed}
            out = Path(folder) / "run"
            return train(open_source(X), self.method, self.backbone, out=out, **shared, **options)

    def _train_rows(self, x: Tensor, seed: int) -> methods.Method:
        generator, view = torch.Generator().manual_seed(seed), self.view or NoisyView()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            method = methods.create(self.method, Rows(x.shape[1], self.width, self.features), **(self.options or {}))
            optimizer = torch.optim.AdamW(method.parameters(), self.lr, weight_decay=5e-4)
            steps = self.epochs * -(-len(x) // self.batch_size)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=steps + 1, pct_start=0.1)
            method.train()
            for epoch in range(self.epochs):
                for rows in torch.randperm(len(x), generator=generator).split(self.batch_size):
                    if len(rows) < 2:  # of one row nothing can be told apart
                        continue
                    method.clock = method.clock._replace(step=schedule.last_epoch, steps=steps, epoch=epoch)
                    batch = x[rows].float()
                    terms = method([view(batch, generator), view(batch, generator)], 2)
                    if not torch.isfinite(terms["loss"]):
                        raise ValueError(f"lr: the loss became {float(terms['loss'])} in epoch {epoch}; try a smaller")
                    optimizer.zero_grad()
                    terms["loss"].backward()
                    method.before_step()
                    optimizer.step()
                    method.after_step()
                    schedule.step()
        # Double precision, so that a row's features do not depend on the rows beside it.
        return method.double().eval()

    def _standardised(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy((X - self.mean_) / self.scale_)


class Rows(nn.Sequential):
    """Rows (N, D) to features: two hidden layers."""

    def __init__(self, dim: int, width: int, features: int) -> None:
        hidden = (nn.Linear(dim, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))
        super().__init__(*hidden, nn.GELU(), nn.Linear(width, features))
        self.num_features = features


def _are_images(X: Any) -> bool:
    """Whether X is for `jointembed.train`: a name, a path, a data set, or an array with more than two dimensions."""
    if isinstance(X, str | Path | torch.utils.data.Dataset):
        return True
    return getattr(X, "ndim", 2) > 2 and getattr(X, "dtype", None) != np.dtype(object)
