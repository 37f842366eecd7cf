"""What a method is told of the training's progress."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TINY, tiny_network

import jointembed as je
from jointembed.methods.lejepa import LeJEPA


def record(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of a method, in their order."""
    calls: list[tuple[Any, ...]] = []
    forward = LeJEPA.forward

    def recorded(self: LeJEPA, *args: Any) -> dict[str, torch.Tensor]:
        calls.append(("forward", *self.clock))
        return forward(self, *args)

    def before_step(self: LeJEPA) -> None:
        calls.append(("before", self.projector[0].weight.grad is not None, self.projector[0].weight.detach().clone()))

    def after_step(self: LeJEPA) -> None:
        calls.append(("after", self.projector[0].weight.detach().clone()))

    for name, function in (("forward", recorded), ("before_step", before_step), ("after_step", after_step)):
        monkeypatch.setattr(LeJEPA, name, function)
    return calls


def train(out: Path, epochs: int, **options: Any) -> None:
    data = je.data.open_source("digits").subset(range(300))
    je.train(data, backbone=tiny_network(), out=out, epochs=epochs, batch_size=100, **(TINY | options))


def test_steps_and_epochs_are_counted_through_a_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch)
    train(tmp_path / "x", 2)
    train(tmp_path / "x", 3, resume=True)  # a run may be made longer
    seen = [call[1:] for call in calls if call[0] == "forward"]
    assert [step for step, _, _ in seen] == list(range(9))
    assert [steps for _, steps, _ in seen] == [6] * 6 + [9] * 3
    assert [epoch for _, _, epoch in seen] == pytest.approx([k / 3 for k in range(9)])


def test_steps_are_the_optimisers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch)
    train(tmp_path / "x", 2, trainer={"accumulate_grad_batches": 3})
    seen = [call[1:3] for call in calls if call[0] == "forward"]
    assert seen == [(0, 2)] * 3 + [(1, 2)] * 3
    assert len([call for call in calls if call[0] == "before"]) == 2


def test_before_step_comes_with_gradients_and_before_the_weights_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record(monkeypatch)
    train(tmp_path / "x", 1)
    assert [call[0] for call in calls] == ["forward", "before", "after"] * 3
    previous = None
    for _, before, after in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
        assert before[1] and not before[2].equal(after[1])
        assert previous is None or before[2].equal(previous)
        previous = after[1]


def test_without_a_trainer_schedules_stand_at_their_start_and_warm_ups_are_over() -> None:
    method = je.methods.create("dino", je.backbones.create_backbone("resnet10-narrow", 1, 8), prototypes=8, dim=4)
    assert method.clock.share == 0
    assert method.temperature() == method.teacher_temperature
    method([torch.randn(4, 1, 8, 8) for _ in range(2)], 2)["loss"].backward()
    method.before_step()
    assert method.last.weight.grad is not None
