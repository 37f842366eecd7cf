"""VJE: which settings suit small data and short training, and how far that is from LeJEPA."""

import time
from pathlib import Path
from typing import Any

from jointembed._files import atomic

from .cells import run_cells
from .results import command, write_results
from .small import features, rounded

PAPER_HEAD = {"width": 256, "bottleneck": 64}  # of D = 256: layers of D, a bottleneck of D/4
LEJEPA = {"method": "lejepa", "weight": 0.03, "num_slices": 256}
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD 0.05, the paper's head, batch 128": {
        **PAPER_HEAD, "optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-6, "batch_size": 128,
    },
    "AdamW 2e-3, the paper's head, batch 128": {**PAPER_HEAD, "batch_size": 128},
    "AdamW 2e-3, head 4 D / D, batch 128": {"batch_size": 128},
    "AdamW 2e-3, head 4 D / D, batch 64": {"batch_size": 64},
    "AdamW 2e-3, head 4 D / D, batch 32": {"batch_size": 32},
    "the same, eight samples of the posterior": {"batch_size": 32, "samples": 8},
    "LeJEPA, AdamW 2e-3, batch 128": {**LEJEPA, "batch_size": 128},
    "LeJEPA, AdamW 2e-3, batch 32": {**LEJEPA, "batch_size": 32},
}  # fmt: skip


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 8_000,
    epochs: int = 5,
    kept: str = "runs/vje-settings.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Settings that leave the objective alone, on a part of CIFAR-10, with the narrow ResNet-10.

    Settings are chosen by it, so that it scores training images held out, not the test images.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "images": images, "epochs": epochs, "held_out": True, **(changes or {})}
    found = run_cells(features, [{**shared, **setting} for setting in SETTINGS.values()], Path(kept), jobs)
    rows = [
        {
            "setting": name,
            "k-NN %": rounded(ours["knn"], 1),
            "linear %": rounded(ours["linear"], 1),
            "variance": rounded(ours.get("variance"), 2),
            "CV": rounded(ours.get("cv"), 2),
            "minutes": rounded(ours["minutes"], 1),
        }
        for name, ours in zip(SETTINGS, found, strict=True)
    ]
    title = f"VJE: settings for small data, {images:,} images of CIFAR-10, {epochs} epochs, held-out training images"
    write_results(Path(results), "vje-settings", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(found, Path(results) / "vje-settings.png")


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """k-NN accuracy of every setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axis = figure.subplots()
    values = [cell["knn"] for cell in found]
    axis.barh(list(SETTINGS), values, color=["C1" if "method" in setting else "C0" for setting in SETTINGS.values()])
    for place, value in enumerate(values):
        axis.text(value + 0.3, place, f"{value:.1f}", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="k-NN accuracy, %", xlim=(0, 1.1 * max(values)))
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
