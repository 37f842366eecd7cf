"""GMJE, Figures 4 to 7: two sets in which one context has three targets, and what six models make of them."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jointembed import fit_pairs
from jointembed._files import atomic
from jointembed.distributions import GaussianMixture

from .results import command, write_results

NOISE = 0.05
SETS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "A": (lambda x: x**2 + 0.5, lambda x: -(x**2) - 0.5, lambda x: x**3),  # apart
    "B": (lambda x: torch.sin(3 * x), lambda x: -torch.sin(3 * x), torch.zeros_like),  # through one point
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "JEPA (squared error)": ("jepa", {}),
    "GP, RBF, fixed": ("gje-rbf", {"learn": False, "lengthscale": 0.5, "noise": 0.1}),
    "GMJE-EM, K = 1": ("gje", {}),
    "GMJE-EM, K = 3": ("gmje-em", {"components": 3}),
    "GMJE-GNG": ("gmje-gng", {}),
    "GMJE-MDN, K = 3": ("gmje-mdn", {"components": 3}),
}


def run(results: str = "results", pairs: int = 3000, seed: int = 111) -> None:
    """Fit six models to both sets, and compare each conditional density with the one behind the data.

    Args:
        results: where the table and the figure go.
        pairs: to fit, and as many others to measure the likelihood by.
        seed: of the data and of the models.
    """
    arguments, began = dict(locals()), time.perf_counter()
    x_grid, y_grid = torch.linspace(-1, 1, 300)[:, None], torch.linspace(-2.5, 2.5, 2001)
    rows, drawn = [], {}
    for name, branches in SETS.items():
        x, y, _ = draw_pairs(branches, pairs, seed)
        x_new, y_new, truth = draw_pairs(branches, pairs, seed + 1)
        best = float(truth.log_prob(y_new).mean())
        middle = torch.cat([branch(x_grid) for branch in branches], 1)  # (300, 3)
        for title, (method, options) in {"the true density": ("", {}), **MODELS}.items():
            started = time.perf_counter()
            if method:
                model = fit_pairs(x, y, method, seed=seed, **options)
                conditional, found = model.condition(x_grid), float(model.log_prob(x_new, y_new).mean())
                modes = model.modes(x_grid, least=0.1)
            else:
                conditional, found = density_of(middle), best
                modes = list(middle[:, :, None])
            seconds = time.perf_counter() - started
            density = conditional.log_prob(y_grid[:, None, None].expand(-1, 300, 1)).exp().T  # (300, 2001)
            rows.append(
                {
                    "set": name,
                    "model": title,
                    "log-likelihood": f"{found:.3f}",
                    "below the truth": f"{best - found:.3f}",
                }
                | {key: f"{value:.3f}" for key, value in measure(density, y_grid, middle, modes).items()}
                | {"seconds": f"{seconds:.1f}"}
            )
            drawn[name, title] = (x, y, density, conditional.mean[:, 0])
    title = (
        f"GMJE, Figures 4 to 7: {pairs:,} pairs with three branches and noise {NOISE}, {pairs:,} others for likelihoods"
    )
    write_results(Path(results), "gmje-synthetic", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(drawn, y_grid, Path(results) / "gmje-synthetic.png")


def density_of(middle: Tensor) -> GaussianMixture:
    """The density behind the data, for branch values (N, 3)."""
    return GaussianMixture.isotropic(torch.full((3,), 1 / 3), middle[..., None], torch.full((1,), NOISE**2))


def draw_pairs(
    branches: tuple[Callable[[Tensor], Tensor], ...], count: int, seed: int
) -> tuple[Tensor, Tensor, GaussianMixture]:
    """Contexts and targets (N, 1), each on a random branch, and the density they came from."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(count, 1, generator=g) - 1
    middle = torch.cat([branch(x) for branch in branches], 1)  # (N, 3)
    which = torch.randint(3, (count, 1), generator=g)
    return x, middle.gather(1, which) + NOISE * torch.randn(count, 1, generator=g), density_of(middle)


def measure(density: Tensor, y: Tensor, middle: Tensor, modes: list[Tensor]) -> dict[str, float]:
    """How a conditional density (X, Y) on a grid fits the branches (X, 3), where these are apart.

    "mode error" is the distance from a branch to the nearest mode; a branch's weight and sigma are those of the mass
    that is nearer to it than to the others; "in the gaps" is the mass more than four sigma from all branches.
    """
    mass = density * (y[1] - y[0])
    distance = (y[None, :, None] - middle[:, None]).abs()  # (X, Y, 3)
    gaps = float((mass * (distance.amin(2) > 4 * NOISE)).sum(1).mean())
    apart = torch.stack([(middle[:, i] - middle[:, j]).abs() for i, j in ((0, 1), (0, 2), (1, 2))]).amin(0) > 6 * NOISE
    nearest = torch.nn.functional.one_hot(distance.argmin(2), 3)  # (X, Y, 3)
    weight = (mass[..., None] * nearest).sum(1)[apart]  # (X', 3)
    second = (mass[..., None] * nearest * distance.square()).sum(1)[apart]
    sigma = (second / weight.clamp_min(1e-12)).sqrt()
    errors = [(values[:, 0] - middle[i][:, None]).abs().amin(1).mean() for i, values in enumerate(modes) if apart[i]]
    return {
        "mode error": float(torch.stack(errors).mean()),
        "weight error": float((weight - 1 / 3).abs().mean()),
        "sigma error": float((sigma - NOISE).abs().mean()),
        "in the gaps": gaps,
    }


def draw(drawn: dict[tuple[str, str], Any], y: Tensor, path: Path) -> None:
    """The densities as the models see them, over the data, with the mean that a point predictor would give."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(title for _, title in drawn))
    figure = Figure(figsize=(2.3 * len(columns), 5), layout="constrained")
    axes = figure.subplots(2, len(columns), sharex=True, sharey="row")
    for (name, title), (contexts, targets, density, mean) in drawn.items():
        axis = axes["AB".index(name), columns.index(title)]
        shown = density.T.clamp_max(1 / (3 * NOISE * math.sqrt(2 * math.pi)))  # a branch's own height
        axis.imshow(shown, origin="lower", extent=(-1, 1, float(y[0]), float(y[-1])), aspect="auto", cmap="Blues")
        axis.scatter(contexts[:400], targets[:400], s=1, color="black", alpha=0.25)
        axis.plot(torch.linspace(-1, 1, len(mean)), mean, color="C1", linewidth=1, label="mean")
        axis.set_ylim(-1.8, 1.8)
        if name == "A":
            axis.set_title(title, fontsize=9)
    axes[1, 0].legend(frameon=False, fontsize=8, loc="lower right")
    for row, name in zip(axes, SETS, strict=True):
        row[0].set_ylabel(f"set {name}")
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
