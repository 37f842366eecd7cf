"""LeJEPA, Figure 20: the trapezoid sum of the Epps-Pulley statistic beside its exact integral."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jointembed._files import atomic
from jointembed.normality import BHEP, EppsPulley

from .results import command, write_results

# All but the last two have mean 0 and variance 1.
DISTRIBUTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of uniform and of normal numbers
    "normal": lambda u, g: g,
    "uniform": lambda u, g: math.sqrt(12) * (u - 0.5),
    "Laplace": lambda u, g: -(u - 0.5).sign() * torch.log1p(-2 * (u - 0.5).abs()) / math.sqrt(2),
    "exponential": lambda u, g: -torch.log1p(-u) - 1,
    "two clusters": lambda u, g: 0.9 * (u - 0.5).sign() + math.sqrt(1 - 0.81) * g,
    "collapsed (std 0.1)": lambda u, g: 0.1 * g,
    "wide (std 4)": lambda u, g: 4 * g,
}


def run(
    results: str = "results",
    samples: int = 512,
    points: tuple[int, ...] = (3, 5, 9, 17, 33, 65, 129),
    ranges: tuple[float, ...] = (3.0, 5.0, 8.0),
    seed: int = 0,
) -> None:
    """Relative error of the statistic over the number of points and the range, for several distributions.

    Args:
        results: where the table and the figure go.
        samples: of each distribution.
        points: of the trapezoid on [-t_max, t_max], odd.
        ranges: t_max.
        seed: of the samples.
    """
    arguments, began = dict(locals()), time.perf_counter()
    errors = {
        (name, t_max): [error(x, t_max, number) for number in points]
        for name, x in draw_samples(samples, seed).items()
        for t_max in ranges
    }
    rows: list[dict[str, Any]] = [
        {"distribution": name, "t_max": f"{t_max:g}"}
        | {f"{number} points": f"{value:.1e}" for number, value in zip(points, found, strict=True)}
        for (name, t_max), found in errors.items()
    ]
    title = (
        f"LeJEPA, Figure 20: relative error of the trapezoid, {samples} samples of each distribution; the paper: error "
        "falls faster than quadratically, 17 points on [-5, 5] suffice"
    )
    write_results(Path(results), "lejepa-quadrature", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(errors, points, ranges, Path(results) / "lejepa-quadrature.png")


def draw_samples(samples: int, seed: int) -> dict[str, Tensor]:
    """(N,) of each distribution, in double precision."""
    g = torch.Generator().manual_seed(seed)
    uniform, normal = (make(samples, generator=g, dtype=torch.float64) for make in (torch.rand, torch.randn))
    return {name: transform(uniform, normal) for name, transform in DISTRIBUTIONS.items()}


def exact(x: Tensor) -> float:
    """The integral over all t, a maximum mean discrepancy with a Gaussian kernel: x (N,)."""
    return math.sqrt(2 * math.pi) * float(BHEP()(x[:, None]))


def error(x: Tensor, t_max: float, points: int) -> float:
    """Relative error of the sum: x (N,)."""
    integral = exact(x)
    return abs(float(EppsPulley(t_max, points)(x[:, None])) - integral) / integral


def draw(
    errors: dict[tuple[str, float], list[float]], points: tuple[int, ...], ranges: tuple[float, ...], path: Path
) -> None:
    """Error over the number of points, a panel for each range, with the line of a quadratic fall."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(ranges) + 2, 3.6), layout="constrained")
    axes = figure.subplots(1, len(ranges), sharey=True, squeeze=False)[0]
    for axis, t_max in zip(axes, ranges, strict=True):
        for name in DISTRIBUTIONS:
            shown = [max(value, 1e-16) for value in errors[name, t_max]]
            axis.plot(points, shown, "o-", markersize=3, label=name)
        quadratic = [((points[0] - 1) / (number - 1)) ** 2 for number in points]
        axis.plot(points, quadratic, color="0.6", linestyle="--", label="quadratic")
        axis.axvline(17, color="0.8", linewidth=1)
        axis.set(title=f"[-{t_max:g}, {t_max:g}]", xlabel="points", xscale="log", yscale="log", ylim=(1e-16, 1e2))
        axis.set_xticks(points, [str(number) for number in points], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("relative error")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
