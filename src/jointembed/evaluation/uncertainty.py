"""Does a model know what it does not know? Errors ordered by a score, and the score of images made worse on purpose."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from jointembed.metrics import knn_predict
from jointembed.model import Model, load

from .detection import images_to_score
from .knn import top1
from .linear import linear_predict
from .protocol import labelled_splits

CHUNK = 256  # images made worse at a time, in floats
GREY = 128


def risk_coverage(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage n/N (N,), and the error rate (N,) among the n most certain of N predictions, for n = 1 to N.

    Where uncertainties are equal the risk is its mean over all orders of them, so that their order does not matter:
    each of them counts as the share of errors among them.

    Args:
        uncertainty: (N,), higher = less certain.
        correct: (N,) bool, whether the prediction is right.
    """
    _check_predictions(uncertainty, correct)
    _, group, size = uncertainty.double().unique(return_inverse=True, return_counts=True)  # groups by uncertainty
    share = torch.bincount(group, weights=(~correct).double()) / size
    n = torch.arange(1, len(correct) + 1, dtype=torch.float64, device=correct.device)
    return n / len(n), share.repeat_interleave(size).cumsum(0) / n


def aurc(uncertainty: Tensor, correct: Tensor) -> dict[str, float]:
    """Area under the risk-coverage curve, the mean risk over all coverages, beside what it could be.

    "aurc": of this order. "random": of a random order, which is the error rate. "oracle": with every error last.
    "normalised": (aurc - oracle) / (random - oracle), 0 for the oracle and 1 for an order that says nothing about the
    errors; NaN where all predictions are right or all are wrong, and no order is better than another.
    """
    found = float(risk_coverage(uncertainty, correct)[1].mean())
    oracle = float(risk_coverage((~correct).float(), correct)[1].mean())
    random = float((~correct).double().mean())
    normalised = (found - oracle) / (random - oracle) if 0 < random < 1 else math.nan
    return {"aurc": found, "random": random, "oracle": oracle, "normalised": normalised}


def reliability(confidence: Tensor, correct: Tensor, bins: int = 10) -> dict[str, list[float] | float]:
    """Does a confidence of 80 % mean right in 80 % of all cases?

    Per bin of equal width that holds predictions: "confidence", their mean confidence, "accuracy", the share that is
    right, and "count". "ece", the expected calibration error, is the mean distance of the two, weighted by count.

    Args:
        confidence: (N,), from 0 to 1.
        correct: (N,) bool, whether the prediction is right.
        bins: of the confidence.
    """
    _check_predictions(confidence, correct)
    if bins < 1:
        raise ValueError(f"bins: expected at least 1, got {bins}")
    if confidence.min() < 0 or confidence.max() > 1:
        span = f"{float(confidence.min()):g} to {float(confidence.max()):g}"
        raise ValueError(f"confidence: expected numbers from 0 to 1, got {span}")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    place = torch.bucketize(confidence.double(), edges[1:-1])
    count = torch.bincount(place, minlength=bins)
    said, right = (
        torch.bincount(place, weights=values.double(), minlength=bins)[count > 0] / count[count > 0]
        for values in (confidence, correct)
    )
    share = count[count > 0] / len(place)
    result: dict[str, list[float] | float] = {"confidence": said.tolist(), "accuracy": right.tolist()}
    return result | {"count": count[count > 0].tolist(), "ece": float((share * (said - right).abs()).sum())}


def error_tracking(
    model: Model | str | Path,
    data: Any,
    score: str | None = "entropy",
    k: int = 30,
    space: str | None = None,
    labels: Any = None,
    root: str | Path | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Is a high score a warning of a wrong prediction? Accuracy and `aurc` of k-NN and linear predictions.

    Args:
        model: a model or its run folder.
        data: a source with labels. Its test split is what is predicted; without one, a fifth of it, held out at random.
        score: which of the method's scores orders the predictions; None for its default.
        k: neighbours.
        space: which embedding predicts; by default the method's features.
        labels: one integer per image, if the source has none.
        root: where torchvision data sets are, or go.
        seed: of the hold-out and of the probe.
    """
    model = load(model) if isinstance(model, str | Path) else model
    _check_score(score, model)
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    channels = model.config.channels if model.config.channels in (1, 3) else None
    train, test = labelled_splits(data, labels, root, seed, channels)
    assert train.labels is not None and test.labels is not None
    z, z_test = model.embed(train, space), model.embed(test, space)
    uncertainty = model.anomaly_score(test, score=score)
    predictions = {
        "knn": knn_predict(z, train.labels, z_test, k).argmax(1),
        "linear": linear_predict(z, train.labels, z_test, seed),
    }
    return {
        name: {"accuracy": top1(predicted, test.labels), **aurc(uncertainty, predicted == test.labels)}
        for name, predicted in predictions.items()
    }


def corruption_response(
    model: Model | str | Path,
    images: Any,
    corruptions: Sequence[str] = ("blur", "noise", "occlusion"),
    severities: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5),
    score: str | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Does a score rise as images get worse?

    For each corruption, with the clean images first: "severity"; "score", its mean over the images; "rose", the share
    of images that score higher than they do clean. And over all severities: "monotone", whether the mean rises at every
    step; "spearman", the rank correlation of severity and score within an image, averaged over the images.

    Args:
        model: a model or its run folder.
        images: images of one size; of a name or folder with a test split, that split.
        corruptions: some of "blur", "noise" and "occlusion", as in `corrupt`.
        severities: rising numbers above 0.
        score: one of the method's scores; by default its first.
        seed: of the noise and of the places of the squares, the same at every severity.
    """
    model = load(model) if isinstance(model, str | Path) else model
    _check_score(score, model)
    for corruption in corruptions:
        _check_corruption(corruption)
    severity = torch.tensor([0.0, *severities], dtype=torch.float64)  # (S,)
    if len(severity) < 2 or not severity.isfinite().all() or not (severity.diff() > 0).all():
        raise ValueError(f"severities: expected finite, rising numbers above 0, got {severities!r}")
    source = images_to_score(model, images)
    if source.image_size is None:
        raise ValueError(f"images: expected one size, {source.name} has several")
    pixels = source.batch(torch.arange(len(source)))
    assert isinstance(pixels, Tensor)
    clean = model.anomaly_score(pixels, score=score)
    result = {}
    for corruption in corruptions:
        worse = [model.anomaly_score(corrupt(pixels, corruption, s, seed), score=score) for s in severities]
        scores = torch.stack([clean, *worse], 1).double()  # (N, S)
        mean = scores.mean(0)
        result[corruption] = {
            "severity": severity.tolist(),
            "score": mean.tolist(),
            "rose": (scores > scores[:, :1]).double().mean(0).tolist(),
            "monotone": bool((mean.diff() > 0).all()),
            "spearman": float(spearman(severity, scores).mean()),
        }
    return result


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's rank correlation along the last dimension, equal values sharing their mean rank; 0 for a constant."""
    a, b = _ranks(x), _ranks(y)
    return torch.cosine_similarity(a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True), dim=-1)


