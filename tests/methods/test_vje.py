"""VJE against Algorithm 4 in plain loops, the limits the paper derives, and short real training."""

import math

import pytest
import torch
from scipy.stats import multivariate_t, t
from tiny import tiny_network
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

import jointembed as je
from jointembed import methods
from jointembed.distributions import PolarStudentT
from jointembed.methods.vje import VJE, InferenceNetwork, vje_loss


def problem(count=6, dim=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    z1, z2, mu1, mu2 = 2 * torch.randn(4, count, dim, dtype=torch.float64, generator=g)
    v1, v2 = 0.05 + torch.rand(2, count, dim, dtype=torch.float64, generator=g)
    return z1, z2, Normal(mu1, v1.sqrt()), Normal(mu2, v2.sqrt())


def point(posterior):
    """The same mean with next to no variance: its samples are its mean."""
    return Normal(posterior.loc, torch.full_like(posterior.loc, 1e-12))


class FixedNoise:
    """Makes the draws of both directions known: what `rsample` would have drawn."""

    def __init__(self, monkeypatch, shape, seed=3):
        self.noise = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.calls = iter(self.noise)
        monkeypatch.setattr(
            Normal, "rsample", lambda q, s=(): (q.loc + q.scale * next(self.calls)).expand(*s, *q.loc.shape)
        )


def test_the_loss_is_algorithm_4(monkeypatch):
    z1, z2, q1, q2 = problem()
    noise = FixedNoise(monkeypatch, z1.shape).noise
    nu, beta, dim = 2.5, 0.7, z1.shape[1]
    direction, radius, kl = 0.0, 0.0, 0.0
    for (target, q), eps in zip(((z2, q1), (z1, q2)), noise, strict=True):
        for n in range(len(z1)):  # the textbook: one image, one dimension at a time
            mu, var = q.loc[n].tolist(), q.variance[n].tolist()
            s = [m + math.sqrt(v) * e for m, v, e in zip(mu, var, eps[n].tolist(), strict=True)]
            length, target_length = math.hypot(*s), math.hypot(*target[n].tolist())
            residuals = [a / length - b / target_length for a, b in zip(s, target[n].tolist(), strict=True)]
            big_q = sum(r * r / v for r, v in zip(residuals, var, strict=True))
            direction += (nu + dim) / 2 * math.log(1 + big_q / nu) + 0.5 * sum(map(math.log, var))
            radius += (nu + 1) / 2 * math.log(1 + (target_length - length) ** 2 / nu)
            kl += 0.5 * sum(v + m * m - 1 - math.log(v) for m, v in zip(mu, var, strict=True))
    terms = vje_loss(z1, z2, q1, q2, df=nu, beta=beta)
    count = 2 * len(z1)
    assert float(terms["direction"]) == pytest.approx(direction / count)
    assert float(terms["radius"]) == pytest.approx(radius / count)
    assert float(terms["kl"]) == pytest.approx(kl / count)
    assert float(terms["loss"]) == pytest.approx((direction + radius + beta * kl) / count)


def test_kl_is_that_of_torch():
    z1, z2, q1, q2 = problem()
    prior = Normal(torch.zeros_like(z1), torch.ones_like(z1))
    expected = (kl_divergence(q1, prior) + kl_divergence(q2, prior)).sum(-1).mean() / 2
    torch.testing.assert_close(vje_loss(z1, z2, q1, q2)["kl"], expected)


def test_loss_is_the_likelihood_without_constants(monkeypatch):
    z1, z2, q1, q2 = problem()
    noise = FixedNoise(monkeypatch, z1.shape).noise
    terms = vje_loss(z1, z2, q1, q2, df=3.0)
    s1, s2 = q1.loc + q1.scale * noise[0], q2.loc + q2.scale * noise[1]
    full = [PolarStudentT(s, q.variance, 3.0).log_prob(z).mean() for s, q, z in ((s1, q1, z2), (s2, q2, z1))]
    dim = z1.shape[1]
    constant = multivariate_t(torch.zeros(dim), torch.eye(dim), 3.0).logpdf([0] * dim) + t(3.0).logpdf(0)
    assert float(terms["direction"] + terms["radius"]) == pytest.approx(constant - float(sum(full)) / 2)


@pytest.mark.parametrize("chosen", [("direction", "kl"), ("radius", "kl"), ("direction", "radius"), ("radius",)])
def test_terms_can_be_left_out(chosen):
    terms = vje_loss(*problem(), beta=0.5, terms=chosen)
    weights = {"direction": 1.0, "radius": 1.0, "kl": 0.5}
    assert float(terms["loss"]) == pytest.approx(sum(weights[name] * float(terms[name]) for name in chosen))


def test_squared_error_is_the_limit_of_a_point_posterior_and_a_gaussian():
    z1, z2, q1, q2 = problem()
    terms = vje_loss(z1, z2, point(q1), point(q2), beta=0.0, likelihood="gaussian")
    jepa = (z2 - q1.loc).square().sum(-1).mean() / 4 + (z1 - q2.loc).square().sum(-1).mean() / 4
    torch.testing.assert_close(terms["loss"], jepa)


def test_cosine_is_the_limit_of_the_direction_alone(monkeypatch):
    z1, z2, q1, q2 = problem()
    unit1, unit2 = (Normal(q.loc, torch.ones_like(q.loc)) for q in (q1, q2))
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    terms = vje_loss(z1, z2, unit1, unit2, df=float("inf"), beta=0.0, terms=("direction",))
    cosine = nn.functional.cosine_similarity
    simsiam = 1 - (cosine(q1.loc, z2).mean() + cosine(q2.loc, z1).mean()) / 2
    torch.testing.assert_close(terms["loss"], simsiam)


def test_large_df_tends_to_the_gaussian(monkeypatch):
    z1, z2, q1, q2 = problem()

    def loss(df):
        FixedNoise(monkeypatch, z1.shape)
        return vje_loss(z1, z2, q1, q2, df=df)["loss"]

    gaps = [(loss(df) - loss(float("inf"))).abs() for df in (1e3, 1e5, 1e7)]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2] and gaps[2] < 1e-3


