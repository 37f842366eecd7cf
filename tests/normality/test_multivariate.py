"""Multivariate tests against double loops, numerical integration over t, exact null means and published values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group
from sklearn.datasets import load_iris
from torch import Tensor

from benchmarks.measure import peak_extra_bytes
from jointembed.normality import BHEP, BHEPM, COMB, HV, EppsPulley, HenzeZirkler
from jointembed.normality.multivariate import MultivariateTest

Maker = Callable[..., MultivariateTest]
MAKERS: dict[str, Maker] = {
    "BHEP": lambda **kw: BHEP(0.8, **kw),
    "HenzeZirkler": HenzeZirkler,
    "BHEPM": lambda **kw: BHEPM(2.5, **kw),
    "COMB": lambda **kw: COMB(1.2, **kw),
    "COMB-full": lambda **kw: COMB(1.2, simplified=False, **kw),
    "HV": lambda **kw: HV(2.5, **kw),
}
every_test = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integrate(
    y: np.ndarray, rate: float, integrand: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
) -> float:
    """Integral over t in R^D of integrand(t, psi_n, [M_n, grad M_n]) exp(-rate |t|^2), Gauss–Hermite in each axis."""
    nodes, weights = np.polynomial.hermite.hermgauss(80)
    d = y.shape[1]
    t = np.stack(np.meshgrid(*[nodes / math.sqrt(rate)] * d, indexing="ij"), axis=-1).reshape(-1, d)
    w = np.stack(np.meshgrid(*[weights / math.sqrt(rate)] * d, indexing="ij"), axis=-1).reshape(-1, d).prod(1)
    dot = t @ y.T
    generating = np.exp(dot)
    gradient = generating @ y / len(y)
    return float(w @ integrand(t, np.exp(1j * dot).mean(1), np.column_stack([generating.mean(1), gradient])))


def length2(t: np.ndarray) -> np.ndarray:
    return (t**2).sum(1)


@pytest.mark.parametrize("d", [1, 2])
def test_closed_forms_equal_the_integrals_over_t(d: int) -> None:
    x = 0.9 * samples(8, d) + 0.2
    y, n = x.numpy(), 8

    def bhep(beta: float) -> float:
        difference = integrate(y, 1 / (2 * beta**2), lambda t, psi, _: abs(psi - np.exp(-length2(t) / 2)) ** 2)
        return n * (2 * math.pi * beta**2) ** (-d / 2) * difference

    zirkler = ((2 * d + 1) * n / 4) ** (1 / (d + 4)) / math.sqrt(2)
    expected = {
        BHEP(0.8): bhep(0.8),
        HenzeZirkler(): bhep(zirkler),
        BHEPM(2.5): n * integrate(y, 2.5, lambda t, _, m: (m[:, 0] - np.exp(length2(t) / 2)) ** 2),
        HV(2.5): n * integrate(y, 2.5, lambda t, _, m: length2(m[:, 1:] - t * m[:, :1])),
        COMB(1.2): math.sqrt(n) * integrate(y, 1.2, lambda t, psi, m: psi.real * m[:, 0] - 1),
        COMB(1.2, simplified=False): n * integrate(y, 1.2, lambda t, psi, m: (psi.real * m[:, 0] - 1) ** 2),
    }
    for test, value in expected.items():
        assert test(x).item() == pytest.approx(value, rel=1e-8), test


def test_equal_double_loops_over_pairs() -> None:
    n, d, x = 6, 4, samples(6, 4) * 0.8
    y = x.numpy()
    pairs = [(a, b) for a in y for b in y]
    bhep = sum(math.exp(-((a - b) @ (a - b)) / 2) for a, b in pairs) / n + n / 3 ** (d / 2)
    bhep -= 2 * sum(math.exp(-(a @ a) / 4) for a in y) / 2 ** (d / 2)
    generating = math.pi ** (d / 2) * (
        sum(math.exp((a + b) @ (a + b) / 12) for a, b in pairs) / (n * 3 ** (d / 2))
        - 2 * sum(math.exp(a @ a / 10) for a in y) / 2.5 ** (d / 2)
        + n / 2 ** (d / 2)
    )
    visagie = (
        (math.pi / 3) ** (d / 2)
        / n
        * sum(
            math.exp((a + b) @ (a + b) / 12) * (a @ b - (a + b) @ (a + b) / 6 + d / 6 + (a + b) @ (a + b) / 36)
            for a, b in pairs
        )
    )
    mean = sum(math.exp((a @ a - b @ b) / 8) * math.cos(a @ b / 4) for a, b in pairs) / n**2
    combined = (math.pi / 2) ** (d / 2) * math.sqrt(n) * (mean - 1)
    expected = {BHEP(1.0): bhep, BHEPM(3.0): generating, HV(3.0): visagie, COMB(2.0): combined}
    for test, value in expected.items():
        assert test(x).item() == pytest.approx(value), test


def test_full_comb_equals_a_quadruple_loop() -> None:
    n, x = 4, samples(4, 3)
    y = x.numpy()
    total = 0.0
    for a in (j + k for j in y for k in y):
        for l in y:
            for m in y:
                for b in (l - m, l + m):
                    total += math.exp((a @ a - b @ b) / 6) * math.cos(a @ b / 3) / (2 * n**3)
    pairs = sum(math.exp((j @ j - k @ k) / 6) * math.cos(j @ k / 3) for j in y for k in y)
    expected = (math.pi / 1.5) ** 1.5 * (total - 2 * pairs / n + n)
    assert COMB(1.5, simplified=False)(x).item() == pytest.approx(expected)


def test_henze_zirkler_gives_the_published_value_of_irises() -> None:
    # selcukorkmaz.github.io/mvn-tutorial: the R package MVN, sepals of the 50 flowers of Iris setosa, HZ = 0.286.
    sepals = torch.from_numpy(load_iris().data[:50, :2])
    assert HenzeZirkler(standardise=True)(sepals).item() == pytest.approx(0.286, abs=5e-4)


def test_bhep_in_one_dimension_is_epps_pulley() -> None:
    x = 1.5 * samples(30, 1)
    expected = EppsPulley(t_max=10, num_points=401)(x).item() / math.sqrt(2 * math.pi)
    assert BHEP()(x).item() == pytest.approx(expected, rel=1e-9)


def test_hv_tends_to_a_sum_of_two_skewnesses() -> None:
    x = samples(25, 3).exp()
    y = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(x.T.cov(correction=0))).T
    gram, length = y @ y.T, y.square().sum(1)
    mardia, mori = (gram**3).mean(), (torch.outer(length, length) * gram).mean()
    gamma, n = 1e4, 25
    scaled = 16 * gamma**3.5 / (n * math.pi**1.5) * HV(gamma, standardise=True)(x)
    assert scaled.item() == pytest.approx((2 * mardia + mori).item(), rel=0.01)


@pytest.mark.parametrize("d", [1, 3])
def test_means_under_the_null_are_exact(d: int) -> None:
    n, count = 6, 20_000
    x = samples(count, n, d, seed=d)
    gamma = 6.0
    expected = {
        BHEP(1.5): 1 - (1 + 2 * 1.5**2) ** (-d / 2),
        BHEPM(gamma): (math.pi / (gamma - 2)) ** (d / 2) - (math.pi / (gamma - 1)) ** (d / 2),
        HV(gamma): (math.pi / (gamma - 2)) ** (d / 2) * d * (1 + 1 / (2 * gamma - 4)),
        # E[Re psi_n M_n] = 1 + (cos |t|^2 - 1) / N, as E exp((1 + i) t.x) = exp((1 + i)^2 |t|^2 / 2).
        COMB(gamma): math.pi ** (d / 2) / math.sqrt(n) * (((gamma - 1j) ** (-d / 2)).real - gamma ** (-d / 2)),
    }
    for test, mean in expected.items():
        statistic = test(x)
        assert statistic.mean().item() == pytest.approx(mean, abs=4 * statistic.std().item() / math.sqrt(count)), test


@every_test
def test_neither_rotation_nor_order_matters(make: Maker) -> None:
    x = samples(2, 12, 4).abs()
    rotation = torch.from_numpy(ortho_group.rvs(4, random_state=0))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(make()(x[:, order] @ rotation), make()(x))


@every_test
def test_standardised_is_affine_invariant_and_standardises_with_the_divisor_n(make: Maker) -> None:
    x = samples(12, 3).exp()
    moved = x @ samples(3, 3, seed=2) + samples(3, seed=3)
    test = make(standardise=True)
    torch.testing.assert_close(test(moved), test(x))
    white = torch.linalg.solve(torch.linalg.cholesky(x.T.cov(correction=0)), (x - x.mean(0)).T).T
    torch.testing.assert_close(test(x), make()(white))
    assert (make()(x) - test(x)).abs() > 0.01


@every_test
@pytest.mark.parametrize("standardise", [False, True])
def test_gradient_passes_gradcheck(make: Maker, standardise: bool) -> None:
    x = (0.7 * samples(2, 5, 2)).requires_grad_()
    assert torch.autograd.gradcheck(make(standardise=standardise, chunk_size=3), x)


@every_test
def test_chunks_change_neither_value_nor_gradient(make: Maker) -> None:
    x = samples(3, 13, 2).requires_grad_()
    expected = make()(x)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), x)
    for chunk_size in (1, 5, 13):
        actual = make(chunk_size=chunk_size)(x)
        assert actual.shape == (3,)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(torch.autograd.grad(actual.sum(), x)[0], expected_gradient)


@pytest.mark.parametrize("make", [BHEP, BHEPM, COMB, HV])
def test_memory_is_that_of_a_chunk_in_the_backward_pass_too(make: Maker) -> None:
    n, chunk_size, test = 1024, 32, make(chunk_size=32)
    x = samples(n, 2).float().requires_grad_()
    assert peak_extra_bytes(lambda: test(x).backward()) < 20 * n * chunk_size * 4 < n * n * 4


def heavy_tails(count: int, n: int, d: int) -> Tensor:
    """Student's t with 5 degrees of freedom, scaled to covariance I: uncorrelated, not independent."""
    chi2 = samples(count, n, 5, seed=11).square().sum(-1, keepdim=True)
    return samples(count, n, d, seed=12) * (3 / chi2).sqrt()


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("make", [BHEP, HenzeZirkler, BHEPM, COMB, HV])
def test_heavy_tails_are_detected_and_a_shift_is_unless_standardised(make: Maker, standardise: bool) -> None:
    n, d, test = 150, 3, make(standardise=standardise)
    critical = torch.quantile(test(samples(200, n, d, seed=10)).abs(), 0.98)
    rejected = (test(heavy_tails(40, n, d)).abs() > critical).double().mean()
    assert rejected > 0.6
    if make is not COMB:  # which sees cos(t.mean) exp(t.mean), of mean 1 to third order
        shifted = (test(samples(40, n, d, seed=13) + 0.5).abs() > critical).double().mean()
        assert shifted < 0.15 if standardise else shifted > 0.95


