"""The trials that recipes were chosen by: on images that no training saw, and a line for each."""

import inspect
import json

import numpy as np
import pytest
import torch

import jointembed as je
from jointembed.data import render_shapes
from jointembed.experiments import cifar10_search, small
from jointembed.experiments.small import parts


@pytest.fixture
def many(tmp_path):
    """More images than are held out."""
    (x, y, _), (x_test, y_test, _) = render_shapes(5100, seed=0, size=8), render_shapes(10, seed=1, size=8)
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return str(tmp_path / "many.npz")


def test_trials_change_only_what_train_or_their_method_knows() -> None:
    known = set(inspect.signature(je.train).parameters)
    for name, trial in cifar10_search.TRIALS.items():
        settings = cifar10_search.BASE | trial
        assert set(settings) <= known | set(je.methods.get(settings["method"]).options()), name
    assert len({json.dumps(trial) for trial in cifar10_search.TRIALS.values()}) == len(cifar10_search.TRIALS)


def test_the_table_has_what_was_run_and_says_what_was_not(many, tmp_path, cells, smallest, monkeypatch) -> None:
    trials = {"one": {"num_slices": 8}, "two": {"num_slices": 8, "weight": 0.2}}
    monkeypatch.setattr(cifar10_search, "TRIALS", trials)
    seen = []

    def note(source, method, **training):
        seen.append(source.batch(torch.arange(len(source))))
        return trained(source, method, **training)

    trained = small.trained
    monkeypatch.setattr(small, "trained", note)
    kept = str(tmp_path / "kept.json")
    cifar10_search.run(many, str(tmp_path), 100, ("two",), kept, changes=smallest | {"epochs": 1})
    one, two = json.loads((tmp_path / "cifar10-search.json").read_text())["rows"]
    (cell,) = cells
    assert one["k-NN %"] == "not run yet" and one["linear %"] == "-"
    assert float(two["linear %"]) == pytest.approx(cell["linear"], abs=0.06) and cell["weight"] == 0.2
    _, held_out = parts(many, 100, held_out=True)
    held = {image.numpy().tobytes() for image in held_out.batch(torch.arange(len(held_out)))}
    assert len(seen[0]) == 100 and not held & {image.numpy().tobytes() for image in seen[0]}


def test_unknown_trials_are_named_before_any_work(many, tmp_path) -> None:
    with pytest.raises(ValueError, match="^only: expected some of LeJEPA; .*got 'nothing'"):
        cifar10_search.run(many, str(tmp_path), only=("nothing",))
    assert not (tmp_path / "cifar10-search.md").exists()
