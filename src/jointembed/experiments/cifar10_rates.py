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

RATES = (1e-3, 2e-3, 5e-3, 1e-2)
FIRST = (1, 2)  # both of these are tried, then the one beyond the better


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
    """Short trainings of every method at three learning rates, in the settings of the table.

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

    def accuracies(tried: list[tuple[str, int]]) -> dict[tuple[str, int], dict[str, Any]]:
        cells = [
            shared | SETTINGS.get(name, {}) | {"method": name, "lr": RATES[at]} | (changes or {}) for name, at in tried
        ]
        return dict(zip(tried, run_cells(search_cell, cells, Path(kept), jobs), strict=True))

    names = only or methods.names()
    found = accuracies([(name, at) for name in names for at in FIRST])
    found |= accuracies([(name, beyond(name, found)) for name in names])
    rows = [row(name, found) for name in names]
    title = (
        f"Learning rates for the CIFAR-10 table: linear accuracy, %, {images:,} images, {epochs} epochs, one seed, "
        "held-out training images"
    )
    write_results(
        Path(results), "cifar10-rates", title, rows, command(run, arguments), spent(began, found.values(), jobs)
    )


def linear(name: str, at: int, found: dict[tuple[str, int], dict[str, Any]]) -> float:
    """Accuracy at that rate; below all others where it was not tried, or was not finite."""
    return found.get((name, at), {}).get("linear", -1.0)


def beyond(name: str, found: dict[tuple[str, int], dict[str, Any]]) -> int:
    """The rate next to the better of the first two, on its far side."""
    low, high = FIRST
    return low - 1 if linear(name, low, found) >= linear(name, high, found) else high + 1


def row(name: str, found: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """A line of the table: what each rate gave, and the best of them."""
    tried = [found.get((name, at), {}) for at in range(len(RATES))]
    best = max(range(len(RATES)), key=lambda at: linear(name, at, found))
    shown = {
        f"{rate:g}": "not finite" if "diverged" in ours else rounded(ours.get("linear"), 1)
        for rate, ours in zip(RATES, tried, strict=True)
    }
    return {"method": name, **shown, "best": f"{RATES[best]:g}", "its k-NN %": rounded(tried[best].get("knn"), 1)}
