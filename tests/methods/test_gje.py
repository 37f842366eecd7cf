"""GJE against scikit-learn, textbook formulas and autograd; the ways it collapses, and short real training."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern
from torch.distributions import MultivariateNormal
from torch.utils._python_dispatch import TorchDispatchMode

from jointembed.methods.gje import (
    dual_gje_loss,
    dual_prediction,
    fourier_features,
    gram,
    hsic_loss,
    primal_gje_loss,
    primal_prediction,
    rff_gje_loss,
    rff_prediction,
)
from jointembed.methods.gje.kernels import KERNELS

SKLEARN = {
    "rbf": RBF,
    "matern12": lambda length: Matern(length, nu=0.5),
    "matern32": lambda length: Matern(length, nu=1.5),
    "matern52": lambda length: Matern(length, nu=2.5),
}
LENGTHSCALE, AMPLITUDE, NOISE = 1.7, 0.8, 0.05


def embeddings(count=12, dim=4, views=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(views, count, dim, dtype=torch.float64, generator=g)


def regressor(kernel, z_context, z_target):
    base = DotProduct(sigma_0=1e-12) if kernel == "linear" else SKLEARN[kernel](LENGTHSCALE)
    amplitude = AMPLITUDE / LENGTHSCALE**2 if kernel == "linear" else AMPLITUDE
    process = GaussianProcessRegressor(ConstantKernel(amplitude) * base, alpha=NOISE, optimizer=None)
    return process.fit(z_context.numpy(), z_target.numpy())


# Identities


@pytest.mark.parametrize("kernel", KERNELS)
def test_dual_loss_is_the_log_marginal_likelihood_of_scikit_learn(kernel):
    z_context, z_target = embeddings()
    terms = dual_gje_loss(z_context, z_target, kernel, LENGTHSCALE, AMPLITUDE, NOISE)
    constant = z_target.numel() / 2 * math.log(2 * math.pi)
    expected = -regressor(kernel, z_context, z_target).log_marginal_likelihood() - constant
    assert float(terms["loss"]) == pytest.approx(expected, rel=1e-9)
    assert float(terms["fit"] + terms["volume"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_prediction_is_that_of_scikit_learn(kernel):
    z_context, z_target, z_new = embeddings(views=3)
    mean, std = regressor(kernel, z_context, z_target).predict(z_new.numpy(), return_std=True)
    options = (kernel, LENGTHSCALE, AMPLITUDE, NOISE)
    function = dual_prediction(z_context, z_target, z_new, *options, noisy=False)
    target = dual_prediction(z_context, z_target, z_new, *options)
    np.testing.assert_allclose(function.mean, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(function.stddev, std, rtol=1e-6)
    torch.testing.assert_close(target.variance, function.variance + NOISE)
    assert target.batch_shape == (12,) and target.event_shape == (4,)


@pytest.mark.parametrize("features", [7, 40])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rff_formulas_are_the_dense_ones(kernel, features):
    z_context, z_target, z_new = embeddings(views=3)
    options = (kernel, LENGTHSCALE, AMPLITUDE)
    phi, new = (fourier_features(z, features, *options, seed=5) for z in (z_context, z_new))
    dense = phi @ phi.T + NOISE * torch.eye(12, dtype=torch.float64)
    terms = rff_gje_loss(z_context, z_target, *options, NOISE, features, seed=5)
    fit = 0.5 * torch.trace(z_target.T @ dense.inverse() @ z_target)
    torch.testing.assert_close(terms["fit"], fit, rtol=1e-8, atol=0)
    torch.testing.assert_close(terms["volume"], 4 / 2 * dense.logdet(), rtol=1e-8, atol=1e-8)

    found = rff_prediction(z_context, z_target, z_new, *options, NOISE, False, features, seed=5)
    cross = new @ phi.T @ dense.inverse()
    torch.testing.assert_close(found.mean, cross @ z_target, rtol=1e-8, atol=1e-8)
    variance = (new @ new.T - cross @ phi @ new.T).diagonal()
    torch.testing.assert_close(found.variance, variance[:, None].expand(-1, 4), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
def test_rff_tends_to_the_exact_kernel_like_one_over_the_root_of_the_features(kernel):
    z = embeddings(24)[0]
    exact = gram(z, None, kernel, LENGTHSCALE, AMPLITUDE)

    def error(features):
        draws = [fourier_features(z, features, kernel, LENGTHSCALE, AMPLITUDE, seed) for seed in range(20)]
        return torch.stack([(phi @ phi.T - exact).square().mean() for phi in draws]).mean().sqrt()

    errors = [float(error(features)) for features in (64, 1024, 16384)]
    assert errors[2] < 0.01
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15) and errors[1] / errors[2] == pytest.approx(4, rel=0.15)


def test_rff_loss_tends_to_the_exact_dual():
    z_context, z_target = embeddings(24)
    exact = dual_gje_loss(z_context, z_target, "rbf", LENGTHSCALE, AMPLITUDE, 0.5)["loss"]

    def error(features):
        draws = [
            rff_gje_loss(z_context, z_target, "rbf", LENGTHSCALE, AMPLITUDE, 0.5, features, seed)["loss"]
            for seed in range(20)
        ]
        return float((torch.stack(draws) - exact).square().mean().sqrt())

    errors = [error(features) for features in (64, 256, 1024)]
    assert errors[2] < 0.01 * abs(float(exact))
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.5) and errors[1] / errors[2] == pytest.approx(2, rel=0.5)


def test_rff_never_builds_a_matrix_of_all_pairs():
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            tensors = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor)]
            self.numel = max([self.numel, *(x.numel() for x in tensors)])
            return out

    z_context, z_target = embeddings(600, 8)
    for loss, pairs in ((rff_gje_loss, False), (dual_gje_loss, True)):
        with Largest() as largest:
            loss(z_context.requires_grad_(), z_target, **({} if pairs else {"num_features": 32}))["loss"].backward()
        assert (largest.numel >= 600**2) == pairs


@pytest.mark.parametrize("count", [5, 30])
def test_primal_and_dual_are_one_for_the_linear_kernel(count):
    """Appendix J, with K = Z Z^T + eps I_B and C = Z^T Z + eps I_d, for less and for more samples than dimensions."""
    z, eps, dim = embeddings(count, 8)[0], 0.3, 8
    primal = z.T @ z + eps * torch.eye(dim, dtype=torch.float64)
    dual = dual_gje_loss(z, z, "linear", noise=eps)
    torch.testing.assert_close(2 * dual["fit"], dim - eps * torch.trace(primal.inverse()), rtol=1e-8, atol=1e-8)
    log_det = primal.logdet() + (count - dim) * math.log(eps)
    torch.testing.assert_close(2 * dual["volume"] / dim, log_det, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(rff_gje_loss(z, z, "linear", noise=eps)["loss"], dual["loss"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("normalised", [False, True])
def test_hsic_is_the_textbook_formula(normalised):
    z_context, z_target = embeddings(10)

    def textbook(a, b):
        centring = torch.eye(10, dtype=torch.float64) - 1 / 10
        kernels = []
        for z in (a, b):
            distances = (z[:, None] - z).norm(dim=2)
            width = distances[torch.ones(10, 10).triu(1) > 0].median()
            kernels.append((-(distances**2) / (2 * width**2)).exp())
        return torch.trace(kernels[0] @ centring @ kernels[1] @ centring) / 81

    expected = textbook(z_context, z_target)
    if normalised:
        expected = expected / (textbook(z_context, z_context) * textbook(z_target, z_target)).sqrt()
    torch.testing.assert_close(hsic_loss(z_context, z_target, normalised=normalised)["loss"], -expected)


def test_entropies_are_those_of_the_second_moments_of_unit_vectors():
    z_context, z_target = embeddings(30)
    unit_context, unit_target = F.normalize(z_context, dim=1), F.normalize(z_target, dim=1)
    both = torch.cat([unit_context, unit_target], 1)
    half = {name: 0.5 * (z.T @ z / 30).logdet() for name, z in (("c", unit_context), ("t", unit_target), ("j", both))}
    marginal = primal_gje_loss(z_context, z_target, 3.0, "marginal", jitter=0.0)
    joint = primal_gje_loss(z_context, z_target, None, "joint", jitter=0.0)
    alignment = 2 - 2 * F.cosine_similarity(z_context, z_target).mean()
    torch.testing.assert_close(marginal["entropy"], half["c"] + half["t"])
    torch.testing.assert_close(joint["entropy"], half["j"])
    torch.testing.assert_close(marginal["loss"], 3 * alignment - half["c"] - half["t"])
    torch.testing.assert_close(joint["loss"], 4 * alignment - half["j"])
    with_entropy = hsic_loss(z_context, z_target, entropy_weight=0.1, jitter=0.0)
    torch.testing.assert_close(with_entropy["loss"], -with_entropy["hsic"] - 0.1 * (half["c"] + half["t"]))


@pytest.mark.parametrize("weight", [1.0, 8.0, 40.0])
def test_joint_entropy_holds_the_correlation_of_isotropic_views(weight):
    """rho / (1 - rho^2) = 2 a / d, from views that are exactly isotropic with correlation rho."""
    dim = 8
    ratio = 2 * weight / dim
    rho = torch.tensor((math.sqrt(1 + 4 * ratio**2) - 1) / (2 * ratio), dtype=torch.float64, requires_grad=True)
    context = torch.eye(dim, dtype=torch.float64).repeat(2, 1)
    aside = torch.eye(dim, dtype=torch.float64).roll(1, 0)
    target = rho * context + (1 - rho**2).sqrt() * torch.cat([aside, -aside])
    for entropy, pull in (("joint", 0.0), ("marginal", -2 * weight)):
        loss = primal_gje_loss(context, target, weight, entropy, jitter=0.0)["loss"]
        (slope,) = torch.autograd.grad(loss, rho, retain_graph=True)
        assert float(slope) == pytest.approx(pull, abs=1e-9)


def test_primal_prediction_is_the_conditional_gaussian():
    z = embeddings(50, 7)[0]
    covariance, mean = z.T.cov(), z.mean(0)
    context = z[:5, :3]
    found = primal_prediction(context, covariance, mean)
    gain = covariance[3:, :3] @ covariance[:3, :3].inverse()
    torch.testing.assert_close(found.loc, mean[3:] + (context - mean[:3]) @ gain.T)
    torch.testing.assert_close(found.covariance_matrix[2], covariance[3:, 3:] - gain @ covariance[:3, 3:])
    torch.testing.assert_close(primal_prediction(context, covariance).loc, context @ gain.T)
    joint, marginal = MultivariateNormal(mean, covariance), MultivariateNormal(mean[:3], covariance[:3, :3])
    torch.testing.assert_close(found.log_prob(z[:5, 3:]), joint.log_prob(z[:5]) - marginal.log_prob(context))


@pytest.mark.parametrize("predict", [dual_prediction, rff_prediction])
def test_variance_grows_away_from_the_data(predict):
    z_context, z_target = embeddings(30, 2)
    steps = torch.linspace(1, 5, 9, dtype=torch.float64)
    away = z_context.mean(0) + steps[:, None] * torch.ones(2, dtype=torch.float64)
    variance = predict(z_context, z_target, away, "rbf", 1.0, AMPLITUDE, NOISE, noisy=False).variance[:, 0]
    assert variance[0] < 0.2 * AMPLITUDE < 0.8 * AMPLITUDE < variance[-1]
    if predict is dual_prediction:
        assert (variance.diff() > 0).all() and variance[-1] < AMPLITUDE


def test_gradients_are_those_of_the_numbers():
    z_context, z_target = embeddings(6, 3)
    scales = torch.tensor([1.3, 0.9, 0.2], dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (z_context, z_target, scales)]
    for kernel in KERNELS:
        assert torch.autograd.gradcheck(lambda c, t, s, k=kernel: dual_gje_loss(c, t, k, *s)["loss"], inputs)
        assert torch.autograd.gradcheck(
            lambda c, t, s, k=kernel: rff_gje_loss(c, t, k, *s, num_features=5)["loss"], inputs
        )
    for entropy in ("marginal", "joint"):
        assert torch.autograd.gradcheck(lambda c, t, e=entropy: primal_gje_loss(c, t, 2.0, e)["loss"], inputs[:2])
    for normalised in (False, True):
        assert torch.autograd.gradcheck(lambda c, t, n=normalised: hsic_loss(c, t, 1.5, n, 0.1)["loss"], inputs[:2])


LOSSES = {
    "dual": dual_gje_loss,
    "rff": rff_gje_loss,
    "primal": primal_gje_loss,
    "hsic": lambda c, t: hsic_loss(c, t, entropy_weight=0.1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_half_precision_is_computed_in_float32_under_autocast_too(loss):
    z_context, z_target = embeddings(64, 8).bfloat16()
    expected = loss(z_context.float(), z_target.float())["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(z_context, z_target)["loss"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_float32_is_close_to_float64(loss):
    z_context, z_target = embeddings(64, 8)
    exact = loss(z_context, z_target)["loss"]
    torch.testing.assert_close(loss(z_context.float(), z_target.float())["loss"].double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_contexts_have_a_finite_gradient(kernel):
    z_context, z_target = embeddings()
    z_context = torch.cat([z_context[:6], z_context[:6]]).requires_grad_()
    dual_gje_loss(z_context, z_target, kernel)["loss"].backward()
    assert z_context.grad.isfinite().all()
