"""EppsPulley against textbook sums, numerical integration, a closed form and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from torch import Tensor

from jointembed.normality import EppsPulley, _native

NULL_MEAN = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))


def textbook(x: Tensor, t_max: float = 5.0, num_points: int = 17) -> Tensor:
    """N x M x T complex exponentials over the whole grid, and torch's own trapezoid."""
    t = torch.linspace(-t_max, t_max, num_points, dtype=x.dtype)
    gaussian = torch.exp(-0.5 * t**2)
    phi_hat = torch.exp(1j * x.unsqueeze(-1) * t).mean(-3)
    return x.shape[-2] * torch.trapezoid((phi_hat - gaussian).abs().square() * gaussian, t, dim=-1)


def kernel_mmd(x: Tensor, unbiased: bool = False) -> Tensor:
    """The integral over all t in closed form: a maximum mean discrepancy with a Gaussian kernel, x (N,)."""
    n = len(x)
    pairs = torch.exp(-0.5 * (x[:, None] - x) ** 2)
    within = (pairs.sum() - n) / (n - 1) if unbiased else pairs.sum() / n
    cross = torch.exp(-(x**2) / 4).sum() * math.sqrt(2)
    return math.sqrt(2 * math.pi) * (within - cross + n / math.sqrt(3))


def gradient(test: EppsPulley, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    test(x).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(("t_max", "num_points"), [(5.0, 17), (5.0, 33), (3.0, 3), (2.5, 41)])
@pytest.mark.parametrize("shape", [(50, 7), (2, 3, 20, 4), (1, 1), (300, 300)])
def test_equals_the_textbook_sum(t_max: float, num_points: int, shape: tuple[int, ...]) -> None:
    x = 2 * torch.randn(shape, dtype=torch.float64) + 0.3
    torch.testing.assert_close(EppsPulley(t_max, num_points)(x), textbook(x, t_max, num_points))


def test_gradient_equals_autograd_through_the_textbook_sum() -> None:
    x = torch.randn(2, 100, 9, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 9, dtype=torch.float64)
    (expected,) = torch.autograd.grad((weights * textbook(x)).sum(), x)
    (actual,) = torch.autograd.grad((weights * EppsPulley()(x)).sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("num_points", [3, 5, 17])
def test_gradient_passes_gradcheck(unbiased: bool, num_points: int) -> None:
    x = torch.randn(11, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(EppsPulley(num_points=num_points, unbiased=unbiased), x)


def test_rows_do_not_have_to_be_laid_out_side_by_side() -> None:
    x = torch.randn(4, 64, 6, dtype=torch.float64)
    transposed = x.mT.contiguous().mT
    torch.testing.assert_close(EppsPulley()(transposed), EppsPulley()(x))
    torch.testing.assert_close(gradient(EppsPulley(), transposed), gradient(EppsPulley(), x))


def test_fine_grid_equals_scipy_quadrature() -> None:
    x = torch.randn(30, 1, dtype=torch.float64) * 1.5 + 0.4
    values = x[:, 0].numpy()

    def integrand(t: float) -> float:
        return abs(np.exp(1j * t * values).mean() - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2)

    expected = 30 * quad(integrand, -5, 5, epsabs=1e-12, limit=200)[0]
    assert EppsPulley(num_points=2001)(x).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("unbiased", [False, True])
def test_grid_converges_to_the_gaussian_kernel_discrepancy(unbiased: bool) -> None:
    x = torch.randn(40, 1, dtype=torch.float64) * 3 + 1
    expected = kernel_mmd(x[:, 0], unbiased).item()
    errors = [abs(EppsPulley(8.0, points, unbiased)(x).item() - expected) for points in (9, 17, 33, 129)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[3] < 1e-9


def test_mean_under_the_null_is_1_059_for_every_sample_size() -> None:
    for n in (8, 200):
        statistic = EppsPulley()(torch.randn(n, 40_000, generator=torch.Generator().manual_seed(n)))
        assert statistic.mean().item() == pytest.approx(NULL_MEAN, abs=5 * statistic.std().item() / 200)


def test_unbiased_form_has_mean_zero_under_the_null() -> None:
    statistic = EppsPulley(unbiased=True)(torch.randn(16, 40_000, generator=torch.Generator().manual_seed(0)))
    assert abs(statistic.mean().item()) < 5 * statistic.std().item() / 200
    assert statistic.min() < 0


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=st.floats(-1e6, 1e6)))
def test_gradient_is_at_most_8_whatever_the_data(values: np.ndarray) -> None:
    assert gradient(EppsPulley(), torch.from_numpy(values)).abs().max() <= 8


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40))
def test_order_of_samples_does_not_matter(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(EppsPulley()(x[torch.randperm(n, generator=generator)]), EppsPulley()(x))


def test_statistic_is_periodic_and_a_finer_grid_moves_the_alias_away() -> None:
    test = EppsPulley()
    x = torch.randn(100, 1, dtype=torch.float64)
    period = 2 * math.pi / 0.625
    shifted = x + period * torch.randint(-2, 3, x.shape).double()
    torch.testing.assert_close(test(shifted), test(x))
    assert EppsPulley(num_points=33)(shifted) > 10 * test(x)


def test_distribution_with_a_gaussians_first_nine_moments_is_detected() -> None:
    # Gauss-Hermite nodes with 5 points match the moments of N(0, 1) up to order 9 exactly (theorem 3's construction).
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    counts = np.round(weights / weights.sum() * 20_000).astype(int)
    x = torch.from_numpy(np.repeat(nodes, counts)).unsqueeze(1)
    gaussian_moments = [0, 1, 0, 3, 0, 15]
    assert [(x**k).mean().item() for k in range(1, 7)] == pytest.approx(gaussian_moments, abs=0.05)
    assert EppsPulley()(x).item() > 20 * NULL_MEAN


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(128, 5).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = EppsPulley()(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, EppsPulley()(x.double()).float(), rtol=1e-4, atol=1e-5)
    assert gradient(EppsPulley(), x).dtype == dtype


@pytest.mark.skipif(_native.kernels() is None, reason="no C++ compiler")
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("shape", [(64, 10), (3, 101, 7), (1, 1), (5, 33)])
def test_compiled_equals_double_precision(unbiased: bool, shape: tuple[int, ...]) -> None:
    if unbiased and shape[-2] < 2:
        shape = (2, 1)
    x = 3 * torch.randn(shape)
    eager, compiled = EppsPulley(unbiased=unbiased), EppsPulley(unbiased=unbiased, compiled=True)
    torch.testing.assert_close(compiled(x).double(), eager(x.double()), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(gradient(compiled, x).double(), gradient(eager, x.double()), rtol=1e-5, atol=2e-6)


@pytest.mark.skipif(_native.kernels() is None, reason="no C++ compiler")
def test_compiled_keeps_nan_and_the_period_of_wide_data() -> None:
    x = torch.tensor([[math.nan, 1e3], [0.0, -2e3]])
    result = EppsPulley(compiled=True)(x)
    assert result[0].isnan()
    torch.testing.assert_close(result[1].double(), EppsPulley()(x[:, 1:].double())[0], rtol=1e-3, atol=1e-3)


def test_without_a_compiler_the_pytorch_version_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    _native.kernels.cache_clear()
    x = torch.randn(20, 3)
    try:
        for _ in range(3):
            torch.testing.assert_close(EppsPulley(compiled=True)(x), EppsPulley()(x), rtol=0, atol=0)
    finally:
        _native.kernels.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 16}, "num_points must be odd and at least 3.*got 16"),
        ({"num_points": 1}, "num_points must be odd and at least 3.*got 1"),
        ({"t_max": 0.0}, "t_max must be positive and finite, got 0"),
        ({"t_max": math.inf}, "t_max must be positive and finite, got inf"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EppsPulley(**arguments)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4), r"x must have shape \(..., N, M\), got \(4,\)"),
        (torch.zeros(4, 2, dtype=torch.int64), "x must be of a real floating dtype, got torch.int64"),
        (torch.zeros(4, 2, dtype=torch.complex64), "x must be of a real floating dtype, got torch.complex64"),
        (torch.zeros(1, 2), r"x must have at least 2 samples in dimension -2, got shape \(1, 2\)"),
    ],
)
def test_bad_input_is_named(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EppsPulley(unbiased=True)(x)
