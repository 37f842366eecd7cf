"""VSimSiam against scipy in plain loops, its bound, its stop-gradient, and short real training."""

import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import betaln, digamma, gammaln
from tiny import tiny_network

import jointembed as je
from jointembed.distributions import HypersphericalUniform, PowerSpherical
from jointembed.methods.vsimsiam import VSimSiam, vsimsiam_loss
from jointembed.metrics import effective_rank


def directions(*shape, seed=0):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=-1)


def problem(views=2, count=4, dim=5):
    kappa = 1 + 20 * torch.rand(views, count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mu = directions(views, count, dim)
    z = torch.nn.functional.normalize(mu.flip(0) + 0.3 * directions(views, count, dim, seed=2), dim=-1)
    return mu, kappa, z


def test_the_loss_is_the_likelihood_of_the_other_view_and_the_divergence_from_uniform():
    mu, kappa, z = problem()
    nll, kl, dim = 0.0, 0.0, 5
    b = (dim - 1) / 2
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - gammaln(dim / 2)
    for i, j in ((0, 1), (1, 0)):
        for n in range(4):
            k, cosine = float(kappa[i, n]), sum(float(a) * float(c) for a, c in zip(mu[i, n], z[j, n], strict=True))
            # (1 + cosine)/2 is Beta(b + kappa, b): the density on the sphere is that of the uniform times a ratio.
            log_ratio = k * math.log((1 + cosine) / 2) + betaln(b, b) - betaln(b + k, b)
            nll -= (log_ratio - log_area) / 8
            kl += (k * (digamma(b + k) - digamma(2 * b + k)) + betaln(b, b) - betaln(b + k, b)) / 8
    terms = vsimsiam_loss(PowerSpherical(mu, kappa), z, beta=0.7)
    assert float(terms["nll"]) == pytest.approx(nll)
    assert float(terms["kl"]) == pytest.approx(kl)
    assert float(terms["loss"]) == pytest.approx(nll + 0.7 * kl)


def test_with_the_divergence_the_loss_has_a_floor_and_without_it_none():
    mu = directions(2, 3, 9)[:1].expand(2, -1, -1)  # both views the same: as good as it gets
    found = {
        beta: [float(vsimsiam_loss(PowerSpherical(mu, 10.0**k), mu, beta)["loss"]) for k in range(7)]
        for beta in (0.0, 1.0)
    }
    area = float(HypersphericalUniform(9, dtype=torch.float64).entropy())
    assert all(value - area > -(9 - 1) / 2 for value in found[1.0])
    assert found[1.0][-1] - area == pytest.approx(-4, abs=1e-3)
    assert found[0.0][-1] < found[0.0][-2] - 9 < found[0.0][-3] - 18  # (D - 1)/2 log 10 further down with each


@pytest.mark.parametrize("cosine", [0.2, 0.9])
def test_concentration_says_how_well_views_agree(cosine):
    """Without the divergence the best kappa matches E[log(1 + t)] to log(1 + cosine); with it a smaller one is best."""
    dim, b = 8, 3.5
    mu = torch.eye(dim, dtype=torch.float64)[:1].expand(2, 1, dim)
    z = torch.tensor([cosine, math.sqrt(1 - cosine**2)] + [0.0] * (dim - 2), dtype=torch.float64).expand(2, 1, dim)
    best = brentq(lambda k: digamma(b + k) - digamma(2 * b + k) - math.log((1 + cosine) / 2), 0.0, 1e4)
    kappa = torch.full((2, 1), best, dtype=torch.float64, requires_grad=True)
    slopes = [
        float(torch.autograd.grad(vsimsiam_loss(PowerSpherical(mu, kappa), z, beta)["loss"], kappa)[0].sum())
        for beta in (0.0, 1.0)
    ]
    assert slopes[0] == pytest.approx(0, abs=1e-9) and slopes[1] > 0


def test_gradcheck_and_no_gradient_for_the_targets():
    mu, kappa, z = (x.requires_grad_() for x in problem(count=2, dim=3))

    def loss(raw, kappa):
        posterior = PowerSpherical(torch.nn.functional.normalize(raw, dim=-1), kappa, validate_args=False)
        return vsimsiam_loss(posterior, z, beta=0.5)["loss"]

    assert torch.autograd.gradcheck(loss, (mu, kappa))
    loss(mu, kappa).backward()
    assert z.grad is None and mu.grad.abs().min() > 0 and kappa.grad.abs().min() > 0


def tiny_vsimsiam(**options):
    network = tiny_network()
    network.num_features = 32
    return VSimSiam(network, **({"dim": 16, "projector_width": 32, "predictor_width": 8} | options))


def test_the_encoder_learns_through_the_predictor_and_the_concentration_only():
    torch.manual_seed(0)
    method = tiny_vsimsiam().eval()
    views = list(torch.randn(2, 5, 1, 8, 8))
    with torch.no_grad():
        fixed = torch.stack([method.encode(view)["projector"] for view in views])
    found, expected = [], []
    for gradients, targets in ((found, None), (expected, fixed)):
        method.zero_grad()
        if targets is None:
            method(views, 2)["loss"].backward()
        else:
            encoded = [method.encode(view) for view in views]
            mu, kappa = (torch.stack([one[name] for one in encoded]) for name in ("mu", "concentration"))
            vsimsiam_loss(PowerSpherical(mu, kappa[..., 0]), targets)["loss"].backward()
        gradients += [parameter.grad.clone() for parameter in method.parameters() if parameter.grad is not None]
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_local_views_explain_and_are_not_explained():
    mu, kappa, z = problem(views=4)
    pairs = [(0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    expected = sum(-PowerSpherical(mu[i], kappa[i]).log_prob(z[j]).mean() for i, j in pairs) / 6
    torch.testing.assert_close(vsimsiam_loss(PowerSpherical(mu, kappa), z[:2])["nll"], expected)


def test_another_view_of_a_digit_is_expected(tmp_path):
    source = je.data.open_source("digits")
    model = je.train(
        "digits", "vsimsiam", tiny_network(), epochs=5, out=tmp_path / "run", batch_size=128, preset="mnist", dim=16,
        projector_width=64, predictor_width=16, hold_out=0.0, progress=False, watch_every=100,
    )  # fmt: skip
    images = source.batch(range(400))
    shifted = images.roll(1, -1)  # by a pixel: another view
    posterior, z = model.posterior(images), model.embed(shifted, "projector")
    assert isinstance(posterior, PowerSpherical) and posterior.batch_shape == (400,) and posterior.event_shape == (16,)
    gap = posterior.log_prob(z) - posterior.log_prob(z.roll(1, 0))  # over that of another digit, in nats
    assert float(gap.mean()) > 0.8
    assert float(effective_rank(z)) > 6
    scores = model.anomaly_scores(shifted)
    assert list(scores) == ["density", "likelihood", "concentration"]
    own = model.posterior(shifted)
    torch.testing.assert_close(scores["concentration"], -own.concentration)
    torch.testing.assert_close(scores["likelihood"], -own.log_prob(z), rtol=1e-4, atol=1e-3)
    again = je.load(tmp_path / "run", backbone=tiny_network()).posterior(images)
    torch.testing.assert_close(again.loc, posterior.loc)
    torch.testing.assert_close(again.concentration, posterior.concentration)


def test_the_predictor_keeps_images_apart():
    """SimSiam's asymmetry: without the predictor the same loss draws all directions together."""

    def train(predict):
        torch.manual_seed(0)
        encoder = torch.nn.Linear(6, 4)
        predictor = torch.nn.Linear(4, 4) if predict else torch.nn.Identity()
        kappa = torch.zeros((), requires_grad=True)
        optimizer = torch.optim.Adam([*encoder.parameters(), *predictor.parameters(), kappa], 1e-2)
        x = torch.randn(64, 6)
        for _ in range(200):
            z = torch.nn.functional.normalize(encoder(x + 0.3 * torch.randn(2, *x.shape)), dim=-1)
            mu = torch.nn.functional.normalize(predictor(z), dim=-1)
            loss = vsimsiam_loss(PowerSpherical(mu, 3 * torch.nn.functional.softplus(kappa)), z)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(z.detach()[0].std(0).mean())

    with_it, without = train(True), train(False)
    assert with_it > 0.3 and without < 0.5 * with_it


def test_bad_arguments_are_named():
    mu, kappa, z = problem()
    for ask, words in [
        (lambda: vsimsiam_loss(PowerSpherical(mu, kappa), z, -1.0), "beta: expected a number of at least 0, got -1"),
        (lambda: vsimsiam_loss(PowerSpherical(mu[0], kappa[0]), z), r"posterior: expected .* \(V, N\), got \(4,\)"),
        (lambda: vsimsiam_loss(torch.distributions.Normal(mu, 1.0), z), "posterior: expected .* got Normal"),
        (lambda: vsimsiam_loss(PowerSpherical(mu, kappa), z[:, :3]), r"targets: expected \(G, 4, 5\)"),
        (lambda: tiny_vsimsiam(dim=1), "dim: expected at least 2, got 1"),
        (lambda: tiny_vsimsiam(beta=-1.0), "beta: expected"),
        (lambda: tiny_vsimsiam(predictor_width=0), "predictor_width: expected at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            ask()