def _ranks(x: Tensor) -> Tensor:
    below, same = x[..., None, :] < x[..., :, None], x[..., None, :] == x[..., :, None]  # (..., S, S)
    return below.sum(-1) + (same.sum(-1, dtype=torch.float64) + 1) / 2


def corrupt(images: Tensor, corruption: str, severity: float, seed: int = 0) -> Tensor:
    """uint8 images (N, C, H, W) made worse; at severity 0 they stay as they are.

    Args:
        images: the images; they are not changed.
        corruption: "blur" (Gaussian, its sigma `severity` quarters of the short side), "noise" (Gaussian, its standard
            deviation `severity` times the range of pixels) or "occlusion" (a grey square, its side `severity` times
            the short side).
        severity: a number of at least 0; "occlusion" has covered the short side at 1.
        seed: the same seed gives the same noise and squares in the same places, at every severity.
    """
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(f"images: expected uint8 (N, C, H, W), got {images.dtype} of shape {tuple(images.shape)}")
    _check_corruption(corruption)
    if not 0 <= severity < math.inf:
        raise ValueError(f"severity: expected a number of at least 0, got {severity}")
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([_CORRUPTIONS[corruption](part, severity, generator) for part in images.split(CHUNK)])


def _blur(images: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    side = min(images.shape[2:])
    sigma = severity * side / 4
    radius = min(math.ceil(3 * sigma), side - 1)  # reflected at the border, which reaches no further than the image
    return TF.gaussian_blur(images, [2 * radius + 1] * 2, [sigma, sigma]) if radius else images.clone()


def _noise(images: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(images.shape, generator=generator).to(images.device)
    return noise.mul_(255 * severity).add_(images).round_().clamp_(0, 255).to(torch.uint8)


def _occlusion(images: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    sizes = torch.tensor(images.shape[2:])
    side = min(round(severity * int(sizes.min())), int(sizes.min()))
    # The same fraction of the free space at every severity: a larger square contains the smaller ones.
    corner = (torch.rand(len(images), 2, generator=generator) * (sizes - side)).round()  # (N, 2)
    inside = [
        (torch.arange(int(size)) >= start[:, None]) & (torch.arange(int(size)) < start[:, None] + side)
        for size, start in zip(sizes, corner.unbind(1), strict=True)
    ]
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]  # (N, 1, H, W)
    return images.masked_fill(square.to(images.device), GREY)


_CORRUPTIONS: dict[str, Callable[[Tensor, float, torch.Generator], Tensor]] = {
    "blur": _blur,
    "noise": _noise,
    "occlusion": _occlusion,
}


def _check_corruption(corruption: str) -> None:
    if corruption not in _CORRUPTIONS:
        raise ValueError(f"corruption: expected one of {', '.join(_CORRUPTIONS)}, got {corruption!r}")


def _check_score(score: str | None, model: Model) -> None:
    if score is not None and score not in model.method.scores:
        raise ValueError(f"score: expected one of {', '.join(model.method.scores)}, got {score!r}")


def _check_predictions(uncertainty: Tensor, correct: Tensor) -> None:
    if uncertainty.ndim != 1 or not len(uncertainty):
        raise ValueError(f"uncertainty: expected shape (N,), at least one, got {tuple(uncertainty.shape)}")
    if not uncertainty.isfinite().all():
        raise ValueError(f"uncertainty: expected finite numbers, got {int((~uncertainty.isfinite()).sum())} others")
    if correct.dtype != torch.bool or correct.shape != uncertainty.shape:
        raise ValueError(
            f"correct: expected bool of shape {tuple(uncertainty.shape)}, "
            f"got {correct.dtype} of shape {tuple(correct.shape)}"
        )
