"""LeJEPA, Figure 12 and Tables 3 and 5: pretraining on a small set itself, against training from scratch on labels."""

import csv
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jointembed import load, train
from jointembed._files import atomic
from jointembed.data import Source
from jointembed.evaluation.few_shot import check_shots, draw_per_class, few_shot
from jointembed.evaluation.fine_tune import fine_tune
from jointembed.evaluation.linear import linear_accuracy
from jointembed.model import Model

from .cells import run_cells, spent
from .lejepa_architectures import untrained
from .results import command, write_results
from .small import SMALL, over_seeds, parts, rounded

PRETRAINING: dict[str, Any] = {
    "backbone": "resnet10-tiny",
    "batch_size": 128,
    "num_global": 4,
    "weight": 0.03,
    "num_slices": 256,
    "view_options": {"crop_scale": [0.2, 1.0], "blur": 0.0, "solarise": 0.0},
}
STEPS = 300  # of fine-tuning at least, however few the labels
# Table 3, ResNet-18 on Galaxy10: 11,000 images, 400 epochs. It has no training from scratch.
PAPER: dict[str, dict[int | None, float]] = {
    "frozen": {1: 30.48, 2: 38.22, 5: 50.85, 10: 58.86, 100: 72.70, None: 75.95},
    "fine-tuned": {1: 23.34, 2: 31.56, 5: 43.82, 10: 54.64, 100: 73.53, None: 82.15},
}
PRETRAINED = {"fine-tuned": True, "from scratch": False}
Found = dict[tuple[str, int | None], list[float]]


