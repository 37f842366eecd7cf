"""LeJEPA, Figure 7: a few directions drawn anew at each step, against thousands that stay."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jointembed._files import atomic
from jointembed.normality import EppsPulley, SIGReg

from .lejepa_x import descend
from .results import command, write_results

FRESH = 2048  # directions that no descent has seen


def run(
    results: str = "results",
    samples: int = 128,
    dim: int = 64,
    resampled: tuple[int, ...] = (1, 4, 16, 64, 256, 1024),
    fixed: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096),
    steps: int = 400,
    lr: float = 0.1,
    seed: int = 0,
) -> None:
    """Descend on SIGReg from an anisotropic cloud; the statistic is then taken along directions that are new to it.

    Args:
        results: where the table and the figure go.
        samples: points, which are moved themselves.
        dim: of them.
        resampled: numbers of directions that are drawn anew at each step.
        fixed: numbers of directions that stay.
        steps: of Adam.
        lr: its first rate, which falls to 0 along a cosine.
        seed: of the points and the directions.
    """
    arguments, began = dict(locals()), time.perf_counter()
    start = anisotropic(samples, dim, seed)
    found: dict[tuple[str, Any], dict[str, float]] = {("before", "-"): measure(start, seed)}
    for name, numbers in (("drawn anew", resampled), ("fixed", fixed)):
        for num_slices in numbers:
            # In eval mode the step, of which directions are a function, stands still.
            sigreg = SIGReg(EppsPulley(), num_slices, seed).train(name == "drawn anew")
            found[name, num_slices] = measure(descend(start, sigreg, steps, lr), seed)
    normal = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed + 1))
    found["a sample of N(0, I)", "-"] = measure(normal, seed)
    rows: list[dict[str, Any]] = [
        {"directions": name, "per step": number} | {key: f"{value:.3f}" for key, value in one.items()}
        for (name, number), one in found.items()
    ]
    title = (
        f"LeJEPA, Figure 7: Epps-Pulley along {FRESH:,} new directions after {steps} steps, {samples} points in "
        f"{dim} dimensions"
    )
    write_results(Path(results), "lejepa-slices", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(found, Path(results) / "lejepa-slices.png")


def anisotropic(samples: int, dim: int, seed: int) -> Tensor:
    """Normal points whose variances fall from 2 to 0.02, geometrically, along random axes."""
    g = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=g)).Q
    return torch.randn(samples, dim, generator=g) * torch.logspace(0.15, -0.85, dim) @ axes.mT


def measure(z: Tensor, seed: int) -> dict[str, float]:
    """Epps-Pulley along new directions, and the spectrum, which no direction decides."""
    statistic = EppsPulley()(z @ SIGReg(num_slices=FRESH, seed=seed + 1_000_000).directions(z.shape[1]))
    variances = torch.linalg.eigvalsh(torch.cov(z.mT))
    return {
        "mean statistic": float(statistic.mean()),
        "largest statistic": float(statistic.max()),
        "smallest variance": float(variances[0]),
        "largest variance": float(variances[-1]),
    }


def draw(found: dict[tuple[str, Any], dict[str, float]], path: Path) -> None:
    """Mean and largest statistic over the number of directions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axis, key in zip(figure.subplots(1, 2), ("mean statistic", "largest statistic"), strict=True):
        for name, colour in (("drawn anew", "C2"), ("fixed", "C0")):
            points = [(number, one[key]) for (which, number), one in found.items() if which == name]
            axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, label=name)
        axis.axhline(found["before", "-"][key], color="0.5", linestyle=":", label="before")
        axis.axhline(found["a sample of N(0, I)", "-"][key], color="0.5", linestyle="--", label="a sample of N(0, I)")
        axis.set(title=f"{key} of new directions", xlabel="directions per step", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("Epps-Pulley")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
