import math

import numpy as np
import pytest
import torch
from scipy import linalg, stats
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from torch.distributions import MultivariateNormal

from jointembed.metrics import alpha_req, effective_rank, information, isotropy, lidar, rank_me


def with_singular_values(values: np.ndarray, n: int, seed: int = 0) -> torch.Tensor:
    """A centred (n, D) matrix with exactly these singular values, in directions of no account."""
    rng = np.random.default_rng(seed)
    left = rng.normal(size=(n, len(values)))
    left = np.linalg.qr(left - left.mean(0))[0]
    right = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return torch.from_numpy(left * values @ right)


def test_rank_me_is_the_exponential_entropy_of_the_singular_values() -> None:
    values = np.array([5.0, 3.0, 1.0, 0.5, 1e-3])
    z = with_singular_values(values, 40)
    assert rank_me(z, eps=0) == pytest.approx(np.exp(stats.entropy(values)), rel=1e-9)
    p = values / values.sum() + 1e-7
    assert rank_me(z) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)


def test_rank_me_counts_the_mean_as_a_direction_and_effective_rank_does_not() -> None:
    z = with_singular_values(np.ones(6), 50)
    assert effective_rank(z) == pytest.approx(6)
    assert effective_rank(z + 100) == pytest.approx(6)
    assert rank_me(z, eps=0) == pytest.approx(6)
    assert rank_me(z + 100, eps=0) == pytest.approx(np.exp(stats.entropy(np.linalg.svd(z + 100)[1])))
    assert rank_me(z + 100, eps=0) < 1.2


def test_collapsed_features_have_rank_one() -> None:
    assert rank_me(torch.ones(30, 8), eps=0) == pytest.approx(1)
    assert rank_me(torch.zeros(30, 8)) == 1


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    """60 images, 8 views, 7 dimensions; views differ in correlated directions."""
    rng = np.random.default_rng(3)
    images = rng.normal(size=(60, 1, 7)) * np.array([4, 3, 2, 1, 0.5, 0.1, 0])
    noise = rng.normal(size=(60, 8, 7)) @ rng.normal(size=(7, 7))
    return torch.from_numpy(images + noise)


def test_lidar_solves_the_generalised_eigenproblem_of_discriminant_analysis(views: torch.Tensor) -> None:
    x = views.numpy()
    means = x.mean(1)
    within = sum(np.cov(image.T) for image in x) / len(x)
    eigenvalues = linalg.eigh(np.cov(means.T), within + 1e-4 * np.eye(7), eigvals_only=True)
    p = eigenvalues / eigenvalues.sum() + 1e-7
    assert lidar(views) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)


def test_lidar_agrees_with_scikit_learns_discriminant_analysis(views: torch.Tensor) -> None:
    n, v, d = views.shape
    analysis = LinearDiscriminantAnalysis(solver="eigen").fit(views.reshape(-1, d), np.repeat(np.arange(n), v))
    # Its ratios are the eigenvalues over their sum, which is what the entropy is of; it has no delta.
    reference = np.exp(stats.entropy(analysis.explained_variance_ratio_))
    assert lidar(views, delta=1e-12, eps=0) == pytest.approx(reference, rel=1e-6)


def test_lidar_counts_the_directions_that_tell_images_apart_whatever_the_scale_of_the_noise() -> None:
    """Three directions of six carry the images; in the others views differ a thousand times as much, for nothing."""
    rng = np.random.default_rng(0)
    images = np.concatenate([rng.normal(size=(4000, 1, 3)), np.zeros((4000, 1, 3))], 2)
    noise = rng.normal(size=(4000, 10, 6)) * np.array([0.01, 0.01, 0.01, 1000, 1000, 1000])
    assert lidar(torch.from_numpy(images + noise), delta=1e-8) == pytest.approx(3, abs=0.02)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.3])
def test_alpha_of_an_exact_power_law_is_its_exponent(alpha: float) -> None:
    z = with_singular_values(np.arange(1, 121) ** (-alpha / 2), 300)
    assert alpha_req(z + 7) == pytest.approx(alpha, rel=1e-6)
    assert alpha_req(1000 * z) == pytest.approx(alpha, rel=1e-6)


def test_alpha_is_the_weighted_regression_on_the_ranks_asked_for() -> None:
    z = torch.randn(200, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ torch.diag(
        torch.linspace(3, 0.1, 60, dtype=torch.float64)
    )
    eigenvalues = PCA().fit(z.numpy()).explained_variance_
    rank = np.arange(1, 61)
    for first, last in ((4, 100), (1, 20)):
        chosen = slice(first - 1, last)
        line = LinearRegression().fit(np.log(rank[chosen])[:, None], np.log(eigenvalues[chosen]), 1 / rank[chosen])
        assert alpha_req(z, first, last) == pytest.approx(-line.coef_[0], rel=1e-8)


def test_a_spectrum_that_falls_at_once_has_infinite_alpha() -> None:
    line = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) @ torch.ones(1, 8)  # float32: rounding noise
    assert alpha_req(line) == math.inf
    assert alpha_req(torch.ones(100, 8)) == math.inf


