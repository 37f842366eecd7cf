"""The Power Spherical and the uniform distribution on the sphere against scipy, integration, autograd and samples."""

import math

import numpy as np
import pytest
import scipy.stats as st
import torch
from scipy.integrate import quad
from scipy.special import gammaln
from torch.distributions import kl_divergence

from jointembed.distributions import HypersphericalUniform, PowerSpherical

KAPPAS = [0.0, 0.5, 3.0, 40.0]


def unit(*shape, seed=0, dtype=torch.float64):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=-1).to(dtype)


def law(dim, kappa, seed=0, dtype=torch.float64):
    return PowerSpherical(unit(dim, seed=seed, dtype=dtype), torch.tensor(kappa, dtype=dtype))


def log_area(dim):
    return math.log(2) + dim / 2 * math.log(math.pi) - gammaln(dim / 2)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_density_integrates_to_one_on_the_circle_and_on_the_sphere(kappa):
    angle = torch.arange(2000, dtype=torch.float64) * 2 * math.pi / 2000
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    assert float(law(2, kappa).log_prob(circle).exp().mean()) * 2 * math.pi == pytest.approx(1, abs=1e-5)
    height, weight = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(200))
    width = (1 - height.square()).sqrt()[:, None]
    ring = circle[::10]
    sphere = torch.cat([(width[..., None] * ring), height[:, None, None].expand(-1, len(ring), 1)], -1)
    density = law(3, kappa).log_prob(sphere).exp().mean(-1) * 2 * math.pi
    assert float((weight * density).sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
@pytest.mark.parametrize("kappa", [0.7, 40.0, 3000.0])
def test_normaliser_is_the_integral_over_the_angle(dim, kappa):
    loc = unit(dim)
    found = float(PowerSpherical(loc, kappa).log_prob(loc)) - kappa * math.log(2)
    # Over the angle to loc; scaled by its peak, as the integrand spans hundreds of orders of magnitude.
    log_integrand = lambda a: kappa * np.log1p(np.cos(a)) + (dim - 2) * np.log(np.sin(a))  # noqa: E731
    grid = np.linspace(1e-6, math.pi - 1e-6, 20_001)
    peak = log_integrand(grid).max()
    around = grid[log_integrand(grid) > peak - 60]
    mass = quad(lambda a: math.exp(log_integrand(a) - peak), around[0], around[-1], epsabs=0, epsrel=1e-9, limit=200)[0]
    rings = log_area(dim - 1) if dim > 2 else math.log(2)
    assert found == pytest.approx(-(math.log(mass) + peak + rings), rel=1e-6, abs=1e-6)


def test_no_concentration_is_the_uniform_distribution():
    for dim in (2, 3, 64):
        uniform, x = HypersphericalUniform(dim, dtype=torch.float64), unit(5, dim, seed=1)
        torch.testing.assert_close(uniform.log_prob(x), torch.full((5,), -log_area(dim), dtype=torch.float64))
        torch.testing.assert_close(law(dim, 0.0).log_prob(x), uniform.log_prob(x))
        assert float(uniform.entropy()) == pytest.approx(log_area(dim))
        assert float(kl_divergence(law(dim, 0.0), uniform)) == pytest.approx(0, abs=1e-9)


def test_uniform_samples_have_beta_coordinates():
    torch.manual_seed(0)
    x = HypersphericalUniform(5).sample((20_000,))
    assert st.kstest((1 + x[:, 2].numpy()) / 2, st.beta(2, 2).cdf).pvalue > 1e-3
    torch.testing.assert_close(x.T.cov().diag(), HypersphericalUniform(5).variance, rtol=0.05, atol=0)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.5), (3, 0.0), (6, 20.0), (128, 300.0)])
