"""What makes views agree that do not yet, and keeps components in use: the priors of GMJE and GMJE-MDN."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from tiny import tiny_network

from jointembed import methods
from jointembed.backbones import create_backbone
from jointembed.distributions import GaussianMixture
from jointembed.methods.gmje import MixtureDensityNetwork, mdn_loss, prototype_loss
from jointembed.methods.gmje.components import OnlinePrototypes, Prototypes
from jointembed.methods.gmje.guard import guard_for

DIM = 4


def unrelated(n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views (n, DIM) of which each is white, and has no correlation at all with the other."""
    x = torch.randn(n, 2 * DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.linalg.qr(x - x.mean(0)).Q * math.sqrt(n)
    return x[:, :DIM], x[:, DIM:]


def pull(prior_weight: float) -> float:
    """Derivative of the loss per dimension when the target moves to the context, under the covariance of the pairs."""
    context, target = unrelated()
    prior = torch.kron(torch.tensor([[1.0, 0.9], [0.9, 1.0]]), torch.eye(DIM))
    prototypes = OnlinePrototypes(1, 2 * DIM, floor=1e-9, prior=prior, prior_weight=prior_weight).double()
    prototypes.means.zero_()
    prototypes.covariances.copy_(torch.eye(2 * DIM))
    share = torch.zeros((), dtype=torch.float64, requires_grad=True)
    loss = prototype_loss(context, target + share * context, prototypes(), weight=0.0)["loss"]
    (derivative,) = torch.autograd.grad(loss, share)
    return float(derivative)


def test_a_learned_density_pulls_unrelated_views_nowhere_and_the_prior_together() -> None:
    assert pull(0.0) == pytest.approx(0, abs=1e-6)
    # Per direction S = [[1, r], [r, 1]] with r = 0.9 / 2: S^-1 has -r / (1 - r^2) off its diagonal. Two views: half.
    r = 0.9 / 2
    assert pull(0.5) == pytest.approx(-r / (1 - r**2) / 2, rel=1e-5)


def test_what_was_learned_is_the_covariance_of_the_embeddings_without_the_prior() -> None:
    z = torch.randn(500, 3, generator=torch.Generator().manual_seed(2)) @ torch.tensor(
        [[1.0, 0.8, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 2.0]]
    )
    prototypes = OnlinePrototypes(1, 3, floor=0.01, prior_weight=0.9)
    for _ in range(400):
        prototypes.follow(z)
    expected = torch.from_numpy(np.cov(z.numpy().T, bias=True)).float() + 0.01 * torch.eye(3)
    torch.testing.assert_close(prototypes.learned().covariances[0], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        prototypes().covariances[0], 0.1 * expected + 0.9 * (1 + 0.01) * torch.eye(3), rtol=1e-3, atol=1e-4
    )


def test_entropy_insists_on_every_direction_and_sigreg_on_the_cloud() -> None:
    z = torch.randn(256, 64, generator=torch.Generator().manual_seed(3))
    flat, point = z * (torch.arange(64) > 0), 0.01 * z

    def spread(guard: torch.nn.Module, z: torch.Tensor) -> float:
        return float(copy.deepcopy(guard).train()(z.unflatten(0, (2, -1)))) / 64  # the same directions for all

    sigreg, entropy_of = guard_for("sigreg", 64, 256), guard_for("entropy", 64, 256)
    assert spread(sigreg, z) == pytest.approx(-float(copy.deepcopy(sigreg.sigreg)(z[None])))
    lost = spread(entropy_of, z) - spread(entropy_of, flat)
    assert lost == pytest.approx(0.5 * math.log(float(z[:, 0].var(correction=0)) / 1e-4) / 64, rel=0.05)
    # One direction of 64 takes 1/64 of the variance from a random side; all of them take everything.
    assert abs(spread(sigreg, z) - spread(sigreg, flat)) < 0.01 * (spread(sigreg, z) - spread(sigreg, point))


@pytest.mark.parametrize("name", ["gmje", "gmje-mdn"])
@pytest.mark.parametrize("guard", ["sigreg", "entropy"])
def test_the_same_views_twice_are_guarded_like_once(name: str, guard: str) -> None:
    """SIGReg grows with its samples: were they not counted, four views would be pushed apart six times as hard."""
    views = list(torch.randn(2, 16, 1, 8, 8, generator=torch.Generator().manual_seed(4)))

    def spread(views: list[torch.Tensor]) -> float:
        torch.manual_seed(0)
        method = methods.create(name, create_backbone("conv4", 1, 8), guard=guard)
        return float(method.train()(views, len(views))["spread"].detach())

    assert spread(views + views) == pytest.approx(spread(views), rel=1e-4)


@pytest.mark.parametrize("kind", [Prototypes, OnlinePrototypes])
def test_no_component_starves_where_weights_are_balanced(kind: type[Prototypes]) -> None:
    z = 0.1 * torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    prototypes = kind(4, 2, "fixed", temperature=0.01, balance=0.5)
    prototypes.follow(z)
    with torch.no_grad():
        prototypes.means.copy_(torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]]))
        if kind is Prototypes:
            prototypes.logits.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))
        for _ in range(400):
            prototypes.follow(z)
            prototypes.means[1:] = 9.0  # all images are the first one's
    torch.testing.assert_close(prototypes().weights.detach(), torch.tensor([0.625, 0.125, 0.125, 0.125]))


