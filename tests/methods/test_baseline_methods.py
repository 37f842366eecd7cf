"""What the baselines own: heads with BatchNorm where their papers have it, teachers, queues, frozen layers."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointembed import methods
from jointembed.methods.base import Clock
from jointembed.methods.teacher import Teacher

BASELINES = ("barlow-twins", "byol", "dino", "jepa", "moco-v2", "simclr", "simsiam", "swav", "vicreg")
TEACHERS = ("byol", "dino", "jepa", "moco-v2")


class Flat(nn.Module):
    """(N, 1, S, S) of any size to (N, 5): linear, so that steps can be followed by hand; counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 5
        self.linear = nn.Linear(4, 5)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.shape[-1])
        return self.linear(F.adaptive_avg_pool2d(x, 2).flatten(1))


def create(name: str, **options: object) -> methods.Method:
    torch.manual_seed(0)
    return methods.create(name, Flat(), **({"dim": 8, "projector_width": 16} | options))


def images(*sizes: int, seed: int = 0, count: int = 6) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(count, 1, size, size, generator=g) for size in sizes]


def step(method: methods.Method, views: list[Tensor], lr: float = 0.1) -> float:
    """One step of plain gradient descent, with the hooks in the trainer's order."""
    parameters = [p for p in method.parameters() if p.requires_grad]
    method.zero_grad()
    loss = method(views, 2)["loss"]
    loss.backward()
    method.before_step()
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p -= lr * p.grad
    method.after_step()
    return loss.item()


def layout(network: nn.Module) -> str:
    """One letter per layer: (l)inear, (r)elu, (g)elu, (B)atchNorm, (b) without scale and shift."""
    letters = {nn.Linear: "l", nn.ReLU: "r", nn.GELU: "g", nn.BatchNorm1d: "B"}
    found = [m for m in network.modules() if type(m) in letters]
    return "".join("b" if isinstance(m, nn.BatchNorm1d) and m.weight is None else letters[type(m)] for m in found)


def test_heads_are_those_of_the_papers() -> None:
    projectors = {
        "simclr": "lBrlB",
        "moco-v2": "lrl",
        "byol": "lBrl",
        "simsiam": "lBrlBrlb",
        "vicreg": "lBrlBrl",
        "barlow-twins": "lBrlBrl",
        "swav": "lBrl",
        "dino": "lglgl",
    }
    for name, expected in projectors.items():
        assert layout(create(name).projector) == expected, name
    for name in ("byol", "simsiam"):
        assert layout(create(name).predictor) == "lBrl", name
    assert layout(create("dino", batch_norm=True).projector) == "lBglBgl"


@pytest.mark.parametrize("name", BASELINES)
def test_four_views_of_two_sizes_reach_all_that_is_trained(name: str) -> None:
    method = create(name).train()
    views = images(4, 4, 2, 2)
    if name == "moco-v2":  # an empty queue teaches nothing
        method.bank.update(*torch.randn(2, 20, 8))
    method(views, 2)["loss"].backward()
    for parameter, p in method.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and float(p.grad.abs().max()) > 0, parameter
        else:
            assert p.grad is None and parameter.startswith("teacher."), parameter
    encoded = method.eval().encode(views[0])
    assert encoded["backbone"].shape == (6, 5) and encoded["projector"].shape == (6, 8)
    with pytest.raises(ValueError, match="expected at least two"):
        method(views[:1], 1)


@pytest.mark.parametrize("name", TEACHERS)
def test_local_views_go_through_the_student_only(name: str) -> None:
    method = create(name)
    method(images(4, 4, 2), 2)
    assert method.backbone.seen == [4, 2]
    assert method.teacher.module[0].seen == [4]


