"""The entropy test against scipy's Vasicek estimate and the divergence between normals."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from jointembed.normality import Entropy


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "window"), [(5, None), (7, None), (100, None), (100, 1), (101, 50), (4, 1)])
def test_equals_scipys_vasicek_entropy_and_a_second_moment(n: int, window: int | None) -> None:
    x = 2 * samples(n, 3) + 0.5
    for column, statistic in zip(x.T.numpy(), Entropy(window)(x), strict=True):
        entropy = stats.differential_entropy(column, window_length=window, method="vasicek")
        expected = 0.5 * math.log(2 * math.pi) + 0.5 * (column**2).mean() - entropy
        assert statistic.item() == pytest.approx(expected)


def test_is_the_distance_from_a_normals_entropy_for_standardised_samples() -> None:
    x = samples(80, 1).exp()
    x = (x - x.mean()) / x.std(correction=0)
    entropy = stats.differential_entropy(x[:, 0].numpy(), method="vasicek")
    assert Entropy()(x).item() == pytest.approx(stats.norm.entropy() - entropy)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 2.0), (0.8, 0.5), (-1.0, 1.0)])
def test_converges_to_the_divergence_from_a_standard_normal(mean: float, std: float) -> None:
    divergence = (std**2 + mean**2 - 1) / 2 - math.log(std)
    for n, tolerance in ((100, 0.1), (1000, 0.01), (10_000, 0.004)):
        x = samples(n, 20)
        x = (x - x.mean(0)) / x.std(0, correction=0)
        assert Entropy()(std * x + mean).mean().item() == pytest.approx(divergence, abs=tolerance)


def test_bias_is_that_of_the_log_of_beta_distributed_spacings() -> None:
    # Spacings of k uniform samples out of N are Beta(k, N + 1 - k), of mean log digamma(k) - digamma(N + 1).
    n, w, count = 20, 3, 40_000
    x = torch.rand(n, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    i = torch.arange(1, n + 1)
    k = ((i + w).clamp(max=n) - (i - w).clamp(min=1)).double()
    entropy = (torch.digamma(k) - torch.digamma(torch.tensor(n + 1.0).double())).mean().item() + math.log(n / (2 * w))
    expected = 0.5 * math.log(2 * math.pi) + 1 / 6 - entropy
    statistic = Entropy(w)(x)
    assert statistic.mean().item() == pytest.approx(expected, abs=4 * statistic.std().item() / math.sqrt(count))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_samples_stay_finite_with_a_finite_gradient(dtype: torch.dtype) -> None:
    x = samples(50, 2).to(dtype)
    x[:40, 0] = 0.3
    x[:, 1] = 1.0
    x.requires_grad_()
    statistic = Entropy()(x)
    statistic.sum().backward()
    assert statistic.isfinite().all()
    assert statistic[1] > statistic[0] > 5
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_bad_window_is_named() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        Entropy(0)
    with pytest.raises(ValueError, match="window must be less than half the number of samples, 10, got 5"):
        Entropy(5)(torch.zeros(10, 2))
