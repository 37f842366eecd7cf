"""What labels say about a model: accuracies, confusion, and whether it knows where it errs."""

import math
from typing import Any

import torch
from torch import Tensor

from jointembed.data import Source
from jointembed.evaluation import (
    aurc,
    confusion,
    corrupt,
    detection_metrics,
    few_shot,
    knn_accuracy,
    linear_predict,
    reliability,
    risk_coverage,
)
from jointembed.evaluation.knn import top1
from jointembed.evaluation.protocol import raw_pixels
from jointembed.metrics import knn_predict
from jointembed.model import Model

from .encoded import Encoded

SHOTS = (1, 5, 20)
CURVE_POINTS = 200
SPOILT_IMAGES, SEVERITY = 500, 0.3
LARGEST_MATRIX = 40  # classes


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share seen in n independent trials."""
    z = 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return centre - half, centre + half


def judge(
    model: Model,
    train: tuple[Source, Encoded],
    test: tuple[Source, Encoded],
    kind: str | None,
    seed: int,
    k: int = 30,
) -> dict[str, Any]:
    """Accuracies on labelled test images from labelled training images, and the curves of trust.

    Args:
        model: the model.
        train: labelled images and what the model says of them.
        test: others.
        kind: the anomaly score that may order the predictions.
        seed: of the probes.
        k: neighbours.
    """
    (bank, z), (images, z_test) = train, test
    assert bank.labels is not None and images.labels is not None
    votes = knn_predict(z.features, bank.labels, z_test.features, k)
    predicted = {
        "k-NN": votes.argmax(1),
        "linear": linear_predict(z.features, bank.labels, z_test.features, seed),
    }
    classes = int(max(bank.labels.max(), images.labels.max())) + 1
    shares = votes / votes.sum(1, keepdim=True)
    correct = predicted["k-NN"] == images.labels
    frequent = torch.bincount(images.labels).max() / len(images)
    accuracy = {name: top1(found, images.labels) for name, found in predicted.items()}
    accuracy["k-NN of raw pixels"] = knn_accuracy(
        raw_pixels(model, bank), bank.labels, raw_pixels(model, images), images.labels, k
    )
    counts = torch.bincount(bank.labels)
    shots = [n for n in SHOTS if n <= int(counts[counts > 0].min())]
    few = (
        few_shot(z.features, bank.labels, z_test.features, images.labels, shots, seed=seed, class_names=None)
        if shots
        else {}
    )
    orders = {"k-NN votes": 1 - shares.amax(1)}
    if z_test.uncertainty is not None:
        orders["posterior variance"] = z_test.uncertainty
    if kind is not None and z_test.scores[kind].isfinite().all():
        orders[f"anomaly score ({kind})"] = z_test.scores[kind]
    return {
        "k": k,
        "train_images": len(bank),
        "test_images": len(images),
        "chance": float(frequent),
        "accuracy": {
            name: {"value": value, "interval": wilson(value, len(images))} for name, value in accuracy.items()
        },
        "few_shot": {str(n): {"mean": one.mean, "std": one.std} for n, one in few.items()},
        "confusion": confusion(predicted["k-NN"], images.labels, classes).tolist()
        if classes <= LARGEST_MATRIX
        else None,
        "reliability": reliability(shares.amax(1).clamp(0, 1), correct),
        "risk_coverage": {name: _risk(order, correct) for name, order in orders.items()},
    }


def _risk(uncertainty: Tensor, correct: Tensor) -> dict[str, Any]:
    """The curve at so many places, its area, and the errors of the more and the less certain half."""
    coverage, risk = risk_coverage(uncertainty, correct)
    some = torch.linspace(0, len(risk) - 1, min(len(risk), CURVE_POINTS)).round().long()
    half = len(risk) // 2
    errors = float(risk[half - 1] * half) if half else 0.0
    total = float((~correct).sum())
    found: dict[str, Any] = {**aurc(uncertainty, correct)}
    found |= {"coverage": coverage[some].tolist(), "risk": risk[some].tolist()}
    return found | {"halves": [errors / max(half, 1), (total - errors) / (len(risk) - half)]}


def spoilt(model: Model, images: Source, kind: str) -> dict[str, Any]:
    """Does the score tell images from the same images, spoilt? No labels are needed."""
    pixels = _as_seen(model, images.subset(torch.arange(min(len(images), SPOILT_IMAGES))))
    clean = model.anomaly_score(pixels, kind, progress=False)
    rows = []
    for corruption in ("blur", "noise", "occlusion"):
        worse = model.anomaly_score(corrupt(pixels, corruption, SEVERITY), kind, progress=False)
        if not (clean.isfinite().all() and worse.isfinite().all()):
            return {"missing": "The score is not finite for every image."}
        rows.append({"corruption": corruption, **detection_metrics(clean, worse)})
    return {"rows": rows, "images": len(pixels), "severity": SEVERITY}


def _as_seen(model: Model, images: Source) -> Tensor:
    """uint8 (N, C, S, S), at the size the model sees: large photographs are never all in memory."""
    batches = (images.batch(rows) for rows in torch.arange(len(images)).split(32))
    return torch.stack([model.views.centre(image) for batch in batches for image in batch])
