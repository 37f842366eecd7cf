"""VJE, Table 5: how heavy the tails of the likelihood should be, and the likelihoods on z itself."""

import math
import time
from pathlib import Path
from typing import Any

from jointembed._files import atomic

from .cells import run_cells
from .results import command, write_results
from .small import features, rounded

# Likelihood and df, and the paper's CIFAR-10 columns (ResNet-18, 200 epochs): k-NN, linear.
LIKELIHOODS: dict[tuple[str, float], tuple[float, float] | None] = {
    ("polar", 1.0): (86.18, 89.23),
    ("polar", 3.0): (86.2, 88.9),
    ("polar", 7.0): (86.02, 88.71),
    ("polar", 20.0): (85.82, 88.5),
    ("polar", 50.0): (85.4, 88.08),
    ("polar", math.inf): (29.0, 62.0),
    ("student", 3.0): None,
    ("gaussian", math.inf): None,
}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 10_000,
    epochs: int = 10,
    held_out: bool = False,
    kept: str = "runs/vje-tails.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Degrees of freedom from 1 to infinity on a part of CIFAR-10, with the narrow ResNet-10.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        held_out: for tuning: score training images held out instead of the test images.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "images": images, "epochs": epochs, "held_out": held_out, **(changes or {})}
    cells = [{**shared, "likelihood": likelihood, "df": df} for likelihood, df in LIKELIHOODS]
    found = run_cells(features, cells, Path(kept), jobs)
    rows = []
    for ((likelihood, df), paper), ours in zip(LIKELIHOODS.items(), found, strict=True):
        failed = "diverged" in ours
        rows.append(
            {
                "likelihood": likelihood if likelihood == "polar" else f"{likelihood}, on z itself",
                "df": "∞" if math.isinf(df) else f"{df:g}",
                "k-NN %": "diverged" if failed else rounded(ours["knn"], 1),
                "k-NN %, paper": rounded(paper and paper[0], 1),
                "linear %": "diverged" if failed else rounded(ours["linear"], 1),
                "linear %, paper": rounded(paper and paper[1], 1),
                "variance": "-" if failed else f"{ours['variance']:.2g}",
                "CV": "-" if failed else rounded(ours["cv"], 2),
            }
        )
    title = f"VJE, Table 5: tails of the likelihood, {images:,} images of CIFAR-10, {epochs} epochs, narrow ResNet-10"
    write_results(Path(results), "vje-tails", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(found, Path(results) / "vje-tails.png")


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Accuracy over the degrees of freedom, here and in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    polar = [i for i, (likelihood, _) in enumerate(LIKELIHOODS) if likelihood == "polar"]
    keys = list(LIKELIHOODS)
    labels = ["∞" if math.isinf(keys[i][1]) else f"{keys[i][1]:g}" for i in polar]
    papers = [LIKELIHOODS[keys[i]] or (math.nan, math.nan) for i in polar]
    for column, key, marker in ((0, "knn", "o"), (1, "linear", "s")):
        name = "k-NN" if key == "knn" else "linear"
        axis.plot(
            labels, [found[i].get(key, math.nan) for i in polar], marker=marker, color="C0", label=f"{name}, here"
        )
        axis.plot(labels, [p[column] for p in papers], marker=marker, color="C1", linestyle=":", label=f"{name}, paper")
    axis.set(xlabel="degrees of freedom", ylabel="accuracy, %", ylim=(0, 100))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, ncols=2)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
