"""Full fine-tuning: a copy of the backbone, and a linear layer on it, trained on labelled images."""

import copy
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from jointembed.data import Source, Views
from jointembed.data.loading import BatchKey, BatchReader, EpochBatches, num_workers, read_batches
from jointembed.methods.base import feature_dim
from jointembed.model import Model
from jointembed.training.precision import best_precision, kernel_beyond_image

from .knn import top1
from .linear import crops_and_flips, fit_quietly


class FineTuned(NamedTuple):
    """Test accuracy, and the class predicted for each test image (Q,)."""

    accuracy: float
    predictions: Tensor


class _LabelledViews(BatchReader):
    """A view of every image of a batch, and their labels. Images may be of any sizes."""

    def __init__(self, source: Source, views: Views, seed: int) -> None:
        super().__init__(source, seed=seed)
        self.crop = views

    def __getitem__(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        view = self.crop(self.source.batch(key.indices), (self.seed, key.epoch, key.step))[0]
        assert self.source.labels is not None
        return view, self.source.labels[key.indices]


class _Classifier(L.LightningModule):
    def __init__(self, backbone: nn.Module, dim: int, classes: int, lr: float, weight_decay: float) -> None:
        super().__init__()
        # Normalised features make one learning rate right for every backbone.
        self.network = nn.Sequential(backbone, nn.BatchNorm1d(dim, affine=False), nn.Linear(dim, classes))
        self.lr, self.weight_decay = lr, weight_decay

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(
            self.network(images.contiguous(memory_format=torch.channels_last)), labels, label_smoothing=0.1
        )

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, steps, pct_start=0.1, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fine_tune(
    model: Model,
    train: Source,
    test: Source,
    epochs: int = 30,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    batch_size: int = 128,
    seed: int = 0,
    view_options: dict[str, Any] | None = None,
    precision: str = "auto",
) -> FineTuned:
    """Train the whole backbone with a linear layer on the labelled images, and classify the test images.

    AdamW with a short warm-up and a cosine to zero, cross-entropy with labels smoothed by 0.1. What is trained is a
    copy: the model stays as it is.

    Args:
        model: where to start from.
        train: labelled images.
        test: labelled images to classify, whole, by the network after the last epoch.
        epochs: passes over the training images.
        lr: peak learning rate of backbone and linear layer.
        weight_decay: of both.
        batch_size: images per step.
        seed: of the linear layer, the order and the views.
        view_options: changes to the random crops and flips, e.g. {"flip": 0.0} for digits.
        precision: as in `jointembed.train`.
    """
    if train.labels is None or test.labels is None:
        raise ValueError("train, test: expected sources with labels, got one without")
    if len(train.labels.unique()) < 2 or train.labels.min() < 0:
        raise ValueError(f"train: expected a label of two classes or more on each image, got {train.labels.unique()}")
    for name, value in (("epochs", epochs), ("lr", lr)):
        if not value > 0:
            raise ValueError(f"{name}: expected a number above 0, got {value}")
    if batch_size < 2:
        raise ValueError(f"batch_size: expected at least 2, got {batch_size}")
    images = _LabelledViews(train, crops_and_flips(model, view_options), seed)
    batches = EpochBatches(len(train), min(batch_size, len(train)), seed)
    loader: DataLoader[Any] = DataLoader(images, sampler=batches, batch_size=None, num_workers=num_workers(train))
    backbone = copy.deepcopy(model.method.backbone).requires_grad_(True).train()
    if precision == "auto":
        trusted = not kernel_beyond_image(backbone, train.channels, model.config.image_size)  # see keep_gradients_true
        precision = best_precision(model.device.type) if trusted else "32-true"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classes = int(train.labels.max()) + 1
        classifier = _Classifier(backbone, feature_dim(backbone), classes, lr, weight_decay)
        fit_quietly(classifier, loader, epochs, model.device, precision)
        predictions = _predict(classifier.network.to(model.device).eval(), model, test)
    return FineTuned(top1(predictions, test.labels), predictions)


@torch.inference_mode()
def _predict(network: nn.Module, model: Model, source: Source) -> Tensor:
    found = []
    for batch in read_batches(source, 256):
        batch = batch.to(model.device) if isinstance(batch, Tensor) else [image.to(model.device) for image in batch]
        view = model.views.single(batch).contiguous(memory_format=torch.channels_last)
        found.append(network(view).argmax(1).cpu())
    return torch.cat(found)
