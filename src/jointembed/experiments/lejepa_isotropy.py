"""LeJEPA, Lemmas 1 and 2 and Theorem 1: what anisotropy of the embeddings costs a probe, at equal total variance."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Laplace, MixtureSameFamily, Normal, StudentT

from jointembed._files import atomic

from .results import command, write_results

RIDGE, NOISE = 10.0, 1.0  # strength of the regulariser, deviation of the labels
RADIUS = 0.2  # of the neighbourhoods; the kernel has half of it, so that both have the same second moment
OFFSETS, QUERIES, FREQUENCIES, TRAIN = 128, 400, 32, 4000
# Densities of mean 0 and variance 1: those but the first are as isotropic, and not Gaussian.
SHAPES: dict[str, Distribution] = {
    "Gaussian": Normal(0.0, 1.0),
    "Student, 5 df": StudentT(5.0, 0.0, math.sqrt(3 / 5)),
    "two clusters": MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-0.8, 0.8]), 0.6)),
    "Laplace": Laplace(0.0, math.sqrt(0.5)),
}
COLUMNS = {
    "bias": "ridge: squared bias, worst task",
    "mean_bias": "ridge: squared bias, mean task",
    "variance": "least squares: variance of the weights",
    "prediction": "least squares: variance of the prediction",
    "neighbours": "neighbours: squared bias",
    "kernel": "kernel: squared bias",
}


def run(
    results: str = "results",
    conditions: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0),
    samples: int = 100,
    dim: int = 8,
    draws: int = 500,
    seed: int = 0,
) -> None:
    """Probes of Gaussian embeddings whose variances spread more and more around 1, and of other isotropic ones.

    Args:
        results: where the table and the figure go.
        conditions: largest over smallest variance.
        samples: to fit a linear probe to.
        dim: of linear probes. Nonlinear ones look at two dimensions.
        draws: linear probes, each with its own embeddings and noise.
        seed: of everything, the same for all embeddings.
    """
    arguments, began = dict(locals()), time.perf_counter()
    found = [
        linear(spectrum(c, dim), samples, draws, seed) | nonlinear("Gaussian", spectrum(c, 2), seed) for c in conditions
    ]
    shapes = {name: nonlinear(name, torch.ones(2), seed) for name in SHAPES}
    rows: list[dict[str, Any]] = [
        {"embeddings": f"Gaussian, condition {c:g}"}
        | {title: f"{one[key][0]:.3g} ({one[key][1]:.3g})" for key, title in COLUMNS.items()}
        | {f"neighbours among {TRAIN:,} samples: squared error": f"{one['samples'][0]:.3g}"}
        for c, one in zip(conditions, found, strict=True)
    ]
    rows += [
        {key: f"{name}, isotropic" if key == "embeddings" else "-" for key in rows[0]}
        | {COLUMNS[key]: f"{one[key][0]:.3g} ({one[key][1]:.3g})" for key in ("neighbours", "kernel")}
        for name, one in shapes.items()
        if name != "Gaussian"
    ]
    title = (
        f"LeJEPA, Lemmas 1 and 2, Theorem 1: probes at equal total variance; simulated (formula); {dim} dimensions and "
        f"{samples} samples for linear probes, 2 dimensions for others"
    )
    write_results(Path(results), "lejepa-isotropy", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(conditions, found, shapes, Path(results) / "lejepa-isotropy.png")


def spectrum(condition: float, dim: int) -> Tensor:
    """Variances in a geometric row, of mean 1, the smallest last."""
    values = torch.logspace(0, -math.log10(condition), dim)
    return values / values.mean()


def linear(variances: Tensor, samples: int, draws: int, seed: int) -> dict[str, tuple[float, float]]:
    """Simulated and expected bias and variance of weights fitted to embeddings of these variances (D,)."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(draws, samples, len(variances), generator=g) * variances.sqrt()
    gram = z.mT @ z  # (R, D, D)
    ridge = torch.linalg.solve(gram + RIDGE * torch.eye(len(variances)), gram)  # maps the true weights to the mean fit
    bias = (ridge - torch.eye(len(variances))).square().sum(1).mean(0)  # (D,), by the axis the true weights lie on
    noise = NOISE * torch.randn(draws, samples, 1, generator=g)
    weights = torch.linalg.solve(gram, z.mT @ noise)[..., 0]  # of labels without a signal
    shrunk = (RIDGE / (samples * variances + RIDGE)).square()
    freedom = samples - len(variances) - 1  # the mean of an inverse Wishart matrix
    return {
        "bias": (float(bias[-1]), float(shrunk[-1])),
        "mean_bias": (float(bias.mean()), float(shrunk.mean())),
        "variance": (float(weights.square().sum(1).mean()), NOISE**2 * float((1 / variances).sum()) / freedom),
        "prediction": (float((weights.square() @ variances).mean()), NOISE**2 * len(variances) / freedom),
    }


