"""LeJEPA, Figure 6: an "X" hidden in two of many dimensions, and which univariate statistics dissolve it."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointembed._files import atomic
from jointembed.normality import (
    AndersonDarling,
    CramerVonMises,
    Entropy,
    EppsPulley,
    ExtendedJarqueBera,
    HenzeZirkler,
    JarqueBera,
    Moments,
    ShapiroWilk,
    SIGReg,
    Watson,
)

from .results import command, write_results

TESTS: dict[str, nn.Module] = {
    "Epps-Pulley": EppsPulley(),
    "Moments": Moments(),
    "Extended Jarque-Bera": ExtendedJarqueBera(),
    "Cramér-von Mises": CramerVonMises(),
    "Watson": Watson(),
    "Anderson-Darling": AndersonDarling(),
    "Jarque-Bera": JarqueBera(),
    "Shapiro-Wilk": ShapiroWilk(),
    "Shapiro-Francia": ShapiroWilk("shapiro-francia"),
    "Rahman-Govindarajulu": ShapiroWilk("rahman-govindarajulu"),
    "Entropy": Entropy(),
}
DRAWN_IN_THE_PAPER = tuple(TESTS)[:6]
NULL_DRAWS = 500
Loss = Callable[[Tensor], Tensor]  # of points (N, D)


def run(
    results: str = "results",
    samples: int = 100,
    dim: int = 1024,
    num_slices: int = 10,
    steps: int = 400,
    lr: float = 0.1,
    statistics: tuple[str, ...] = tuple(TESTS),
    seed: int = 0,
) -> None:
    """Descend on each statistic over few random slices, drawn anew at each step, and look at the plane of the X.

    The authors' script runs Adam at a constant rate. Adam moves every coordinate by about its rate, whether a slice has
    seen it or not, so there are two controls: plain gradient descent, and random gradients in place of a statistic's.

    Args:
        results: where the table and the figure go.
        samples: points, which are moved themselves.
        dim: even; the X is in the first two.
        num_slices: directions per step.
        steps: of each descent, at rates that fall to 0 along a cosine.
        lr: Adam's first rate.
        statistics: to descend on.
        seed: of the points and the directions.
    """
    arguments, began = dict(locals()), time.perf_counter()
    start = cross(samples, dim, seed)
    clouds = {}
    for optimizer in ("Adam", "plain"):
        for name in (*statistics, "random gradients"):
            rate = lr
            if optimizer == "plain":
                rate = plain_rate(start, loss_of(name, num_slices, seed), num_slices, seed)
            clouds[optimizer, name] = descend(start, loss_of(name, num_slices, seed), steps, rate, optimizer)
    constant = descend(start, loss_of("Epps-Pulley", num_slices, seed), steps, lr, decay=False)
    clouds["Adam, constant rate", "Epps-Pulley"] = constant
    null = null_range(samples)
    rows = [row("-", "before", start, null)]
    rows += [row(optimizer, name, z, null) for (optimizer, name), z in clouds.items()]
    title = (
        f'LeJEPA, Figure 6: an "X" in two of {dim:,} dimensions, {samples} points, {num_slices} slices per step, '
        f"{steps:,} steps; N(0, I) has a Henze-Zirkler statistic of {null[0]:.2f} to {null[1]:.2f} nine times of ten"
    )
    write_results(Path(results), "lejepa-x", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(start, clouds, null[1], Path(results) / "lejepa-x.png")


def cross(samples: int, dim: int, seed: int) -> Tensor:
    """(N, D) of N(0, I), but the second coordinate is the first with a random sign: both N(0, 1), uncorrelated."""
    if samples < 3 or dim < 4 or dim % 2:
        raise ValueError(f"expected samples >= 3 and an even dim >= 4, got {samples} and {dim}")
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, dim, generator=g)
    z[:, 1] = z[:, 0] * (2 * torch.randint(2, (samples,), generator=g) - 1)
    return z


def loss_of(name: str, num_slices: int, seed: int) -> Loss:
    """SIGReg with the statistic of that name, or a loss that knows nothing and has random gradients."""
    if name in TESTS:
        return SIGReg(TESTS[name], num_slices, seed)
    g = torch.Generator().manual_seed(seed)
    return lambda z: (z * torch.randn(z.shape, generator=g)).sum()


def gradient(z: Tensor, loss: Loss) -> Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(loss(z), z)[0]


def plain_rate(z: Tensor, loss: Loss, num_slices: int, seed: int) -> float:
    """A rate of plain descent: Epps-Pulley's, and for other losses that with which the first step is as long.

    Shifts and scalings of Epps-Pulley's samples have a curvature of 0.96. M random slices in D dimensions, of weight
    1/M, add up to (1 + sqrt(M/D))^2 / M of that where they overlap most.
    """
    stable = 0.75 * num_slices / (1 + math.sqrt(num_slices / z.shape[1])) ** 2
    own = gradient(z, SIGReg(EppsPulley(), num_slices, seed))
    return stable * float(own.norm() / gradient(z, loss).norm())


def descend(z: Tensor, loss: Loss, steps: int, lr: float, optimizer: str = "Adam", decay: bool = True) -> Tensor:
    """The points after `steps` of Adam or of plain gradient descent."""
    z = z.clone().requires_grad_()
    stepper = torch.optim.Adam([z], lr) if optimizer == "Adam" else torch.optim.SGD([z], lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    for _ in range(steps):
        stepper.zero_grad()
        loss(z).backward()
        stepper.step()
        if decay:
            schedule.step()
    return z.detach()


def null_range(samples: int) -> tuple[float, float]:
    """5% and 95% quantiles of Henze and Zirkler's statistic of samples of N(0, I) in two dimensions."""
    g = torch.Generator().manual_seed(1)
    found = HenzeZirkler()(torch.randn(NULL_DRAWS, samples, 2, generator=g))
    low, high = found.quantile(torch.tensor([0.05, 0.95])).tolist()
    return low, high


