"""Whole trainings of two processes: by Lightning's launcher, and on the command line by torchrun."""

import csv
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from train_digits import METHODS, train

import jointembed as je
from jointembed.data.loading import EpochBatches
from jointembed.training.processes import fitting_batch


def run(*command: object) -> str:
    """What it said. Two processes with one thread each."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# DDP's own path through a training is in tests/training/test_interruptions.py as well.
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.soak), "fsdp"])
def test_two_processes_train_the_weights_of_one_with_twice_the_batch(tmp_path: Path, strategy: str) -> None:
    run(Path(__file__).with_name("train_digits.py"), tmp_path, 2, 64, strategy)
    assert [(tmp_path / f"parted-{rank}").read_text() for rank in range(2)] == [str(strategy == "ddp")] * 2
    alone = train(tmp_path / "alone", 1, 128)
    for name in METHODS:
        first, second = (torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2))
        for key, expected in alone[name].method.state_dict().items():
            assert torch.equal(first["state"][key], second["state"][key]), key
            torch.testing.assert_close(first["state"][key], expected, rtol=1e-4, atol=1e-5, msg=key)
        assert first["reference"].keys() == alone[name].reference.keys()
        assert all(torch.equal(first["reference"][key], second["reference"][key]) for key in first["reference"])
        assert files(tmp_path / name) == files(tmp_path / "alone" / name)
        rows, expected_rows = (
            list(csv.DictReader((folder / name / "metrics.csv").open())) for folder in (tmp_path, tmp_path / "alone")
        )
        assert [row["epoch"] for row in rows] == ["0", "1"]
        for row, one in zip(rows, expected_rows, strict=True):
            assert float(row["loss"]) == pytest.approx(float(one["loss"]), rel=1e-4)
            assert float(row["knn"]) == pytest.approx(float(one["knn"]), abs=0.02)


@pytest.mark.soak  # two interpreters that import everything, for one flag
def test_torchrun_reaches_the_command_line_and_batch_norm_is_warned_of_once(tmp_path: Path) -> None:
    flags = {"data": "digits", "backbone": "resnet10-narrow", "epochs": 1, "batch-size": 128, "out": tmp_path / "x"}
    flags |= {"num-slices": 16, "dim": 8, "devices": 2, "strategy": "ddp", "num-nodes": 1}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    said = run(*launcher, "-m", "jointembed", "train", *(f"--{name}={value}" for name, value in flags.items()))
    assert said.count("BatchNorm: on CPUs each of the 2 processes normalises by its own images only") == 1
    assert said.count("epoch 1/1") == 1
    assert len(list(csv.DictReader((tmp_path / "x" / "metrics.csv").open()))) == 1
    recorded = json.loads((tmp_path / "x" / "config.json").read_text())["training"]
    assert recorded["processes"] == 2
    assert (tmp_path / "x" / "log.txt").read_text().count("epoch 1/1") == 1
    assert torch.load(tmp_path / "x" / "checkpoint.ckpt", weights_only=True)["global_step"] == recorded["images"] // 256
    assert je.load(tmp_path / "x").anomaly_score("digits").isfinite().all()
    assert not [name for name in files(tmp_path / "x") if name.startswith(".")]


@pytest.mark.parametrize(("length", "ranks"), [(64, 2), (103, 3)])
def test_ranks_together_see_the_batches_of_one_process_and_none_is_ever_short(length: int, ranks: int) -> None:
    parts = [[key.indices for key in EpochBatches(length, 8, 5, rank, ranks)] for rank in range(ranks)]
    together = [torch.cat(step) for step in zip(*parts, strict=True)]
    whole = [key.indices for key in EpochBatches(length, 8 * ranks, 5)]
    assert len(together) == len(whole) > 0
    assert all(torch.equal(a, b) for a, b in zip(together, whole, strict=True))
    assert {len(indices) for part in parts for indices in part} == {8}


@pytest.mark.parametrize(
    "options",
    [{"strategy": "fsdp_cpu_offload"}, {"strategy": "deepspeed_stage_2"}, {"trainer": {"strategy": FSDPStrategy()}}],
)
def test_other_strategies_that_share_the_model_out_are_refused(tmp_path: Path, options: dict) -> None:
    with pytest.raises(ValueError, match="strategy: expected one that keeps the whole model in every process"):
        je.train("digits", devices=2, out=tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_parameters_that_a_method_writes_to_are_not_shared_out(tmp_path: Path) -> None:
    options = {"method": "gmje", "learning": "gradient", "backbone": "resnet10-tiny"}
    with pytest.raises(ValueError, match="strategy: expected .* for these options of gmje, which writes to its param"):
        je.train("digits", devices=2, strategy="fsdp", out=tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_a_batch_is_at_most_an_equal_share_of_the_images(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jointembed"):
        assert fitting_batch(256, 1000, 3) == 256
        assert not caplog.text
        assert fitting_batch(256, 500, 3) == 166
    assert "batch_size: 256 for each of 3 processes is more than the 500 images; using 166" in caplog.text
    with pytest.raises(ValueError, match="devices: expected at most one process for each of the 2 images, got 3"):
        fitting_batch(256, 2, 3)
