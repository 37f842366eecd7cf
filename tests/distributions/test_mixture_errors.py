"""What is no Gaussian mixture, and how it says so."""

import pytest
import torch
from mixtures import mixture

from jointembed.distributions import GaussianMixture

EYE = torch.eye(2).expand(3, 2, 2)
THIRDS = torch.ones(3) / 3
SKEWED = torch.tensor([[1.0, 0.5], [0.2, 1.0]])
NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": torch.tensor([0.5, 0.4, 0.4])}, "weights: expected a sum of 1, got 1.3"),
        ({"weights": torch.tensor([0.5, 0.7, -0.2])}, "weights: expected values of at least 0, got -0.2"),
        ({"weights": torch.tensor([0.5, 0.5, NAN])}, "weights: expected finite values, got nan"),
        ({"weights": torch.ones(2) / 2}, r"weights: expected \(..., 3\) as there are means, got shape \(2,\)"),
        ({"weights": torch.tensor(1.0)}, r"weights: expected \(..., 3\)"),
        ({"means": torch.zeros(2)}, r"means: expected \(..., K, D\) .* got shape \(2,\)"),
        ({"means": torch.zeros(0, 2)}, r"means: expected \(..., K, D\)"),
        ({"means": torch.full((3, 2), NAN)}, "means: expected finite values, got nan"),
        ({"covariances": EYE[:2]}, r"covariances: expected \(..., 3 or 1, 2, 2\) .* got shape \(2, 2, 2\)"),
        ({"covariances": torch.eye(3).expand(3, 3, 3)}, r"covariances: expected \(..., 3 or 1, 2, 2\)"),
        ({"covariances": torch.eye(2)}, r"covariances: expected .* got shape \(2, 2\)"),
        ({"covariances": SKEWED[None]}, "covariances: expected symmetric matrices, got values that differ by 0.3"),
        ({"covariances": torch.ones(1, 2, 2)}, "covariances: expected positive definite matrices, got an eigenvalue"),
        ({"covariances": -EYE}, "covariances: expected positive definite .* eigenvalue of -1"),
        ({"covariances": EYE * NAN}, "covariances: expected finite values, got nan"),
        ({"covariances": EYE, "scale_tril": EYE}, "covariances, scale_tril: expected one of the two"),
        ({"covariances": None}, "covariances, scale_tril: expected one of the two"),
        ({"covariances": None, "scale_tril": SKEWED[None]}, "scale_tril: expected lower triangular"),
        ({"covariances": None, "scale_tril": -EYE}, "scale_tril: expected a diagonal above 0, got -1"),
        ({"covariances": EYE.expand(4, 3, 2, 2), "means": torch.zeros(5, 3, 2)}, "broadcast"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        GaussianMixture(**({"weights": THIRDS, "means": torch.zeros(3, 2), "covariances": EYE} | changes))


@pytest.mark.parametrize(
    ("make", "variances", "words"),
    [
        (GaussianMixture.diagonal, torch.ones(3), r"variances: expected \(..., 3 or 1, 2\) .* got shape \(3,\)"),
        (GaussianMixture.diagonal, torch.zeros(1, 2), "variances: expected values above 0, got 0"),
        (GaussianMixture.isotropic, torch.ones(2), r"variances: expected \(..., 3 or 1\) .* got shape \(2,\)"),
        (GaussianMixture.isotropic, torch.tensor(1.0), r"variances: expected \(..., 3 or 1\)"),
        (GaussianMixture.isotropic, torch.tensor([-1.0]), "variances: expected values above 0, got -1"),
        (GaussianMixture.isotropic, torch.tensor([NAN]), "variances: expected finite values, got nan"),
    ],
)
def test_bad_variances_are_named(make, variances, words):
    with pytest.raises(ValueError, match=words):
        make(THIRDS, torch.zeros(3, 2), variances)


@pytest.mark.parametrize("indices", [[], [4], [-1], [1, 1], [0.5], torch.tensor([0, 9])])
def test_bad_indices_are_named(indices):
    m = mixture("shared")
    for call in (m.marginal, lambda i: m.condition(i, torch.zeros(len(indices)))):
        with pytest.raises(ValueError, match="indices: expected one or more different coordinates from 0 to 3, got"):
            call(indices)


def test_bad_values_are_named():
    m, one = mixture("shared"), mixture("shared", count=1)
    for call in (lambda: m.condition(range(4), torch.zeros(4)), lambda: one.mutual_information(range(4))):
        with pytest.raises(ValueError, match="indices: expected fewer than all 4 coordinates"):
            call()
    with pytest.raises(ValueError, match=r"values: expected \(..., 2\), got shape \(5, 3\)"):
        m.condition([0, 1], torch.zeros(5, 3))
    with pytest.raises(ValueError, match="values: expected numbers, got nan"):
        m.condition([0], torch.tensor([NAN]))
    with pytest.raises(ValueError, match=r"value: expected \(..., 4\), got shape \(3,\)"):
        m.log_prob(torch.zeros(3))
    with pytest.raises(ValueError, match="value: expected numbers, got nan"):
        m.log_prob(torch.full((4,), NAN))
    with pytest.raises(ValueError, match=r"broadcast, got value \(3,\), mixture \(2,\)"):
        mixture("shared", (2,)).log_prob(torch.zeros(3, 4))


def test_without_validation_numbers_are_not_looked_at():
    weights, means = torch.tensor([1.0, 1.0]), torch.zeros(2, 3)
    m = GaussianMixture.isotropic(weights, means, torch.ones(1), validate_args=False)
    assert m.weights.tolist() == [0.5, 0.5]  # normalised
    assert m.log_prob(torch.full((3,), NAN)).isnan()
    with pytest.raises(torch.linalg.LinAlgError):  # there is no factor to go on with
        GaussianMixture(weights, means, -torch.eye(3)[None], validate_args=False)
