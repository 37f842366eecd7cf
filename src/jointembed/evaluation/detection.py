"""Does a model's score tell strange images from normal ones? Other data sets, and one class against the rest."""

import copy
import inspect
import logging
import re
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

from jointembed import methods
from jointembed.data import Source, open_source, splits
from jointembed.metrics import knn_distance
from jointembed.model import Model, load
from jointembed.training import train

from .protocol import _labelled, labelled_splits

log = logging.getLogger("jointembed")

METRICS = ("auroc", "aupr", "fpr95")


def detection_metrics(normal: Tensor, anomalous: Tensor) -> dict[str, float]:
    """How well scores (N,) and (M,), higher = stranger, tell anomalies, the positive class, from normal images.

    "auroc": the chance that an anomaly scores above a normal image, ties counting half.
    "aupr": average precision; without skill, the share of anomalies among all images.
    "fpr95": the share of normal images at or above the threshold that catches 95 % of the anomalies, which is the
    highest one with at least 95 % of them at or above it.
    """
    for name, scores in (("normal", normal), ("anomalous", anomalous)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"{name}: expected scores of shape (N,), at least one, got {tuple(scores.shape)}")
        if not scores.isfinite().all():
            raise ValueError(f"{name}: expected finite scores, got {int((~scores.isfinite()).sum())} that are not")
    # scikit-learn, not torchmetrics: that one squeezes scores through a sigmoid, where the large ones become equal.
    scores = torch.cat([normal.double().cpu(), anomalous.double().cpu()])
    positive = torch.arange(len(scores)) >= len(normal)
    caught = -(-95 * len(anomalous) // 100)  # 95 % of them, rounded up
    threshold = scores[positive].sort(descending=True).values[caught - 1]
    return {
        "auroc": float(roc_auc_score(positive.numpy(), scores.numpy())),
        "aupr": float(average_precision_score(positive.numpy(), scores.numpy())),
        "fpr95": float((scores[~positive] >= threshold).double().mean()),
    }


def out_of_distribution(
    model: Model | str | Path,
    inside: Any,
    outside: Any,
    bank: Any = None,
    scores: Sequence[str] | None = None,
    k: int = 5,
) -> dict[str, dict[str, float]]:
    """`detection_metrics` of every score of a model, for images like those it was trained on against others.

    Args:
        model: a model or its run folder.
        inside: normal images it was not trained on; of a name or folder with a test split, that split.
        outside: other images, likewise.
        bank: the training images, for a row "knn": distance to the k nearest of them in the method's features.
        scores: which of the method's scores; by default all.
        k: neighbours.
    """
    model = load(model) if isinstance(model, str | Path) else model
    chosen = _check_scores(scores, model.method.scores)
    _check_neighbours(k)
    inside, outside = images_to_score(model, inside), images_to_score(model, outside)
    features = None if bank is None else model.embed(model.open(bank))
    normal, anomalous = (_scores(model, images, chosen, features, k) for images in (inside, outside))
    return {score: detection_metrics(normal[score], anomalous[score]) for score in normal}


@dataclass(frozen=True)
class OneClassResult:
    """One row per class and score: {"class", "score", "auroc", "aupr", "fpr95"}."""

    rows: list[dict[str, Any]]

    def summary(self) -> dict[str, dict[str, float]]:
        """Per score, the mean over classes of each metric and, as "auroc_std" and so on, its standard deviation.

        The deviation is that of these classes, not an estimate for others: the sum of squares is divided by their
        number, as in the papers' tables.
        """
        result: dict[str, dict[str, float]] = {}
        for score in dict.fromkeys(row["score"] for row in self.rows):
            values = [[row[metric] for metric in METRICS] for row in self.rows if row["score"] == score]
            std, mean = torch.std_mean(torch.tensor(values, dtype=torch.float64), 0, correction=0)
            result[score] = dict(zip(METRICS, mean.tolist(), strict=True))
            result[score] |= {f"{metric}_std": value for metric, value in zip(METRICS, std.tolist(), strict=True)}
        return result


def one_class(
    data: Any,
    test: Any = None,
    classes: Sequence[int | str] | None = None,
    scores: Sequence[str] | None = None,
    k: int = 5,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    labels: Any = None,
    root: str | Path | None = None,
    progress: bool = True,
    **training: Any,
) -> OneClassResult:
    """Train on each class alone and detect all others among the test images.

    The labels choose the training images and judge the scores; the training itself never sees them.

    Args:
        data: a source with labels.
        test: a labelled source to score; by default the test split of `data`, or a fifth of it, held out at random.
        classes: which ones, by number or name; by default all.
        scores: which of the method's scores; by default all. "knn", the distance to the k nearest training images in
            the method's features, comes beside them.
        k: neighbours.
        seed: of the hold-out and of every training.
        out: where the runs go, a folder per class; by default none is kept.
        resume: go on with the runs that `out` has; those it has not are begun.
        labels: one integer per image of `data`, if the source has none.
        root: where torchvision data sets are, or go.
        progress: show progress bars on a terminal.
        **training: further arguments of `jointembed.train`: method, backbone, epochs, ...
    """
    if scores is not None:
        method = training.get("method") or inspect.signature(train).parameters["method"].default
        _check_scores(scores, methods.get(method).scores)
    _check_neighbours(k)
    if resume and out is None:
        raise ValueError("resume: expected out, the folder with the runs to go on with, got None")
    source, test = _splits(data, test, labels, root, seed)
    rows: list[dict[str, Any]] = []
    place: AbstractContextManager[Any] = tempfile.TemporaryDirectory() if out is None else nullcontext(out)
    with place as parent:
        for label, name in _classes(classes, source, test).items():
            # A name that is no file name gives way to the number.
            folder = Path(parent) / (name if re.fullmatch(r"\w[\w .-]*", name) else str(label))
            images = _of_class(source, label)
            model = train(
                images,
                out=folder,
                seed=seed,
                resume="auto" if resume else False,
                progress=progress,
                **_fresh(training),
            )
            features = model.embed(images, progress=progress)
            found = _scores(model, test, scores or model.method.scores, features, k, progress)
            normal = test.labels == label  # (N,)
            for score, values in found.items():
                rows.append({"class": name, "score": score, **detection_metrics(values[normal], values[~normal])})
                log.info("class %s, %s: AUROC %.3f", name, score, rows[-1]["auroc"])
    return OneClassResult(rows)


def images_to_score(model: Model, data: Any) -> Source:
    """The test split, where the data has one; all images where it has none."""
    return model.open(data, "test" if not isinstance(data, Source) and "test" in splits(data) else "train")


def _scores(
    model: Model, images: Source, scores: Sequence[str], bank: Tensor | None, k: int, progress: bool = True
) -> dict[str, Tensor]:
    """Each score (N,) of the images, and with the bank's features (B, D) the distance to them."""
    found = model.anomaly_scores(images, scores, progress=progress)
    if bank is None:
        return found
    return found | {"knn": knn_distance(bank, model.embed(images, progress=progress), k)}


def _splits(data: Any, test: Any, labels: Any, root: str | Path | None, seed: int) -> tuple[Source, Source]:
    if test is None:
        return labelled_splits(data, labels, root, seed)
    source = _labelled(open_source(data, labels=labels, root=root))
    split = "test" if not isinstance(test, Source) and "test" in splits(test, root=root) else "train"
    other = _labelled(open_source(test, split=split, root=root))
    if source.class_names and other.class_names and source.class_names != other.class_names:
        raise ValueError(f"test: expected the classes {source.class_names}, got {other.class_names}")
    return source, other


def _classes(classes: Sequence[int | str] | None, source: Source, test: Source) -> dict[int, str]:
    """Number and name of the classes asked for, each with images to train on, to find normal and to find strange."""
    assert source.labels is not None and test.labels is not None
    names = {c: source.class_names[c] if source.class_names else str(c) for c in source.labels.unique().tolist()}
    numbers = {name: c for c, name in names.items()}
    chosen = [numbers.get(c, c) if isinstance(c, str) else c for c in (names if classes is None else classes)]
    for c in chosen:
        if c not in names:
            raise ValueError(f"classes: expected some of {', '.join(names.values())}, got {c!r}")
        inside, held = int((source.labels == c).sum()), int((test.labels == c).sum())
        if inside < 2 or not 0 < held < len(test):
            raise ValueError(
                f"classes: expected at least two training images of {names[c]!r}, and test images of it and of others, "
                f"got {inside} to train on and {held} among {len(test)} to test"
            )
    return {c: names[c] for c in chosen}


def _of_class(source: Source, label: int) -> Source:
    """The images of one class, without a label."""
    assert source.labels is not None
    images = source.subset(torch.nonzero(source.labels == label).flatten())
    images.labels = images.class_names = None
    return images


def _fresh(training: dict[str, Any]) -> dict[str, Any]:
    """A module is trained in place: every class gets its own copy of the one given."""
    backbone = training.get("backbone")
    return training | ({"backbone": copy.deepcopy(backbone)} if isinstance(backbone, nn.Module) else {})


def _check_scores(scores: Sequence[str] | None, known: tuple[str, ...]) -> Sequence[str]:
    if scores is None:
        return known
    if isinstance(scores, str) or not scores or not set(scores) <= set(known):
        raise ValueError(f"scores: expected a list of some of {', '.join(known)}, got {scores!r}")
    return scores


def _check_neighbours(k: int) -> None:
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