def test_samples_are_beta_along_the_mean_and_uniform_around_it(dim, kappa):
    torch.manual_seed(0)
    p = law(dim, kappa, dtype=torch.float32)
    x = p.sample((10_000,))
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(10_000), rtol=0, atol=1e-5)
    t, half = x @ p.loc, (dim - 1) / 2
    assert st.kstest((1 + t.numpy()) / 2, st.beta(half + kappa, half).cdf).pvalue > 1e-3
    around = torch.nn.functional.normalize(x - t[:, None] * p.loc, dim=-1)
    across = torch.nn.functional.normalize(torch.eye(dim)[0] - p.loc[0] * p.loc, dim=0)
    if dim == 2:  # left and right of the mean alike
        assert st.binomtest(int((around @ across > 0).sum()), len(x)).pvalue > 1e-3
    else:
        assert st.kstest((1 + (around @ across).numpy()) / 2, st.beta(half - 0.5, half - 0.5).cdf).pvalue > 1e-3


def test_samples_gather_round_every_mean_also_round_the_poles():
    torch.manual_seed(0)
    axis = torch.eye(4)[0]
    loc = torch.stack([axis, -axis, unit(4, dtype=torch.float32), -unit(4, dtype=torch.float32)])
    p = PowerSpherical(loc, torch.tensor([5.0, 5.0, 50.0, 0.5]))
    x = p.sample((40_000,))
    torch.testing.assert_close(x.mean(0), p.mean, rtol=0, atol=0.015)
    torch.testing.assert_close(x.var(0), p.variance, rtol=0.05, atol=1e-3)
    assert p.mode.equal(loc)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.5), (6, 20.0), (128, 300.0)])
def test_entropy_and_divergence_are_those_of_samples(dim, kappa):
    torch.manual_seed(0)
    p, uniform = law(dim, kappa), HypersphericalUniform(dim)
    log_prob = p.log_prob(p.sample((20_000,)))
    error = 4 * float(log_prob.std()) / 20_000**0.5
    assert float(p.entropy()) == pytest.approx(-float(log_prob.mean()), abs=error)
    assert float(kl_divergence(p, uniform)) == pytest.approx(float(log_prob.mean()) + log_area(dim), abs=error)


@pytest.mark.parametrize("first", [0.9, -0.9, 1.0])
def test_gradients_of_samples_are_those_of_the_mean(first):
    """d E[w x]: along kappa w loc (D-1)/(kappa+D-1)^2; along loc the share of w that is tangent."""
    torch.manual_seed(0)
    dim, kappa = 5, torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    rest = unit(dim - 1, seed=1) * math.sqrt(1 - first**2)
    raw = torch.cat([torch.tensor([first], dtype=torch.float64), rest]).requires_grad_()
    loc, w = torch.nn.functional.normalize(raw, dim=0), unit(dim, seed=2)
    (PowerSpherical(loc, kappa).rsample((60_000,)) @ w).mean().backward()
    along = w @ loc.detach()
    assert float(kappa.grad) == pytest.approx(float(along) * (dim - 1) / (6 + dim - 1) ** 2, abs=2e-3)
    tangent = 6 / (6 + dim - 1) * (w - along * loc.detach())
    torch.testing.assert_close(raw.grad, tangent, rtol=0, atol=0.02)


def test_gradcheck():
    x = unit(3, 4, seed=1)
    raw, kappa = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0.3, 4.0, 90.0], dtype=torch.float64)
    raw, kappa = raw.requires_grad_(), kappa.requires_grad_()

    def all_of_it(raw, kappa):
        p = PowerSpherical(torch.nn.functional.normalize(raw, dim=-1), kappa, validate_args=False)
        return p.log_prob(x), p.entropy(), p.mean, p.variance, kl_divergence(p, HypersphericalUniform(4))

    assert torch.autograd.gradcheck(all_of_it, (raw, kappa))


