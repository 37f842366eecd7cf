"""Trainings that are killed, anywhere, or told to end, and resumed: they end with the bits of one that was not."""

import csv
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import call_at, die_at, die_writing, in_child, in_ranks, kill_within
from PIL import Image
from safetensors.torch import load_file
from tiny import TINY, tiny_network

import jointembed as je
from jointembed._distributed import _Sum
from jointembed.methods.lejepa import LeJEPA

CLOCK = ("images_per_second", "minutes")


def train(out: Path, epochs: int = 4, **options: object) -> je.Model:
    torch.manual_seed(0)
    settings = {"batch_size": 128, "watch_every": 2, "resume": "auto", **TINY, **options}
    return je.train("digits", backbone=tiny_network(), epochs=epochs, out=out, progress=False, **settings)


def killed_train(out: Path, trap: Callable[[], None], **options: object) -> int:
    def work() -> None:
        trap()
        train(out, **options)

    return in_child(work)


def assert_same_run(folder: Path, expected: Path) -> None:
    """Weights, the state of training, and every figure that is not a time."""
    found, wanted = (load_file(run / "model.safetensors") for run in (folder, expected))
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name].nan_to_num(7), wanted[name].nan_to_num(7)), name
    found, wanted = (torch.load(run / "checkpoint.ckpt", weights_only=True) for run in (folder, expected))
    assert_same(*(run["optimizer_states"] + run["lr_schedulers"] for run in (found, wanted)))
    assert_same(found["state_dict"], wanted["state_dict"])
    found, wanted = (list(csv.DictReader((run / "metrics.csv").open())) for run in (folder, expected))
    assert [row["epoch"] for row in found] == [row["epoch"] for row in wanted]
    for a, b in zip(found, wanted, strict=True):
        for name in b.keys() - set(CLOCK):
            assert a[name] == b[name] or float(a[name]) == pytest.approx(float(b[name]), rel=1e-5), name
    assert sorted(os.listdir(folder)) == sorted(os.listdir(expected))


def assert_same(found: object, wanted: object) -> None:
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))  # type: ignore[attr-defined]
    elif isinstance(wanted, dict):
        assert_same([*found.items()], [*wanted.items()])  # type: ignore[attr-defined]
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)  # type: ignore[arg-type]
        for a, b in zip(found, wanted, strict=True):  # type: ignore[call-overload]
            assert_same(a, b)
    else:
        assert found == wanted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills") / "whole"
    assert in_child(lambda: train(folder)) == 0
    return folder