@pytest.mark.parametrize("df", [3.0, float("inf")])
def test_unfactored_student_is_that_of_scipy(df, monkeypatch):
    z1, z2, q1, q2 = problem(count=1)
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    found = vje_loss(z1, z2, q1, q2, df=df, likelihood="student")["likelihood"]
    log_density, dim = 0.0, z1.shape[1]
    for q, z in ((q1, z2), (q2, z1)):
        law = multivariate_t(q.loc[0], torch.diag(q.variance[0]), min(df, 1e9))
        log_density += law.logpdf(z[0]) - multivariate_t(torch.zeros(dim), torch.eye(dim), min(df, 1e9)).logpdf(
            [0] * dim
        )
    assert float(found) == pytest.approx(-log_density / 2, rel=1e-5)


def test_targets_are_fixed_observations_unless_asked():
    for detach, flows in ((True, False), (False, True)):
        z1, z2, q1, q2 = problem()
        z1.requires_grad_()
        mu = q1.loc.requires_grad_()
        vje_loss(z1, z2, Normal(mu, q1.scale), q2, detach=detach)["loss"].backward()
        assert mu.grad.abs().min() > 0
        assert (z1.grad is not None and bool(z1.grad.abs().max() > 0)) == flows


def test_variance_is_tied_between_posterior_and_likelihood(monkeypatch):
    """With no noise drawn and no KL, the variance still has a gradient: that of the directional scale alone."""
    z1, z2, q1, q2 = problem()
    monkeypatch.setattr(Normal, "rsample", lambda q, s=(): q.loc.expand(*s, *q.loc.shape))
    scale = q1.scale.requires_grad_()
    vje_loss(z1, z2, Normal(q1.loc, scale), q2, terms=("direction", "radius"))["loss"].backward()
    variance = q1.variance.detach().requires_grad_()
    (PolarStudentT(q1.loc, variance, 3.0).direction_loss(z2).mean() / 2).backward()
    torch.testing.assert_close(scale.grad, variance.grad * 2 * scale.detach())


