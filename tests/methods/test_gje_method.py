"""GJE as a method: both directions of its losses, what it remembers, and short real training."""

import math

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_network
from torch import nn
from torch.distributions import Independent, MultivariateNormal

import jointembed as je
from jointembed import methods
from jointembed.methods.gje import (
    GJE,
    dual_gje_loss,
    dual_prediction,
    hsic_loss,
    primal_gje_loss,
    primal_prediction,
    rff_gje_loss,
)
from jointembed.methods.gje.losses import primal_terms, whiten
from jointembed.metrics import effective_rank, knn_predict
from jointembed.training import Diverged


def tiny_gje(**options):
    network = tiny_network()
    network.num_features = 32
    return GJE(network, **({"dim": 8, "projector_width": 16, "bank": 30} | options))


@pytest.mark.parametrize("variant", ["primal", "hsic", "dual", "rff"])
def test_two_views_in_the_method_are_both_directions_of_the_loss(variant):
    torch.manual_seed(0)
    method = tiny_gje(variant=variant, num_features=32).eval()
    views = list(torch.randn(2, 12, 1, 8, 8))
    z = [F.normalize(method.projector(method.backbone(view)), dim=1) for view in views]
    process = {"lengthscale": 1.0, "amplitude": 0.5, "noise": 0.55}
    loss = {  # the averaged encoder is still a copy
        "primal": lambda c, t: primal_gje_loss(c, t)["loss"],
        "hsic": lambda c, t: hsic_loss(c, t, normalised=True, entropy_weight=0.3 / 8)["loss"],
        "dual": lambda c, t: dual_gje_loss(c, whiten(t, 0.05), **process)["loss"] / (12 * 8),
        "rff": lambda c, t: rff_gje_loss(c, whiten(t, 0.05), **process, num_features=32)["loss"] / (12 * 8),
    }[variant]
    torch.testing.assert_close(method(views, 2)["loss"], (loss(*z) + loss(*z[::-1])) / 2, rtol=1e-4, atol=1e-5)
    assert method.joint_mean.isnan().all()  # nothing is remembered outside training


def test_local_views_are_contexts_only(monkeypatch):
    method, seen = tiny_gje(), []
    terms = method._terms
    monkeypatch.setattr(method, "_terms", lambda c, t: seen.append((len(c), len(t))) or terms(c, t))
    views = [torch.randn(12, 1, 8, 8) for _ in range(2)] + [torch.randn(12, 1, 4, 4) for _ in range(2)]
    method(views, 2)["loss"].backward()
    assert seen == [(2 * 1 + 2 * 2,) * 2]


@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_all_pairs_at_once_are_the_mean_of_the_loss_over_each(entropy):
    torch.manual_seed(0)
    z = torch.randn(2, 5, 12, 8).double().requires_grad_()
    together = primal_terms(*F.normalize(z, dim=-1), 3.0, entropy, 0.05)
    each = [primal_gje_loss(*pair, 3.0, entropy, 0.05) for pair in zip(*z, strict=True)]
    alone = {name: torch.stack([one[name] for one in each]).mean() for name in together}
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(*(torch.autograd.grad(found["loss"], z) for found in (together, alone)))


def test_joint_moments_and_bank_are_those_of_the_pairs():
    method = tiny_gje(variant="dual")
    torch.manual_seed(0)
    first, second = F.normalize(torch.randn(2, 2, 20, 8), dim=-1)
    method._remember(*first[:, None])
    joint = torch.cat(list(first), 1)
    torch.testing.assert_close(method.joint_moment, joint.T @ joint / 20)
    assert int(method.bank_context.isfinite().all(1).sum()) == 20
    method._remember(*second[:, None])
    torch.testing.assert_close(method.joint_mean, 0.99 * joint.mean(0) + 0.01 * torch.cat(list(second), 1).mean(0))
    assert torch.equal(method.bank_context[10:], second[0]) and torch.equal(method.bank_target[:10], first[1][10:])


def test_targets_of_the_dual_come_from_an_averaged_encoder_without_gradient():
    torch.manual_seed(0)
    method = tiny_gje(variant="dual", ema=0.9)
    method(list(torch.randn(2, 12, 1, 8, 8)), 2)["loss"].backward()
    assert all(p.grad is None for p in method.average.parameters())
    assert method.log_process.grad.ne(0).all()
    method.after_step()
    before = method.projector[0].weight.detach().clone()
    with torch.no_grad():
        method.projector[0].weight.add_(1)
    method.after_step()
    torch.testing.assert_close(method.average.module[1][0].weight, before + 0.1)
    assert tiny_gje(variant="primal").average is None


def test_posterior_of_an_untrained_model_is_refused():
    with pytest.raises(ValueError, match="model: it has no density of pairs"):
        tiny_gje().posterior({"projector": torch.zeros(3, 8)})


def test_divergence_is_reported_by_the_trainer(tmp_path):
    with pytest.raises(Diverged):
        je.train("digits", "gje", tiny_network(), epochs=1, out=tmp_path, optimizer="sgd", lr=1e30, progress=False)


