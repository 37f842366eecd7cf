"""EM from a mixture that is there, against scikit-learn's, and what the prior does for components of few images."""

from itertools import pairwise

import pytest
import torch
from sklearn.mixture import GaussianMixture as Mixture
from sklearn.mixture._gaussian_mixture import _compute_precision_cholesky

from jointembed.distributions import GaussianMixture
from jointembed.methods.gmje.refit import refitted

K, DIM = 3, 4


def three_clouds(n: int = 600) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(K, DIM, generator=g, dtype=torch.float64)
    z = torch.randn(n, DIM, generator=g, dtype=torch.float64)
    return centres[torch.randint(K, (n,), generator=g)] + z * torch.tensor([0.3, 0.6, 1.0, 1.5], dtype=torch.float64)


def start() -> GaussianMixture:
    g = torch.Generator().manual_seed(1)
    means = 2 * torch.randn(K, DIM, generator=g, dtype=torch.float64)
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return GaussianMixture(weights, means, 2 * torch.eye(DIM, dtype=torch.float64)[None])


@pytest.mark.parametrize("steps", [1, 5])
def test_without_a_prior_it_is_scikit_learn_s_em(steps):
    z, begin = three_clouds(), start()
    theirs = Mixture(K, reg_covar=0.0)
    theirs.weights_, theirs.means_ = begin.weights.numpy(), begin.means.numpy()
    theirs.covariances_ = begin.covariances.expand(K, -1, -1).numpy()
    for _ in range(steps):
        theirs.precisions_cholesky_ = _compute_precision_cholesky(theirs.covariances_, "full")
        _, log_responsibilities = theirs._e_step(z.numpy())
        theirs._m_step(z.numpy(), log_responsibilities)
    ours = refitted(begin, z, steps, prior=0.0)
    for name in ("weights", "means", "covariances"):
        expected = torch.from_numpy(getattr(theirs, f"{name}_"))
        torch.testing.assert_close(getattr(ours, name), expected, rtol=1e-4, atol=1e-5)


def test_more_steps_never_explain_the_images_worse():
    z = three_clouds()
    values = [float(refitted(start(), z, steps, prior=0.0).log_prob(z).mean()) for steps in range(12)]
    assert all(b >= a - 1e-6 for a, b in pairwise(values))
    assert values[-1] > values[0] + 1


def test_a_mixture_is_fitted_on_from_where_it_is():
    """Wide and displaced components in a given order find the clusters they are nearest to, each its own shape."""
    truth = GaussianMixture(
        torch.tensor([0.3, 0.7]),
        torch.tensor([[5.0, 0.0], [-5.0, 0.0]]),
        torch.tensor([[[1.0, 0.8], [0.8, 1.0]], [[0.5, 0.0], [0.0, 2.0]]]),
    )
    torch.manual_seed(0)
    codes = truth.sample(torch.Size([20_000]))
    start = GaussianMixture(torch.tensor([0.5, 0.5]), truth.means + 1.5, 9 * torch.eye(2)[None])
    found = refitted(start, codes)
    torch.testing.assert_close(found.weights, truth.weights, rtol=0, atol=0.02)
    torch.testing.assert_close(found.means, truth.means, rtol=0, atol=0.05)
    torch.testing.assert_close(found.covariances, truth.covariances, rtol=0, atol=0.07)


def test_components_of_few_images_have_the_covariance_that_all_share():
    z = three_clouds()
    far = GaussianMixture(
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.stack([z.mean(0), torch.full((DIM,), 100.0, dtype=torch.float64)]),
        torch.eye(DIM, dtype=torch.float64)[None],
    )
    ours = refitted(far, z, steps=3)
    assert float(ours.weights[1]) == 0 and ours.means[1].equal(far.means[1])
    torch.testing.assert_close(ours.covariances[1], z.mT.cov(correction=0), rtol=1e-4, atol=1e-5)
    assert ours.sample((100,)).isfinite().all() and ours.log_prob(z).isfinite().all()


def test_fewer_images_than_dimensions_still_have_a_density():
    z = three_clouds(3)
    ours = refitted(start(), z)
    assert (torch.linalg.eigvalsh(ours.covariances) > 0).all() and ours.log_prob(z).isfinite().all()


def test_embeddings_of_another_width_are_named():
    with pytest.raises(ValueError, match=r"z: expected \(N, 4\) as the mixture has, got shape \(5, 3\)"):
        refitted(start(), torch.zeros(5, 3))
