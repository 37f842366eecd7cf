"""LARS, as the large-batch methods' papers have it: norms and biases neither decay nor have their steps adapted."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jointembed as je
from jointembed.training.module import TrainingModule

LR, MOMENTUM, DECAY, TRUST = 0.3, 0.9, 1e-2, 1e-3


class Layers(nn.Module):
    """Weights, a bias, and a norm's scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def optimizer_of(network: nn.Module, name: str) -> torch.optim.Optimizer:
    """What the trainer makes for a method with these layers."""
    module: Any = TrainingModule(network, None, name, LR, DECAY, 0.0, 0)  # type: ignore[arg-type]
    module.trainer = type("", (), {"estimated_stepping_batches": 10**9, "max_epochs": 1})()  # a constant rate
    return module.configure_optimizers()["optimizer"]


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, count: int = 4) -> None:
    for seed in range(count):
        optimizer.zero_grad()
        network(torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).backward()
        optimizer.step()


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return Layers().double()


def test_lars_is_its_papers_and_leaves_norms_and_biases_to_plain_momentum(network: nn.Module) -> None:
    reference = copy.deepcopy(network)
    steps(network, optimizer_of(network, "lars"))
    momenta = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
    for seed in range(4):
        reference.zero_grad()
        x = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        reference(x).backward()
        for name, p in reference.named_parameters():
            gradient = p.grad
            assert gradient is not None
            if name in ("layers.0.weight", "layers.3.weight"):
                local = TRUST * p.norm() / (gradient.norm() + DECAY * p.norm())  # Eq. 6 of arXiv 1708.03888
                gradient = local * (gradient + DECAY * p)
            momenta[name] = MOMENTUM * momenta[name] + gradient
            with torch.no_grad():
                p -= LR * momenta[name]
    for (name, p), expected in zip(network.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=1e-9, msg=name)


def test_lars_takes_the_steps_of_lightlys(network: nn.Module) -> None:
    pytest.importorskip("lightly.loss")
    from lightly.models.utils import get_weight_decay_parameters
    from lightly.utils.lars import LARS

    reference = copy.deepcopy(network)
    decaying, others = get_weight_decay_parameters([reference])
    groups = [{"params": decaying, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    steps(reference, LARS(groups, lr=LR, momentum=MOMENTUM, trust_coefficient=TRUST))
    steps(network, optimizer_of(network, "lars"))
    for p, expected in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["barlow-twins", "byol", "simclr", "swav", "vicreg"])
def test_no_norm_or_bias_of_a_method_is_adapted(method: str) -> None:
    backbone = je.backbones.create_backbone("resnet10-tiny", 3, 16)
    made = je.methods.create(method, backbone)
    groups = [group for group in optimizer_of(made, "lars").param_groups if group["weight_decay"]]
    adapted = {id(p) for group in groups for p in group["params"]}
    norms = [m for m in made.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    excluded = {id(p) for m in norms for p in m.parameters()}
    excluded |= {id(p) for name, p in made.named_parameters() if name.endswith("bias")}
    trained = {id(p) for p in made.parameters() if p.requires_grad}
    assert adapted == trained - excluded


def test_lars_without_decay_is_refused_for_it_would_adapt_nothing() -> None:
    with pytest.raises(ValueError, match="^weight_decay: expected a number above 0 with lars"):
        je.train("digits", "simclr", "resnet10-tiny", optimizer="lars", weight_decay=0.0)
