"""VSSL against torch and Monte Carlo, what its two forms do and do not see, and short real training."""

import pytest
import torch
from tiny import tiny_network
from torch.distributions import Independent, Laplace, Normal, kl_divergence

import jointembed as je
from jointembed.methods.vssl import VSSL, vssl_loss
from jointembed.metrics import effective_rank


def problem(views=2, count=4, dim=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    mean, prior_mean = torch.randn(2, views, count, dim, dtype=torch.float64, generator=g)
    scale, prior_scale = 0.2 + torch.rand(2, views, count, dim, dtype=torch.float64, generator=g)
    return Normal(mean, scale), Normal(prior_mean, prior_scale)


def one(gaussian, view):
    return Normal(gaussian.loc[view], gaussian.scale[view])


def test_the_analytic_loss_is_the_teachers_score_of_samples_and_torchs_divergence():
    torch.manual_seed(0)
    student, teacher = problem()
    terms = vssl_loss(student, teacher, beta=0.6)
    nll = kl = 0.0
    for i, j in ((0, 1), (1, 0)):
        q, p = one(student, i), one(teacher, j)
        nll -= float(p.log_prob(q.sample((200_000,))).sum(-1).mean()) / 2
        kl += float(kl_divergence(q, p).sum(-1).mean()) / 2
    assert float(terms["nll"]) == pytest.approx(nll, rel=1e-2)
    assert float(terms["kl"]) == pytest.approx(kl)
    assert float(terms["loss"]) == pytest.approx(float(terms["nll"]) + 0.6 * kl)


def test_the_cosine_loss_sees_directions_of_means_and_variances_only():
    student, teacher = problem()
    plain = vssl_loss(student, teacher, "cosine", beta=0.6)
    scaled = vssl_loss(Normal(7 * student.loc, 0.1 * student.scale), teacher, "cosine", beta=0.6)
    torch.testing.assert_close(scaled["loss"], plain["loss"])
    assert float(vssl_loss(Normal(7 * student.loc, 0.1 * student.scale), teacher)["loss"]) != pytest.approx(
        float(vssl_loss(student, teacher)["loss"]), rel=0.5
    )
    nll = kl = 0.0
    for i, j in ((0, 1), (1, 0)):
        for n in range(4):
            cosines = [
                float(a @ b / (a.norm() * b.norm()))
                for a, b in (
                    (student.loc[i, n], teacher.loc[j, n]),
                    (student.variance[i, n], teacher.variance[j, n]),
                )
            ]
            nll += (1 - cosines[0]) / 8
            kl += (2 - sum(cosines)) / 8
    assert float(plain["nll"]) == pytest.approx(nll) and float(plain["kl"]) == pytest.approx(kl)


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_the_best_variance_is_a_share_of_the_teachers_however_far_the_means_are(beta):
    teacher = problem()[1]
    for distance in (0.0, 3.0):
        scale = (beta / (1 + beta)) ** 0.5 * teacher.scale.flip(0)  # of the other view
        scale.requires_grad_()
        mean = teacher.loc.flip(0) + distance
        vssl_loss(Normal(mean, scale), teacher, beta=beta)["loss"].backward()
        torch.testing.assert_close(scale.grad, torch.zeros_like(scale), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["analytic", "cosine"])
def test_gradcheck_and_no_gradient_for_the_teacher(form):
    student, teacher = problem(count=2, dim=3)
    inputs = tuple(x.requires_grad_() for x in (student.loc, student.scale))
    prior = tuple(x.requires_grad_() for x in (teacher.loc, teacher.scale))
    assert torch.autograd.gradcheck(lambda m, s: vssl_loss(Normal(m, s), Normal(*prior), form)["loss"], inputs)
    vssl_loss(Normal(*inputs), Normal(*prior), form)["loss"].backward()
    assert all(x.grad.abs().max() > 0 for x in inputs) and all(x.grad is None for x in prior)


def tiny_vssl(**options):
    network = tiny_network()
    network.num_features = 32
    return VSSL(network, **({"dim": 16, "projector_width": 32, "predictor_width": 16} | options))


def test_the_teacher_follows_and_is_not_trained():
    torch.manual_seed(0)
    method = tiny_vssl(ema=0.9)
    before = method.teacher.module[1].variance.weight.clone()
    with torch.no_grad():
        method.head.variance.weight += 1
    method.after_step()
    torch.testing.assert_close(method.teacher.module[1].variance.weight, before + 0.1)
    method(list(torch.randn(2, 5, 1, 8, 8)), 2)["loss"].backward()
    assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())
    assert method.head.variance.weight.grad.abs().max() > 0


