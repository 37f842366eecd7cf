"""The polar likelihood against scipy, numerical integration and its stated limits."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats as st
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from jointembed.distributions import PolarStudentT

DFS = [0.25, 1.0, 3.0, 50.0]


def problem(dim, count=4, seed=0, spread=0.5):
    g = torch.Generator().manual_seed(seed)
    loc, z = 3 * torch.randn(2, count, dim, dtype=torch.float64, generator=g)
    return loc, 0.1 + spread * torch.rand(count, dim, dtype=torch.float64, generator=g), z


@pytest.mark.parametrize("df", DFS)
@pytest.mark.parametrize("dim", [1, 2, 5, 128])
def test_factors_against_scipy(df, dim):
    loc, variance, z = problem(dim)
    polar = PolarStudentT(loc, variance, df)
    unit = lambda x: (x / np.linalg.norm(x)).reshape(-1)  # noqa: E731
    for i, (m, v, x) in enumerate(zip(loc.numpy(), variance.numpy(), z.numpy(), strict=True)):
        direction = st.multivariate_t(unit(m), np.diag(v), df).logpdf(unit(x))
        radius = st.t(df).logpdf(np.linalg.norm(x) - np.linalg.norm(m))
        np.testing.assert_allclose(polar.direction_log_prob(z)[i], direction, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(polar.radius_log_prob(z)[i], radius, rtol=1e-8)
        np.testing.assert_allclose(polar.log_prob(z)[i], direction + radius, rtol=1e-8, atol=1e-8)


def test_gaussian_limit_against_scipy():
    loc, variance, z = problem(4)
    polar = PolarStudentT(loc, variance, float("inf"))
    for i, (m, v, x) in enumerate(zip(loc.numpy(), variance.numpy(), z.numpy(), strict=True)):
        direction = st.multivariate_normal(m / np.linalg.norm(m), np.diag(v)).logpdf(x / np.linalg.norm(x))
        np.testing.assert_allclose(polar.direction_log_prob(z)[i], direction)
        np.testing.assert_allclose(
            polar.radius_log_prob(z)[i], st.norm.logpdf(np.linalg.norm(x) - np.linalg.norm(m)), rtol=1e-10
        )
    near = PolarStudentT(loc, variance, 1e7).log_prob(z)
    torch.testing.assert_close(near, polar.log_prob(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("df", [0.5, 3.0, float("inf")])
def test_gradcheck(df):
    inputs = tuple(x.requires_grad_() for x in problem(3, count=2))
    for name in ("log_prob", "direction_log_prob", "radius_log_prob"):
        assert torch.autograd.gradcheck(lambda m, v, x, f=name: getattr(PolarStudentT(m, v, df), f)(x), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("df", [0.5, 3.0, float("inf")])
def test_gradients_are_finite_at_zero_and_at_extreme_variances(dtype, variance, df):
    v = torch.full((3, 8), variance, dtype=dtype, requires_grad=True)
    z = torch.zeros(3, 8, dtype=dtype)
    z[1] = 1e-30
    z[2] = 5.0
    loc = z.flip(0).clone().requires_grad_()
    z.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = PolarStudentT(loc, v, df).log_prob(z)
    assert value.dtype == torch.float32 and value.isfinite().all()
    value.sum().backward()
    for x in (loc, v, z):
        assert x.grad.isfinite().all()


def test_autocast_changes_nothing():
    loc, variance, z = (x.float() for x in problem(64))
    with torch.autocast("cpu", torch.bfloat16):
        inside = PolarStudentT(loc, variance).log_prob(z)
    assert torch.equal(inside, PolarStudentT(loc, variance).log_prob(z))


@settings(deadline=None, max_examples=50)
@given(some.floats(0.05, 100), some.floats(-1e4, 1e4))
def test_influence_of_the_norm_is_bounded(df, residual):
    z = torch.tensor([2e4, 0.0], dtype=torch.float64, requires_grad=True)
    loc = torch.tensor([2e4 - residual, 0.0], dtype=torch.float64)
    PolarStudentT(loc, torch.ones(2, dtype=torch.float64), df).radius_loss(z).backward()
    assert z.grad.norm() <= (df + 1) / (2 * math.sqrt(df)) * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(some.floats(0.1, 50))
def test_direction_does_not_see_norms_nor_radius_directions(scale):
    loc, variance, z = problem(5)
    polar = PolarStudentT(loc, variance)
    torch.testing.assert_close(polar.direction_log_prob(scale * z), polar.direction_log_prob(z))
    torch.testing.assert_close(PolarStudentT(scale * loc, variance).direction_log_prob(z), polar.direction_log_prob(z))
    torch.testing.assert_close(polar.radius_log_prob(z.flip(-1)), polar.radius_log_prob(z))


def density(polar):
    """The directional density at a point of the sphere, for scipy's integrators."""
    return lambda u: polar.direction_log_prob(torch.tensor(u, dtype=torch.float64)).exp().item()


