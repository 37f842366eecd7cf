"""LeJEPA, Figure 16: the "X" of Figure 6 over dimensions and numbers of slices."""

import itertools
import time
from pathlib import Path

from torch import Tensor

from jointembed._files import atomic

from .lejepa_x import DRAWN_IN_THE_PAPER, cross, descend, loss_of, measure, null_range, plain_rate, scatter
from .results import command, write_results


def run(
    results: str = "results",
    samples: int = 100,
    dims: tuple[int, ...] = (16, 128, 1024),
    slices: tuple[int, ...] = (10, 100),
    steps: int = 400,
    seed: int = 0,
) -> None:
    """Plain gradient descent on the statistics the paper draws; it has 128 and 1,024 dimensions, 10 and 100 slices.

    Args:
        results: where the table and the figure go.
        samples: points, which are moved themselves.
        dims: all even; the X is in the first two.
        slices: directions per step.
        steps: of each descent, at a rate that falls to 0 along a cosine.
        seed: of the points and the directions.
    """
    arguments, began = dict(locals()), time.perf_counter()
    low, high = null_range(samples)
    rows, clouds = [], {}
    for dim, num_slices in itertools.product(dims, slices):
        start = cross(samples, dim, seed)
        clouds[dim, num_slices, "before"] = start
        for name in DRAWN_IN_THE_PAPER:
            rate = plain_rate(start, loss_of(name, num_slices, seed), num_slices, seed)
            z = descend(start, loss_of(name, num_slices, seed), steps, rate, "plain")
            clouds[dim, num_slices, name] = z
            found = measure(z)
            rows.append(
                {"dim": dim, "slices": num_slices, "statistic": name}
                | {key: f"{value:.2f}" for key, value in found.items()}
                | {"X passes for N(0, I)": "yes" if found["Henze-Zirkler, X"] <= high else "no"}
            )
    title = (
        f'LeJEPA, Figure 16: the "X" over dimensions and slices, {samples} points, {steps:,} plain steps; N(0, I) has '
        f"a Henze-Zirkler statistic of {low:.2f} to {high:.2f} nine times of ten"
    )
    write_results(Path(results), "lejepa-x-sizes", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(clouds, high, Path(results) / "lejepa-x-sizes.png")


def draw(clouds: dict[tuple[int, int, str], Tensor], high: float, path: Path) -> None:
    """A line of planes for each size: before, and after each statistic."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(key[:2] for key in clouds))
    names = list(dict.fromkeys(key[2] for key in clouds))
    figure = Figure(figsize=(1.75 * len(names) + 0.6, 1.75 * len(sizes) + 0.4), layout="constrained")
    axes = figure.subplots(len(sizes), len(names), sharex=True, sharey=True, squeeze=False)
    for (dim, num_slices, name), z in clouds.items():
        line, column = sizes.index((dim, num_slices)), names.index(name)
        scatter(axes[line, column], z, high, "0.4" if name == "before" else None)
        if line == 0:
            axes[line, column].set_title(name, fontsize=8)
        if column == 0:
            axes[line, column].set_ylabel(f"{dim:,} dimensions\n{num_slices} slices", fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
