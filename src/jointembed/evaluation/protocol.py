"""`evaluate`: how good are the features of a model on labelled images?"""

import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from jointembed.data import Source, open_source, splits
from jointembed.model import Model, load

from .knn import knn_accuracy
from .linear import linear_accuracy, linear_accuracy_sgd


def evaluate(
    model: Model | str | Path,
    data: Any,
    space: str | None = None,
    k: int = 30,
    linear: Literal["lbfgs", "sgd", "none"] = "lbfgs",
    pixels: bool = False,
    labels: Any = None,
    root: str | Path | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """k-NN and linear accuracy on a labelled source.

    Args:
        model: a model or its run folder.
        data: a source with labels. Its test split is what is scored; without one, a fifth of it, held out at random.
        space: which embedding; by default the method's features.
        k: neighbours.
        linear: "lbfgs" on the cached features, "sgd" for the papers' protocol with augmentation, or "none".
        pixels: also the k-NN accuracy of raw pixels, the floor a representation has to leave behind.
        labels: one integer per image, if the source has none.
        root: where torchvision data sets are, or go.
        seed: of the hold-out and of the probe.
    """
    if linear not in ("lbfgs", "sgd", "none"):
        raise ValueError(f"linear: expected 'lbfgs', 'sgd' or 'none', got {linear!r}")
    model = model if isinstance(model, Model) else load(model)
    channels = model.config.channels if model.config.channels in (1, 3) else None
    train, test = labelled_splits(data, labels, root, seed, channels)
    assert train.labels is not None and test.labels is not None
    began = time.perf_counter()
    z, z_test = model.embed(train, space), model.embed(test, space)
    result = {
        "train_images": len(train),
        "test_images": len(test),
        "classes": len(train.labels.unique()),
        "knn": knn_accuracy(z, train.labels, z_test, test.labels, k),
    }
    if linear == "lbfgs":
        result["linear"] = linear_accuracy(z, train.labels, z_test, test.labels, seed)
    elif linear == "sgd":
        result["linear_sgd"] = linear_accuracy_sgd(model, train, test, seed=seed)
    if pixels:
        result["pixel_knn"] = knn_accuracy(_pixels(model, train), train.labels, _pixels(model, test), test.labels, k)
    result["seconds"] = time.perf_counter() - began
    return result


def labelled_splits(
    data: Any,
    labels: Any = None,
    root: str | Path | None = None,
    seed: int = 0,
    channels: int | None = None,
) -> tuple[Source, Source]:
    """Training and test part of a labelled source."""
    train = open_source(data, labels=labels, root=root, channels=channels)
    if labels is None and not isinstance(data, Source) and "test" in splits(data, root=root):
        return _labelled(train), _labelled(open_source(data, split="test", root=root, channels=channels))
    train = _labelled(train)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    held = max(len(train) // 5, 1)
    return train.subset(order[held:]), train.subset(order[:held])


def _labelled(source: Source) -> Source:
    """Without the images whose label is -1: none."""
    if source.labels is None:
        raise ValueError(
            f"data: expected labels to evaluate with, {source.name} has none (class sub-folders, y_train, ...)"
        )
    return source.subset(torch.nonzero(source.labels >= 0).flatten())


def _pixels(model: Model, source: Source) -> Tensor:
    """The images as the network sees them, flat and centred, as features."""
    chunks = torch.arange(len(source)).split(1024)
    return torch.cat([model.views.single(source.batch(chunk)).flatten(1) for chunk in chunks])