TRAINED = {"primal": (8, 0.9), "hsic": (5, 0.8), "dual": (5, 0.8), "rff": (5, 0.8)}  # epochs, k-NN accuracy


@pytest.mark.parametrize("variant", TRAINED)
def test_trains_on_images_and_answers_afterwards(variant, tmp_path):
    epochs, accuracy = TRAINED[variant]
    model = je.train(
        "digits", "gje", "resnet10-tiny", epochs=epochs, out=tmp_path, batch_size=128, lr=3e-3, preset="mnist",
        variant=variant, num_features=128, progress=False,
    )  # fmt: skip
    source = je.data.open_source("digits")
    z, projections = model.embed(source, progress=False), model.embed(source, "projector", progress=False)
    assert effective_rank(projections) > 64 / 2 and effective_rank(z) > 128 / 4
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    few, rest = order[:400], order[400:]
    predicted = knn_predict(z[rest], source.labels[rest], z[few]).argmax(1)
    found = float((predicted == source.labels[few]).float().mean())
    assert found > accuracy

    images = source.batch(range(40))
    posterior, again = model.posterior(images), je.load(tmp_path).posterior(images)
    assert posterior.batch_shape == (40,) and posterior.event_shape == (64,)
    torch.testing.assert_close(again.mean, posterior.mean)
    torch.testing.assert_close(again.variance, posterior.variance)
    assert isinstance(posterior, MultivariateNormal if variant in ("primal", "hsic") else Independent)
    torch.testing.assert_close(je.load(tmp_path).log_prob(images), model.log_prob(images))
    assert model.anomaly_score(images).shape == (40,) and model.sample(5).shape == (5, 64)
    # Given one view, its own image's other view is likelier than another image's.
    own, other = posterior.log_prob(projections[:40]), posterior.log_prob(projections[:40].roll(1, 0))
    assert own.mean() > other.mean()


# Bad input


def test_bad_arguments_are_named():
    z, other = torch.randn(2, 12, 4, dtype=torch.float64)
    nan = z.clone()
    nan[3, 1] = torch.nan
    for words, call in {
        r"z_context: expected \(B, D\) with at least two rows, got shape \(4,\)": lambda: dual_gje_loss(z[0], other),
        "z_target: expected 12 rows as z_context has, got 11": lambda: hsic_loss(z, other[1:]),
        "z_target: expected finite numbers, got 1 that are not": lambda: primal_gje_loss(z, nan),
        r"z_target: expected \(12, 4\) as z_context has, got \(12, 3\)": lambda: primal_gje_loss(z, other[:, :3]),
        "kernel: expected one of rbf, linear, matern12, matern32, matern52, got 'cosine'": lambda: dual_gje_loss(
            z, other, "cosine"
        ),
        "lengthscale: expected above 0, got 0.0": lambda: dual_gje_loss(z, other, lengthscale=0.0),
        "amplitude: expected above 0, got -1": lambda: rff_gje_loss(z, other, amplitude=-1.0),
        "noise: expected above 0, got nan": lambda: rff_gje_loss(z, other, noise=math.nan),
        "noise: expected enough for a matrix that is positive definite in torch.float64, got 1e-30": lambda: (
            dual_gje_loss(torch.ones_like(z), other, noise=1e-30)
        ),
        "num_features: expected at least 1, got 0": lambda: rff_gje_loss(z, other, num_features=0),
        "entropy: expected one of marginal, joint, got 'both'": lambda: primal_gje_loss(z, other, entropy="both"),
        "alignment_weight: expected at least 0, got -1": lambda: primal_gje_loss(z, other, -1.0),
        "entropy_weight: expected at least 0, got -1": lambda: hsic_loss(z, other, entropy_weight=-1.0),
        "jitter: expected enough": lambda: primal_gje_loss(z[:2], other[:2], jitter=0.0),
        r"z_new: expected \(N, 4\) as z_context has, got shape \(12, 3\)": lambda: dual_prediction(z, other, z[:, :3]),
        r"covariance: expected \(d, d\) with d above 4": lambda: primal_prediction(z, torch.eye(3)),
        "covariance: expected a positive definite matrix": lambda: primal_prediction(z, -torch.eye(8)),
        r"mean: expected \(8,\)": lambda: primal_prediction(z, torch.eye(8), torch.zeros(4)),
        "variant: expected one of primal, hsic, dual, rff, got 'prime'": lambda: GJE(nn.Identity(), variant="prime"),
        "projector_layers": lambda: GJE(nn.Identity(), projector_layers=4),
        "dim, projector_width": lambda: GJE(nn.Identity(), dim=1),
        "ema: expected a decay from 0 to below 1, got 1": lambda: GJE(nn.Identity(), ema=1.0),
        "bank: expected at least 2 pairs, got 0": lambda: GJE(nn.Identity(), bank=0),
        "views: expected at least two, got 1": lambda: tiny_gje()([torch.zeros(4, 1, 8, 8)], 1),
        "alignment: method 'gje' has no such option": lambda: methods.create("gje", nn.Identity(), alignment=1),
    }.items():
        with pytest.raises(ValueError, match=f"^{words}"):
            call()
