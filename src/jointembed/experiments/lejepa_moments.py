"""LeJEPA, Theorem 3: distributions other than N(0, 1) that share its first K moments, and the tests they deceive."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jointembed._files import atomic
from jointembed.normality import EppsPulley
from jointembed.normality.univariate import UnivariateTest

from .lejepa_x import TESTS
from .results import command, write_results

SHOWN = tuple(name for name in TESTS if name not in ("Shapiro-Francia", "Rahman-Govindarajulu"))


class MomentDistance(UnivariateTest):
    """``N sum_k (mean(x^k) - E[g^k])^2 / k!``, k up to ``order``, g of N(0, 1): the theorem's objective."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    def statistic(self, rows: Tensor) -> Tensor:
        terms = (
            (rows.pow(k).mean(-1) - normal_moment(k)).square() / math.factorial(k) for k in range(1, self.order + 1)
        )
        return rows.shape[-1] * torch.stack(list(terms)).sum(0)


def run(
    results: str = "results",
    nodes: tuple[int, ...] = (2, 3, 4, 5, 6, 8),
    samples: int = 1000,
    draws: int = 400,
    seed: int = 0,
) -> None:
    """The nodes of Gauss-Hermite quadrature as distributions: n atoms have the first 2n - 1 moments of N(0, 1).

    Args:
        results: where the table and the figure go.
        nodes: numbers of atoms.
        samples: to test.
        draws: how many times, to see how often a test rejects at 5%; as many of N(0, 1) give its critical value.
        seed: of the samples.
    """
    arguments, began = dict(locals()), time.perf_counter()
    g = np.random.default_rng(seed)
    tests = TESTS_OF_MOMENTS | {name: TESTS[name] for name in SHOWN}
    normal = torch.from_numpy(g.standard_normal((samples, draws)))
    critical = {name: float(test(normal).quantile(0.95)) for name, test in tests.items()}
    rows: list[dict[str, Any]] = []
    rates: dict[str, list[float]] = {name: [] for name in tests}
    for number in nodes:
        x, weights = atoms(number)
        drawn = torch.from_numpy(g.choice(x, (samples, draws), p=weights))
        drawn += 1e-9 * normal  # without ties, which spacings cannot have
        for name, test in tests.items():
            rates[name].append(float((test(drawn) > critical[name]).double().mean()))
        distance = float(squared_distance(x, weights))
        rows.append(
            {
                "atoms": number,
                "equal moments": 2 * number - 1,
                "their largest relative difference": f"{moment_error(x, weights, 2 * number - 1):.0e}",
                "that of the next": f"{moment_error(x, weights, 2 * number, 2 * number):.2f}",
                "Epps-Pulley / N": f"{distance:.1e}",
                "N for Epps-Pulley": f"{math.ceil(critical['Epps-Pulley'] / distance):,}",
            }
            | {f"{name} rejects": f"{rates[name][-1]:.0%}" for name in tests}
        )
    title = (
        f"LeJEPA, Theorem 3: atoms with the moments of N(0, 1), {samples:,} samples, {draws} times, tests at 5%; "
        "N for Epps-Pulley: samples from which on its mean is critical"
    )
    write_results(Path(results), "lejepa-moments", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(nodes, rates, Path(results) / "lejepa-moments.png")


def normal_moment(k: int) -> int:
    """E[g^k] of N(0, 1), (k - 1)!! for even k."""
    return 0 if k % 2 else math.prod(range(1, k, 2))


def atoms(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights of the Gauss-Hermite rule for the density of N(0, 1)."""
    x, weights = np.polynomial.hermite_e.hermegauss(number)
    return x, weights / weights.sum()


def moment_error(x: np.ndarray, weights: np.ndarray, last: int, first: int = 1) -> float:
    """Largest difference of a moment from N(0, 1)'s, from the first to the last, in units of E|g|^k."""
    size = [2 ** (k / 2) * math.gamma((k + 1) / 2) / math.sqrt(math.pi) for k in range(first, last + 1)]
    found = [weights @ x**k - normal_moment(k) for k in range(first, last + 1)]
    return float(np.max(np.abs(found) / size))


def squared_distance(x: np.ndarray, weights: np.ndarray) -> float:
    """What Epps-Pulley's T / N becomes for many samples of the atoms, the integral over all t in closed form."""
    within = weights @ np.exp(-0.5 * (x[:, None] - x) ** 2) @ weights
    across = math.sqrt(2) * weights @ np.exp(-(x**2) / 4)
    return math.sqrt(2 * math.pi) * float(within - across + 1 / math.sqrt(3))


TESTS_OF_MOMENTS = {f"moments to {order}": MomentDistance(order) for order in (4, 8)}


def draw(nodes: tuple[int, ...], rates: dict[str, list[float]], path: Path) -> None:
    """The atoms, the integrand of Epps-Pulley, and how often the tests reject."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    t = np.linspace(0, EppsPulley().t_max, 501)
    for place, number in enumerate(nodes[:4]):
        x, weights = atoms(number)
        left.vlines(x + 0.06 * (place - 1.5), 0, weights, color=f"C{place}", linewidth=2, label=f"{number} atoms")
        difference = weights @ np.exp(1j * x[:, None] * t) - np.exp(-(t**2) / 2)
        middle.plot(t, np.abs(difference) ** 2 * np.exp(-(t**2) / 2), color=f"C{place}")
    left.set(title="distributions of equal moments", xlabel="x", ylabel="weight")
    left.legend(frameon=False, fontsize=8)
    middle.set(title="Epps-Pulley's integrand", xlabel="t", yscale="log", ylim=(1e-9, 1))
    shares = np.array(list(rates.values()))  # (tests, distributions)
    right.imshow(shares, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
        colour = "white" if share > 0.6 else "black"
        right.text(column, line, f"{share:.0%}", ha="center", va="center", fontsize=8, color=colour)
    right.set_xticks(range(len(nodes)), [str(2 * number - 1) for number in nodes])
    right.set_yticks(range(len(rates)), list(rates), fontsize=8)
    right.set(title="how often tests at 5% reject", xlabel="equal moments")
    for axis in (left, middle):
        axis.grid(alpha=0.3)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
