"""Losses, gradients and weights that explode: caught where they do, and the run folder still loads."""

from pathlib import Path

import pytest
import torch
from tiny import TINY, tiny_network

import jointembed as je
from jointembed.methods.lejepa import LeJEPA
from jointembed.training import Diverged


def train(out: Path) -> je.Model:
    torch.manual_seed(0)
    return je.train("digits", backbone=tiny_network(), out=out, epochs=2, batch_size=128, progress=False, **TINY)


def assert_first_epoch_is_kept(out: Path) -> None:
    checkpoint = torch.load(out / "checkpoint.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 11
    assert all(value.isfinite().all() for name, value in checkpoint["state_dict"].items() if "density" not in name)
    assert je.load(out, backbone=tiny_network()).embed("digits").isfinite().all()


@pytest.mark.parametrize(("value", "words"), [(torch.inf, "the loss"), (None, "the gradient")])
def test_what_is_not_finite_is_caught_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float | None, words: str
) -> None:
    forward, calls = LeJEPA.forward, 0

    def exploding(self: LeJEPA, *args: object) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        terms = forward(self, *args)
        if calls <= 15:
            return terms
        # The root of zero is zero, and infinitely steep.
        return terms | {"loss": terms["loss"] + ((0 * terms["loss"]).sqrt() if value is None else value)}

    monkeypatch.setattr(LeJEPA, "forward", exploding)
    with pytest.raises(Diverged, match=rf"^{words} is not finite at step 15 \(epoch 1\)"):
        train(tmp_path / "x")
    assert_first_epoch_is_kept(tmp_path / "x")


def test_weights_that_explode_with_the_last_step_do_not_replace_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def overflow(self: LeJEPA) -> None:
        nonlocal calls
        calls += 1
        if calls == 22:
            self.projector[-1].weight.data[0, 0] = torch.inf

    monkeypatch.setattr(LeJEPA, "after_step", overflow)
    with pytest.raises(Diverged, match=r"^projector\.6\.weight is not finite after epoch 2"):
        train(tmp_path / "x")
    assert_first_epoch_is_kept(tmp_path / "x")
