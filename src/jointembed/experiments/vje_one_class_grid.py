"""VJE, Figure 4: one-class AUROC over beta and the degrees of freedom, and what it goes with."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from jointembed._files import atomic

from .cells import run_cells
from .results import command, write_results
from .small import one_class_cell, rounded
from .vje_one_class import CLASSES


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    epochs: int = 6,
    betas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0),
    dfs: tuple[float, ...] = (0.5, 3.0, math.inf),
    classes: tuple[int, ...] = (1, 6),
    backbone: str = "resnet10-tiny",
    test: bool = False,
    test_images: int | None = 2000,
    kept: str = "runs/vje-one-class-grid.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """A coarse grid over a few classes.

    Settings are chosen by it, so that it scores training images held out, not the test images.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        epochs: passes over the 5,000 images of a class.
        betas: weights of the KL divergence.
        dfs: degrees of freedom.
        classes: by number.
        backbone: a small one.
        test: score the test images all the same.
        test_images: score only so many.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "backbone": backbone, "held_out": not test, "test_images": test_images, "epochs": epochs}
    cells = [
        {**shared, **(changes or {}), "label": c, "beta": beta, "df": df}
        for beta in betas
        for df in dfs
        for c in classes
    ]
    found = run_cells(one_class_cell, cells, Path(kept), jobs)
    shape = (len(betas), len(dfs), len(classes))

    def grid(part: str, key: str) -> np.ndarray:
        """Means over the classes (beta, df); NaN where a training diverged."""
        values = [cell[part][key] if part in cell else math.nan for cell in found]
        return np.array(values, dtype=float).reshape(shape).mean(-1)

    auroc = grid("joint", "auroc")
    rows: list[dict[str, Any]] = [
        {"beta": f"{beta:g}"} | {f"df {_name(df)}": rounded(auroc[i, j], 3) for j, df in enumerate(dfs)}
        for i, beta in enumerate(betas)
    ]
    entropy, variance = (correlation(auroc, grid("posterior", name)) for name in ("entropy", "variance"))
    chosen = ", ".join(CLASSES[c] if Path(data).stem == "cifar10" else f"class {c}" for c in classes)
    title = (
        f"VJE, Figure 4: one-class AUROC (joint score), mean of {chosen}, {epochs} epochs, {backbone}, "
        f"{'test images' if test else 'held-out training images'}. "
        f"Correlation over the grid with posterior entropy {entropy:.2f} (paper 0.90), "
        f"with variance sum {variance:.2f} (paper 0.82)"
    )
    write_results(
        Path(results), "vje-one-class-grid", title, rows, command(run, arguments), time.perf_counter() - began
    )
    draw(auroc, betas, dfs, chosen, Path(results) / "vje-one-class-grid.png")


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's, over the cells that both have."""
    both = np.isfinite(a) & np.isfinite(b)
    return float(np.corrcoef(a[both], b[both])[0, 1])


def _name(df: float) -> str:
    return "∞" if math.isinf(df) else f"{df:g}"


def draw(auroc: np.ndarray, betas: tuple[float, ...], dfs: tuple[float, ...], classes: str, path: Path) -> None:
    """The heat map."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(auroc, cmap="viridis", aspect="auto")
    middle = np.nanmean([np.nanmin(auroc), np.nanmax(auroc)])
    for (i, j), value in np.ndenumerate(auroc):
        colour = "black" if value > middle else "white"
        axis.text(j, i, "diverged" if np.isnan(value) else f"{value:.3f}", ha="center", va="center", color=colour)
    axis.set_xticks(range(len(dfs)), [_name(df) for df in dfs])
    axis.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axis.set(xlabel="degrees of freedom", ylabel="beta", title=f"one-class AUROC, {classes}")
    figure.colorbar(image)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