@pytest.mark.parametrize("name", TEACHERS)
def test_the_teacher_is_the_papers_moving_average(name: str) -> None:
    """0.996 to 1, by a cosine for BYOL and DINO, linearly for I-JEPA; constant for MoCo. From the first step on."""
    method, steps = create(name).double(), 5
    expected = method.backbone.linear.weight.detach().clone()
    for k in range(steps):
        method.clock = Clock(k, steps)
        step(method, [view.double() for view in images(4, 4, seed=k)])
        decay = {
            "moco-v2": 0.999,
            "jepa": 0.996 + 0.004 * k / steps,
        }.get(name, 1 - (1 - 0.996) * (math.cos(math.pi * k / steps) + 1) / 2)
        expected = decay * expected + (1 - decay) * method.backbone.linear.weight.detach()
        torch.testing.assert_close(method.teacher.module[0].linear.weight, expected, rtol=0, atol=1e-13)
    assert not expected.equal(method.backbone.linear.weight)


def test_a_teacher_with_decay_one_stands_still_and_with_zero_is_the_network() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    teacher, before = Teacher(network), copy.deepcopy(network.state_dict())
    with torch.no_grad():
        network[0].weight.add_(1)
        network[1].running_mean.add_(1)
    teacher.follow(network, 1.0)
    for name, value in teacher.module.state_dict().items():
        assert value.equal(before[name])
    teacher.follow(network, 0.0)
    torch.testing.assert_close(dict(teacher.module.state_dict()), dict(network.state_dict()))


def test_moco_asks_the_keys_of_earlier_batches_only() -> None:
    method = create("moco-v2", bank=10)
    first, second = images(4, 4, seed=0), images(4, 4, seed=1)
    assert step(method, first, lr=0.0) == pytest.approx(0)  # nobody to confuse a key with
    keys = F.normalize(method.teacher(first[0]), dim=-1)
    torch.testing.assert_close(method.bank.contents, keys)
    queries = F.normalize(method.projector(method.backbone(second[1])), dim=-1)
    positive = (queries * F.normalize(method.teacher(second[0]), dim=-1)).sum(1, keepdim=True)
    logits = torch.cat([positive, queries @ keys.T], 1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    assert step(method, second, lr=0.0) == pytest.approx(expected.item(), rel=1e-5)
    assert method.bank.filled == 10
    both = create("moco-v2", bank=20, symmetric=True)
    step(both, first)
    assert both.bank.filled == 12  # keys of both views


@pytest.mark.parametrize(("name", "parameter"), [("swav", "prototypes"), ("dino", "last.weight")])
def test_the_last_layer_is_frozen_for_an_epoch_and_the_rest_is_not(name: str, parameter: str) -> None:
    method = create(name)
    layer, backbone = method.get_parameter(parameter), method.get_parameter("backbone.linear.weight")
    for epoch, moves in ((0.0, False), (0.9, False), (1.0, True)):
        method.clock = Clock(0, 10, epoch)
        before, network = F.normalize(layer.detach(), dim=-1), backbone.detach().clone()
        step(method, images(4, 4))
        assert float((F.normalize(layer.detach(), dim=-1) - before).abs().max() > 1e-6) == moves
        assert not backbone.equal(network)


def test_swavs_prototypes_stay_on_the_sphere_and_its_queue_waits_until_it_is_full() -> None:
    method = create("swav", queue=12, queue_start=2.0, prototypes=7)
    plain = create("swav", prototypes=7)
    plain.load_state_dict(method.state_dict(), strict=False)
    losses = []
    for k, epoch in enumerate((0.0, 2.0, 2.5, 3.0)):
        method.clock = Clock(k, 4, epoch)
        views = images(4, 4, seed=k)
        losses.append((step(method, views, lr=0.0), float(plain(views, 2)["loss"])))
        torch.testing.assert_close(method.prototypes.norm(dim=1), torch.ones(7))
        assert method.queue.filled == (0, 6, 12, 12)[k]
    assert [a == pytest.approx(b, rel=1e-6) for a, b in losses] == [True, True, True, False]
    step(method, views, lr=5.0)
    torch.testing.assert_close(method.prototypes.norm(dim=1), torch.ones(7))


def test_dinos_temperature_and_centre_follow_their_schedules() -> None:
    method = create("dino", prototypes=4)
    for epoch, expected in ((0.0, 0.04), (15.0, 0.055), (30.0, 0.07), (99.0, 0.07)):
        method.clock = Clock(0, 1, epoch)
        assert method.temperature() == pytest.approx(expected)
    centre = torch.zeros(4)
    for seed in range(3):
        views = images(4, 4, 2, seed=seed)
        with torch.no_grad():
            outputs = torch.cat([method.teacher(view) for view in views[:2]])
        method(views, 2)
        centre = 0.9 * centre + 0.1 * outputs.mean(0)
        torch.testing.assert_close(method.centre, centre)
    method.eval()(views, 2)
    torch.testing.assert_close(method.centre, centre)


def test_dino_takes_the_steps_of_lightlys_head_loss_and_momentum() -> None:
    pytest.importorskip("lightly")
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import update_momentum

    method = create("dino", prototypes=9)
    head = DINOProjectionHead(5, 16, 8, 9, freeze_last_layer=1)
    head.layers.load_state_dict(method.projector.state_dict())
    head.last_layer.weight_v.data.copy_(method.last.weight)
    student = nn.Sequential(copy.deepcopy(method.backbone), head)
    teacher = nn.Sequential(copy.deepcopy(method.backbone), DINOProjectionHead(5, 16, 8, 9))
    teacher.load_state_dict(student.state_dict())
    criterion = DINOLoss(9)
    optimizer = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], lr=0.5)
    for k in range(6):
        epoch, views = k // 3, images(4, 4, 2, seed=k)
        method.clock = Clock(k, 6, epoch)
        ours = step(method, views, lr=0.5)
        with torch.no_grad():
            targets = [teacher(view) for view in views[:2]]
        loss = criterion(targets, [student(view) for view in views], teacher_temp=method.temperature())
        optimizer.zero_grad()
        loss.backward()
        head.cancel_last_layer_gradients(epoch)
        optimizer.step()
        update_momentum(student, teacher, 1 - 0.004 * (math.cos(math.pi * k / 6) + 1) / 2)
        assert ours == pytest.approx(float(loss), rel=1e-5)
    torch.testing.assert_close(method.backbone.linear.weight, student[0].linear.weight)
    torch.testing.assert_close(method.last.weight, head.last_layer.weight_v)
    torch.testing.assert_close(method.teacher(views[0]), teacher(views[0]))
    assert not method.last.weight.equal(create("dino", prototypes=9).last.weight)


