"""The baselines' losses against lightly's, values and gradients, and against loops and closed forms."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jointembed.methods.barlow import barlow_twins_loss
from jointembed.methods.byol import byol_loss
from jointembed.methods.dino import dino_loss
from jointembed.methods.jepa import jepa_loss
from jointembed.methods.moco import moco_loss
from jointembed.methods.simclr import nt_xent_loss
from jointembed.methods.simsiam import simsiam_loss
from jointembed.methods.swav import sinkhorn, swav_loss
from jointembed.methods.vicreg import vicreg_loss

Tensor = torch.Tensor
Loss = Callable[[Tensor], Tensor]


def stack(views: int, images: int = 12, dim: int = 6, seed: int = 0) -> Tensor:
    """(V, N, D) in double precision, of views that share most of what they are."""
    g = torch.Generator().manual_seed(seed)
    common, own = torch.randn(images, dim, generator=g), torch.randn(views, images, dim, generator=g)
    return (2 * common + own).double()


def assert_same(ours: Loss, theirs: Loss, *shape: int, seed: int = 0) -> None:
    """Same value and same gradient."""
    z = stack(*shape, seed=seed).requires_grad_()
    a, b = ours(z), theirs(z).squeeze()
    torch.testing.assert_close(a, b)
    (da,), (db,) = torch.autograd.grad(a, z), torch.autograd.grad(b, z)
    assert float(db.abs().max()) > 0
    torch.testing.assert_close(da, db)


def test_nt_xent_is_lightlys() -> None:
    peer = pytest.importorskip("lightly.loss").NTXentLoss(temperature=0.3)
    assert_same(lambda z: nt_xent_loss(z, 2, 0.3)["loss"], lambda z: peer(*z), 2)


def test_nt_xent_is_equation_1_of_simclr() -> None:
    z = stack(2, 5)
    rows = F.normalize(z.flatten(0, 1), dim=-1)  # view 1 of all images, then view 2
    total = 0.0
    for i in range(10):
        others = [float(rows[i] @ rows[k]) / 0.5 for k in range(10) if k != i]
        assert len(others) == 9  # 2N - 1
        total += math.log(sum(map(math.exp, others))) - float(rows[i] @ rows[(i + 5) % 10]) / 0.5
    assert float(nt_xent_loss(z, 2, 0.5)["loss"]) == pytest.approx(total / 10)


def test_vicreg_is_lightlys() -> None:
    peer = pytest.importorskip("lightly.loss").VICRegLoss(lambda_param=7.0, mu_param=5.0, nu_param=3.0)
    for scale in (0.2, 1.0):  # with the hinge at work, and mostly not
        assert_same(
            lambda z, s=scale: vicreg_loss(s * z, 2, 7.0, 5.0, 3.0)["loss"], lambda z, s=scale: peer(*(s * z)), 2
        )


def test_barlow_twins_is_lightlys() -> None:
    peer = pytest.importorskip("lightly.loss").BarlowTwinsLoss(lambda_param=0.02)
    assert_same(lambda z: barlow_twins_loss(z, 2, 0.02)["loss"], lambda z: peer(*z), 2)


@pytest.mark.parametrize("queue", [False, True])
def test_swav_is_lightlys_with_local_views_and_queue(queue: bool) -> None:
    peer = pytest.importorskip("lightly.loss").SwaVLoss(temperature=0.2, sinkhorn_epsilon=0.3)
    earlier = stack(1, 20, seed=1)[0] if queue else None
    assert_same(
        lambda z: swav_loss(z, 2, 0.2, 0.3, 3, earlier)["loss"],
        lambda z: peer(list(z[:2]), list(z[2:]), None if earlier is None else [earlier, earlier]),
        5,
    )


def test_dino_is_lightlys_with_local_views() -> None:
    peer = pytest.importorskip("lightly.loss").DINOLoss(6, teacher_temp=0.3, student_temp=0.4).double()
    teacher, centre = stack(2, seed=1), stack(1, seed=2)[0, 0]

    def theirs(z: Tensor) -> Tensor:
        peer.center = centre[None, None]
        return peer(list(teacher), list(z), teacher_temp=0.3)

    assert_same(lambda z: dino_loss(z, teacher, centre, 0.4, 0.3)["loss"], theirs, 4)


@pytest.mark.parametrize("views", [2, 3])
def test_simsiam_and_byol_are_lightlys_cosines(views: int) -> None:
    cosine = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    targets = stack(2, seed=1)

    def mean(z: Tensor) -> Tensor:
        pairs = [(i, j) for i in range(views) for j in range(2) if i != j]
        return torch.stack([cosine(z[i], targets[j]) for i, j in pairs]).mean()

    assert_same(lambda z: simsiam_loss(z, targets)["loss"], mean, views)
    assert_same(lambda z: byol_loss(z, targets)["loss"], lambda z: 4 + 4 * mean(z), views)


def test_byol_is_the_squared_distance_on_the_sphere_summed_over_both_directions() -> None:
    p, z = stack(2), stack(2, seed=1)
    unit = [F.normalize(x, dim=-1) for x in (p[0], z[1], p[1], z[0])]
    expected = ((unit[0] - unit[1]) ** 2).sum(-1).mean() + ((unit[2] - unit[3]) ** 2).sum(-1).mean()
    torch.testing.assert_close(byol_loss(p, z)["loss"], expected)


def test_jepa_is_the_mean_squared_error_of_every_view_with_every_other_global_one() -> None:
    p, z = stack(3), stack(2, seed=1)
    pairs = [(0, 1), (1, 0), (2, 0), (2, 1)]
    expected = sum(float(F.mse_loss(p[i], z[j])) for i, j in pairs) / 4
    assert float(jepa_loss(p, z)["loss"]) == pytest.approx(expected)


def test_moco_is_a_loop_over_queries() -> None:
    queries, keys = stack(2, 4), stack(1, 4, seed=1)[0]
    bank = F.normalize(stack(1, 9, seed=2)[0], dim=-1)
    queries.requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for view in queries:
        for q, k in zip(view, keys, strict=True):
            q, k = q / q.norm(), k / k.norm()
            logits = torch.stack([q @ k, *(q @ negative for negative in bank)]) / 0.2
            total = total - logits.log_softmax(0)[0]
    ours = moco_loss(queries, keys, bank)["loss"]
    torch.testing.assert_close(ours, total / 8)
    torch.testing.assert_close(*(torch.autograd.grad(x, queries)[0] for x in (ours, total / 8)))


def test_sinkhorn_finds_the_optimal_assignment() -> None:
    scores = stack(1, 12, 4)[0]
    codes = sinkhorn(scores, 0.5, 500).exp()
    torch.testing.assert_close(codes.sum(1), torch.ones(12).double())
    torch.testing.assert_close(codes.sum(0), torch.full((4,), 3.0).double())
    # Optimal: codes are exp(scores / epsilon) up to factors of rows and columns, and no direction of change helps.
    rest = codes.log() - scores / 0.5
    torch.testing.assert_close(rest - rest.mean(0), (rest - rest.mean(0)).mean(1, keepdim=True).expand(12, 4))
    assert sinkhorn(1e4 * scores.float(), 0.05).isfinite().all()  # exp(scores / epsilon) would overflow


SYMMETRIC: dict[str, Loss] = {
    "simclr": lambda z: nt_xent_loss(z, 2)["loss"],
    "vicreg": lambda z: vicreg_loss(z, 2)["loss"],
    "barlow": lambda z: barlow_twins_loss(z, 2)["loss"],
    "swav": lambda z: swav_loss(z, 2)["loss"],
    "simsiam": lambda z: simsiam_loss(z, stack(2, seed=1))["loss"] + simsiam_loss(z, stack(2, seed=1).flip(0))["loss"],
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_no_view_is_preferred(name: str) -> None:
    z = stack(2)
    torch.testing.assert_close(SYMMETRIC[name](z), SYMMETRIC[name](z.flip(0)))


@pytest.mark.parametrize("name", ["simclr", "vicreg", "barlow"])
def test_more_views_are_the_mean_over_pairs_with_a_global_one(name: str) -> None:
    loss = {"simclr": nt_xent_loss, "vicreg": vicreg_loss, "barlow": barlow_twins_loss}[name]
    z = stack(4)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]  # not (2, 3), both local
    found = loss(z, 2)
    for term in ("alignment", "uniformity", "invariance", "redundancy"):
        if term in found:
            expected = sum(float(loss(z[[i, j]], 2)[term]) for i, j in pairs) / 5
            assert float(found[term]) == pytest.approx(expected)
    if name == "vicreg":  # these two are of views, not of pairs
        for term in ("variance", "covariance"):
            expected = sum(float(loss(z[[i, i]], 2)[term]) for i in range(4)) / 4
            assert float(found[term]) == pytest.approx(expected)


def test_targets_get_no_gradient_though_they_ask_for_one() -> None:
    p, z = stack(2).requires_grad_(), stack(2, seed=1).requires_grad_()
    bank = F.normalize(stack(1, seed=2)[0], dim=-1)
    for value in (
        byol_loss(p, z)["loss"],
        simsiam_loss(p, z)["loss"],
        jepa_loss(p, z)["loss"],
        dino_loss(p, z, torch.zeros(6))["loss"],
        moco_loss(p, z[0], bank)["loss"],
    ):
        to_p, to_z = torch.autograd.grad(value, (p, z), allow_unused=True)
        assert to_z is None and float(to_p.abs().max()) > 0


def test_codes_are_targets_too() -> None:
    """The gradient of SwAV is that of a cross-entropy with fixed codes, (softmax - codes) / (tau N) per direction."""
    z = stack(2).requires_grad_()
    (gradient,) = torch.autograd.grad(swav_loss(z, 2, 0.2)["loss"], z)
    codes = torch.stack([sinkhorn(view).exp() for view in z.detach().flip(0)])
    torch.testing.assert_close(gradient, ((z.detach() / 0.2).softmax(-1) - codes) / (0.2 * 12 * 2))


HALF: dict[str, Loss] = {
    **{name: SYMMETRIC[name] for name in ("simclr", "vicreg", "barlow", "swav")},
    "byol": lambda z: byol_loss(z, z.flip(0))["loss"],
    "simsiam": lambda z: simsiam_loss(z, z.flip(0))["loss"],
    "jepa": lambda z: jepa_loss(z, z.flip(0))["loss"],
    "dino": lambda z: dino_loss(z, z.flip(0), torch.zeros(6))["loss"],
    "moco": lambda z: moco_loss(z[:1], z[1], F.normalize(z[0].float(), dim=-1))["loss"],
}


@pytest.mark.parametrize("name", HALF)
def test_half_precision_and_autocast_are_computed_in_float32(name: str) -> None:
    z = stack(2, 64).bfloat16()
    expected = HALF[name](z.float())
    with torch.autocast("cpu", torch.bfloat16):
        for given in (z, z.float()):
            found = HALF[name](given)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected)


def test_bad_arguments_are_named() -> None:
    z = torch.randn(2, 4, 3)
    for message, call in {
        r"z: expected \(V, N, D\), got shape \(4, 3\)": lambda: nt_xent_loss(z[0], 1),
        "z: expected at least two views, got 1": lambda: vicreg_loss(z[:1], 1),
        "num_global: expected 1 to 2, the number of views in z, got 3": lambda: barlow_twins_loss(z, 3),
        "z: expected at least 2 images, got 1": lambda: vicreg_loss(z[:, :1], 2),
        "temperature: expected a number above 0, got 0": lambda: nt_xent_loss(z, 2, 0),
        "covariance: expected a number of at least 0, got -1": lambda: vicreg_loss(z, 2, covariance=-1),
        r"targets: expected \(G, 4, 3\) with G from 1 to 2": lambda: byol_loss(z, z[:, :2]),
        r"targets: .* got shape \(3, 4, 3\)": lambda: jepa_loss(z, torch.randn(3, 4, 3)),
        r"centre: expected shape \(3,\) as targets have, got \(2,\)": lambda: dino_loss(z, z, torch.zeros(2)),
        r"queue: expected \(M, 3\) as scores have, got shape \(5, 2\)": lambda: swav_loss(
            z, 2, queue=torch.randn(5, 2)
        ),
        r"keys: expected shape \(4, 3\) as queries have, got \(3, 3\)": lambda: moco_loss(z, z[0, :3], z[0]),
        "iterations: expected at least 1, got 0": lambda: sinkhorn(z[0], iterations=0),
    }.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
