"""What experiments on small data share: the settings, one training for features, one on a single class."""

import csv
import time
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch

from jointembed import load, train
from jointembed.data import Source, open_source
from jointembed.evaluation import knn_accuracy, linear_accuracy, one_class
from jointembed.model import Model
from jointembed.training import Diverged

# Small views cost a quarter of full ones; blur is left out at this size, as in the paper.
SMALL: dict[str, Any] = {
    "backbone": "resnet10-narrow",
    "batch_size": 64,
    "view_size": 16,
    "view_options": {"blur": 0.0},
    "hold_out": 0.0,
    "progress": False,
}


def parts(data: str, images: int, held_out: bool, test_images: int | None = None) -> tuple[Source, Source]:
    """Training images, and the test images or, to tune by, 5,000 training images apart from them."""
    source = open_source(data)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    test = source.subset(order[-5000:]) if held_out else open_source(data, split="test")
    few = order[: -5000 if held_out else None][:images].sort().values
    return source.subset(few), test if test_images is None else test.subset(range(test_images))


def trained(source: Source, method: str, **training: Any) -> tuple[Model, list[dict[str, float]]]:
    """A model, and what its log says of every epoch; `Diverged` if the loss stopped being finite."""
    with TemporaryDirectory() as folder:
        model = train(source, method, out=Path(folder) / "run", **(SMALL | training))
        with (Path(folder) / "run/metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    return model, [{name: float(value) for name, value in row.items() if value} for row in rows]


def features(
    data: str, images: int, held_out: bool, method: str = "vje", probed: int | None = None, **training: Any
) -> dict[str, Any]:
    """k-NN and linear accuracy of the features, and mean and coefficient of variation of a posterior variance.

    `probed`: at most so many training images are shown to k-NN and the linear probe.
    """
    source, test = parts(data, images, held_out)
    began = time.perf_counter()
    try:
        model, _ = trained(source, method, **training)
    except Diverged as error:
        return {"diverged": str(error)}
    minutes = (time.perf_counter() - began) / 60
    few = source if probed is None else source.subset(range(min(probed, len(source))))
    found = accuracies(model, few, test) | {"minutes": minutes}
    if "variance" in model.method.spaces:
        variance = model.embed(test, "variance")
        found |= {"variance": float(variance.mean()), "cv": float((variance.std(1) / variance.mean(1)).mean())}
    return found


def accuracies(model: Model, source: Source, test: Source) -> dict[str, float]:
    """k-NN and linear accuracy of a model's features, in percent."""
    assert source.labels is not None and test.labels is not None
    z, z_test = model.embed(source), model.embed(test)
    return {
        "knn": 100 * knn_accuracy(z, source.labels, z_test, test.labels),
        "linear": 100 * linear_accuracy(z, source.labels, z_test, test.labels),
    }


def one_class_cell(
    data: str, label: int, held_out: bool, test_images: int | None, method: str = "vje", **training: Any
) -> dict[str, Any]:
    """AUROC of every score for a model of one class, and the mean entropy and variance sum of its posteriors."""
    source, test = parts(data, 10**9, held_out, test_images)
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        try:
            cheap = ("joint", "variance", "entropy", "density") if method == "vje" else None
            options = {"method": method} | SMALL | training
            result = one_class(source, test, classes=[label], scores=cheap, out=folder, **options)
        except Diverged as error:
            return {"diverged": str(error)}
        model = load(next(Path(folder).iterdir()))
        found = {row["score"]: row for row in result.rows}
        if "entropy" in found:
            scores = model.anomaly_scores(test, ("entropy", "variance"), progress=False)
            found["posterior"] = {name: float(values.mean()) for name, values in scores.items()}
    return found | {"minutes": (time.perf_counter() - began) / 60}


def rounded(value: float | None, digits: int) -> str:
    """A number as a table shows it; a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def over_seeds(values: list[float], digits: int, sign: str = "") -> str:
    """Mean and, of several runs, standard deviation, as a table shows them; a dash for none."""
    if not values:
        return "-"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.{digits}f}{spread}"