def test_the_method_scores_a_view_by_what_the_teacher_made_of_the_other():
    torch.manual_seed(0)
    method = tiny_vssl(predictor_width=0).eval()
    with torch.no_grad():
        method.head.variance.bias += 1  # so that student and teacher differ
    views = list(torch.randn(2, 5, 1, 8, 8))
    expected = 0.0
    for own, other in (views, views[::-1]):
        q = method.posterior(method.encode(own))
        mean, variance = method.teacher(other).chunk(2, -1)
        p = Independent(Normal(mean, variance.sqrt()), 1)
        expected += (2 * kl_divergence(q, p) + q.entropy()).mean() / 2
    torch.testing.assert_close(method(views, 2)["loss"], expected)


def test_variances_sink_to_their_floor_in_the_analytic_form_and_not_in_the_other():
    """What the fixed point beta/(1 + beta) var_t comes to when the teacher follows."""

    def train(form):
        torch.manual_seed(0)
        backbone = torch.nn.Flatten()
        backbone.num_features = 6
        method = VSSL(backbone, form, dim=4, projector_width=16, predictor_width=8, floor=0.1, ema=0.5)
        optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], 1e-2)
        x = torch.randn(64, 6, 1, 1)
        for _ in range(150):
            loss = method(list(x + 0.3 * torch.randn(2, *x.shape)), 2)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            method.after_step()
        return float(method.encode(x)["variance"].detach().mean())

    assert 0.01 < train("analytic") < 0.05  # from 0.7
    assert train("cosine") > 0.1


@pytest.mark.parametrize("form", ["analytic", "cosine"])
def test_what_the_teacher_makes_of_another_view_of_a_digit_is_expected(form, tmp_path):
    source = je.data.open_source("digits")
    model = je.train(
        "digits", "vssl", tiny_network(), epochs=7, out=tmp_path / "run", batch_size=128, preset="mnist", dim=16,
        ema=0.9, projector_width=64, predictor_width=32, hold_out=0.0, progress=False, watch_every=100, form=form,
    )  # fmt: skip
    images = source.batch(range(400))
    shifted = images.roll(1, -1)  # by a pixel: another view
    posterior = model.posterior(images)
    assert posterior.batch_shape == (400,) and posterior.event_shape == (16,)
    with torch.no_grad():
        prior = model.method.teacher(model.views.single(shifted)).chunk(2, -1)[0]
    cosine = torch.nn.functional.cosine_similarity
    gap = cosine(posterior.mean, prior) - cosine(posterior.mean, prior.roll(1, 0))  # over another digit's
    assert float(gap.mean()) > 0.1
    assert float(effective_rank(model.embed(shifted, "mu"))) > 4
    scores = model.anomaly_scores(images)
    assert list(scores) == ["density", "variance", "entropy"]
    torch.testing.assert_close(scores["variance"], posterior.variance.sum(-1))
    torch.testing.assert_close(scores["entropy"], posterior.entropy())
    again = je.load(tmp_path / "run", backbone=tiny_network()).posterior(images)
    torch.testing.assert_close(again.mean, posterior.mean)
    torch.testing.assert_close(again.variance, posterior.variance)


def test_bad_arguments_are_named():
    student, teacher = problem()
    for ask, words in [
        (lambda: vssl_loss(student, teacher, "angular"), "form: expected one of analytic, cosine, got 'angular'"),
        (lambda: vssl_loss(student, teacher, beta=-1.0), "beta: expected a number of at least 0, got -1"),
        (lambda: vssl_loss(student, Laplace(teacher.loc, 1.0)), "teacher: expected a torch Normal, got Laplace"),
        (lambda: vssl_loss(student, Normal(teacher.loc[..., :2], 1.0)), r"targets: expected \(G, 4, 5\)"),
        (lambda: tiny_vssl(form="angular"), "form: expected"),
        (lambda: tiny_vssl(floor=0.0), "floor: expected a number above 0, got 0"),
        (lambda: tiny_vssl(ema=1.5), "ema: expected a decay from 0 to 1, got 1.5"),
        (lambda: tiny_vssl(predictor_width=-1), "predictor_width: expected a number of at least 0, got -1"),
    ]:
        with pytest.raises(ValueError, match=words):
            ask()
