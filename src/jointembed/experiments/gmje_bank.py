"""GMJE, section 5.2.1: a bank of resampled particles against a queue, everything else equal."""

import time
from pathlib import Path
from typing import Any

from jointembed._files import atomic
from jointembed.training import Diverged

from .cells import run_cells, spent
from .results import command, write_results
from .small import accuracies, over_seeds, parts, trained

POLICIES = {"smc": "SMC", "fifo": "FIFO"}
PAPER = {"SMC": 81.99, "FIFO": 78.08}  # bank = batch = 256, 1,000 epochs, ResNet-50


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 5_000,
    epochs: int = 40,
    batch_size: int = 64,
    ratios: tuple[float, ...] = (0.25, 1.0, 4.0),
    seeds: int = 3,
    kept: str = "runs/gmje-bank.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train with both policies, banks of several sizes and several seeds; compare linear accuracy on the test images.

    The paper's runs part after 500 epochs; few images and small batches reach many steps, and many looks at each image,
    in minutes. What decides how much a queue forgets is the size of the bank over that of the batch.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        batch_size: images per step.
        ratios: sizes of the bank, in batches.
        seeds: runs of each.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "images": images, "epochs": epochs, "batch_size": batch_size, **(changes or {})}
    keys = [(ratio, policy, seed) for ratio in ratios for policy in POLICIES for seed in range(seeds)]
    cells = [
        {**shared, "bank": max(1, round(ratio * batch_size)), "policy": policy, "seed": seed}
        for ratio, policy, seed in keys
    ]
    found = dict(zip(keys, run_cells(bank_cell, cells, Path(kept), jobs), strict=True))
    rows = []
    for ratio in ratios:
        pairs = [[found[ratio, policy, seed].get("linear") for policy in POLICIES] for seed in range(seeds)]
        gains = [smc - fifo for smc, fifo in pairs if smc is not None and fifo is not None]
        for policy, name in POLICIES.items():
            ours = [found[ratio, policy, seed] for seed in range(seeds) if "linear" in found[ratio, policy, seed]]
            last = [cell["history"][-1] for cell in ours]
            rows.append(
                {
                    "bank / batch": f"{ratio:g}",
                    "policy": name,
                    "not finite": seeds - len(ours),
                    "k-NN %": over_seeds([cell["knn"] for cell in ours], 2),
                    "linear %": over_seeds([cell["linear"] for cell in ours], 2),
                    "SMC - FIFO, seed by seed": over_seeds(gains, 2, "+") if policy == "smc" else "",
                    "paper, linear %": PAPER[name] if ratio == 1 else "",
                    "ESS / particles": over_seeds([e["ess"] / particles(ratio, policy, batch_size) for e in last], 2),
                    "distinct %": over_seeds([100 * e["distinct"] for e in last], 0),
                    "mean age, steps": over_seeds([e["age_mean"] for e in last], 1),
                    "minutes each": over_seeds([cell["minutes"] for cell in ours], 1),
                }
            )
    steps = epochs * (images // batch_size)
    title = (
        f"SMC against FIFO: {images:,} images of CIFAR-10, {epochs} epochs of batch {batch_size} ({steps:,} steps), "
        f"{seeds} seeds, test images"
    )
    seconds = spent(began, found.values(), jobs)
    write_results(Path(results), "gmje-bank", title, rows, command(run, arguments), seconds)
    draw(found, batch_size, Path(results) / "gmje-bank.png")


def particles(ratio: float, policy: str, batch_size: int) -> float:
    """How many have weights: the bank and the batch that SMC resamples from, or the queue."""
    return (ratio + (policy == "smc")) * batch_size


def bank_cell(data: str, images: int, **training: Any) -> dict[str, Any]:
    """Accuracy after training with a bank, and the bank's statistics by epoch."""
    source, test = parts(data, images, held_out=False)
    began = time.perf_counter()
    options: dict[str, Any] = {"backbone": "resnet10-tiny", "resampling": "multinomial", "watch_every": 5} | training
    try:
        model, history = trained(source, "gmje-smc", **options)
    except Diverged as error:
        return {"diverged": str(error)}
    minutes = (time.perf_counter() - began) / 60
    return {"minutes": minutes, "history": history, **accuracies(model, source, test)}


def draw(found: dict[tuple[float, str, int], dict[str, Any]], batch_size: int, path: Path) -> None:
    """Online k-NN accuracy, and the effective share of the particles, by epoch; a row for each size of the bank."""
    from matplotlib.figure import Figure

    ratios = list(dict.fromkeys(ratio for ratio, _, _ in found))
    panels = {"knn": "online k-NN accuracy", "ess": "ESS / particles", "distinct": "distinct", "loss": "loss"}
    figure = Figure(figsize=(13, 2.6 * len(ratios)), layout="constrained")
    axes = figure.subplots(len(ratios), len(panels), sharex=True, squeeze=False)
    for (ratio, policy, seed), cell in found.items():
        for axis, (column, title) in zip(axes[ratios.index(ratio)], panels.items(), strict=True):
            scale = particles(ratio, policy, batch_size) if column == "ess" else 1
            seen = [(e["epoch"] + 1, e[column] / scale) for e in cell.get("history", ()) if column in e]
            colour = "C0" if policy == "smc" else "C1"
            label = "" if seed else POLICIES[policy]
            axis.plot([e for e, _ in seen], [v for _, v in seen], color=colour, alpha=0.8, label=label)
            axis.set_title(title if ratio == ratios[0] else "")
            axis.grid(alpha=0.3)
    for line, ratio in zip(axes, ratios, strict=True):
        line[0].set_ylabel(f"bank / batch = {ratio:g}")
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    axes[0, 0].legend(frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
