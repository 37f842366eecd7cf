"""How strange is each image: scores, percentiles, and a flag at a rate of false alarms chosen beforehand."""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jointembed._files import atomic, check_table_name
from jointembed.model import Model

log = logging.getLogger("jointembed")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")  # how text begins that a spreadsheet does not take for text


@dataclass(frozen=True)
class Threshold:
    """Scores strictly above `value` are flagged; the true rate of false alarms lies between `low` and `high`.

    These are NaN where nothing can be said about the true rate.
    """

    value: float
    false_alarm_rate: float
    low: float
    high: float
    images: int  # whose scores set it


@dataclass(frozen=True)
class Scores:
    """What `score_images` found, one entry per image."""

    names: Sequence[str | int]  # of the files, or else the images' numbers
    score: Tensor
    percentile: Tensor
    flag: Tensor
    threshold: Threshold
    kind: str  # which of the method's scores

    def columns(self) -> dict[str, Any]:
        """The table, as `write_table` takes it."""
        columns = {"score": self.score.numpy(), "percentile": self.percentile.numpy(), "flag": self.flag.numpy()}
        return {"name": self.names, **columns}


def threshold(held_out: Tensor, false_alarm_rate: float, confidence: float = 0.95) -> Threshold:
    """The score above which a new normal image comes with probability at most `false_alarm_rate`.

    Nothing is assumed about the scores' distribution, only that new normal images are like the held-out ones. The
    interval is exact for scores without ties; with ties the true rate can only be lower.

    Args:
        held_out: scores (N,) of normal images that the model was not trained on.
        false_alarm_rate: the share of normal images that may be flagged.
        confidence: of the interval for the true rate.
    """
    _check_rates(false_alarm_rate, confidence)
    _check_scores("held_out", held_out)
    n = len(held_out)
    # Split conformal: a new score is equally likely to fall into each of the n + 1 gaps between the held-out ones, so
    # it lies above the k-th smallest with probability (n + 1 - k) / (n + 1), which is at most the rate for
    # k = ceil((n + 1) (1 - rate)). Counted in fractions: 100 * 0.29 is 28.999... in floating point.
    above = math.floor((n + 1) * Fraction(str(float(false_alarm_rate))))  # n + 1 - k
    if above < 1:
        needed = math.ceil(1 / Fraction(str(float(false_alarm_rate)))) - 1
        raise ValueError(
            f"false_alarm_rate: {false_alarm_rate:g} needs at least {needed:,} held-out images, there are {n:,}; train "
            f"with a larger hold_out, or allow at least {smallest_rate(n):g}"
        )
    from scipy.special import betaincinv

    k = n + 1 - above
    # Given these held-out images, the share of all normal images above their k-th score is Beta(n + 1 - k, k).
    low, high = (float(betaincinv(above, k, (1 + sign * confidence) / 2)) for sign in (-1, 1))
    return Threshold(float(held_out.double().sort().values[k - 1]), float(false_alarm_rate), low, high, n)


def smallest_rate(images: int) -> float:
    """The smallest false-alarm rate that so many held-out images can vouch for, to four digits."""
    return math.ceil(1e4 / (images + 1)) / 1e4


def percentile(train: Tensor, scores: Tensor) -> Tensor:
    """Per cent (N,) of the training scores that are at or below each score; equal ones count in full."""
    _check_scores("train", train)
    if scores.ndim != 1:
        raise ValueError(f"scores: expected shape (N,), got {tuple(scores.shape)}")
    return 100 * torch.searchsorted(train.double().sort().values, scores.double(), right=True).double() / len(train)


