"""Modes of mixtures against a search on a grid."""

import numpy as np
import pytest
import torch
from scipy.signal import argrelmax

from jointembed.distributions import GaussianMixture, modes


@pytest.mark.parametrize("seed", range(6))
def test_modes_in_one_dimension_are_those_of_a_fine_grid(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(3, 5, generator=g).double().softmax(-1)
    means = 3 * torch.randn(3, 5, 1, generator=g).double()
    mixture = GaussianMixture.diagonal(weights, means, 0.1 + torch.rand(3, 5, 1, generator=g).double())
    grid = torch.linspace(-15, 15, 60_001).double()
    density = mixture.log_prob(grid[:, None, None].expand(-1, 3, 1)).exp().numpy()
    for i, found in enumerate(modes(mixture, least=1e-6)):
        expected = grid[argrelmax(density[:, i])[0]].numpy()
        expected = expected[density[argrelmax(density[:, i])[0], i] > 1e-6 * density[:, i].max()]
        np.testing.assert_allclose(np.sort(found[:, 0].numpy()), expected, atol=1e-3)
        heights = GaussianMixture.diagonal(weights[i], means[i], mixture._root.variances()[i]).log_prob(found)
        assert bool((heights[:-1] >= heights[1:]).all())


def test_modes_with_full_covariances_have_no_slope() -> None:
    g = torch.Generator().manual_seed(0)
    factors = torch.randn(4, 3, 3, generator=g).double()
    covariances = factors @ factors.mT + 0.2 * torch.eye(3)
    mixture = GaussianMixture(torch.full((4,), 0.25).double(), 4 * torch.randn(4, 3, generator=g).double(), covariances)
    (found,) = modes(mixture)
    found.requires_grad_()
    (slope,) = torch.autograd.grad(mixture.log_prob(found).sum(), found)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-4)
    around = found.detach() + 0.01 * torch.randn(200, *found.shape, generator=g).double()
    assert bool((mixture.log_prob(around) <= mixture.log_prob(found) + 1e-9).all())


def test_components_that_overlap_have_one_mode_and_small_ones_are_left_out() -> None:
    means = torch.tensor([[-0.5], [0.5], [20.0]])
    mixture = GaussianMixture.isotropic(torch.tensor([0.4995, 0.4995, 0.001]), means, torch.ones(1))
    (found,) = modes(mixture)
    torch.testing.assert_close(found, torch.zeros(1, 1), rtol=0, atol=2e-3)
    assert len(modes(mixture, least=1e-4)[0]) == 2


def test_affine_is_the_density_of_the_scaled_variable() -> None:
    g = torch.Generator().manual_seed(1)
    factor = torch.randn(2, 3, 3, generator=g).double()
    shift, scale = torch.tensor([1.0, -2.0, 3.0]).double(), torch.tensor([0.1, 5.0, 2.0]).double()
    means, weights = torch.randn(2, 3, generator=g).double(), torch.tensor([0.3, 0.7]).double()
    z = torch.randn(10, 3, generator=g).double()
    for mixture in (
        GaussianMixture(weights, means, factor @ factor.mT + torch.eye(3)),
        GaussianMixture.diagonal(weights, means, factor[:, 0].square() + 0.1),
        GaussianMixture.isotropic(weights, means, torch.tensor([0.5, 2.0]).double()),
    ):
        moved = mixture.affine(shift, scale)
        torch.testing.assert_close(moved.log_prob(shift + scale * z), mixture.log_prob(z) - scale.log().sum())
        torch.testing.assert_close(moved.mean, shift + scale * mixture.mean)
    with pytest.raises(ValueError, match="scale: expected values above 0"):
        mixture.affine(shift, -scale)