def test_uncorrelated_normal_marginals_are_not_enough() -> None:
    # The "X" of the paper's figure 5: (x, +x or -x) at random, two standard normals without correlation.
    x = samples(200)
    sign = 2.0 * (samples(200, seed=1) > 0) - 1
    cross, plane = torch.stack([x, sign * x], dim=1), samples(100, 200, 2, seed=2)
    for test in (BHEP(), HenzeZirkler(), BHEP(standardise=True), HenzeZirkler(standardise=True)):
        assert test(cross) > 1.5 * test(plane).max()


@every_test
def test_nan_stays_in_its_batch(make: Maker) -> None:
    x = samples(3, 9, 2)
    x[1, 4, 0] = math.nan
    for standardise in (False, True):
        assert make(standardise=standardise)(x).isnan().tolist() == [False, True, False]


def test_high_dimensions_do_not_underflow_against_overflow() -> None:
    # (pi / beta)^(D/2) is 1e-102 here, and exp(|y + y|^2 / 4 beta) up to 1e+120: float32 holds neither.
    x = samples(4, 1000, seed=3)
    for make in (BHEPM, HV):
        exact = make(5.0)(x)
        assert exact.isfinite() and exact > 0
        torch.testing.assert_close(make(5.0)(x.float()).double(), exact, rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BHEP(0.0), "beta must be positive, got 0.0"),
        (lambda: BHEPM(1.0), "beta must be greater than 1, got 1.0"),
        (lambda: HV(-1.0), "gamma must be positive, got -1.0"),
        (lambda: COMB(math.nan), "gamma must be positive, got nan"),
        (lambda: HenzeZirkler(chunk_size=0), "chunk_size must be at least 1, got 0"),
        (lambda: BHEP()(torch.zeros(4)), r"x must have shape \(..., N, D\), got \(4,\)"),
        (lambda: BHEP()(torch.zeros(0, 4)), r"x must have at least 1 samples .*, got shape \(0, 4\)"),
        (lambda: BHEP()(torch.ones(4, 2).int()), "x must be of a real floating dtype, got torch.int32"),
        (lambda: HV(standardise=True)(torch.zeros(3, 3)), r"N > D samples if standardise=True, got shape \(3, 3\)"),
        (lambda: HV(standardise=True)(torch.ones(5, 2)), "covariance of full rank if standardise=True, got a singular"),
    ],
)
def test_bad_arguments_and_input_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