def test_departure_and_balance_have_the_prices_written_down() -> None:
    g = torch.Generator().manual_seed(2)
    context, target = torch.randn(2, 50, DIM, generator=g, dtype=torch.float64)
    weights = torch.randn(50, 3, generator=g, dtype=torch.float64).softmax(-1)
    means = torch.randn(50, 3, DIM, generator=g, dtype=torch.float64)
    conditional = GaussianMixture.diagonal(weights, means, torch.ones(50, 3, DIM, dtype=torch.float64))
    plain = mdn_loss(context, target, conditional, weight=0.0)
    terms = mdn_loss(context, target, conditional, weight=0.0, departure=2.0, balance=3.0)
    distance = sum(
        float(weights[n, k] * (means[n, k] - context[n]).square().mean()) for n in range(50) for k in range(3)
    )
    assert float(terms["departure"]) == pytest.approx(distance / 50)
    assert float(terms["uneven"]) == pytest.approx(entropy(weights.mean(0).numpy(), [1 / 3] * 3))  # a KL divergence
    added = 2 * terms["departure"] + 3 * terms["uneven"]
    torch.testing.assert_close(terms["loss"], plain["loss"] + added)


def test_a_residual_network_that_says_nothing_gives_the_context_and_sigma_stays_within_its_bounds() -> None:
    network = MixtureDensityNetwork(DIM, DIM, 3, 16, floor=0.3, ceiling=1.0, residual=True)
    context = torch.randn(20, DIM, generator=torch.Generator().manual_seed(3))
    for parameter in network.means.parameters():
        torch.nn.init.zeros_(parameter)
    for scale in (-1e3, 0.0, 1e3):
        torch.nn.init.constant_(network.scales.bias, scale)
        _, means, scales = network.parts(context)
        torch.testing.assert_close(means, context[:, None].expand(-1, 3, -1))
        assert 0.3 <= float(scales.detach().min()) <= float(scales.detach().max()) <= 1.0


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("gmje-mdn", {"guard": "none"}, "guard: expected one of sigreg, entropy, got 'none'"),
        ("gmje", {"agreement": 1.0}, "agreement, prior_weight, balance: expected from 0 to below 1, got 1.0, 0.9"),
        ("gmje", {"prior_weight": -0.1}, "agreement, prior_weight, balance: expected from 0 to below 1"),
        ("gmje-mdn", {"departure": -1.0}, "weight, departure, balance: expected at least 0, got 0.05, -1.0"),
        ("gmje-mdn", {"floor": 1.0}, "floor: expected a standard deviation above 0 and below 0.8, got 1.0"),
    ],
)
def test_bad_priors_are_named(method: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        methods.create(method, create_backbone(tiny_network(), 1, 8), **options)


def test_a_residual_needs_views_of_one_space() -> None:
    with pytest.raises(
        ValueError, match="residual: expected as many dimensions of the target as of the context, 3, got 4"
    ):
        MixtureDensityNetwork(3, 4, residual=True)
