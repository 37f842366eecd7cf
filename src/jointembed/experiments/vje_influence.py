"""VJE, Figure 2: the loss of a residual, and its influence, as the tails get lighter."""

import math
import time
from pathlib import Path
from typing import Any

import torch

from jointembed._files import atomic
from jointembed.distributions import PolarStudentT

from .results import command, write_results

TAILS = (0.5, 1.0, 3.0, 10.0, math.inf)


def run(results: str = "results", largest: float = 8.0) -> None:
    """Loss and influence of the radial factor, computed by the library's own likelihood and autograd.

    Args:
        results: where the table and the figure go.
        largest: residual.
    """
    arguments, began = dict(locals()), time.perf_counter()
    residual = torch.linspace(-largest, largest, 2001, dtype=torch.float64)
    curves: dict[float, tuple[torch.Tensor, torch.Tensor]] = {}
    rows: list[dict[str, Any]] = []
    for df in TAILS:
        z = (100 + residual)[:, None].requires_grad_()  # one dimension: the norm is the number
        loss = PolarStudentT(torch.full((1,), 100.0, dtype=torch.float64), torch.ones(1).double(), df).radius_loss(z)
        (slope,) = torch.autograd.grad(loss.sum(), z)
        curves[df] = loss.detach(), slope[:, 0]
        bound = math.inf if math.isinf(df) else (df + 1) / (2 * math.sqrt(df))
        rows.append(
            {
                "df": "∞" if math.isinf(df) else f"{df:g}",
                f"loss at {largest:g}": f"{float(loss[-1].detach()):.3f}",
                f"influence at {largest:g}": f"{float(slope[-1]):.3f}",
                "largest influence": f"{float(slope.max()):.3f}",
                "bound (df + 1) / (2 √df)": "none" if math.isinf(bound) else f"{bound:.3f}",
                "at residual (√df)": "-" if math.isinf(df) else f"{float(residual[slope[:, 0].argmax()]):.3f}",
            }
        )
    title = "VJE, Figure 2: loss and influence of a residual"
    write_results(Path(results), "vje-influence", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(residual, curves, Path(results) / "vje-influence.png")


def draw(residual: torch.Tensor, curves: dict[float, tuple[torch.Tensor, torch.Tensor]], path: Path) -> None:
    """The two panels of the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for panel, (axis, title) in enumerate(zip(figure.subplots(1, 2), ("loss", "influence"), strict=True)):
        for df, curve in curves.items():
            name = "∞ (Gaussian)" if math.isinf(df) else f"{df:g}"
            style = {"color": "black", "linestyle": "--"} if math.isinf(df) else {}
            axis.plot(residual, curve[panel], label=name, **style)
        axis.set(title=title, xlabel="residual")
        axis.grid(alpha=0.3)
    axes = figure.axes
    axes[0].set_ylim(0, 8)
    axes[1].set_ylim(-4, 4)
    axes[0].legend(title="degrees of freedom", frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