def test_jepas_targets_are_normalised_unless_asked_otherwise() -> None:
    views = images(4, 4)
    for layer_norm in (True, False):
        method = create("jepa", layer_norm=layer_norm)
        targets = method.teacher(torch.cat(views)).unflatten(0, (2, 6))
        if layer_norm:
            targets = (targets - targets.mean(-1, keepdim=True)) / (targets.var(-1, False, keepdim=True) + 1e-5).sqrt()
        z = method.projector(method.backbone(torch.cat(views)))
        predictions = method.predictor(z).unflatten(0, (2, 6))
        torch.testing.assert_close(method(views, 2)["loss"], F.mse_loss(predictions, targets.flip(0)))


def test_bad_options_are_named() -> None:
    for name, option, value in (
        *((name, "dim", 0) for name in BASELINES),
        *((name, "ema", 1.5) for name in TEACHERS),
        *((name, "temperature", 0.0) for name in ("simclr", "moco-v2", "swav")),
        ("moco-v2", "bank", 0),
        ("byol", "predictor_width", 0),
        ("vicreg", "variance", -1.0),
        ("barlow-twins", "weight", -1.0),
        ("swav", "queue", -1),
        ("swav", "prototypes", 0),
        ("dino", "teacher_temperature", 0.0),
        ("dino", "centre_momentum", -0.1),
        ("dino", "freeze_epochs", -1.0),
    ):
        with pytest.raises(ValueError, match=f"^{option}: expected"):
            create(name, **{option: value})
