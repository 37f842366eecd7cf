"""LeJEPA, Theorem 4: how far one sample can pull, for Epps-Pulley and for tests without a bound."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointembed._files import atomic
from jointembed.normality import EppsPulley

from .lejepa_moments import TESTS_OF_MOMENTS
from .lejepa_x import TESTS
from .results import command, write_results

# |dT/dx_n| = 2 |int t w Im(...)| <= 2 int |t| w (|phi_hat| + |phi|) dt <= 4 int |t| w = 8, w = exp(-t^2 / 2).
GRADIENT_BOUND = 8.0
# The others repel a sample most from a distance of 1, and 0 attracts it most from sqrt 2. So the largest gradient there
# is, for many samples, is that of one at sqrt 2 where all others are at
WORST_PLACE = math.sqrt(2) + 1
LARGEST_GRADIENT = 3 * math.sqrt(2 * math.pi / math.e)
SHOWN = TESTS | TESTS_OF_MOMENTS


def curvature_bound(samples: int) -> float:
    """|d^2T/dx_n^2| <= 2 int t^2 w (|phi_hat| + |phi| + 1/N) dt <= 2 sqrt(2 pi) (2 + 1/N)."""
    return 2 * math.sqrt(2 * math.pi) * (2 + 1 / samples)


def run(results: str = "results", samples: int = 100, largest: float = 100.0, num: int = 241) -> None:
    """Gradients of each statistic, at one sample that leaves the others and at samples all too wide or too narrow.

    Args:
        results: where the table and the figure go.
        samples: N, placed at the quantiles of N(0, 1).
        largest: how far the one sample goes; spreads run from its inverse to it.
        num: places and spreads.
    """
    arguments, began = dict(locals()), time.perf_counter()
    places = torch.logspace(math.log10(2), math.log10(largest), num, dtype=torch.float64)
    spreads = torch.logspace(-math.log10(largest), math.log10(largest), num, dtype=torch.float64)
    alone = {name: gradients(test, with_outlier(places, samples))[:, -1].abs() for name, test in SHOWN.items()}
    together = {name: largest_gradients(test, spreads, samples) for name, test in SHOWN.items()}
    rows = [row(name, places, alone[name], together[name]) for name in SHOWN]
    x = collapsed(torch.linspace(-12, 12, 481, dtype=torch.float64), samples)
    slope, curvature = gradients(EppsPulley(), x)[:, -1], curvatures(x)
    title = (
        f"LeJEPA, Theorem 4: |dT/dx|, {samples} samples at the quantiles of N(0, 1). Epps-Pulley where it is steepest, "
        f"beside collapsed samples: gradient {float(slope.abs().max()):.2f} of at most {GRADIENT_BOUND:g} "
        f"(the largest there is: {LARGEST_GRADIENT:.2f}), curvature {float(curvature.abs().max()):.2f} of at most "
        f"{curvature_bound(samples):.2f}"
    )
    write_results(Path(results), "lejepa-gradients", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(
        (places, alone),
        (spreads, together),
        (x[:, -1], slope, curvature),
        samples,
        Path(results) / "lejepa-gradients.png",
    )


def quantiles(samples: int) -> Tensor:
    """(N,), mean 0: what N(0, 1) looks like without luck."""
    return torch.special.ndtri((torch.arange(samples, dtype=torch.float64) + 0.5) / samples)


def with_outlier(places: Tensor, samples: int) -> Tensor:
    """(G, N), N - 1 quantiles and, last, one sample that is at each of the places (G,)."""
    return torch.cat([quantiles(samples - 1).expand(len(places), -1), places[:, None]], 1)


def collapsed(places: Tensor, samples: int) -> Tensor:
    """(G, N), N - 1 samples at one place, the worst, and, last, one that is at each of the places (G,)."""
    return torch.cat([torch.full((len(places), samples - 1), WORST_PLACE, dtype=torch.float64), places[:, None]], 1)


def gradients(test: nn.Module, x: Tensor) -> Tensor:
    """dT/dx_n of each line by itself: (G, N) -> (G, N)."""
    columns = x.mT.clone().requires_grad_()  # (N, G)
    (slope,) = torch.autograd.grad(test(columns).sum(), columns)
    return slope.mT


def largest_gradients(test: nn.Module, spreads: Tensor, samples: int) -> Tensor:
    """Largest |dT/dx_n| over the samples, at each spread; a little off centre, for symmetry would hide terms."""
    return gradients(test, spreads[:, None] * (quantiles(samples) + 0.1)).abs().amax(1)


def curvatures(x: Tensor, step: float = 1e-5) -> Tensor:
    """d^2T/dx^2 of Epps-Pulley in the last sample, by central differences of its gradient: (G, N) -> (G,)."""
    shift = torch.zeros_like(x)
    shift[:, -1] = step
    test = EppsPulley()
    return (gradients(test, x + shift) - gradients(test, x - shift))[:, -1] / (2 * step)


def row(name: str, places: Tensor, alone: Tensor, together: Tensor) -> dict[str, Any]:
    near = int((places < places[-1] / 10).sum())  # the last decade begins here
    ratio = float(alone[-1] / alone[near])
    power = math.log(ratio) / math.log(float(places[-1] / places[near])) if ratio > 0 else -math.inf
    bounded = name == "Epps-Pulley"
    return {
        "statistic": name,
        "one sample leaves: largest": f"{float(alone.max()):.2g}",
        f"at {float(places[-1]):g}": f"{float(alone[-1]):.2g}",
        "power, last decade": "periodic" if bounded else f"{power:.1f}" if power > -9 else "vanishes",
        "all too narrow: largest": f"{float(together[0]):.2g}",
        "all too wide: largest": f"{float(together[-1]):.2g}",
        "proven bound": f"{GRADIENT_BOUND:g}" if bounded else "-",
    }


def draw(
    alone: tuple[Tensor, dict[str, Tensor]],
    together: tuple[Tensor, dict[str, Tensor]],
    worst: tuple[Tensor, Tensor, Tensor],
    samples: int,
    path: Path,
) -> None:
    """Gradients over the place of a sample and over the spread of all, and Epps-Pulley's where they are largest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axis, (places, curves) in ((left, alone), (middle, together)):
        names = [name for name in curves if name not in ("Shapiro-Francia", "Rahman-Govindarajulu")]
        for place, name in enumerate(names):
            width, style = 2.5 if name == "Epps-Pulley" else 1.2, "-" if place < 8 else "--"
            axis.plot(places, curves[name], style, color=f"C{place % 8}", linewidth=width, label=name)
        axis.axhline(GRADIENT_BOUND, color="black", linestyle=":", label="bound of Epps-Pulley")
        axis.set(xscale="log", yscale="log", ylim=(1e-6, 1e9), ylabel="|gradient|")
    left.set(title="one sample at x, the others at quantiles", xlabel="x")
    middle.set(title="all samples, the largest of them", xlabel="standard deviation")
    x, slope, curvature = worst
    for values, bound, colour, label in (
        (slope, GRADIENT_BOUND, "C0", "gradient"),
        (curvature, curvature_bound(samples), "C3", "curvature"),
    ):
        right.plot(x, values, color=colour, label=label)
        for sign in (-1, 1):
            right.axhline(sign * bound, color=colour, linestyle=":")
    right.axvline(WORST_PLACE, color="0.7", linewidth=1)
    right.set(title=f"Epps-Pulley, the others at {WORST_PLACE:.2f}; dotted: bounds", xlabel="x", ylim=(-12, 15))
    right.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
    figure.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
