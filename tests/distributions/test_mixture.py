"""Gaussian mixtures against scikit-learn, scipy, torch's own, autograd and their own samples."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats as st
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from mixtures import FORMS, D, K, constructor, mixture, parameters, points, reference
from sklearn.mixture import GaussianMixture as SklearnMixture
from torch.distributions import MultivariateNormal, kl_divergence

from jointembed.distributions import GaussianMixture


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_against_scikit_learn(kind):
    x = np.random.default_rng(0).normal(size=(200, D)) * [1, 2, 0.5, 1] + np.eye(D)[np.arange(200) % 3] * 4
    theirs = SklearnMixture(K, covariance_type=kind, random_state=0).fit(x)
    weights, means, scales = (torch.tensor(a) for a in (theirs.weights_, theirs.means_, theirs.covariances_))
    make = {"diag": GaussianMixture.diagonal, "spherical": GaussianMixture.isotropic}.get(kind, GaussianMixture)
    ours = make(weights, means, scales[None] if kind == "tied" else scales)
    z = torch.tensor(x)
    np.testing.assert_allclose(ours.log_prob(z), theirs.score_samples(x), rtol=1e-9)
    np.testing.assert_allclose(ours.responsibilities(z), theirs.predict_proba(x), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_components_against_scipy(form):
    m, z = mixture(form), points(7, D)
    for k in range(K):
        s = m.covariances[k % len(m.covariances)].numpy()
        expected = st.multivariate_normal(m.means[k].numpy(), s).logpdf(z.numpy())
        np.testing.assert_allclose(m.component_log_prob(z)[:, k], expected, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [(), (2,), (5, 2)])
@pytest.mark.parametrize("lead", [(), (2,), (3, 1, 2), (4, 5, 1)])
def test_batches_against_torch(form, batch, lead):
    m, z = mixture(form, batch), points(*lead, D)
    torch.testing.assert_close(m.log_prob(z), reference(m).log_prob(z))
    assert m.component_log_prob(z).shape == m.responsibilities(z).shape == (*m.log_prob(z).shape, K)


@pytest.mark.parametrize("form", FORMS)
def test_no_values_have_no_densities(form):
    assert mixture(form).log_prob(points(0, D)).shape == (0,)
    assert mixture(form).condition([1], points(0, 1)).mean.shape == (0, D - 1)


def test_parameters_broadcast_with_each_other():
    weights, means, scales = parameters("full")
    many = GaussianMixture(weights.expand(5, 1, K), means.expand(2, K, D), scales)
    assert many.batch_shape == (5, 2) and many.mean.shape == many.variance.shape == (5, 2, D)
    assert many.aleatoric.shape == many.epistemic.shape == many.covariance.shape == (5, 2, D, D)
    assert many.sample((3,)).shape == (3, 5, 2, D)
    one, z = GaussianMixture(weights, means, scales), points(D)
    torch.testing.assert_close(many.log_prob(z), one.log_prob(z).expand(5, 2))
    torch.testing.assert_close(many.covariance[4, 1], one.covariance)
    conditional = many.condition([1], points(7, 1, 1, 1))
    assert conditional.batch_shape == (7, 5, 2) and conditional.event_shape == (D - 1,)


def test_a_cholesky_factor_is_taken_as_it_is():
    weights, means, scales = parameters("shared")
    factor = torch.linalg.cholesky(scales).requires_grad_()
    m, z = GaussianMixture(weights, means, scale_tril=factor), points(6, D)
    torch.testing.assert_close(m.log_prob(z), GaussianMixture(weights, means, scales).log_prob(z))
    torch.testing.assert_close(m.covariances, scales)
    m.log_prob(z).sum().backward()
    assert factor.grad.isfinite().all() and factor.grad.abs().sum() > 0


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form):
    inputs = [x.requires_grad_() for x in parameters(form, (2,), dim=3)]

    def log_prob(weights, means, scales, z):
        if form in ("full", "shared"):  # the matrices vary among the symmetric ones
            scales = (scales + scales.mT) / 2
        return constructor(form)(weights, means, scales, validate_args=False).log_prob(z)

    assert torch.autograd.gradcheck(log_prob, [*inputs, points(4, 2, 3).requires_grad_()])
    assert torch.autograd.gradgradcheck(log_prob, [*inputs, points(2, 3).requires_grad_()])


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_of_samples_given_their_components(form):
    weights, means, scales = parameters(form, (2,), dim=3)

    def draws(means, scales):
        if form in ("full", "shared"):
            scales = (scales + scales.mT) / 2
        m = constructor(form)(weights.clone().requires_grad_(), means, scales, validate_args=False)
        return m.rsample((3,), torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(draws, [means.requires_grad_(), scales.requires_grad_()])


def test_samples_have_no_gradient_in_the_weights():
    weights, means, scales = parameters("full")
    m = GaussianMixture(weights.requires_grad_(), means, scales)
    assert not m.rsample((3,)).requires_grad
    means.requires_grad_()
    m = GaussianMixture(weights, means, scales)
    m.rsample((3,)).sum().backward()
    assert weights.grad is None and means.grad is not None
    assert not m.sample((3,)).requires_grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_moments_are_those_of_the_samples(form, batch):
    m = mixture(form, batch)
    draws = m.sample((200_000,), torch.Generator().manual_seed(0))
    deviation = draws - draws.mean(0)
    covariance = torch.einsum("n...i,n...j->...ij", deviation, deviation) / len(draws)
    torch.testing.assert_close(draws.mean(0), m.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(covariance, m.covariance, atol=0.08, rtol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_samples_fall_on_components_as_weighted_and_have_their_shape(form):
    m = mixture(form)
    draws = m.sample((100_000,), torch.Generator().manual_seed(1))
    torch.testing.assert_close(m.responsibilities(draws).mean(0), m.weights, atol=0.006, rtol=0)
    weights, means, widths = (x.numpy() for x in (m.weights, m.means[:, 0], m.covariances[:, 0, 0].sqrt()))
    cdf = lambda x: (weights * st.norm(means, widths).cdf(x[:, None])).sum(-1)  # noqa: E731
    assert st.kstest(draws[:, 0].numpy(), cdf).statistic < 0.006


def test_samples_repeat_with_a_generator_and_with_the_global_seed():
    m = mixture("full", (2,))
    first, second = (m.sample((5,), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(3)
    first = m.sample((5,))
    torch.manual_seed(3)
    assert torch.equal(m.sample((5,)), first) and not torch.equal(m.sample((5,)), first)
    assert m.sample().shape == (2, D)


@pytest.mark.parametrize("form", FORMS)
def test_law_of_total_variance_against_the_definition(form):
    m = mixture(form, (2,))
    w, mu, s = m.weights[..., None, None], m.means[..., None], m.covariances.expand(2, K, D, D)
    mean = (m.weights[..., None] * m.means).sum(-2)
    second = (w * (s + mu * mu.mT)).sum(-3)
    torch.testing.assert_close(m.mean, mean)
    torch.testing.assert_close(m.covariance, second - mean[..., None] * mean[..., None, :])
    torch.testing.assert_close(m.aleatoric, (w * s).sum(-3))
    torch.testing.assert_close(m.covariance, m.aleatoric + m.epistemic)
    torch.testing.assert_close(m.variance, m.covariance.diagonal(dim1=-2, dim2=-1))
    assert torch.linalg.eigvalsh(m.epistemic).min() > -1e-12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [[0], [0, 1], [2, 0], [3, 1, 2]])
def test_joint_is_conditional_plus_marginal(form, given):
    m, z = mixture(form, (2,)), points(5, 2, D)
    rest = [i for i in range(D) if i not in given]
    conditional = m.condition(torch.tensor(given), z[..., given])
    assert conditional.batch_shape == (5, 2) and conditional.event_shape == (len(rest),)
    total = conditional.log_prob(z[..., rest]) + m.marginal(given).log_prob(z[..., given])
    torch.testing.assert_close(total, m.log_prob(z), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_marginal_and_conditional_against_numerical_integration(form):
    m = mixture(form, dim=2)
    x = torch.tensor([0.7], dtype=torch.float64)
    joint = lambda y: m.log_prob(torch.tensor([y, x[0]], dtype=torch.float64)).exp().item()  # noqa: E731
    mass, _ = scipy.integrate.quad(joint, -20, 20, limit=400, points=m.means[:, 0].tolist())
    mean, _ = scipy.integrate.quad(lambda y: y * joint(y), -20, 20, limit=400, points=m.means[:, 0].tolist())
    assert m.marginal([1]).log_prob(x).exp().item() == pytest.approx(mass, rel=1e-7)
    conditional = m.condition([1], x)
    assert conditional.mean.item() == pytest.approx(mean / mass, rel=1e-6)
    for y in (-1.0, 0.3, 2.0):
        density = conditional.log_prob(torch.tensor([y], dtype=torch.float64)).exp().item()
        assert density == pytest.approx(joint(y) / mass, rel=1e-6)


@pytest.mark.parametrize("form", ["full", "shared"])
def test_conditional_against_the_textbook(form):
    m, x = mixture(form), points(6, 2)
    a, b = [3, 0], [1, 2]
    conditional = m.condition(a, x)
    s = m.covariances.expand(K, D, D)
    block = lambda rows, columns: s[:, rows][:, :, columns]  # noqa: E731
    gain = block(b, a) @ block(a, a).inverse()
    shift = torch.einsum("kij,nkj->nki", gain, x[:, None] - m.means[:, a])
    torch.testing.assert_close(conditional.means, m.means[:, b] + shift)
    expected = block(b, b) - gain @ block(a, b)
    torch.testing.assert_close(conditional.covariances.expand(K, 2, 2), expected)
    density = [st.multivariate_normal(m.means[k, a].numpy(), block(a, a)[k].numpy()).pdf(x.numpy()) for k in range(K)]
    g = m.weights.numpy() * np.stack(density, -1)
    np.testing.assert_allclose(conditional.weights, g / g.sum(-1, keepdims=True))
    torch.testing.assert_close(m.marginal(a).covariances.expand(K, 2, 2), block(a, a))


def test_marginals_keep_the_order_asked_for():
    m, z = mixture("full"), points(3, D)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(m.marginal(order).log_prob(z[:, order]), m.log_prob(z))
    torch.testing.assert_close(m.marginal([2, 0]).mean, m.mean[[2, 0]])
    torch.testing.assert_close(m.marginal([2, 0]).covariance, m.covariance[[2, 0]][:, [2, 0]])


@pytest.mark.parametrize("form", ["shared", "shared diagonal", "shared isotropic", "full"])
def test_conditioning_does_not_copy_covariances(form):
    m = mixture(form, count=5, dim=32)
    conditional = m.condition(list(range(16)), points(1000, 16))
    assert conditional.covariances.shape == (5 if form == "full" else 1, 16, 16)
    assert conditional.aleatoric.shape == (1000, 16, 16)
    if form != "full":
        assert conditional.aleatoric.stride()[0] == 0


@settings(deadline=None, max_examples=40)
@given(
    some.sampled_from(FORMS),
    some.integers(0, 10_000),
    some.integers(1, 6),
    some.integers(2, 7),
    some.floats(1e-4, 1e4),
    some.floats(-1e3, 1e3),
)
def test_density_follows_shifts_and_scales(form, seed, count, dim, scale, shift):
    weights, means, scales = parameters(form, count=count, dim=dim, seed=seed)
    z = points(4, dim, seed=seed)
    moved = constructor(form)(weights, scale * means + shift, scale**2 * scales)
    expected = constructor(form)(weights, means, scales).log_prob(z) - dim * np.log(scale)
    # Adding the shift rounds the inputs; that is all the difference there may be.
    tolerance = 1e-9 + 1e-9 * abs(shift) / scale
    torch.testing.assert_close(moved.log_prob(scale * z + shift), expected, rtol=tolerance, atol=tolerance)


@settings(deadline=None, max_examples=40)
@given(some.sampled_from(FORMS), some.integers(0, 10_000), some.data())
def test_marginal_of_a_conditional_is_the_conditional_of_a_marginal(form, seed, data):
    m, z = mixture(form, seed=seed), points(3, D, seed=seed)
    order = data.draw(some.permutations(range(D)))
    given, kept = sorted(order[:2]), order[2]
    rest = [i for i in range(D) if i not in given]
    one = m.condition(given, z[:, given]).marginal([rest.index(kept)])
    other = m.marginal([*given, kept]).condition([0, 1], z[:, given])
    torch.testing.assert_close(one.log_prob(z[:, [kept]]), other.log_prob(z[:, [kept]]))


@pytest.mark.parametrize("form", FORMS)
def test_entropy_divergence_and_information_of_one_component(form):
    p, q = mixture(form, (2,), count=1), mixture(form, (2,), count=1, seed=3)
    normal = lambda m: MultivariateNormal(m.means[:, 0], m.covariances[:, 0])  # noqa: E731
    torch.testing.assert_close(p.entropy(), normal(p).entropy())
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(normal(p), normal(q)))
    a, b = [2, 0], [1, 3]
    # The mutual information is the divergence from the product of the marginals.
    apart = p.covariances[:, 0].clone()
    for i in a:
        apart[:, i, b] = apart[:, b, i] = 0
    expected = kl_divergence(normal(p), MultivariateNormal(p.means[:, 0], apart))
    torch.testing.assert_close(p.mutual_information(a), expected, atol=1e-12, rtol=1e-7)
    torch.testing.assert_close(p.mutual_information(b), p.mutual_information(a), atol=1e-12, rtol=1e-7)


@pytest.mark.parametrize("one", ["shared", "diagonal", "isotropic"])
@pytest.mark.parametrize("other", ["shared", "diagonal", "isotropic"])
def test_divergence_between_different_forms(one, other):
    p, q = mixture(one, count=1), mixture(other, (2,), count=1, seed=3)
    expected = kl_divergence(
        MultivariateNormal(p.means[..., 0, :], p.covariances[..., 0, :, :]),
        MultivariateNormal(q.means[..., 0, :], q.covariances[..., 0, :, :]),
    )
    torch.testing.assert_close(kl_divergence(p, q), expected)


def test_mixtures_have_no_closed_forms_and_say_so():
    m, one = mixture("full"), mixture("full", count=1)
    for call in (m.entropy, lambda: m.mutual_information([0]), lambda: kl_divergence(one, m)):
        with pytest.raises(NotImplementedError, match="expected one component, .* got 3"):
            call()
    with pytest.raises(ValueError, match="q: expected 4 dimensions as p has, got 2"):
        kl_divergence(one, mixture("full", count=1, dim=2))