VARIANCES = {
    2: [[0.01, 0.01], [0.3, 0.3], [0.01, 0.2], [2.0, 0.05]],
    3: [[0.04, 0.04, 0.04], [1.0, 1.0, 1.0], [0.1, 0.4, 0.05]],
}


@pytest.mark.parametrize("df", [0.5, 3.0, float("inf")])
@pytest.mark.parametrize("variance", VARIANCES[2])
def test_mass_on_the_circle(df, variance):
    polar = PolarStudentT(
        torch.tensor([0.6, 0.8], dtype=torch.float64), torch.tensor(variance, dtype=torch.float64), df
    )
    f, centre = density(polar), math.atan2(0.8, 0.6)
    expected, _ = scipy.integrate.quad(
        lambda a: f([math.cos(a), math.sin(a)]), centre - math.pi, centre + math.pi, points=[centre], limit=200
    )
    tolerance = 1e-7 if variance[0] == variance[1] else 0.03
    assert polar.direction_log_mass(20_000).item() == pytest.approx(math.log(expected), abs=tolerance)


@pytest.mark.parametrize("df", [0.5, 3.0, float("inf")])
@pytest.mark.parametrize("variance", VARIANCES[3])
def test_mass_on_the_sphere(df, variance):
    polar = PolarStudentT(
        torch.tensor([0.0, 0.6, 0.8], dtype=torch.float64), torch.tensor(variance, dtype=torch.float64), df
    )
    # Gauss-Legendre over the height, the trapezoid rule over the angle.
    nodes, weights = np.polynomial.legendre.leggauss(400)
    angle = np.linspace(0, 2 * np.pi, 600, endpoint=False)
    flat = np.sqrt(1 - nodes**2)[:, None]
    points = np.stack([flat * np.cos(angle), flat * np.sin(angle), np.broadcast_to(nodes[:, None], (400, 600))], -1)
    values = polar.direction_log_prob(torch.from_numpy(points)).exp().numpy()
    expected = (weights[:, None] * values).sum() * 2 * np.pi / 600
    tolerance = 1e-6 if len(set(variance)) == 1 else 0.03
    assert polar.direction_log_mass(20_000).item() == pytest.approx(math.log(expected), abs=tolerance)


def test_mass_may_exceed_one():
    polar = PolarStudentT(torch.tensor([1.0, 0.0]), torch.full((2,), 0.01), 3.0)
    assert polar.direction_log_mass().exp().item() == pytest.approx(3.68, abs=0.01)


def test_mass_in_one_dimension_is_that_of_two_points():
    polar = PolarStudentT(torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64), 3.0)
    t = st.t(3, loc=1, scale=math.sqrt(0.5))
    assert polar.direction_log_mass().item() == pytest.approx(math.log(t.pdf(1) + t.pdf(-1)))


@pytest.mark.parametrize("dim", [8, 64, 256])
@pytest.mark.parametrize("variance", [0.01, 0.3])
def test_sampling_agrees_with_the_exact_integral(dim, variance):
    loc = torch.randn(6, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    same = torch.full((6, dim), variance, dtype=torch.float64)
    other = same.clone()
    other[:, 0] *= 1 + 1e-12  # no longer constant: sampled
    exact, sampled = (PolarStudentT(loc, v, 3.0).direction_log_mass(2000) for v in (same, other))
    assert (exact - sampled).abs().max() < 0.4
    assert (exact - sampled).mean().abs() < 0.15


def test_bad_arguments_are_named():
    loc, variance = torch.zeros(2, 3), torch.ones(2, 3)
    for arguments, words in [
        ((loc, variance, 0.0), "df: expected degrees of freedom above 0, got 0"),
        ((loc, -variance), "variance: expected values above 0, got -1"),
        ((loc, variance[:, :2]), r"variance: expected \(..., 3\) as loc has, got shape \(2, 2\)"),
        ((loc, torch.ones(5, 3)), "broadcast"),
        ((torch.tensor(1.0), variance), "loc: expected"),
    ]:
        with pytest.raises(ValueError, match=words):
            PolarStudentT(*arguments)
    with pytest.raises(ValueError, match=r"value: expected \(..., 3\)"):
        PolarStudentT(loc, variance).log_prob(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        PolarStudentT(loc, variance).direction_log_mass(samples=0)
