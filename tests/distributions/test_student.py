"""The multivariate Student-t against scipy, autograd and its own samples."""

import numpy as np
import pytest
import scipy.stats as st
import torch
from torch.distributions import MultivariateNormal

from jointembed.distributions import MultivariateStudentT

DFS = [0.25, 1.0, 3.0, 50.0, 1e6]


def problem(dim, count=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    loc, z = torch.randn(2, count, dim, dtype=torch.float64, generator=g)
    return loc, torch.rand(count, dim, dtype=torch.float64, generator=g) + 0.05, z


@pytest.mark.parametrize("df", DFS)
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_diagonal_against_scipy(df, dim):
    loc, variance, z = problem(dim)
    expected = [st.multivariate_t(m, np.diag(v), df).logpdf(x) for m, v, x in zip(loc, variance, z, strict=True)]
    torch.testing.assert_close(
        MultivariateStudentT(loc, variance, df).log_prob(z), torch.tensor(expected).reshape(5), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("df", DFS)
def test_full_against_scipy(df):
    loc, _, z = problem(4)
    root = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scale = root @ root.T + 0.1 * torch.eye(4, dtype=torch.float64)
    found = MultivariateStudentT(loc, df=df, scale_tril=torch.linalg.cholesky(scale)).log_prob(z)
    expected = [st.multivariate_t(m, scale.numpy(), df).logpdf(x) for m, x in zip(loc, z, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-8, atol=1e-8)


def test_infinite_df_is_the_gaussian_and_large_df_tends_to_it():
    loc, variance, z = problem(6)
    gauss = MultivariateNormal(loc, torch.diag_embed(variance)).log_prob(z)
    torch.testing.assert_close(MultivariateStudentT(loc, variance, float("inf")).log_prob(z), gauss)
    gaps = [(MultivariateStudentT(loc, variance, df).log_prob(z) - gauss).abs().max() for df in (1e2, 1e4, 1e6)]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]


def test_df_may_differ_along_the_batch():
    loc, variance, z = problem(3, count=2)
    both = MultivariateStudentT(loc, variance, torch.tensor([2.0, torch.inf], dtype=torch.float64)).log_prob(z)
    assert both[0] == MultivariateStudentT(loc[0], variance[0], 2.0).log_prob(z[0])
    assert both[1] == MultivariateStudentT(loc[1], variance[1], float("inf")).log_prob(z[1])


@pytest.mark.parametrize("df", [0.5, 3.0, float("inf")])
def test_gradcheck(df):
    loc, variance, z = problem(3, count=2)
    inputs = tuple(x.requires_grad_() for x in (loc, variance, z))
    assert torch.autograd.gradcheck(lambda m, v, x: MultivariateStudentT(m, v, df).log_prob(x), inputs)


def test_samples_have_the_marginals_scipy_gives():
    torch.manual_seed(0)
    for df in (2.5, float("inf")):
        t = MultivariateStudentT(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25]), df)
        draws = t.sample((20_000,))
        marginal = st.norm if df == float("inf") else st.t(df)
        for d, (loc, scale) in enumerate([(1.0, 2.0), (-2.0, 0.5)]):
            assert st.kstest((draws[:, d].numpy() - loc) / scale, marginal.cdf).pvalue > 1e-3
    root = torch.tensor([[2.0, 0.0], [1.0, 0.5]])
    draws = MultivariateStudentT(torch.zeros(2), df=6.0, scale_tril=root).sample((50_000,))
    torch.testing.assert_close(draws.T.cov(), 1.5 * root @ root.T, rtol=0.06, atol=0.06)


def test_moments_are_those_of_scipy():
    t = MultivariateStudentT(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.25]), 5.0)
    assert t.mean.tolist() == [1.0, 2.0]
    np.testing.assert_allclose(t.variance, [st.t(5, scale=2).var(), st.t(5, scale=0.5).var()], rtol=1e-6)
    assert MultivariateStudentT(torch.zeros(2), torch.ones(2), 1.5).variance.isinf().all()
    assert MultivariateStudentT(torch.zeros(2), torch.ones(2), 1.0).mean.isnan().all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"variance": torch.ones(3), "df": 0.0}, "df: .* above 0, got 0"),
        ({"variance": torch.ones(3), "df": -1.0}, "df: .* got -1"),
        ({"variance": torch.ones(3), "df": float("nan")}, "df: .* got nan"),
        ({"variance": torch.tensor([1.0, -2.0, 1.0])}, "variance: .* got -2"),
        ({"variance": torch.ones(4)}, r"variance: expected \(..., 3\)"),
        ({"variance": torch.ones(5, 3)}, "broadcast"),
        ({"scale_tril": torch.eye(2)}, r"scale_tril: expected \(..., 3, 3\)"),
        ({}, "variance, scale_tril: expected one"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        MultivariateStudentT(torch.zeros(2, 3), **arguments)


def test_value_of_another_dimension():
    with pytest.raises(ValueError, match=r"value: expected \(..., 3\), got shape \(2,\)"):
        MultivariateStudentT(torch.zeros(3), torch.ones(3)).log_prob(torch.zeros(2))
