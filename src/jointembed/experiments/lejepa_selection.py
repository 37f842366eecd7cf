"""LeJEPA, Figures 10 and 11: does the training loss say which run is best, without labels?"""

import itertools
import time
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from jointembed._files import atomic
from jointembed.evaluation.selection import LEJEPA_POWER
from jointembed.evaluation.views import embed_views
from jointembed.methods.lejepa import LeJEPA
from jointembed.metrics import alpha_req, information, isotropy, lidar, rank_me, uniformity
from jointembed.training import Diverged

from .cells import run_cells
from .results import command, write_results
from .small import accuracies, parts, trained

PAPER = {"loss": 0.85, "loss / lambda^0.4": 0.99}  # about, read off its figures
GRID: dict[str, tuple[float, ...]] = {
    "lr": (5e-4, 2e-3, 8e-3),
    "weight_decay": (5e-4, 5e-2),
    "weight": (0.01, 0.05, 0.2),
    "epochs": (4, 12),
}
SHARED_WEIGHT = LeJEPA.options()["weight"].default  # at which losses of runs with other lambdas are one objective
POWERS = tuple(tenth / 10 for tenth in range(11))  # of lambda, of which Figure 11 shows the correlations
VIEWED = 1_000  # images that LiDAR and information see ten views of
SPACES = ("backbone", "projector")


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 10_000,
    kept: str = "results/lejepa-selection-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Many short trainings that differ in learning rate, weight decay, lambda and epochs; rank correlations over them.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "images": images, "batch_size": 128, "num_slices": 256, **(changes or {})}
    settings = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    outcomes = run_cells(selection_cell, [shared | one for one in settings], Path(kept), jobs)
    pairs = [(one, found) for one, found in zip(settings, outcomes, strict=True) if "diverged" not in found]
    criteria = criteria_of(pairs)
    linear, knn = ([found[name] for _, found in pairs] for name in ("linear", "knn"))
    rows = [
        {
            "criterion": name,
            "Spearman with linear accuracy": f"{spearmanr(values, linear).statistic:+.3f}",
            "with k-NN accuracy": f"{spearmanr(values, knn).statistic:+.3f}",
            "paper": f"about {PAPER[name]}" if name in PAPER else "-",
            "linear % of the run it picks": f"{linear[values.index(max(values))]:.1f}",
            "best there is": f"{max(linear):.1f}",
        }
        for name, values in criteria.items()
    ]
    title = (
        f"LeJEPA: {len(pairs)} of {len(settings)} runs, {images:,} images of CIFAR-10, tiny ResNet-10, ranked without "
        "labels; criteria are turned so that more is better"
    )
    write_results(Path(results), "lejepa-selection", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(pairs, criteria, Path(results) / "lejepa-selection.png")


def selection_cell(data: str, images: int, **training: Any) -> dict[str, Any]:
    """What the last epoch's loss was, what the features look like, and how accurate they are."""
    source, test = parts(data, images, held_out=False)
    try:
        model, history = trained(source, "lejepa", **({"backbone": "resnet10-tiny"} | training))
    except Diverged as error:
        return {"diverged": str(error)}
    z = model.embed(test)
    shape = {"rank_me": rank_me(z), "isotropy": isotropy(z), "uniformity": uniformity(z), "alpha_req": alpha_req(z)}
    views = {space: embed_views(model, test.subset(range(min(VIEWED, len(test)))), space=space) for space in SPACES}
    shape["lidar"] = lidar(views["backbone"])
    shape |= {f"information, {space}": information(ours) for space, ours in views.items()}
    return (
        {name: history[-1][name] for name in ("loss", "prediction", "sigreg")} | shape | accuracies(model, source, test)
    )


def criteria_of(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, list[float]]:
    """Each criterion's values over the runs, more is better; one of them is chosen by the accuracies, for Figure 11."""

    def scaled(power: float) -> list[float]:
        return [-found["loss"] / one["weight"] ** power for one, found in pairs]

    linear = [found["linear"] for _, found in pairs]
    best = max(POWERS, key=lambda power: spearmanr(scaled(power), linear).statistic)
    return {
        "loss": scaled(0),
        f"loss / lambda^{LEJEPA_POWER:g}": scaled(LEJEPA_POWER),
        f"loss / lambda^{best:g}, the best power in hindsight": scaled(best),
        f"loss, all at lambda = {SHARED_WEIGHT:g}": [
            -(1 - SHARED_WEIGHT) * found["prediction"] - SHARED_WEIGHT * found["sigreg"] for _, found in pairs
        ],
        **{f"information, {space}": [found[f"information, {space}"] for _, found in pairs] for space in SPACES},
        "RankMe": [found["rank_me"] for _, found in pairs],
        "LiDAR": [found["lidar"] for _, found in pairs],
        "alpha-ReQ, |alpha - 1|": [-abs(found["alpha_req"] - 1) for _, found in pairs],
        "isotropy": [found["isotropy"] for _, found in pairs],
        "uniformity": [-found["uniformity"] for _, found in pairs],
    }


def draw(pairs: list[tuple[dict[str, float], dict[str, float]]], criteria: dict[str, list[float]], path: Path) -> None:
    """Linear accuracy over each criterion, coloured by lambda."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 9.6), layout="constrained")
    *axes, spare = figure.subplots(3, 4).flat
    for axis, (name, values) in zip(axes, criteria.items(), strict=True):
        for number, weight in enumerate(GRID["weight"]):
            chosen = [i for i, (one, _) in enumerate(pairs) if one["weight"] == weight]
            points = [(values[i], pairs[i][1]["linear"]) for i in chosen]
            axis.scatter([x for x, _ in points], [y for _, y in points], s=14, color=f"C{number}", label=f"{weight:g}")
        axis.set_title(name if "loss" not in name else f"minus {name}", fontsize=9)
        axis.set_ylabel("linear accuracy, %")
        axis.locator_params("x", nbins=5)
        axis.grid(alpha=0.3)
    spare.axis("off")
    spare.legend(*axes[0].get_legend_handles_labels(), title="lambda", frameon=False, loc="center left")
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
