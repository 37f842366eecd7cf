"""Memory and precision of Gaussian mixtures: bounds from the shapes, and double precision as the reference."""

import pytest
import torch
from mixtures import FORMS, D, K, constructor, parameters, points, spd

from benchmarks.measure import peak_extra_bytes
from jointembed.distributions import GaussianMixture, roots


@pytest.mark.parametrize("form", ["shared", "shared diagonal", "isotropic", "shared isotropic"])
def test_memory_is_that_of_a_matrix_product(form):
    b, k, d = 128, 128, 128
    weights, means, scales = (x.float() for x in parameters(form, count=k, dim=d))
    z = points(b, d).float().requires_grad_()
    means.requires_grad_()
    peak = peak_extra_bytes(lambda: constructor(form)(weights, means, scales).log_prob(z).sum().backward())
    # Tens of matrices of 128 x 128 (some in double), not 128 of them.
    assert peak < 4 * 45 * 128 * 128


def test_conditional_memory_has_no_matrix_per_value():
    weights, means, scales = (x.float() for x in parameters("shared", count=4, dim=64))
    m, values = GaussianMixture(weights, means, scales), points(512, 32).float()
    z = points(512, 32).float()
    peak = peak_extra_bytes(lambda: m.condition(list(range(0, 64, 2)), values).log_prob(z))
    assert peak < 4 * 512 * 4 * 32 * 12  # a few tensors as large as the means; matrices would be 32 times that


def relative_error(single, exact):
    return ((single.double() - exact).abs() / exact.abs().clamp_min(1)).max().item()


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("dim", [2, 16, 256])
@pytest.mark.parametrize("form", ["full", "shared"])
def test_single_precision_at_condition_1e4(form, dim, offset):
    weights, means, _ = parameters(form, dim=dim)
    covariances = spd(1 if form == "shared" else K, dim, dim, condition=1e4)
    weights, means, covariances = (x.float() for x in (weights, means + offset, covariances))
    exact = GaussianMixture(weights.double(), means.double(), covariances.double())
    single = GaussianMixture(weights, means, covariances)
    near = exact.sample((500,), torch.Generator().manual_seed(0))
    # Far out along the direction of least variance, where an ill-conditioned factor errs most.
    least = torch.linalg.eigh(covariances[0].double()).eigenvectors[:, 0]
    far = exact.means[0] + least * torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    for z in (near.float(), far.float(), points(100, dim).float() + offset):
        assert relative_error(single.log_prob(z), exact.log_prob(z.double())) < 1e-3
        given, rest = list(range(dim // 2, dim)), list(range(dim // 2))
        found = single.condition(given, z[:, given]).log_prob(z[:, rest])
        expected = exact.condition(given, z[:, given].double()).log_prob(z[:, rest].double())
        assert relative_error(found, expected) < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_centring_alone_removes_a_common_offset(form, monkeypatch):
    monkeypatch.setattr(roots, "double", lambda x: x)  # as on a device without double precision
    weights, means, scales = (x.float() for x in parameters(form, count=16, dim=64))
    single = constructor(form)(weights, means + 1000, scales)
    z = (single.sample((300,), torch.Generator().manual_seed(0))).float()
    exact = constructor(form)(weights.double(), (means + 1000).double(), scales.double())
    assert relative_error(single.log_prob(z), exact.log_prob(z.double())) < 1e-3


@pytest.mark.parametrize("width", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("form", FORMS)
def test_single_precision_with_tight_components_far_apart(form, width):
    """Thousands of widths between means: the squares in |a|^2 + |b|^2 - 2ab are 1e7 times what is left of them."""
    weights, means, scales = parameters(form, count=16, dim=8)
    weights, means, scales = weights.float(), (10 * means + 100).float(), (scales * width**2).float()
    exact, single = (
        constructor(form)(*(x.to(dtype) for x in (weights, means, scales))) for dtype in (torch.float64, torch.float32)
    )
    z = exact.sample((400,), torch.Generator().manual_seed(0)).float()
    assert relative_error(single.log_prob(z), exact.log_prob(z.double())) < 1e-3
    torch.testing.assert_close(
        single.responsibilities(z), exact.responsibilities(z.double()).float(), atol=1e-3, rtol=0
    )
    gradients = []
    for m, x in ((single, z), (exact, z.double())):
        x = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(m.log_prob(x).sum(), x)[0].double())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3 * gradients[1].abs().max().item())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(form, dtype):
    halves = [x.to(dtype) for x in parameters(form)]
    z = points(5, D).to(dtype)
    m = constructor(form)(*halves)
    assert m.log_prob(z).dtype == m.sample().dtype == m.mean.dtype == torch.float32
    same = constructor(form)(*(x.float() for x in halves), validate_args=False)
    assert torch.equal(m.log_prob(z), same.log_prob(z.float()))


@pytest.mark.parametrize("form", FORMS)
def test_autocast_changes_nothing(form):
    inputs = [x.float() for x in parameters(form)]
    z = points(5, D).float()

    def numbers():
        m = constructor(form)(*inputs)
        conditional = m.condition([2], z[:, [2]])
        draws = m.sample((4,), torch.Generator().manual_seed(0))
        return m.log_prob(z), m.covariance, m.mean, conditional.means, conditional.log_weights, draws

    outside = numbers()
    with torch.autocast("cpu", torch.bfloat16):
        inside = numbers()
    for a, b in zip(outside, inside, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_components_of_weight_zero_leave_no_trace(form):
    weights, means, scales = parameters(form)
    weights = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (weights, means, scales)]
    m, z = constructor(form)(*inputs), points(6, D)
    two = constructor(form)(weights[:2], means[:2], scales[:2])
    torch.testing.assert_close(m.log_prob(z), two.log_prob(z))
    torch.testing.assert_close(m.covariance, two.covariance)
    assert (m.responsibilities(z)[:, 2] == 0).all()
    conditional = m.condition([1], z[:, [1]])
    total = m.log_prob(z).sum() + conditional.log_prob(z[:, [0, 2, 3]]).sum() + conditional.covariance.sum()
    total = total + m.rsample((3,)).sum() + m.mean.sum() + m.responsibilities(z).square().sum()
    total.backward()
    assert total.isfinite() and all(x.grad.isfinite().all() for x in inputs)