@pytest.mark.parametrize("kappa", [0.0, 1.0, 100.0, 1e4])
def test_single_precision_holds_in_512_dimensions(kappa):
    found, gradients = [], []
    for dtype in (torch.float32, torch.float64):
        k = torch.tensor(kappa, dtype=dtype, requires_grad=True)
        loc = unit(512, dtype=dtype)
        x = torch.nn.functional.normalize(torch.stack([loc, loc + 0.03 * unit(512, seed=1, dtype=dtype), -loc]), dim=-1)
        p = PowerSpherical(loc, k)
        found.append(torch.cat([p.log_prob(x)[:2], torch.stack([p.entropy(), p.mean.norm()])]).double())
        divergence = kl_divergence(p, HypersphericalUniform(512))
        gradients.append(torch.autograd.grad(divergence + p.log_prob(x[1]), k)[0].double())
        if kappa:
            drop = (p.log_prob(x[2]) - p.log_prob(loc)).detach()
            assert drop.isfinite() and float(drop) < -20 * kappa  # next to no density opposite, but no infinity
    torch.testing.assert_close(*found, rtol=2e-6, atol=1e-4)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_single_precision_holds_next_to_the_opposite():
    """1 + loc x of about 1e-7 is all rounding if computed so; log(|loc + x|^2 / 2) is not."""
    angle = 5e-4
    loc, x = torch.tensor([1.0, 0.0]), torch.tensor([-math.cos(angle), math.sin(angle)])
    exact = math.log(2 * math.sin(angle / 2) ** 2)
    slope = PowerSpherical(loc, 3.0).log_prob(x) - PowerSpherical(loc, 0.0).log_prob(x)
    constant = PowerSpherical(loc, 3.0).log_prob(loc) - PowerSpherical(loc, 0.0).log_prob(loc) - 3 * math.log(2)
    assert float(slope - constant) == pytest.approx(3 * exact, rel=1e-5)


def test_batches_broadcast():
    loc, kappa = unit(3, 1, 4), torch.tensor([1.0, 5.0], dtype=torch.float64)
    p = PowerSpherical(loc, kappa)
    assert p.batch_shape == (3, 2) and p.event_shape == (4,)
    assert p.rsample((7,)).shape == (7, 3, 2, 4) and p.entropy().shape == (3, 2)
    x = unit(3, 2, 4, seed=1)
    assert float(p.log_prob(x)[2, 1]) == pytest.approx(float(PowerSpherical(loc[2, 0], kappa[1]).log_prob(x[2, 1])))
    half = PowerSpherical(torch.tensor([1.0, 0.0], dtype=torch.bfloat16), 2.0)
    assert half.mean.dtype == torch.float32


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: PowerSpherical(torch.ones(3), 1.0), r"parameter loc .* UnitVector"),
        (lambda: PowerSpherical(unit(3), -1.0), r"parameter concentration .*lower_bound=0"),
        (lambda: PowerSpherical(unit(3), float("nan")), r"parameter concentration"),
        (lambda: PowerSpherical(torch.ones(4, 1), 1.0), r"loc: expected .* D at least 2, got shape \(4, 1\)"),
        (lambda: PowerSpherical(unit(2, 3), torch.ones(5)), r"broadcast, got loc \(2,\), concentration \(5,\)"),
        (lambda: PowerSpherical(unit(3), 1.0).log_prob(torch.ones(3)), r"value argument .*UnitVector"),
        (lambda: PowerSpherical(unit(3), 1.0).log_prob(unit(4)), r"value: expected \(..., 3\), got shape \(4,\)"),
        (lambda: HypersphericalUniform(3).log_prob(torch.ones(3)), r"value argument .*UnitVector"),
        (lambda: HypersphericalUniform(1), "dim: expected an integer of at least 2, got 1"),
        (lambda: kl_divergence(law(3, 1.0), HypersphericalUniform(4)), "q: expected 3 dimensions as p has, got 4"),
    ],
)
def test_bad_arguments_are_named(ask, words):
    with pytest.raises(ValueError, match=words):
        ask()
