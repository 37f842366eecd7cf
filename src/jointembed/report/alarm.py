"""Where a score becomes an alarm: thresholds for a choice of false-alarm rates, and the histogram they cut."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jointembed.model import Model
from jointembed.scoring import Threshold, smallest_rate, threshold

RATES = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.06,
    0.08,
    0.1,
    0.12,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
)
BINS = 60


def alarm(model: Model, kind: str, scores: Tensor, false_alarm_rate: float) -> dict[str, Any]:
    """Thresholds of the score `kind`, how many of the scores (N,) are above each, and the scores' histogram.

    "steps" has rate, value, low, high (the 95 % interval of the true rate; None where unknown) and above. "chosen" is
    the step of `false_alarm_rate`, or of the smallest rate that the known images allow.
    """
    held_out, train = (model.reference.get(f"{part}/{kind}", torch.empty(0)) for part in ("held_out", "train"))
    known = held_out if len(held_out) else train
    if not len(known) or not known.isfinite().all():
        why = "has scores that are not finite" if len(known) else "kept no scores of the images it was trained on"
        return {"missing": f"No threshold can be set: the run {why}."}
    smallest = smallest_rate(len(known))
    chosen = max(false_alarm_rate, smallest)
    limits = [threshold(known, rate) for rate in sorted({*RATES, chosen}) if rate >= smallest]
    if not len(held_out):
        limits = [replace(limit, low=math.nan, high=math.nan) for limit in limits]
    return {
        "kind": kind,
        "known": "held_out" if len(held_out) else "train",
        "known_images": len(known),
        "asked": false_alarm_rate,
        "steps": [_step(limit, scores) for limit in limits],
        "chosen": next(i for i, limit in enumerate(limits) if limit.false_alarm_rate == chosen),
        "histogram": histogram(scores, known),
    }


def _step(limit: Threshold, scores: Tensor) -> dict[str, Any]:
    low, high = (None if math.isnan(bound) else bound for bound in (limit.low, limit.high))
    above = int((~(scores.double() <= limit.value)).sum())  # what is no number is no typical image
    return {"rate": limit.false_alarm_rate, "value": limit.value, "low": low, "high": high, "above": above}


def histogram(scores: Tensor, known: Tensor) -> dict[str, Any]:
    """Shares of the scores, and of the known images' scores, in the same bins.

    Very large scores would squeeze all others into one bar: those beyond ten interquartile ranges are in the last bar.
    """
    values = [part[part.isfinite()].double().numpy() for part in (scores, known)]
    both = np.concatenate(values)
    low, middle, high = np.quantile(both, [0.25, 0.5, 0.75])
    top = min(both.max(), middle + 10 * max(high - low, 1e-12))
    edges = np.linspace(both.min(), max(top, both.min() + 1e-9), BINS + 1)
    counts = [np.histogram(np.minimum(part, edges[-1]), edges)[0] for part in values]
    beyond = int((values[0] > edges[-1]).sum())
    shares = [(count / max(len(part), 1)).tolist() for count, part in zip(counts, values, strict=True)]
    return {"edges": edges.tolist(), "images": shares[0], "known": shares[1], "beyond": beyond}
