"""VJE: where one-class AUROC stands against the length of training. The paper trains for 800 epochs."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from jointembed._files import atomic

from .cells import run_cells
from .results import command, write_results
from .small import one_class_cell
from .vje_one_class import ONE_CLASS

SCORES = ("joint", "variance", "entropy", "density", "knn")


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    epochs: tuple[int, ...] = (1, 3, 10, 30),
    classes: tuple[int, ...] = (1, 6),
    backbone: str = "resnet10-tiny",
    test_images: int | None = 2000,
    kept: str = "runs/vje-one-class-epochs.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Models of a few classes, trained for longer and longer, each with its own schedule.

    Args:
        data: CIFAR-10 or another labelled set as an .npz, or its name. Training images held out are scored.
        results: where the table and the figure go.
        epochs: passes over the images of a class, one training each.
        classes: by number.
        backbone: a small one.
        test_images: score only so many.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "backbone": backbone, "held_out": True, "test_images": test_images}
    options = ONE_CLASS | (changes or {})
    cells = [{**shared, **options, "label": c, "epochs": n} for n in epochs for c in classes]
    found = run_cells(one_class_cell, cells, Path(kept), jobs)
    auroc = np.array([[cell[score]["auroc"] for score in SCORES] for cell in found])  # (epochs x classes, scores)
    auroc = auroc.reshape(len(epochs), len(classes), -1).mean(1)
    rows = [
        {"epochs": n} | {score: f"{value:.3f}" for score, value in zip(SCORES, line, strict=True)}
        for n, line in zip(epochs, auroc, strict=True)
    ]
    name = Path(data).stem
    title = (
        f"VJE: one-class AUROC against epochs, mean of {len(classes)} classes of {name}, {backbone}, held-out images"
    )
    write_results(
        Path(results), "vje-one-class-epochs", title, rows, command(run, arguments), time.perf_counter() - began
    )
    draw(epochs, auroc, Path(results) / "vje-one-class-epochs.png")


def draw(epochs: tuple[int, ...], auroc: np.ndarray, path: Path) -> None:
    """A line per score."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    for score, line in zip(SCORES, auroc.T, strict=True):
        axis.plot(epochs, line, marker="o", label=score)
    axis.set_xscale("log")
    axis.set_xticks(list(epochs), [str(n) for n in epochs])
    axis.minorticks_off()
    axis.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
    axis.set(xlabel="epochs", ylabel="AUROC")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