def measure(z: Tensor) -> dict[str, float]:
    """What became of the X and of the rest; dimensions other than those of the X are taken two by two."""
    pairs = z.reshape(len(z), -1, 2).transpose(0, 1)  # (D/2, N, 2)
    found = HenzeZirkler()(pairs)
    return {
        "Henze-Zirkler, X": float(found[0]),
        "correlation of squares, X": float(torch.corrcoef(pairs[0].mT.square())[0, 1]),
        "Henze-Zirkler, other pairs": float(found[1:].mean()),
        "Epps-Pulley, new slices": float(SIGReg(num_slices=256, seed=1_000_000)(z)),
        "std": float(z.std()),
    }


def row(optimizer: str, name: str, z: Tensor, null: tuple[float, float]) -> dict[str, Any]:
    found = measure(z)
    return (
        {"descent": optimizer, "statistic": name}
        | {key: f"{value:.2f}" for key, value in found.items()}
        | {"X passes for N(0, I)": "yes" if found["Henze-Zirkler, X"] <= null[1] else "no"}
        | {"Figure 6": "drawn" if name in ("before", *DRAWN_IN_THE_PAPER) and optimizer != "plain" else "-"}
    )


def scatter(axis: Any, z: Tensor, high: float, colour: str | None = None) -> None:
    """The plane of the X: green where it passes for N(0, I), red where it does not."""
    found = measure(z[:, :4])  # the X and, as there must be some, one other pair
    chosen = colour or ("C2" if found["Henze-Zirkler, X"] <= high else "C3")
    axis.scatter(z[:, 0], z[:, 1], s=6, color=chosen, alpha=0.7, linewidths=0)
    text = f"HZ {found['Henze-Zirkler, X']:.2f}, r {found['correlation of squares, X']:.2f}"
    axis.text(0.03, 0.03, text, transform=axis.transAxes, fontsize=7)
    axis.set(xlim=(-4, 4), ylim=(-4, 4), aspect="equal")
    axis.grid(alpha=0.3)


def draw(start: Tensor, clouds: dict[tuple[str, str], Tensor], high: float, path: Path) -> None:
    """The plane of the X before and after each descent, Adam's above plain ones."""
    from matplotlib.figure import Figure

    panels = {
        optimizer: [("before", start)] + [(name, z) for (which, name), z in clouds.items() if which == optimizer]
        for optimizer in ("Adam", "plain")
    }
    panels["Adam"] += [("Epps-Pulley,\nconstant rate", clouds["Adam, constant rate", "Epps-Pulley"])]
    columns = min(7, len(panels["Adam"]))
    lines = -(-len(panels["Adam"]) // columns)
    figure = Figure(figsize=(1.75 * columns, 4.2 * lines + 0.7), layout="constrained")
    parts: Any = figure.subfigures(2, 1)
    for part, (optimizer, shown) in zip(parts, panels.items(), strict=True):
        part.suptitle("Adam" if optimizer == "Adam" else "plain gradient descent", fontsize=10, fontweight="bold")
        axes = part.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, (name, z) in zip(axes, shown, strict=False):
            scatter(axis, z, high, "0.4" if name == "before" else None)
            axis.set_title(name, fontsize=8)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