def test_many_samples_reduce_the_noise_and_keep_the_mean():
    torch.manual_seed(0)
    args = problem(count=8)
    one = torch.stack([vje_loss(*args)["loss"] for _ in range(2000)])
    many = torch.stack([vje_loss(*args, samples=16)["loss"] for _ in range(200)])
    assert one.std() / many.std() == pytest.approx(4, rel=0.2)
    assert float(one.mean() - many.mean()) == pytest.approx(0, abs=4 * float(one.std()) / 2000**0.5)


def test_independent_posteriors_are_taken_too(monkeypatch):
    z1, z2, q1, q2 = problem()
    FixedNoise(monkeypatch, z1.shape)
    plain = vje_loss(z1, z2, q1, q2)["loss"]
    FixedNoise(monkeypatch, z1.shape)
    assert vje_loss(z1, z2, Independent(q1, 1), Independent(q2, 1))["loss"] == plain


def test_bad_arguments_are_named():
    z1, z2, q1, q2 = problem()
    for options, words in [
        ({"df": 0.0}, "df: expected degrees of freedom above 0, got 0"),
        ({"df": float("nan")}, "df"),
        ({"beta": -1.0}, "beta: expected a weight of at least 0, got -1"),
        ({"terms": ("kl",)}, "terms: expected some of direction, radius, kl"),
        ({"terms": ("directions",)}, "terms"),
        ({"likelihood": "cauchy"}, "likelihood: expected one of polar, student, gaussian, got 'cauchy'"),
        ({"likelihood": "student", "terms": ("direction", "kl")}, "terms: the student likelihood"),
        ({"samples": 0}, "samples: expected at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            vje_loss(z1, z2, q1, q2, **options)
    with pytest.raises(ValueError, match="z2: expected"):
        vje_loss(z1, z2[:, :3], q1, q2)
    with pytest.raises(ValueError, match=r"posterior1: expected shape \(6, 5\) as z has, got \(6, 3\)"):
        vje_loss(z1, z2, Normal(q1.loc[:, :3], q1.scale[:, :3]), q2)
    with pytest.raises(ValueError, match="posterior: expected a torch Normal, got Laplace"):
        vje_loss(z1, z2, torch.distributions.Laplace(q1.loc, q1.scale), q2)


def test_inference_network_looks_at_one_image_at_a_time():
    torch.manual_seed(0)
    network, z = InferenceNetwork(12).train(), torch.randn(8, 12)
    whole, alone = network(z), network(z[3:4])
    torch.testing.assert_close(whole.mean[3:4], alone.mean)
    torch.testing.assert_close(whole.variance[3:4], alone.variance)
    assert [layer.out_features for layer in network.layers if isinstance(layer, nn.Linear)] == [48, 12, 48]
    nn.init.constant_(network.variance.bias, -1e3)
    assert float(network(z).variance.detach().min()) == pytest.approx(1e-6, rel=1e-3)  # the floor


def tiny_vje(**options):
    network = tiny_network()
    network.num_features = 32
    return VJE(network, **options)


def test_two_views_in_the_method_are_algorithm_4(monkeypatch):
    torch.manual_seed(0)
    method = tiny_vje().eval()
    views = list(torch.randn(2, 5, 1, 8, 8))
    z = [method.backbone(view) for view in views]
    torch.manual_seed(1)
    found = method(views, 2)
    torch.manual_seed(1)
    expected = vje_loss(*z, *(method.inference(one) for one in z))
    torch.testing.assert_close(found["loss"], expected["loss"])


def test_gradient_reaches_the_encoder_through_the_posterior_only():
    torch.manual_seed(0)
    method = tiny_vje().eval()
    views = list(torch.randn(2, 5, 1, 8, 8))
    method.inference.requires_grad_(False)

    def encoder_gradient(target):
        method.target = target
        method.zero_grad()
        torch.manual_seed(1)
        method(views, 2)["loss"].backward()
        return method.backbone[0].weight.grad.clone()

    assert encoder_gradient("detached").abs().max() > 0
    assert not torch.allclose(encoder_gradient("detached"), encoder_gradient("attached"))


def test_ema_target_follows_slowly_and_is_no_parameter_of_the_optimiser():
    torch.manual_seed(0)
    method = tiny_vje(target="ema", ema=0.9)
    before = method.average.module[0][0].weight.clone()
    with torch.no_grad():
        method.backbone[0].weight += 1
    method.after_step()  # the first update copies, as in torch
    with torch.no_grad():
        method.backbone[0].weight += 1
    method.after_step()
    torch.testing.assert_close(method.average.module[0][0].weight, before + 1.1)
    assert not any(p.requires_grad for p in method.average.parameters())
    assert method(list(torch.randn(2, 5, 1, 8, 8)), 2)["loss"].isfinite()


def test_projector_moves_the_likelihood_but_not_the_features():
    method = tiny_vje(projector=24).eval()
    encoded = method.encode(torch.randn(5, 1, 8, 8))
    assert {name: value.shape[1] for name, value in encoded.items()} == {
        "z": 32,
        "projector": 24,
        "mu": 24,
        "variance": 24,
    }
    assert method.score(encoded, "joint", 0, 0).shape == (5,)


def test_local_views_explain_and_are_not_explained():
    torch.manual_seed(0)
    method = tiny_vje()
    seen = []
    original = methods.vje.directed_terms
    views = [torch.randn(5, 1, 8, 8) for _ in range(2)] + [torch.randn(5, 1, 4, 4) for _ in range(2)]
    try:
        methods.vje.directed_terms = lambda target, *rest: seen.append(target) or original(target, *rest)
        method(views, 2)["loss"].backward()
    finally:
        methods.vje.directed_terms = original
    (targets,) = seen  # all directions at once
    assert len(targets) == 2 * 1 + 2 * 2


def test_four_views_are_the_mean_of_their_twelve_directions():
    """Without noise, so that the directions can be computed one by one."""
    torch.manual_seed(0)
    method = tiny_vje().eval()
    views = [torch.randn(5, 1, 8, 8) for _ in range(4)]
    with torch.no_grad():
        z = torch.stack([method.projector(method.backbone(view)) for view in views])
        posterior = method.inference(z)
    one = torch.full_like(z[0], 1e-6)  # a posterior that says its mean

    class Sure(torch.nn.Module):
        def forward(self, z):
            return Normal(posterior.loc, one.expand_as(posterior.loc))

    method.inference = Sure()
    found = method(views, 4)
    for name in ("direction", "radius", "kl"):
        each = [
            vje_loss(z[i], z[j], *(Normal(posterior.loc[k], one) for k in (i, j)), df=method.df)[name]
            for i in range(4)
            for j in range(i)
        ]  # both directions of six pairs
        assert float(found[name]) == pytest.approx(float(torch.stack(each).mean()), rel=1e-4), name


REGIMES = {  # the paper's Table 7, after seconds: (least mean, most mean, least CV, most CV) of the posterior variance
    ("direction", "radius", "kl"): (0.2, 0.8, 0.15, 3.0),
    ("direction", "kl"): (0.2, 0.8, 0.15, 3.0),
    ("direction", "radius"): (0.0, 0.03, 0.0, math.inf),
    ("direction",): (0.0, 0.03, 0.0, math.inf),
    ("radius", "kl"): (0.9, 1.1, 0.0, 0.05),
}


RARE = (("direction", "kl"), ("direction",), ("radius", "kl"))  # the first two end as others do


@pytest.mark.parametrize("terms", [pytest.param(t, marks=pytest.mark.soak) if t in RARE else t for t in REGIMES])
def test_regimes_of_the_ablation(terms, tmp_path):
    model = je.train(
        "digits", "vje", "resnet10-tiny", epochs=4, out=tmp_path, batch_size=64, lr=3e-3, terms=terms,
        preset="mnist", progress=False,
    )  # fmt: skip
    variance = model.embed("digits", "variance", progress=False)
    least, most, least_cv, most_cv = REGIMES[terms]
    assert least <= float(variance.mean()) <= most
    assert least_cv <= float((variance.std(1) / variance.mean(1)).mean()) <= most_cv
