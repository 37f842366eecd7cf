"""`evaluate`: how good are the features of a model on labelled images?"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from jointembed.data import Source, open_source, splits
from jointembed.metrics import knn_predict
from jointembed.model import Model, load

from .confusion import confusion, per_class_accuracy
from .few_shot import check_shots, few_shot
from .fine_tune import fine_tune
from .geometry import feature_geometry
from .knn import knn_accuracy, top1
from .linear import linear_predict, linear_predict_sgd


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
    shots: Sequence[int] = (),
    draws: int = 5,
    fine_tune_epochs: int = 0,
    view_options: dict[str, Any] | None = None,
    geometry: bool = False,
    per_class: bool = False,
) -> dict[str, Any]:
    """k-NN and linear accuracy on a labelled source; on request few-shot, fine-tuned, per class, and the geometry.

    Args:
        model: a model or its run folder.
        data: a source with labels. Its test split is what is scored; without one, a fifth of it, held out at random.
        space: which embedding; by default the method's features.
        k: neighbours.
        linear: "lbfgs" on the cached features, "sgd" for the papers' protocol with augmentation, or "none".
        pixels: also the k-NN accuracy of raw pixels, the floor a representation has to leave behind.
        labels: one integer per image, if the source has none.
        root: where torchvision data sets are, or go.
        seed: of the hold-out, the probes and the draws.
        shots: also "few_shot", the mean and deviation of the accuracy of a linear probe on so many labelled images per
            class, for each number: e.g. 1, 2, 5, 10, 100.
        draws: of these images, for each number.
        fine_tune_epochs: also "fine_tune", the accuracy after so many epochs of training a copy of the backbone with
            a linear layer; 0 for none.
        view_options: changes to the random crops and flips of fine-tuning and of linear="sgd".
        geometry: also "geometry", the measures of collapse and shape of the training images' embeddings; 1,000 of them
            are embedded ten times for it.
        per_class: also "per_class", the accuracy of each class, and "confusion", the counts with a row for each true
            class, of all predictions made.
    """
    if linear not in ("lbfgs", "sgd", "none"):
        raise ValueError(f"linear: expected 'lbfgs', 'sgd' or 'none', got {linear!r}")
    if fine_tune_epochs < 0:
        raise ValueError(f"fine_tune_epochs: expected at least 0, got {fine_tune_epochs}")
    model = model if isinstance(model, Model) else load(model)
    channels = model.config.channels if model.config.channels in (1, 3) else None
    train, test = labelled_splits(data, labels, root, seed, channels)
    assert train.labels is not None and test.labels is not None
    if shots:
        check_shots(train.labels, shots, draws, train.class_names)
    began = time.perf_counter()
    z, z_test = model.embed(train, space), model.embed(test, space)
    predicted = {"knn": knn_predict(z, train.labels, z_test, k).argmax(1)}
    if linear == "lbfgs":
        predicted["linear"] = linear_predict(z, train.labels, z_test, seed)
    elif linear == "sgd":
        predicted["linear_sgd"] = linear_predict_sgd(model, train, test, seed=seed, view_options=view_options)
    if fine_tune_epochs:
        options: dict[str, Any] = {"seed": seed, "view_options": view_options}
        predicted["fine_tune"] = fine_tune(model, train, test, fine_tune_epochs, **options).predictions
    result: dict[str, Any] = {
        "train_images": len(train),
        "test_images": len(test),
        "classes": len(train.labels.unique()),
        **{name: top1(classes, test.labels) for name, classes in predicted.items()},
    }
    if pixels:
        result["pixel_knn"] = knn_accuracy(
            raw_pixels(model, train), train.labels, raw_pixels(model, test), test.labels, k
        )
    if shots:
        found = few_shot(z, train.labels, z_test, test.labels, shots, draws, seed=seed, class_names=train.class_names)
        result["few_shot"] = {number: {"mean": one.mean, "std": one.std} for number, one in found.items()}
    if geometry:
        result["geometry"] = feature_geometry(model, train, space, seed)
    if per_class:
        result |= _by_class(predicted, test, train)
    result["seconds"] = time.perf_counter() - began
    return result


def _by_class(predicted: dict[str, Tensor], test: Source, train: Source) -> dict[str, Any]:
    """Accuracy of each class that has test images, by its name, and the confusion matrix of each predictor."""
    assert train.labels is not None and test.labels is not None
    count = int(max(train.labels.max(), test.labels.max())) + 1
    names = [train.class_names[c] if train.class_names else str(c) for c in range(count)]
    present = test.labels.unique().tolist()
    accuracy = {name: per_class_accuracy(classes, test.labels, count) for name, classes in predicted.items()}
    return {
        "per_class": {name: {names[c]: float(shares[c]) for c in present} for name, shares in accuracy.items()},
        "confusion": {
            "classes": names,
            **{name: confusion(classes, test.labels, count).tolist() for name, classes in predicted.items()},
        },
    }


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


def raw_pixels(model: Model, source: Source) -> Tensor:
    """The images as the network sees them, flat and centred, as features."""
    chunks = torch.arange(len(source)).split(1024)
    return torch.cat([model.views.single(source.batch(chunk)).flatten(1) for chunk in chunks])
