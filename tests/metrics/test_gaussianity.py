import numpy as np
import pytest
import torch
from scipy import integrate, stats

from jointembed.metrics import gaussianity
from jointembed.normality import SIGReg

SMALL = {"num_slices": 16, "draws": 39}


def sample(seed: int, n: int = 100, d: int = 8) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(1000 + seed))


def epps_pulley(x: np.ndarray) -> float:
    """The integral of the definition on [-5, 5], by adaptive quadrature."""

    def integrand(t: float) -> float:
        return abs(np.exp(1j * t * x).mean() - np.exp(-(t**2) / 2)) ** 2 * np.exp(-(t**2) / 2)

    return len(x) * integrate.quad(integrand, -5, 5)[0]


def test_the_value_is_the_mean_of_epps_and_pulleys_integral_over_the_directions() -> None:
    z = sample(0) * 0.7 + 0.2
    directions = SIGReg(num_slices=16, seed=0).directions(8).double().numpy()
    for scale in ("raw", "standardised"):
        x = z.double().numpy() if scale == "raw" else stats.zscore(z.double().numpy())
        reference = np.mean([epps_pulley(x @ direction) for direction in directions.T])
        assert gaussianity(z, scale, **SMALL).value == pytest.approx(reference, rel=1e-3)


def test_under_the_null_hypothesis_the_p_value_is_uniform() -> None:
    scales = ("raw", "standardised", "whitened")
    p = [gaussianity(sample(seed), scales[seed % 3], 8, draws=19, seed=seed).p_value for seed in range(42)]
    assert set(np.multiply(p, 20).round(9)) <= set(range(1, 21))
    assert stats.kstest(p, "uniform").pvalue > 0.05


def test_a_gaussian_null_has_the_closed_forms_mean() -> None:
    """E[T] = sqrt(2 pi) (1 - 1 / sqrt 3) for every N, of raw samples."""
    found = gaussianity(sample(0), "raw", num_slices=64, draws=199)
    assert found.null_mean == pytest.approx(np.sqrt(2 * np.pi) * (1 - 1 / np.sqrt(3)), rel=0.05)
    assert found.null_quantiles == pytest.approx(np.quantile(found.null, [0.05, 0.5, 0.95]))
    assert found.p_value == (1 + (found.null.numpy() >= found.value).sum()) / 200


def test_what_is_not_gaussian_is_found_out_and_only_at_the_scale_that_asks() -> None:
    correlated = sample(1, 400) @ torch.linalg.cholesky(0.5 * torch.eye(8) + 0.5).mT
    stretched = sample(2, 400) * torch.linspace(0.3, 2, 8) + 1
    heavy = sample(3, 400) * torch.tensor([0.4, 1.356]).repeat(200)[:, None]  # uncorrelated, mean 0, variance 1
    expected = {
        "raw": (True, True, True),
        "standardised": (True, False, True),
        "whitened": (False, False, True),
    }
    for scale, answers in expected.items():
        for z, found_out in zip((correlated, stretched, heavy), answers, strict=True):
            p = gaussianity(z, scale, **SMALL).p_value
            assert (p == 1 / 40) == found_out, (scale, p)


def test_standardising_and_whitening_take_scale_place_and_correlation_out() -> None:
    z = sample(4).double()
    scaled = z * torch.logspace(-3, 3, 8, dtype=torch.float64) + 9
    assert gaussianity(scaled, **SMALL).value == pytest.approx(gaussianity(z, **SMALL).value)
    # An upper triangular map leaves the Cholesky factor's whitening where it is; others turn it.
    mixed = z @ (torch.eye(8, dtype=torch.float64) + torch.ones(8, 8, dtype=torch.float64).triu()) - 4
    assert gaussianity(mixed, "whitened", **SMALL).value == pytest.approx(gaussianity(z, "whitened", **SMALL).value)


def test_a_dead_dimension_is_not_gaussian() -> None:
    z = torch.cat([sample(5, 300), torch.full((300, 3), 0.1)], 1)
    assert gaussianity(z, **SMALL).p_value == 1 / 40


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="^scale: expected 'raw', 'standardised' or 'whitened', got 'log'"):
        gaussianity(sample(0), "log")
    with pytest.raises(ValueError, match="^draws: expected at least 1, got 0"):
        gaussianity(sample(0), draws=0)
    with pytest.raises(
        ValueError, match=r"^z: expected features that vary in all 8 dimensions, to whiten, got \(5, 8\)"
    ):
        gaussianity(sample(0, 5), "whitened")
    with pytest.raises(ValueError, match=r"^z: expected \(N, D\) of at least 2 x 1, got \(1, 8\)"):
        gaussianity(sample(0, 1))
