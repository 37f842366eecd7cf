"""VJE, Tables 6 and 7: which terms of the objective are needed, and what the variance becomes without them."""

import time
from pathlib import Path
from typing import Any

from jointembed._files import atomic

from .cells import run_cells
from .results import command, write_results
from .small import features, rounded

# Terms, and the paper's CIFAR-10 columns (ResNet-18, 200 epochs): k-NN, linear, variance mean, variance CV.
OBJECTIVES: dict[tuple[str, ...], tuple[float, float, float, float | None]] = {
    ("direction", "radius", "kl"): (86.18, 88.91, 0.32, 0.78),
    ("direction", "kl"): (86.08, 88.97, 0.32, 0.77),
    ("direction", "radius"): (19.86, 22.68, 0.00, None),
    ("radius", "kl"): (25.41, 31.63, 0.99, 0.00),
    ("radius",): (18.19, 19.13, 0.07, 0.06),
    ("direction",): (13.44, 15.66, 0.00, None),
}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 10_000,
    epochs: int = 10,
    held_out: bool = False,
    kept: str = "runs/vje-ablation.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Six objectives on a part of CIFAR-10, with the narrow ResNet-10.

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
    found = run_cells(features, [{**shared, "terms": list(terms)} for terms in OBJECTIVES], Path(kept), jobs)
    rows = []
    for (terms, paper), ours in zip(OBJECTIVES.items(), found, strict=True):
        collapsed = ours["variance"] < 1e-3
        rows.append(
            {
                "objective": " + ".join(terms),
                "k-NN %": rounded(ours["knn"], 1),
                "k-NN %, paper": rounded(paper[0], 1),
                "linear %": rounded(ours["linear"], 1),
                "linear %, paper": rounded(paper[1], 1),
                "variance": f"{ours['variance']:.2g}",
                "variance, paper": rounded(paper[2], 2),
                "CV": rounded(None if collapsed else ours["cv"], 2),
                "CV, paper": rounded(paper[3], 2),
                "minutes": rounded(ours["minutes"], 1),
            }
        )
    title = f"VJE, Tables 6 and 7: six objectives on {images:,} images of CIFAR-10, {epochs} epochs, narrow ResNet-10"
    write_results(Path(results), "vje-ablation", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(found, Path(results) / "vje-ablation.png")


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Accuracy and variance of each objective, beside the paper's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = ["\n+ ".join(terms) for terms in OBJECTIVES]
    for axis, key, column, title in (
        (left, "knn", 0, "k-NN accuracy, %"),
        (right, "variance", 2, "posterior variance"),
    ):
        at = range(len(names))
        axis.bar([i - 0.2 for i in at], [cell[key] for cell in found], 0.4, label="here")
        axis.bar([i + 0.2 for i in at], [paper[column] or 0 for paper in OBJECTIVES.values()], 0.4, label="paper")
        axis.set_xticks(list(at), names, fontsize=8)
        axis.set_title(title)
        axis.grid(axis="y", alpha=0.3)
    left.axhline(10, color="grey", linewidth=0.8, linestyle=":")
    left.legend(frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