def nonlinear(shape: str, variances: Tensor, seed: int) -> dict[str, tuple[float, float]]:
    """Simulated and expected squared bias of averages over a ball and over a Gaussian kernel, in two dimensions.

    Labels are sqrt 2 cos(w.z + b): with w and its quarter turn in equal numbers their gradients are isotropic.
    """
    base, scales = SHAPES[shape], variances.sqrt()
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(FREQUENCIES, 2, generator=g)
    w = torch.cat([w, torch.stack([-w[:, 1], w[:, 0]], 1)])  # (F, 2)
    phase = 2 * math.pi * torch.rand(len(w), generator=g)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        queries, train = (base.sample((number, 2)) * scales for number in (QUERIES, TRAIN))

    def labels(z: Tensor) -> Tensor:
        return math.sqrt(2) * torch.cos(z @ w.mT + phase)

    truth = labels(queries)
    square = w.square().sum(1)
    # Lemma 4: bias = m (grad f . grad log p + laplacian f / 2), m the second moment of the ball or kernel.
    fisher = fisher_information(base) * float((1 / variances).sum())
    expected = (RADIUS**2 / 4) ** 2 * float(square.mean() / 2 * fisher + square.square().mean() / 4)
    found = {}
    for name, offsets in (("neighbours", ball()), ("kernel", gaussian())):
        around = queries[:, None] + offsets  # (Q, S, 2)
        weights = base.log_prob(around / scales).sum(-1).softmax(1)
        bias = (weights[..., None] * labels(around)).sum(1) - truth
        found[name] = (float(bias.square().mean()), expected)
    near = (torch.cdist(queries, train) <= RADIUS).float()
    some = near.sum(1) > 0
    predicted = (near @ labels(train))[some] / near.sum(1, keepdim=True)[some]
    return found | {"samples": (float((predicted - truth[some]).square().mean()), math.nan)}


def spiral() -> tuple[Tensor, Tensor]:
    """Shares and angles of points that fill a disc evenly: random ones would add their own error to a bias."""
    number = torch.arange(OFFSETS) + 0.5
    return number / OFFSETS, number * math.pi * (3 - math.sqrt(5))


def ball() -> Tensor:
    share, angle = spiral()
    return RADIUS * share.sqrt()[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


def gaussian() -> Tensor:
    share, angle = spiral()
    return RADIUS / 2 * (-2 * torch.log1p(-share)).sqrt()[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


def fisher_information(base: Distribution) -> float:
    """The integral of (log p)'^2 p in one dimension."""
    x = torch.linspace(-30, 30, 60_001, dtype=torch.float64).requires_grad_()
    log_density = base.log_prob(x)
    (score,) = torch.autograd.grad(log_density.sum(), x)
    return float(torch.trapezoid(score.square() * log_density.detach().exp(), x.detach()))


def draw(
    conditions: tuple[float, ...],
    found: list[dict[str, tuple[float, float]]],
    shapes: dict[str, dict[str, tuple[float, float]]],
    path: Path,
) -> None:
    """Bias and variance over the condition number, simulated and by formula, and other isotropic densities."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    panels = {
        "ridge: squared bias": {"bias": "worst task", "mean_bias": "mean task"},
        "least squares: variance": {"variance": "of the weights", "prediction": "of the prediction"},
        "squared bias, nonlinear": {"neighbours": "neighbours", "kernel": "kernel"},
    }
    axes = figure.subplots(1, 4)
    for axis, (title, curves) in zip(axes, panels.items(), strict=False):
        for place, (key, label) in enumerate(curves.items()):
            axis.plot(conditions, [one[key][0] for one in found], "o", color=f"C{place}", label=label)
            axis.plot(conditions, [one[key][1] for one in found], color=f"C{place}", linewidth=1)
        axis.set(title=title, xlabel="largest / smallest variance", xscale="log")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8, title="line: formula", title_fontsize=8)
        axis.grid(alpha=0.3)
    places = torch.arange(len(shapes))
    for place, key in enumerate(("neighbours", "kernel")):
        heights = [one[key][0] for one in shapes.values()]
        axes[3].bar(places + 0.4 * (place - 0.5), heights, 0.38, color=f"C{place}", label=key)
    axes[3].set_xticks(places, [name.replace(" ", "\n", 1) for name in shapes], fontsize=8)
    axes[3].set(title="squared bias, isotropic")
    axes[3].legend(frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
