"""The probabilistic LeJEPAs against scipy and torch, what holds them from collapse, and short real training."""

import math

import pytest
import torch
from scipy.stats import multivariate_t, t
from tiny import tiny_network
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import jointembed as je
from jointembed.distributions import GaussianMixture
from jointembed.methods.gmje.mdn import MixtureDensityNetwork
from jointembed.methods.lejepa_probabilistic import lejepa_mdn_loss, lejepa_vje_loss
from jointembed.methods.vje import InferenceNetwork
from jointembed.metrics import effective_rank
from jointembed.normality import SIGReg


def problem(views=2, count=6, dim=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    z, mu = torch.randn(2, views, count, dim, dtype=torch.float64, generator=g)
    return z, Normal(mu, 0.2 + torch.rand(views, count, dim, dtype=torch.float64, generator=g))


def sigreg():
    return SIGReg(num_slices=32).eval()  # the same directions at every call


def single(z, mean, scale):
    """One Gaussian as the conditional of every embedding."""
    shape = (*z.shape[:2], 1, z.shape[2])
    means, variances = (torch.full(shape, value).to(z) for value in (mean, scale**2))
    return GaussianMixture.diagonal(torch.ones(*z.shape[:2], 1).to(z), means, variances)


def test_vje_likelihood_is_scipys_with_directions_on_the_sphere_of_radius_root_d(monkeypatch):
    z, posterior = problem()
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    terms = lejepa_vje_loss(z, posterior, 2, sigreg(), weight=0.3, df=2.5)
    dim, direction, radius = 5, 0.0, 0.0
    for i, j in ((0, 1), (1, 0)):
        for n in range(6):
            s, x = posterior.loc[i, n], z[j, n]
            law = multivariate_t(s / s.norm() * dim**0.5, torch.diag(posterior.variance[i, n]), 2.5)
            at_centre = multivariate_t([0] * dim, [1] * dim, 2.5).logpdf([0] * dim)
            direction -= law.logpdf(x / x.norm() * dim**0.5) - at_centre
            radius -= t(2.5).logpdf(float(x.norm() - s.norm())) - t(2.5).logpdf(0)
    # A density at radius sqrt(D) is D^(-D/2) of that at radius one: a constant, dropped or not.
    found = float(terms["direction"]) * dim + dim / 2 * math.log(dim)
    assert found == pytest.approx(direction / 12)
    assert float(terms["radius"]) == pytest.approx(radius / 12 / dim)
    torch.testing.assert_close(terms["nll"], terms["direction"] + terms["radius"])
    torch.testing.assert_close(terms["loss"], 0.7 * terms["nll"] + 0.3 * sigreg()(z))


def test_the_best_variance_is_the_squared_residual(monkeypatch):
    """The point of the radius sqrt(D): posterior and likelihood can share a variance, in the embeddings' own units."""
    z, _ = problem(count=1, dim=6)
    z = math.sqrt(6) * nn.functional.normalize(z, dim=-1)
    mu = math.sqrt(6) * nn.functional.normalize(z.flip(0) + 0.3 * problem(count=1, dim=6, seed=1)[0], dim=-1)
    residual = (mu - z.flip(0)).square().mean(-1, keepdim=True).expand_as(z)
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    scale = residual[..., :1].sqrt().clone().requires_grad_()  # one for all dimensions
    lejepa_vje_loss(z, Normal(mu, scale.expand_as(mu)), 2, sigreg(), weight=0.0)["loss"].backward()
    torch.testing.assert_close(scale.grad, torch.zeros_like(scale), rtol=0, atol=1e-10)


def test_mdn_likelihood_is_that_of_torchs_mixture_per_dimension():
    torch.manual_seed(0)
    network, z = MixtureDensityNetwork(4, 4, components=3, width=16), torch.randn(3, 10, 4)
    weights, means, scales = network.parts(z)
    terms = lejepa_mdn_loss(z, network(z), num_global=2, sigreg=sigreg(), weight=0.3)
    nll = 0.0
    for i, j in ((0, 1), (1, 0), (2, 0), (2, 1)):  # the third view is local: it explains and is not explained
        peer = MixtureSameFamily(Categorical(weights[i]), Independent(Normal(means[i], scales[i]), 1))
        nll -= peer.log_prob(z[j]).mean() / 4 / 4
    torch.testing.assert_close(terms["nll"], nll)
    torch.testing.assert_close(terms["loss"], 0.7 * nll + 0.3 * sigreg()(z))


def test_departing_from_the_context_has_its_price():
    z, _ = problem()
    plain, priced = (lejepa_mdn_loss(z, single(z, 0.5, 1.0), 2, sigreg(), 0.3, departure=d) for d in (0.0, 2.0))
    distance = float((z - 0.5).square().mean())
    assert float(priced["departure"]) == pytest.approx(distance)
    assert float(priced["loss"] - plain["loss"]) == pytest.approx(0.7 * 2 * distance)


@pytest.mark.parametrize("method", ["lejepa-vje", "lejepa-mdn"])
def test_at_the_start_a_view_is_expected_to_look_like_the_other(method):
    """Of what is not yet known the likelihood must not say "anything": views would never be pulled together."""
    torch.manual_seed(0)
    backbone = tiny_network()
    backbone.num_features = 32
    built = je.methods.create(method, backbone, dim=16).eval()
    z = torch.randn(2000, 16)
    with torch.no_grad():
        mean = built.infer(z).mean if method == "lejepa-vje" else built.network(z).mean
    slope = float(((mean - mean.mean(0)) * z).mean() / z.square().mean())
    assert slope == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_and_whether_targets_get_any(detach, monkeypatch):
    z, posterior = problem(count=3, dim=3)
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    inputs = tuple(x.requires_grad_() for x in (z, posterior.loc, posterior.scale))
    plain = sigreg()

    def vje(z, mu, scale):
        return lejepa_vje_loss(z, Normal(mu, scale), 2, plain, 0.2, detach=False)["loss"]

    def mdn(z, mu, scale):
        mixture = GaussianMixture.diagonal(torch.ones(2, 3, 1).to(z), mu[:, :, None], scale.square()[:, :, None])
        return lejepa_mdn_loss(z, mixture, 2, plain, 0.2)["loss"]

    if not detach:
        assert torch.autograd.gradcheck(vje, inputs) and torch.autograd.gradcheck(mdn, inputs)
    mixture = single(z, 0.0, 1.0)
    for loss in (
        lejepa_vje_loss(z, Normal(inputs[1], inputs[2]), 2, plain, 0.0, detach=detach)["nll"],
        lejepa_mdn_loss(z, mixture, 2, plain, 0.0, detach=detach)["nll"],
    ):
        gradient = (
            torch.autograd.grad(loss, z, allow_unused=True, materialize_grads=True)[0] if loss.requires_grad else 0
        )
        assert bool((torch.as_tensor(gradient).abs() > 0).any()) != detach


def test_collapse_pays_only_in_small_batches():
    """The inequality of the module: at weight 0.1 and floor 0.1 collapse is the worse choice from 65 images on."""
    torch.manual_seed(0)

    def losses(count, weight):
        tests = SIGReg(num_slices=256)
        collapsed = torch.zeros(2, count, 8)
        shrunk = lejepa_mdn_loss(collapsed, single(collapsed, 0.0, 0.1), 2, tests, weight)
        assert float(shrunk["sigreg"]) == pytest.approx(0.409 * count, rel=0.01)
        draws = [torch.randn(2, count, 8) for _ in range(40)]
        spread = [lejepa_mdn_loss(z, single(z, 0.0, 1.0), 2, tests, weight) for z in draws]
        assert sum(float(one["sigreg"]) for one in spread) / 40 == pytest.approx(1.06, rel=0.1)
        return float(shrunk["loss"]), sum(float(one["loss"]) for one in spread) / 40

    for count, weight, pays in ((48, 0.1, True), (80, 0.1, False), (256, 0.02, True), (420, 0.02, False)):
        shrunk, spread = losses(count, weight)
        assert (shrunk < spread) == pays


def test_sigreg_hardly_minds_dimensions_that_die_while_the_others_grow():
    z = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    z = torch.where(torch.arange(64) < 32, 2**0.5 * z, 0.0)
    # A slice has variance 1 + e with E[e^2] = 1/33, and 0.1206 N e^2 is what that costs.
    assert float(SIGReg()(z)) == pytest.approx(1.06 + 0.1206 / 33 * 4096, rel=0.15)


def toy(method, weight, steps=150, floor=0.1):
    """A linear encoder of correlated views; the spread of the embeddings, or of their directions, afterwards."""
    torch.manual_seed(0)
    encoder = nn.Linear(6, 4)
    network = MixtureDensityNetwork(4, 4, 2, 32, floor) if method == "mdn" else InferenceNetwork(4)
    tests, x = SIGReg(num_slices=16), torch.randn(128, 6)
    optimizer = torch.optim.Adam([*encoder.parameters(), *network.parameters()], 1e-2)
    for _ in range(steps):
        z = encoder(x + 0.3 * torch.randn(2, *x.shape))
        if method == "mdn":
            loss = lejepa_mdn_loss(z, network(z), 2, tests, weight)["loss"]
        else:
            q = network(z)
            q = Normal(q.loc, (q.variance + floor**2).sqrt())
            loss = lejepa_vje_loss(z, q, 2, tests, weight, detach=False)["loss"]  # where collapse is nearest
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return z.detach()[0]


@pytest.mark.parametrize("method", ["vje", "mdn"])
def test_sigreg_holds_what_the_likelihood_alone_lets_collapse(method):
    held, loose = toy(method, 0.1), toy(method, 0.0)
    assert float(held.std(0).min()) > 0.7 and float(held.std(0).max()) < 1.3
    assert float(effective_rank(held)) > 3.5
    if method == "vje":  # its likelihood sees directions: one for all is the best
        loose = nn.functional.normalize(loose, dim=-1)
        assert float(nn.functional.normalize(held, dim=-1).std(0).mean()) > 0.4
    assert float(loose.std(0).mean()) < 0.15


VARIANTS = [("lejepa-vje", {}), ("lejepa-mdn", {"components": 3, "width": 64})]


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_another_view_of_a_digit_is_expected(method, options, tmp_path):
    source = je.data.open_source("digits")
    model = je.train(
        "digits", method, tiny_network(), epochs=5, out=tmp_path / "run", batch_size=128, preset="mnist", dim=16,
        projector_width=64, num_slices=64, hold_out=0.0, progress=False, watch_every=100, **options,
    )  # fmt: skip
    images = source.batch(range(400))
    shifted = model.embed(images.roll(1, -1), "projector")  # by a pixel: another view
    posterior = model.posterior(images)
    assert posterior.batch_shape == (400,) and posterior.event_shape == (16,)
    assert float(posterior.variance.min()) >= 0.25  # the floor
    gap = posterior.log_prob(shifted) - posterior.log_prob(shifted.roll(1, 0))  # over that of another digit, in nats
    assert float(gap.mean()) > 1
    assert float(effective_rank(shifted)) > 6 and 0.4 < float(shifted.std(0).mean()) < 1.3
    projected = model.embed(images, "projector")
    scores = model.anomaly_scores(images)
    torch.testing.assert_close(scores["density"], -model.method.density().log_prob(projected), rtol=1e-4, atol=1e-3)
    if method == "lejepa-mdn":
        torch.testing.assert_close(scores["conditional"], -posterior.log_prob(projected), rtol=1e-4, atol=1e-3)
    else:
        assert float(posterior.variance.max()) <= 1  # no wider than all embeddings
        for i in range(3):
            mu, variance, x = posterior.mean[i], posterior.variance[i], projected[i]
            direction = multivariate_t(mu / mu.norm(), torch.diag(variance / 16), 3.0).logpdf(x / x.norm())
            radius = t(3.0).logpdf(float(x.norm() - mu.norm()))
            assert float(scores["joint"][i]) == pytest.approx(-direction - radius, rel=1e-3, abs=1e-2)
        torch.testing.assert_close(scores["variance"], posterior.variance.sum(-1))
        torch.testing.assert_close(scores["entropy"], posterior.entropy())
        one = torch.stack([model.anomaly_score(images, "joint", samples=1, seed=seed) for seed in range(40)])
        many = model.anomaly_score(images, "joint", samples=200, seed=99)
        assert bool(((one.mean(0) - many).abs() < 5 * one.std(0) * (1 / 40 + 1 / 200) ** 0.5).all())
    again = je.load(tmp_path / "run", backbone=tiny_network()).posterior(images)
    torch.testing.assert_close(again.mean, posterior.mean)
    torch.testing.assert_close(again.variance, posterior.variance)


def test_bad_arguments_are_named():
    z, posterior = problem()
    mixture, tests = single(z, 0.0, 1.0), sigreg()
    for ask, words in [
        (lambda: lejepa_vje_loss(z[0], posterior, 2, tests), r"z: expected \(V, N, D\), got shape \(6, 5\)"),
        (lambda: lejepa_vje_loss(z, posterior, 3, tests), "num_global: expected 1 to 2, .* got 3"),
        (lambda: lejepa_vje_loss(z[..., :3], posterior, 2, tests), r"posterior: expected shape \(2, 6, 3\)"),
        (lambda: lejepa_vje_loss(z, posterior, 2, tests, weight=1.5), "weight: expected a number from 0 to 1, got 1.5"),
        (lambda: lejepa_mdn_loss(z[:1], mixture, 1, tests), "z: expected at least two views, got 1"),
        (lambda: lejepa_mdn_loss(z[..., :3], mixture, 2, tests), "conditional: expected .* 3 dimensions as z has, got"),
    ]:
        with pytest.raises(ValueError, match=words):
            ask()
    backbone = tiny_network()
    backbone.num_features = 32
    for method, options, words in [
        ("lejepa-vje", {"floor": 0.0}, "floor: expected a standard deviation above 0 and below 1, .* got 0"),
        ("lejepa-vje", {"floor": 1.0}, "floor: expected a standard deviation above 0 and below 1, .* got 1"),
        ("lejepa-vje", {"df": 0.0}, "df: expected a number above 0, got 0"),
        ("lejepa-vje", {"samples": 0}, "samples: expected at least 1, got 0"),
        ("lejepa-mdn", {"weight": -0.1}, "weight: expected a number from 0 to 1, got -0.1"),
        ("lejepa-mdn", {"dim": 0}, "dim: expected at least 1, got 0"),
        ("lejepa-mdn", {"departure": -1.0}, "departure: expected at least 0, got -1.0"),
        ("lejepa-mdn", {"components": 0}, "components: expected at least 1, got 0"),
        ("lejepa-mdn", {"projector_layers": 4}, "projector_layers: expected 1, 2 or 3, got 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            je.methods.create(method, backbone, **options)
