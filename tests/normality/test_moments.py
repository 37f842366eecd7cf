"""Moment tests against scipy, exact null means, and their average over all directions."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import special, stats
from torch import Tensor

from jointembed.normality import ExtendedJarqueBera, JarqueBera, Moments, SIGReg


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_moments(n: int, mean: Tensor, covariance: Tensor) -> Tensor:
    """(N, D) whose sample mean and sample covariance (divisor N - 1) are exactly these."""
    z = samples(n, len(mean))
    z = z - z.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(z.T.cov()), z.T, upper=False)
    return (torch.linalg.cholesky(covariance) @ white).T + mean


def jarque_bera_null_mean(n: int) -> float:
    """From the exact moments of skewness and kurtosis of N normal samples."""
    skewness2 = 6 * (n - 2) / ((n + 1) * (n + 3))
    kurtosis = 3 * (n - 1) / (n + 1)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    return n / 6 * (skewness2 + ((kurtosis - 3) ** 2 + variance) / 4)


def test_jarque_bera_equals_scipy() -> None:
    x = samples(57, 5) ** 3 + 2
    expected = [stats.jarque_bera(column.numpy()).statistic for column in x.T]
    assert JarqueBera()(x).tolist() == pytest.approx(expected)


def test_extended_jarque_bera_adds_the_squared_t_statistic_and_a_variance_term() -> None:
    x = samples(57, 5) * 1.5 + 0.3
    for column, statistic in zip(x.T.numpy(), ExtendedJarqueBera()(x), strict=True):
        t = stats.ttest_1samp(column, 0).statistic
        variance_term = 56 * (column.var(ddof=1) - 1) ** 2 / 2
        assert statistic.item() == pytest.approx(stats.jarque_bera(column).statistic + t**2 + variance_term)


def test_jarque_bera_sees_neither_location_nor_scale_and_the_extended_one_sees_both() -> None:
    x = samples(100, 3)
    torch.testing.assert_close(JarqueBera()(1e6 * x + 1e7), JarqueBera()(x))
    assert (ExtendedJarqueBera()(x + 1) > ExtendedJarqueBera()(x) + 50).all()
    assert (ExtendedJarqueBera()(2 * x) > ExtendedJarqueBera()(x) + 50).all()


def test_fourth_powers_of_wide_float32_data_do_not_overflow() -> None:
    x = samples(100, 3).float()
    torch.testing.assert_close(JarqueBera()(1e15 * x), JarqueBera()(x))


@pytest.mark.parametrize("n", [10, 50])
def test_means_under_the_null_are_exact(n: int) -> None:
    x, count = samples(n, 40_000, seed=n), 40_000
    c4 = math.sqrt(2 / (n - 1)) * math.exp(special.gammaln(n / 2) - special.gammaln((n - 1) / 2))  # E[std]
    expected = {
        JarqueBera(): jarque_bera_null_mean(n),
        ExtendedJarqueBera(): jarque_bera_null_mean(n) + 1 + (n - 1) / (n - 3),
        Moments(): 1 / n + 2 - 2 * c4,
    }
    for test, mean in expected.items():
        statistic = test(x)
        assert statistic.mean().item() == pytest.approx(mean, abs=4 * statistic.std().item() / math.sqrt(count))


def test_moments_over_all_directions_of_the_plane_is_an_elliptic_integral() -> None:
    mean, variances = torch.tensor([0.6, -0.3]).double(), torch.tensor([4.0, 0.5]).double()
    z = with_moments(50, mean, torch.diag(variances))
    # E std(a . z) over directions a: a quarter of the circumference of an ellipse of half-axes std_1, std_2, over pi/2.
    std = 2 / math.pi * 2.0 * special.ellipe(1 - 0.5 / 4.0)
    expected = mean.square().sum().item() / 2 + variances.mean().item() + 1 - 2 * std
    module = SIGReg(Moments(), num_slices=2**14, directions="sobol").eval()
    assert module(z).item() == pytest.approx(expected, rel=1e-4)


def test_moments_over_many_slices_penalises_covariances_as_vicreg_does() -> None:
    d, mean = 5, torch.full((5,), 0.005).double()
    deviation = samples(d, d)
    deviation = (0.02 * (deviation + deviation.T)).fill_diagonal_(0.01)
    z = with_moments(50, mean, torch.eye(d).double() + deviation)
    quadratic = (deviation.square().sum() / 2 + deviation.trace() ** 2 / 4) / (d * (d + 2))
    module = SIGReg(Moments(), num_slices=2**14, directions="sobol").eval()
    assert module(z).item() == pytest.approx((mean.square().sum() / d + quadratic).item(), rel=0.03)
    without_covariances = with_moments(50, mean, torch.diag(1 + deviation.diag()))
    assert module(without_covariances) < 0.3 * module(z)


def test_moments_of_a_collapsed_column_have_a_finite_gradient() -> None:
    x = torch.full((10, 1), 0.5, requires_grad=True)
    statistic = Moments()(x)
    statistic.sum().backward()
    assert statistic.item() == pytest.approx(0.25 + 1)
    torch.testing.assert_close(x.grad, torch.full((10, 1), 2 * 0.5 / 10))
