"""LeJEPA with the narrow ResNet-10 on CIFAR-10: what 15 epochs on an ordinary computer give."""

import csv
import time
from pathlib import Path
from typing import Any

import torch

from jointembed._files import atomic
from jointembed.data import Source, open_source
from jointembed.evaluation import knn_accuracy, linear_accuracy
from jointembed.training import train

from .results import command, write_results

# A first recipe, reasoned rather than searched. Tune it with --held-out, never on the test images.
RECIPE: dict[str, Any] = {
    "backbone": "resnet10-narrow",
    "batch_size": 128,
    "view_size": [16, 20, 24],
    "view_options": {"crop_scale": (0.2, 1.0), "solarise": 0.0},
    "num_global": 4,
    "weight": 0.04,
    "num_slices": 256,
    "hold_out": 0.0,
    "watch_every": 3,
}


def run(
    data: str = "cifar10",
    out: str = "runs/lejepa-cifar10",
    results: str = "results",
    epochs: int = 15,
    resume: bool = False,
    held_out: bool = False,
    images: int | None = None,
    root: str | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train on the 50,000 training images without their labels, then score the features on the 10,000 test images.

    Args:
        data: CIFAR-10 by name or as an .npz with x_train, y_train, x_test, y_test.
        out: the run folder.
        results: where the table and the figure go.
        epochs: passes over the training images.
        resume: go on with an interrupted run.
        held_out: for tuning: train on the first 45,000 of a random order and score the other 5,000 training images.
        images: for tuning: train on only this many images.
        root: where torchvision keeps or puts CIFAR-10.
        changes: for tuning: settings of the recipe to change.
    """
    arguments = dict(locals())
    source = open_source(data, root=root)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    test: Source
    if held_out:
        cut = len(source) * 9 // 10
        source, test = source.subset(order[:cut][:images]), source.subset(order[cut:])
    else:
        test = open_source(data, split="test", root=root)
    assert source.labels is not None and test.labels is not None

    began = time.perf_counter()
    model = train(source, out=out, epochs=epochs, resume=resume, **(RECIPE | (changes or {})))
    with (Path(out) / "metrics.csv").open() as file:
        minutes = float(list(csv.DictReader(file))[-1]["minutes"])  # of all starts of the run
    z, z_test = model.embed(source), model.embed(test)
    row = {
        "method": "LeJEPA",
        "backbone": RECIPE["backbone"],
        "images": len(source),
        "epochs": epochs,
        "scored on": "held-out training images" if held_out else "test images",
        "k-NN (k = 30) %": round(100 * knn_accuracy(z, source.labels, z_test, test.labels), 2),
        "linear %": round(100 * linear_accuracy(z, source.labels, z_test, test.labels), 2),
        "training minutes": round(minutes, 1),
    }
    name = "lejepa-cifar10" + ("-held-out" if held_out else "")
    seconds = time.perf_counter() - began
    write_results(Path(results), name, "LeJEPA on CIFAR-10", [row], command(run, arguments), seconds)
    draw_curves(Path(out) / "metrics.csv", Path(results) / f"{name}.png")


def draw_curves(metrics: Path, path: Path) -> None:
    """Loss terms and online k-NN over the epochs."""
    from matplotlib.figure import Figure

    with metrics.open() as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    epochs = [int(row["epoch"]) + 1 for row in rows]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axis, column, title in zip(
        figure.subplots(1, 3),
        ("prediction", "sigreg", "knn"),
        ("prediction loss", "SIGReg (1.06 for a perfect Gaussian)", "online k-NN accuracy, %"),
        strict=True,
    ):
        seen = [(epoch, float(row[column])) for epoch, row in zip(epochs, rows, strict=True) if row.get(column)]
        axis.plot([e for e, _ in seen], [100 * v if column == "knn" else v for _, v in seen], marker="o", markersize=3)
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
