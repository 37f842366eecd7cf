"""Linear probes: L-BFGS on cached features, and the papers' SGD with augmentation on the frozen backbone."""

import logging
import sys
import warnings
from typing import Any

import lightning as L
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from jointembed.data import Source, Views
from jointembed.model import Model

from .knn import top1

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # scikit-learn's C, searched on held-out training labels
SEARCH_IMAGES = 10_000  # the search needs the right order of magnitude, not every image


def linear_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, seed: int = 0) -> float:
    """Test accuracy of a logistic regression on standardised features, tuned on held-out training labels."""
    return top1(linear_predict(train, train_labels, test, seed), test_labels)


def linear_predict(train: Tensor, train_labels: Tensor, test: Tensor, seed: int = 0) -> Tensor:
    """What that logistic regression says of the test features (Q, D): one class (Q,) each."""
    if len(train_labels.unique()) < 2:
        raise ValueError(f"train_labels: expected at least two classes, got {train_labels.unique().tolist()}")
    scaler = StandardScaler()
    x, y = scaler.fit_transform(train.float().numpy()), train_labels.numpy()
    subset, subset_labels = x, y
    if len(x) > SEARCH_IMAGES:
        subset, _, subset_labels, _ = train_test_split(x, y, train_size=SEARCH_IMAGES, stratify=y, random_state=seed)
    rare = torch.bincount(train_labels).min() < 5  # too few of a class to be found in both parts
    fit_x, held_x, fit_y, held_y = train_test_split(
        subset, subset_labels, test_size=0.2, stratify=None if rare else subset_labels, random_state=seed
    )
    scores = {c: _logistic(c, fit_x, fit_y).score(held_x, held_y) for c in STRENGTHS}
    best = max(scores, key=lambda c: scores[c])
    probe = _logistic(best, x, y)
    return torch.from_numpy(probe.predict(scaler.transform(test.float().numpy())))


def _logistic(c: float, x: object, y: object) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps are within 0.1 points of the optimum
        return LogisticRegression(C=c, max_iter=300, tol=1e-3).fit(x, y)


class _Probe(L.LightningModule):
    """One linear layer on a frozen backbone, trained on random crops and flips."""

    def __init__(self, model: Model, views: Views, dim: int, classes: int, lr: float, seed: int) -> None:
        super().__init__()
        self.model, self.views, self.seed = model, views, seed
        # Normalised features make one learning rate right for every backbone.
        self.head, self.lr = nn.Sequential(nn.BatchNorm1d(dim, affine=False), nn.Linear(dim, classes)), lr

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        view = self.views(images, (self.seed, self.current_epoch, index))[0]
        with torch.no_grad():
            self.model.method.eval()
            encoded = self.model.method.encode(view.contiguous(memory_format=torch.channels_last))
        return nn.functional.cross_entropy(self.head(encoded[self.model.method.spaces[0]]), labels)

    def configure_optimizers(self) -> tuple[list, list]:
        optimizer = torch.optim.SGD(self.head.parameters(), lr=self.lr, momentum=0.9)
        steps = int(self.trainer.max_epochs or 1)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)]


def linear_accuracy_sgd(
    model: Model,
    train: Source,
    test: Source,
    epochs: int = 100,
    lr: float = 0.1,
    batch_size: int = 256,
    seed: int = 0,
    view_options: dict[str, Any] | None = None,
) -> float:
    """Test accuracy of the papers' protocol: SGD with momentum and cosine, random resized crops and flips, no decay.

    `view_options` change the crops and flips, e.g. {"flip": 0.0} for digits, which are not what they are mirrored.
    """
    predicted = linear_predict_sgd(model, train, test, epochs, lr, batch_size, seed, view_options)
    assert test.labels is not None
    return top1(predicted, test.labels)


def linear_predict_sgd(
    model: Model,
    train: Source,
    test: Source,
    epochs: int = 100,
    lr: float = 0.1,
    batch_size: int = 256,
    seed: int = 0,
    view_options: dict[str, Any] | None = None,
) -> Tensor:
    """What the linear layer of that protocol says of the test images: one class (Q,) each."""
    if train.labels is None or test.labels is None:
        raise ValueError("train, test: expected sources with labels, got one without")
    views = crops_and_flips(model, view_options)
    dim = model.embed(train.subset(torch.arange(1)), progress=False).shape[1]
    classes = int(train.labels.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = _Probe(model, views, dim, classes, lr, seed)
        images = train.batch(torch.arange(len(train)))
        if not isinstance(images, Tensor):
            raise ValueError("train: the SGD protocol expects images of one size; use the L-BFGS protocol")
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(
            TensorDataset(images, train.labels),
            min(batch_size, len(train)),
            shuffle=True,
            drop_last=True,
            generator=generator,
        )
        fit_quietly(probe, loader, epochs, model.device)
    with torch.no_grad():
        return probe.head.cpu().eval()(model.embed(test, progress=False)).argmax(1)


def crops_and_flips(model: Model, view_options: dict[str, Any] | None) -> Views:
    """One random crop, mirrored or not, of the model's size and colours; `view_options` change that."""
    plain = {"jitter": 0.0, "grey": 0.0, "blur": 0.0, "solarise": 0.0, **(view_options or {})}
    options: dict[str, Any] = {"num_global": 1, "mean": model.config.mean, "std": model.config.std, **plain}
    return Views(model.config.image_size, model.method.preset, **options)


def fit_quietly(
    module: L.LightningModule, loader: DataLoader[Any], epochs: int, device: torch.device, precision: Any = "32-true"
) -> None:
    """Lightning's fit on one device, without files or words; with a bar on a terminal."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer = L.Trainer(
        max_epochs=epochs,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stderr.isatty(),
        use_distributed_sampler=False,
        accelerator=device.type,
        devices=1,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, loader)