def score_images(
    model: Model,
    data: Any,
    score: str | None = None,
    false_alarm_rate: float | None = None,
    batch_size: int = 256,
) -> Scores:
    """Score images, and compare them with the images the model was trained on and those held out of its training.

    Args:
        model: with the reference scores that training leaves behind.
        data: what `jointembed.data.open_source` takes.
        score: one of the method's scores; by default its first.
        false_alarm_rate: the share of normal images that may be flagged; by default 0.05, or what the held-out images
            can vouch for where they are fewer than 19.
        batch_size: images per forward pass.
    """
    kind = score or model.method.scores[0]
    if kind not in model.method.scores:
        raise ValueError(f"score: expected one of {', '.join(model.method.scores)}, got {score!r}")
    train, limit = _reference(model, kind, false_alarm_rate)
    source = model.open(data)
    found = model.anomaly_score(source, kind, batch_size=batch_size)
    # Not "above": what the network cannot put a number to (NaN) is no typical image.
    flag = ~(found.double() <= limit.value)
    names = range(len(source)) if source.names is None else source.names
    return Scores(names, found, percentile(train, found), flag, limit, kind)


def _reference(model: Model, kind: str, false_alarm_rate: float | None) -> tuple[Tensor, Threshold]:
    """The scores to compare with, and the threshold: by held-out images where there are any."""
    train, held_out = (model.reference.get(f"{part}/{kind}", torch.empty(0)) for part in ("train", "held_out"))
    if false_alarm_rate is None:
        false_alarm_rate = max(0.05, smallest_rate(max(len(held_out) or len(train), 1)))
    _check_rates(false_alarm_rate)
    if len(held_out):
        return train if len(train) else held_out, threshold(held_out, false_alarm_rate)
    if not len(train):
        raise ValueError(
            f"model: expected one that kept the scores of its training images ({kind}), got one that did not; it is of "
            "an older version, or its training ended early (see log.txt): train it again"
        )
    log.warning(
        "No images were held out of this model's training, so the threshold is set by images it was trained on: new "
        "normal images will probably be flagged more often than the %g %% asked for. Train with hold_out to know.",
        100 * false_alarm_rate,
    )
    return train, replace(threshold(train, false_alarm_rate), low=math.nan, high=math.nan)


def check_table(out: str | Path) -> Path:
    """The path, if `write_table` can write there: to be asked before the work is done."""
    return check_table_name(out, ".csv")


def write_table(out: str | Path, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
    """Write named columns of one length as .csv or .parquet, whole or not at all.

    In a .csv, true is 1 and false 0, and text that a spreadsheet would run as a formula, or that begins with an
    apostrophe, has an apostrophe before it.
    """
    path = check_table(out)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns: expected one length, got {lengths}")
    with atomic(path) as temporary:
        if path.suffix == ".csv":
            _write_csv(temporary, columns)
        else:
            _write_parquet(temporary, columns)


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    plain = [
        c.astype(int) if isinstance(c, np.ndarray) and c.dtype.kind == "b" else list(map(_no_formula, c))
        for c in columns.values()
    ]
    # Left to itself, csv quotes a name with \n and not one with \r, at which readers break the line as well.
    torn = any("\r" in value for column in plain for value in column if isinstance(value, str))
    # A file name need not be valid UTF-8; its bytes go back out as they came in.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        quoting: Any = csv.QUOTE_NONNUMERIC if torn else csv.QUOTE_MINIMAL
        writer = csv.writer(file, lineterminator="\n", quoting=quoting)
        writer.writerow(map(_no_formula, columns))
        writer.writerows(zip(*plain, strict=True))


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {name: c if isinstance(c, np.ndarray) else [_text(value) for value in c] for name, c in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


def _text(value: Any) -> Any:
    """Parquet takes only valid Unicode: bytes of a file name that are not become \\udc.. escapes."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _check_rates(false_alarm_rate: float, confidence: float = 0.5) -> None:
    for name, value in (("false_alarm_rate", false_alarm_rate), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name}: expected a number between 0 and 1, got {value}")


def _check_scores(name: str, scores: Tensor) -> None:
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"{name}: expected at least one score, shape (N,), got shape {tuple(scores.shape)}")
    if not scores.isfinite().all():
        bad = int((~scores.isfinite()).sum())
        raise ValueError(f"{name}: expected finite scores, got {bad:,} of {len(scores):,} that are not")
