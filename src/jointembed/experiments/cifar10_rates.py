"""Which learning rate each method of the CIFAR-10 table wants, by training images held out of training."""

import time
from pathlib import Path
from typing import Any

from jointembed import methods

from .cells import run_cells, spent
from .cifar10_search import search_cell
from .cifar10_table import SETTINGS, SHARED
from .results import command, write_results
from .small import rounded

RATES = (2e-3, 5e-3)


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 20_000,
    epochs: int = 4,
    only: tuple[str, ...] = (),
    kept: str = "results/cifar10-rates-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Short trainings of every method at two learning rates, in the settings of the table.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table goes.
        images: training images.
        epochs: passes over them.
        only: methods; by default all.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    for name in only:
        methods.get(name)  # an error by name, before any work
    shared = {"data": data, "images": images, "epochs": epochs, "watch_every": epochs, **SHARED}
    names = only or methods.names()
    tried = [(name, rate) for name in names for rate in RATES]
    # The table's own rate gives way to the one tried.
    cells = [shared | SETTINGS.get(name, {}) | {"method": name, "lr": rate} | (changes or {}) for name, rate in tried]
    found = dict(zip(tried, run_cells(search_cell, cells, Path(kept), jobs), strict=True))
    rows = [row(name, [found[name, rate] for rate in RATES]) for name in names]
    title = (
        f"Learning rates for the CIFAR-10 table: linear accuracy, %, {images:,} images, {epochs} epochs, one seed, "
        "held-out training images"
    )
    write_results(
        Path(results), "cifar10-rates", title, rows, command(run, arguments), spent(began, found.values(), jobs)
    )


def row(name: str, tried: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table: what each rate gave, and the best of them; one that was not finite is below all others."""
    rate, best = max(zip(RATES, tried, strict=True), key=lambda one: one[1].get("linear", -1.0))
    shown = {
        f"{rate:g}": "not finite" if "diverged" in ours else rounded(ours["linear"], 1)
        for rate, ours in zip(RATES, tried, strict=True)
    }
    return {"method": name, **shown, "best": f"{rate:g}", "its k-NN %": rounded(best.get("knn"), 1)}
