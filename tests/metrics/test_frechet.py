import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from jointembed.metrics import frechet_distance


def test_agrees_with_the_matrix_square_root_of_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    b = 2 + torch.randn(200, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    cov_a, cov_b = np.cov(a.double().T), np.cov(b.double().T)
    means = (a.double().mean(0) - b.double().mean(0)).square().sum().item()
    expected = means + np.trace(cov_a + cov_b - 2 * sqrtm(cov_a @ cov_b).real)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(b, a) == pytest.approx(expected, rel=1e-8)


def test_is_nothing_to_itself_also_where_features_are_dead() -> None:
    a = torch.randn(50, 80, generator=torch.Generator().manual_seed(1))  # fewer rows than columns
    a[:, 3] = 0
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-10)


def test_of_shifted_and_stretched_is_the_closed_form() -> None:
    a = torch.randn(400, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    trace = float(a.mT.cov().diagonal().sum())
    assert frechet_distance(a, a + 3) == pytest.approx(5 * 9)
    a = a - a.mean(0)
    assert frechet_distance(a, 3 * a) == pytest.approx(4 * trace)  # (3 - 1)^2 Tr S


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(4), torch.zeros(4, 2), r"a: expected \(N, D\) of at least 2 x 1, got \(4,\)"),
        (torch.zeros(4, 2), torch.zeros(1, 2), r"b: expected \(N, D\) of at least 2 x 1, got \(1, 2\)"),
        (torch.zeros(4, 2), torch.zeros(4, 3), "b: expected 2 columns as a has, got 3"),
        (torch.zeros(4, 2), torch.full((4, 2), torch.nan), "b: expected finite numbers, got 8 that are not"),
    ],
)
def test_refuses_what_has_no_moments(a: torch.Tensor, b: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frechet_distance(a, b)