def iso_score(z: np.ndarray) -> float:
    """The paper's steps as printed: principal components, normalised variances, defect, fraction, rescaling."""
    d = z.shape[1]
    variances = PCA().fit_transform(z).var(0, ddof=1)
    normalised = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    fraction = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d**2
    return (d * fraction - 1) / (d - 1)


def test_isotropy_is_the_papers_iso_score() -> None:
    rng = np.random.default_rng(0)
    for z in (rng.normal(size=(200, 9)), rng.normal(size=(200, 9)) @ rng.normal(size=(9, 9)) + 5, rng.random((50, 2))):
        assert isotropy(torch.from_numpy(z)) == pytest.approx(iso_score(z), rel=1e-9)


def test_isotropy_at_its_ends() -> None:
    assert isotropy(with_singular_values(np.ones(5), 40)) == pytest.approx(1)
    assert isotropy(with_singular_values(np.array([2.0, 0, 0, 0, 0]), 40)) == pytest.approx(0, abs=1e-12)
    assert isotropy(with_singular_values(np.array([1.0, 1, 1, 0, 0]), 40)) == pytest.approx((3 - 1) / (5 - 1))
    assert isotropy(torch.ones(10, 4)) == 0
    sample = torch.randn(1000, 250, generator=torch.Generator().manual_seed(0))
    assert isotropy(sample) == pytest.approx(1 / (1 + 250 / 1000), rel=0.01)


def test_bad_features_are_named() -> None:
    for measure in (rank_me, isotropy, alpha_req):
        with pytest.raises(ValueError, match=r"^z: expected \(N, D\) of at least .* got \(7,\)"):
            measure(torch.zeros(7))
        with pytest.raises(ValueError, match="^z: expected finite numbers, got 1 that"):
            measure(torch.diag(torch.tensor([math.nan] + 19 * [1.0])))
        with pytest.raises(ValueError, match="^z: expected real numbers in floating point, got torch.int64"):
            measure(torch.ones(20, 9, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^views: expected \(N, V, D\) of at least 2 x 2 x 1, got \(5, 1, 3\)"):
        lidar(torch.zeros(5, 1, 3))
    with pytest.raises(ValueError, match="^delta: expected a number above 0, got 0"):
        lidar(torch.zeros(5, 2, 3), delta=0)
    with pytest.raises(ValueError, match="^eps: expected a number of at least 0, got -1"):
        rank_me(torch.zeros(5, 3), eps=-1)
    with pytest.raises(ValueError, match="^first, last: expected ranks with 1 <= first < last, got 5 and 5"):
        alpha_req(torch.zeros(50, 30), 5, 5)
    with pytest.raises(ValueError, match=r"^z: expected \(N, D\) of at least 6 x 5, got \(50, 4\)"):
        alpha_req(torch.randn(50, 4))


def test_information_is_that_of_the_gaussians_it_was_drawn_from() -> None:
    """z = b + w: what z tells of b is its entropy less that of w, both from torch."""
    rng = torch.Generator().manual_seed(0)
    between, within = (torch.randn(5, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    n, v = 20_000, 10
    b = torch.randn(n, 1, 5, generator=rng, dtype=torch.float64) @ between
    z = b + torch.randn(n, v, 5, generator=rng, dtype=torch.float64) @ within
    zero, s_b, s_w = torch.zeros(5, dtype=torch.float64), between.mT @ between, within.mT @ within
    expected = MultivariateNormal(zero, s_b + s_w).entropy() - MultivariateNormal(zero, s_w).entropy()
    assert information(z, shrinkage=1e-9) == pytest.approx(float(expected), rel=0.01)
    assert information(z @ between, shrinkage=1e-12) == pytest.approx(information(z, shrinkage=1e-12), rel=1e-6)
    assert information(1e-3 * z) == pytest.approx(information(z), rel=1e-9)


def test_views_that_differ_as_much_as_images_tell_nothing() -> None:
    noise = torch.randn(5_000, 8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert information(noise) == pytest.approx(0, abs=0.02)
    assert information(torch.ones(10, 3, 4)) == 0
    dead = torch.cat([noise, torch.zeros(5_000, 8, 2, dtype=torch.float64)], 2)  # features that no image has
    assert information(dead) == pytest.approx(information(noise, shrinkage=6e-5), rel=1e-6)