def test_a_run_killed_between_and_inside_its_writes_loses_nothing(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "x"
    for trap in (
        partial(die_at, os, "replace", 1),  # config.json is not there yet, only what was to become it
        partial(die_writing, 2),  # half of the first checkpoint
        partial(die_at, os, "replace", 3, late=True),  # the first checkpoint is there, its model is not
        partial(die_at, LeJEPA, "forward", 7),  # in the second epoch
        partial(die_at, os, "replace", 5),  # its metrics.csv is missing
        partial(die_at, os, "replace", 6, late=True),  # after the last checkpoint
    ):
        assert killed_train(out, trap) == -9
    assert in_child(lambda: train(out)) == 0
    assert_same_run(out, whole)


def test_a_killed_write_leaves_the_last_good_model(tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert killed_train(out, partial(die_writing, 5)) == -9  # half of the second epoch's model
    assert len([name for name in os.listdir(out) if name.startswith(".")]) == 1
    assert je.load(out, backbone=tiny_network()).embed("digits").isfinite().all()
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        train(out, resume=False)


def photographs(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(40):
        size = tuple(rng.integers(20, 40, 2))
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    return folder


def test_workers_of_a_resumed_run_begin_with_the_epoch_it_stopped_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = photographs(tmp_path / "photos")

    def train_photos(out: Path, trap: Callable[[], object] = tuple) -> None:
        trap()
        torch.manual_seed(0)
        options = {"epochs": 3, "batch_size": 8, "image_size": 16, "resume": "auto", "progress": False, **TINY}
        je.train(photos, backbone=tiny_network(3), out=out, **options)

    assert in_child(lambda: train_photos(tmp_path / "whole")) == 0
    # In the second epoch of five steps every process is told to end, in the third the run is killed.
    assert in_child(lambda: train_photos(tmp_path / "cut", partial(call_at, LeJEPA, "forward", 7, end_all))) == 143
    assert in_child(lambda: train_photos(tmp_path / "cut", partial(die_at, LeJEPA, "forward", 5))) == -9
    assert in_child(lambda: train_photos(tmp_path / "cut")) == 0
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        ("ddp", "lejepa"),
        pytest.param("ddp", "moco-v2", marks=pytest.mark.soak),
        pytest.param("fsdp", "lejepa", marks=pytest.mark.soak),
        pytest.param("fsdp", "moco-v2", marks=pytest.mark.soak),
    ],
)
def test_two_processes_that_were_killed_go_on_to_the_same_bits(tmp_path: Path, strategy: str, method: str) -> None:
    """Each has a BatchNorm, views and dropout of its own."""
    options = {"epochs": 2, "batch_size": 64, "devices": 2, "strategy": strategy, "method": method}

    def killed() -> None:
        die_at(je.methods.get(method), "forward", 14)  # in the second epoch
        soaked(tmp_path / "x", options)

    assert in_ranks(lambda: soaked(tmp_path / "whole", options), 2) == [0, 0]
    assert in_ranks(killed, 2)[0] == -9
    assert torch.load(tmp_path / "x" / "checkpoint.ckpt", weights_only=True)["global_step"] == 11
    with pytest.raises(ValueError, match=r"resume: the run in .*x has processes 2, got 1"):
        soaked(tmp_path / "x", options | {"devices": 1, "strategy": "auto"})
    assert in_ranks(lambda: soaked(tmp_path / "x", options), 2) == [0, 0]
    assert_same_run(tmp_path / "x", tmp_path / "whole")


def end_all() -> None:
    """SIGTERM to this process and its workers, as a cluster sends it."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for process in (*map(int, children), os.getpid()):
        os.kill(process, signal.SIGTERM)


def test_a_run_told_to_end_goes_on_in_the_middle_of_its_epoch(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "x"
    for step, after in ((14, 14), (3, 17), (5, 22)):  # twice in the second epoch, then with its last step
        end = partial(call_at, LeJEPA, "forward", step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert killed_train(out, end) == 143
        assert torch.load(out / "checkpoint.ckpt", weights_only=True)["global_step"] == after
        assert f"SIGTERM at step {after}; go on with --resume auto" in (out / "log.txt").read_text()
    assert in_child(lambda: train(out)) == 0
    assert_same_run(out, whole)


@pytest.mark.parametrize("told", ["first", "second", pytest.param("both", marks=pytest.mark.soak)])
def test_processes_told_to_end_one_or_all_end_together(tmp_path: Path, told: str) -> None:
    """In the middle of a loss that talks to the other process, where a handler that does so too would wait for ever."""
    options = {"epochs": 2, "batch_size": 64, "devices": 2, "strategy": "ddp"}

    def ended() -> None:
        if told in ("both", ("first", "second")[int(os.environ["RANK"])]):
            call_at(_Sum, "backward", 14, lambda: os.kill(os.getpid(), signal.SIGTERM))
        soaked(tmp_path / "x", options)

    assert in_ranks(lambda: soaked(tmp_path / "whole", options), 2) == [0, 0]
    assert in_ranks(ended, 2) == [143, 143]
    assert torch.load(tmp_path / "x" / "checkpoint.ckpt", weights_only=True)["global_step"] not in (0, 11, 22)
    assert in_ranks(lambda: soaked(tmp_path / "x", options), 2) == [0, 0]
    assert_same_run(tmp_path / "x", tmp_path / "whole")


def test_gradients_under_accumulation_are_in_no_checkpoint_and_the_run_goes_back_an_epoch(tmp_path: Path) -> None:
    options = {"epochs": 2, "trainer": {"accumulate_grad_batches": 2}}
    end = partial(call_at, LeJEPA, "forward", 14, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert in_child(lambda: train(tmp_path / "whole", **options)) == 0
    assert killed_train(tmp_path / "x", end, **options) == 143
    assert "the run goes back an epoch" in (tmp_path / "x" / "log.txt").read_text()
    assert in_child(lambda: train(tmp_path / "x", **options)) == 0
    assert_same_run(tmp_path / "x", tmp_path / "whole")


@pytest.mark.soak
@pytest.mark.parametrize("method", ["lejepa", "moco-v2", "gmje"])
def test_twenty_five_kills_at_random_moments_change_nothing(tmp_path: Path, method: str) -> None:
    """A teacher and a bank (moco-v2) and a mixture (gmje) are state as well."""
    options = {"epochs": 12, "method": method}
    start = time.monotonic()
    assert in_child(lambda: soaked(tmp_path / "whole", options)) == 0
    seconds = time.monotonic() - start
    for kill in range(25):
        in_child(lambda: soaked(tmp_path / "x", options), kill_within(seconds / 2, kill))
    assert in_child(lambda: soaked(tmp_path / "x", options)) == 0
    assert_same_run(tmp_path / "x", tmp_path / "whole")


def soaked(out: Path, options: dict) -> None:
    torch.manual_seed(0)
    settings = {"batch_size": 128, **{name: TINY[name] for name in ("view_options", "hold_out")}, **options}
    je.train("digits", backbone=tiny_network(), out=out, resume="auto", progress=False, **settings)
