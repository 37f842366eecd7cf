"""How GJE's objectives fail without their remedies."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jointembed.methods.gje import dual_gje_loss, hsic_loss, primal_gje_loss
from jointembed.methods.gje.losses import whiten
from jointembed.metrics import effective_rank


def embeddings(count=12, dim=4, views=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(views, count, dim, dtype=torch.float64, generator=g)


def test_trace_trap():
    """Eq. 9 with S from the same batch: the Mahalanobis term is d/2 with no gradient, so only shrinking is left."""
    z = embeddings(40, 6)[0].requires_grad_()
    moment = z.T @ z / 40
    mahalanobis = 0.5 * (z @ moment.inverse() * z).sum(1).mean()
    volume = 0.5 * moment.logdet()
    assert mahalanobis.item() == pytest.approx(3)
    (pull,) = torch.autograd.grad(mahalanobis, z, retain_graph=True)
    (whole,) = torch.autograd.grad(mahalanobis + volume, z, retain_graph=True)
    (shrink,) = torch.autograd.grad(volume, z)
    assert pull.abs().max() < 1e-12
    torch.testing.assert_close(whole, shrink, rtol=1e-8, atol=1e-12)
    assert (whole * z).sum().item() == pytest.approx(6)  # the slope along z itself: scaling down lowers it without end


def toy(objective, steps=200, seed=0):
    """Two noisy views of eight sources through a small network, trained on an objective of (network, views)."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).double()
    average = copy.deepcopy(network).requires_grad_(False)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        x = torch.randn(128, 8, dtype=torch.float64)
        views = x + 0.3 * torch.randn(2, 128, 8, dtype=torch.float64)
        optimiser.zero_grad()
        objective(network, average, *views).backward()
        optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
    with torch.no_grad():
        return network(torch.randn(500, 8, dtype=torch.float64))


def test_symmetric_dual_collapses_and_targets_of_fixed_volume_do_not():
    """An averaged encoder is not enough: targets that may shrink let log|K| win, only later."""
    targets = {
        "symmetric": lambda network, average, b: network(b),
        "averaged": lambda network, average, b: average(b),
        "averaged, normalised": lambda network, average, b: 8**0.5 * F.normalize(average(b), dim=1),
        "averaged, whitened": lambda network, average, b: whiten(average(b), 0.0),
        "stopped, whitened": lambda network, average, b: whiten(network(b).detach(), 0.0),
    }
    start = toy(None, 0).std(0).mean()
    for name, target in targets.items():
        z = toy(lambda f, g, a, b, t=target: dual_gje_loss(f(a), t(f, g, b), amplitude=0.9)["loss"])
        if name in ("symmetric", "averaged"):
            assert z.std(0).mean() < 0.1 * start, name
        else:
            assert z.std(0).mean() > 0.5 * start and effective_rank(z) > 7, name


def test_entropy_of_unnormalised_views_runs_away():
    def runaway(network, average, a, b):
        za, zb = network(a), network(b)
        return primal_gje_loss(za, zb)["alignment"] - 0.5 * (za.T @ za / 128).logdet()

    norms = [float(toy(runaway, steps).norm(dim=1).mean()) for steps in (0, 100, 200)]
    assert norms[2] > 1.5 * norms[1] > 3 * norms[0]
    assert effective_rank(toy(lambda network, average, a, b: primal_gje_loss(network(a), network(b))["loss"])) > 7
    z_context, z_target = embeddings()
    for entropy in ("marginal", "joint"):
        losses = [primal_gje_loss(scale * z_context, z_target, entropy=entropy)["loss"] for scale in (1, 1e3)]
        torch.testing.assert_close(*losses)


def test_hsic_alone_prefers_two_clusters():
    """Equal views are as dependent as can be, and yet two points have far more HSIC than an isotropic cloud."""
    cloud = embeddings(64, 32)[0]
    clusters = torch.cat([torch.ones(32, 32), -torch.ones(32, 32)]).double() + 0.01 * cloud
    found = {n: [float(hsic_loss(z, z, normalised=n)["hsic"]) for z in (cloud, clusters)] for n in (False, True)}
    assert found[False][1] > 5 * found[False][0]
    assert found[True] == pytest.approx([1, 1])
