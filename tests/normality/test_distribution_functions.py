"""Cramér–von Mises, Anderson–Darling and Watson against scipy, numerical integration and double sums."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch import Tensor, nn

from jointembed.normality import AndersonDarling, CramerVonMises, Watson

NULL_MEANS = [(CramerVonMises(), 1 / 6), (AndersonDarling(), 1.0), (Watson(), 1 / 12)]


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integral(x: Tensor, weight: str) -> float:
    """N times the integral of (F_N - u)^2 weight(u) over u = Phi, jump by jump; F_N - u less its mean for Watson."""
    u = np.sort(stats.norm.cdf(x.numpy()))
    n = len(u)
    edges = np.concatenate([[0.0], u, [1.0]])
    mean_gap = sum((b - a) * (k / n - (a + b) / 2) for k, (a, b) in enumerate(pairwise(edges)))

    def integrand(v: float, level: float) -> float:
        if weight == "tails":
            return (level - v) ** 2 / (v * (1 - v)) if 0 < v < 1 else 0.0
        return (level - v - (mean_gap if weight == "centred" else 0)) ** 2

    pieces = enumerate(pairwise(edges))
    return n * sum(quad(integrand, a, b, args=(k / n,), epsabs=1e-13)[0] for k, (a, b) in pieces)


@pytest.mark.parametrize(
    ("test", "weight"), [(CramerVonMises(), "flat"), (AndersonDarling(), "tails"), (Watson(), "centred")]
)
@pytest.mark.parametrize("n", [1, 2, 13])
def test_equals_the_integral_over_the_distribution_function(test: nn.Module, weight: str, n: int) -> None:
    x = 1.4 * samples(n, 3, seed=n) + 0.3
    expected = [integral(column, weight) for column in x.T]
    assert test(x).tolist() == pytest.approx(expected, rel=1e-8)


def test_cramer_von_mises_equals_scipy() -> None:
    x = samples(101, 4) * 1.2
    expected = [stats.cramervonmises(column.numpy(), "norm").statistic for column in x.T]
    assert CramerVonMises()(x).tolist() == pytest.approx(expected)


def test_anderson_darling_equals_scipy_with_known_parameters() -> None:
    x = samples(101, 3) * 1.2
    known = {"loc": 0, "scale": 1}
    expected = [
        stats.goodness_of_fit(stats.norm, column.numpy(), known_params=known, statistic="ad", n_mc_samples=1).statistic
        for column in x.T
    ]
    assert AndersonDarling()(x).tolist() == pytest.approx(expected)


def test_watson_equals_its_double_sum() -> None:
    # U^2 = 1/N sum_jk B_2(|u_j - u_k|) / 2, the second Bernoulli polynomial: a function of distances on a circle.
    x = samples(29, 2) + 0.4
    for column, statistic in zip(x.T, Watson()(x), strict=True):
        u = stats.norm.cdf(column.numpy())
        total = sum((abs(a - b) ** 2 - abs(a - b) + 1 / 6) / 2 for a in u for b in u)
        assert statistic.item() == pytest.approx(total / 29)


def test_watson_does_not_see_a_turn_of_the_circle_of_probabilities() -> None:
    x = samples(40, 3) * 0.7
    turned = torch.special.ndtri((torch.special.ndtr(x) + 0.3) % 1)
    torch.testing.assert_close(Watson()(turned), Watson()(x))
    assert (CramerVonMises()(turned) - CramerVonMises()(x)).abs().max() > 0.1


@pytest.mark.parametrize(("test", "mean"), NULL_MEANS)
@pytest.mark.parametrize("n", [4, 64])
def test_mean_under_the_null_is_the_same_for_every_sample_size(test: nn.Module, mean: float, n: int) -> None:
    statistic = test(samples(n, 20_000, seed=n))
    assert statistic.mean().item() == pytest.approx(mean, abs=4 * statistic.std().item() / math.sqrt(20_000))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_anderson_darling_reaches_far_into_the_tails(dtype: torch.dtype, tolerance: float) -> None:
    values = torch.tensor([-100.0, -30.0, -6.0, 0.0, 6.0, 30.0, 100.0], dtype=dtype)
    x = values.unsqueeze(1).requires_grad_()
    statistic = AndersonDarling()(x)
    statistic.sum().backward()
    ordered, i, n = values.double().numpy(), np.arange(1, 8), 7
    terms = stats.norm.logcdf(ordered) + stats.norm.logsf(ordered[::-1])
    assert statistic.item() == pytest.approx(-n - ((2 * i - 1) * terms).sum() / n, rel=1e-6)
    # d log Phi / dx is the hazard rate, phi / Phi, which is |x| + 1/|x| - ... far out.
    p = (2 * i - 1) / (2 * n)
    log_density = stats.norm.logpdf(ordered)
    slope = -2 * p * np.exp(log_density - stats.norm.logcdf(ordered))
    slope += 2 * (1 - p) * np.exp(log_density - stats.norm.logsf(ordered))
    assert x.grad is not None
    np.testing.assert_allclose(x.grad[:, 0].numpy(), slope, rtol=tolerance, atol=1e-9)


def test_anderson_darling_keeps_float32s_digits_where_the_textbook_sum_loses_them() -> None:
    x = samples(20_000, 4).float()
    exact = AndersonDarling()(x.double())
    ordered, n = x.sort(dim=0).values, len(x)
    weights = (2 * torch.arange(1, n + 1) - 1).float().unsqueeze(1)
    logs = torch.special.log_ndtr(ordered) + torch.special.log_ndtr(-ordered.flip(0))
    textbook = -n - (weights * logs).sum(0) / n
    assert (AndersonDarling()(x) - exact).abs().max() < 1e-4
    assert (textbook - exact).abs().max() > 1e-3