def run(
    data: str = "cifar10.npz",
    out: str = "runs/lejepa-in-domain",
    results: str = "results",
    images: int = 5_000,
    epochs: int = 50,
    shots: tuple[int, ...] = (1, 2, 5, 10, 100),
    draws: int = 3,
    passes: int = 20,
    rates: tuple[float, ...] = (1e-3, 3e-3),
    kept: str = "results/lejepa-in-domain-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Pretrain once on a few thousand images without labels; then give it, and an untrained network, some labels.

    Both networks see the same labelled images through the same crops and flips, in as many steps. The learning rate is
    chosen for each of them and each number of labels on 5,000 training images held out, one draw each; the table is
    about test images.

    Args:
        data: an .npz with labelled training and test images, or a name.
        out: the run folder of the pretraining; one that is there is gone on with.
        results: where the table and the figure go.
        images: to pretrain on, and to draw labelled ones from.
        epochs: passes of the pretraining.
        shots: labelled images per class; all of them come last.
        draws: of labelled images, and seeds of networks from scratch.
        passes: over the labelled images in fine-tuning; more where that makes too few steps.
        rates: learning rates to choose from.
        kept: where finished fine-tunings are remembered.
        jobs: fine-tunings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    source, test = parts(data, images, held_out=False)
    assert source.labels is not None
    check_shots(source.labels, shots, draws)
    settings = SMALL | PRETRAINING | {"epochs": epochs, **(changes or {})}
    model = train(source, "lejepa", out=out, resume=(Path(out) / "checkpoint.ckpt").is_file(), **settings)

    # The settings tell apart pretrainings that were in the same folder one after the other.
    shared = {"run": out, "settings": settings, "data": data, "images": images, "passes": passes}
    arms = list(itertools.product(PRETRAINED, (*shots, None)))

    def cell(arm: str, k: int | None, draw: int, lr: float, held_out: bool) -> dict[str, Any]:
        return shared | {"pretrained": PRETRAINED[arm], "k": k, "draw": draw, "lr": lr, "held_out": held_out}

    trials = _tune([cell(*arm, 0, lr, held_out=True) for arm in arms for lr in rates], Path(kept), jobs)
    chosen = {arm: max(zip(some, rates, strict=True))[1] for arm, some in zip(arms, _rows(trials, rates), strict=True)}
    seeds = range(draws)
    ended = _tune([cell(*arm, n, chosen[arm], held_out=False) for arm in arms for n in seeds], Path(kept), jobs)
    found = dict(zip(arms, _rows(ended, seeds), strict=True))
    found |= {("frozen", k): values for k, values in frozen(model, source, test, shots, draws).items()}
    rows = [row(k, found, chosen) for k in (*shots, None)]
    title = (
        f"LeJEPA, {epochs} epochs on {len(source):,} images of {Path(data).stem} without labels, then some labels: "
        f"tiny ResNet-10, {draws} draws, test images"
    )
    with (Path(out) / "metrics.csv").open() as file:
        pretraining = float(list(csv.DictReader(file))[-1]["minutes"])  # of all starts of the run
    seconds = spent(began, trials + ended, jobs, pretraining)
    write_results(Path(results), "lejepa-in-domain", title, rows, command(run, arguments), seconds)
    draw_curves(found, len(source) / len(source.labels.unique()), Path(results) / "lejepa-in-domain.png")


def labelled_cell(
    run: str,
    settings: dict[str, Any],
    data: str,
    images: int,
    passes: int,
    pretrained: bool,
    k: int | None,
    draw: int,
    lr: float,
    held_out: bool,
) -> dict[str, Any]:
    """Accuracy after training all weights on k images per class, or on all; `settings` only name the pretraining."""
    source, test = parts(data, images, held_out)
    assert source.labels is not None
    model = load(run)
    if not pretrained:
        model = untrained(model, draw)
    few = source if k is None else source.subset(draw_per_class(source.labels, k, (0, k, draw)))  # few_shot's draws
    epochs = max(passes, STEPS // max(1, len(few) // 128))
    began = time.perf_counter()
    tuned = fine_tune(model, few, test, epochs, lr, seed=draw)
    return {"accuracy": 100 * tuned.accuracy, "minutes": (time.perf_counter() - began) / 60}


def frozen(model: Model, source: Source, test: Source, shots: Sequence[int], draws: int) -> dict[int | None, Any]:
    """Accuracies of a logistic regression on the features, by labels per class; with all labels there is one."""
    assert source.labels is not None and test.labels is not None
    z, z_test = model.embed(source), model.embed(test)
    few = few_shot(z, source.labels, z_test, test.labels, shots, draws)
    found: dict[int | None, Any] = {k: [100 * accuracy for accuracy in few[k].accuracies] for k in shots}
    return found | {None: [100 * linear_accuracy(z, source.labels, z_test, test.labels)]}


def _tune(cells: list[dict[str, Any]], kept: Path, jobs: int | None) -> list[dict[str, float]]:
    """In the order of the cells; the longest are run first, so that no core is left with one of them at the end."""
    order = sorted(range(len(cells)), key=lambda i: -(cells[i]["k"] or 10**9))
    outcomes = run_cells(labelled_cell, [cells[i] for i in order], kept, jobs)
    found = dict(zip(order, outcomes, strict=True))
    return [found[i] for i in range(len(cells))]


def _rows(outcomes: list[dict[str, float]], columns: Sequence[Any]) -> list[list[float]]:
    values = [one["accuracy"] for one in outcomes]
    return [values[start : start + len(columns)] for start in range(0, len(values), len(columns))]


def row(k: int | None, found: Found, chosen: dict[tuple[str, int | None], float]) -> dict[str, Any]:
    """One number of labels."""
    gains = [a - b for a, b in zip(found["fine-tuned", k], found["from scratch", k], strict=True)]
    return {
        "labels per class": k or "all",
        "frozen %": over_seeds(found["frozen", k], 1),
        "fine-tuned %": over_seeds(found["fine-tuned", k], 1),
        "from scratch %": over_seeds(found["from scratch", k], 1),
        "fine-tuned - from scratch, draw by draw": over_seeds(gains, 1, "+"),
        "learning rates chosen": " and ".join(f"{chosen[arm, k]:g}" for arm in PRETRAINED),
        "paper, frozen %": rounded(PAPER["frozen"].get(k), 2),
        "paper, fine-tuned %": rounded(PAPER["fine-tuned"].get(k), 2),
    }


def draw_curves(found: Found, everything: float, path: Path) -> None:
    """Accuracy over labels per class, and how far ahead of training from scratch; `everything` is where all stand."""
    from matplotlib.figure import Figure

    counts = list(dict.fromkeys(k for _, k in found))
    places = [k or everything for k in counts]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, arm in enumerate(("frozen", *PRETRAINED)):
        values = [found[arm, k] for k in counts]
        spread = [stdev(some) if len(some) > 1 else 0.0 for some in values]
        style: dict[str, Any] = {"color": f"C{number}", "marker": "o", "markersize": 4, "capsize": 3}
        left.errorbar(places, [mean(some) for some in values], spread, label=arm, **style)
        if arm != "from scratch":
            gaps = [mean(some) - mean(found["from scratch", k]) for k, some in zip(counts, values, strict=True)]
            right.plot(places, gaps, color=f"C{number}", marker="o", markersize=4)
    right.axhline(0, color="C2", linewidth=1)
    left.set(title="test accuracy, %")
    right.set(title="points above training from scratch")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="labelled images per class")
        axis.set_xticks(places, [str(k or "all") for k in counts])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    left.legend(frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
