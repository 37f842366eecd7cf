"""Shapiro–Wilk and its relatives against scipy, a correlation, and a matrix inverted the slow way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from jointembed.normality import ShapiroWilk
from jointembed.normality.shapiro_wilk import Form, coefficients

FORMS: list[Form] = ["shapiro-wilk", "shapiro-francia", "rahman-govindarajulu"]


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 12, 51, 1000, 5000])
def test_shapiro_wilk_equals_scipy(n: int) -> None:
    x = torch.cat([samples(n, 2), samples(n, 2).exp()], dim=1)
    expected = [1 - stats.shapiro(column.numpy()).statistic for column in x.T]
    assert ShapiroWilk()(x).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_shapiro_francia_is_one_less_the_squared_correlation_with_normal_scores() -> None:
    x = samples(40, 3).exp()
    scores = stats.norm.ppf((np.arange(1, 41) - 0.375) / 40.25)
    expected = [1 - np.corrcoef(np.sort(column), scores)[0, 1] ** 2 for column in x.T.numpy()]
    assert ShapiroWilk("shapiro-francia")(x).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("n", [3, 10, 33])
def test_rahman_govindarajulu_inverts_the_asymptotic_covariance_of_order_statistics(n: int) -> None:
    p = np.arange(1, n + 1) / (n + 1)
    m = stats.norm.ppf(p)
    density = stats.norm.pdf(m)
    covariance = np.minimum.outer(p, p) * (1 - np.maximum.outer(p, p)) / ((n + 2) * np.outer(density, density))
    a = np.linalg.solve(covariance, m)
    a /= np.linalg.norm(a)
    x = samples(n, 4).exp()
    expected = [1 - (a @ np.sort(column)) ** 2 / ((column - column.mean()) ** 2).sum() for column in x.T.numpy()]
    assert ShapiroWilk("rahman-govindarajulu")(x).tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [3, 4, 5, 6, 25, 100])
def test_coefficients_are_odd_increasing_and_of_length_one(form: Form, n: int) -> None:
    a = coefficients(n, form, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(a, -a.flip(0))
    assert (a.diff() > 0).all()
    assert a.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("form", FORMS)
def test_sees_neither_location_nor_scale_and_its_gradient_leaves_both_alone(form: Form) -> None:
    test, x = ShapiroWilk(form), samples(30, 3).exp().requires_grad_()
    torch.testing.assert_close(test(7 * x - 100), test(x))
    (gradient,) = torch.autograd.grad(test(x).sum(), x)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close((gradient * x).sum(0), torch.zeros(3).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_is_zero_for_samples_on_a_line_with_the_coefficients_and_at_most_one(form: Form) -> None:
    a = coefficients(20, form, torch.float64, torch.device("cpu"))
    assert ShapiroWilk(form)((3 * a + 5).unsqueeze(1)).item() == pytest.approx(0, abs=1e-14)
    outlier = torch.zeros(20, 1).double()
    outlier[3] = 1
    assert 0.5 < ShapiroWilk(form)(outlier).item() < 1


def test_float32_keeps_the_digits_of_a_small_statistic() -> None:
    a = coefficients(500, "shapiro-wilk", torch.float64, torch.device("cpu"))
    x = (a + 1e-4 * samples(500)).unsqueeze(1).float()
    exact = ShapiroWilk()(x.double()).item()
    assert exact < 1e-5
    assert ShapiroWilk()(x).item() == pytest.approx(exact, rel=1e-2)


def test_constant_column_has_no_statistic() -> None:
    assert ShapiroWilk()(torch.tensor([[1.0, 0.0]] * 5 + [[1.0, 1.0]])).isnan().tolist() == [True, False]


def test_bad_form_is_named() -> None:
    with pytest.raises(ValueError, match="form must be one of shapiro-wilk, shapiro-francia, .*, got 'wilk'"):
        ShapiroWilk("wilk")  # type: ignore[arg-type]
