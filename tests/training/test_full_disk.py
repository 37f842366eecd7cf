"""Disks that are full or read-only: what was written before survives, and one sentence says what happened."""

import ctypes
import errno
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import call_at, in_child
from tiny import TINY, tiny_network

import jointembed as je
from jointembed.cli import main
from jointembed.methods.lejepa import LeJEPA


def train(out: Path, **options: object) -> je.Model:
    torch.manual_seed(0)
    settings = {"epochs": 2, "batch_size": 128, "progress": False, **TINY, **options}
    return je.train("digits", backbone=tiny_network(), out=out, **settings)


def failing(original: Callable[..., Any], count: int, code: int, half: bool = False) -> Callable[..., Any]:
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            if half:
                original(args[0], bytes(args[1])[: len(args[1]) // 2])
            raise OSError(code, os.strerror(code))
        return original(*args, **kwargs)

    return call


@pytest.mark.parametrize(("count", "name"), [(4, "checkpoint.ckpt"), (5, "model.safetensors")])
def test_a_disk_that_fills_up_within_a_write_keeps_the_last_good_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, name: str
) -> None:
    out = tmp_path / "x"
    monkeypatch.setattr(Path, "write_bytes", failing(Path.write_bytes, count, errno.ENOSPC, half=True))
    with pytest.raises(OSError, match=rf"^training stopped at step 22: .*x/{name} could not be written: No space left"):
        train(out)
    assert torch.load(out / "checkpoint.ckpt", weights_only=True)["epoch"] == (0 if name == "checkpoint.ckpt" else 1)
    assert je.load(out, backbone=tiny_network()).embed("digits").isfinite().all()
    assert not [path for path in os.listdir(out) if path.startswith(".")]
    monkeypatch.undo()
    resumed = train(out, resume="auto")
    assert resumed.anomaly_score("digits").isfinite().all()


def test_a_folder_that_becomes_read_only_stops_the_run_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", failing(tempfile.mkstemp, 3, errno.EROFS))
    command = ["train", "--data", "digits", "--backbone", "conv4", "--epochs", "1", "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit, match=r"^jointembed: training stopped .*checkpoint.ckpt .*: Read-only file system"):
        main([*command, "--num-slices", "16", "--dim", "8", "--batch-size", "512"])
    assert je.load(tmp_path / "x").embed("digits").isfinite().all()  # as it was before the first step


def test_a_limit_on_file_sizes_stops_the_run_as_a_full_disk_does(tmp_path: Path) -> None:
    """The kernel's own error, met by every writer there is."""
    out, said = tmp_path / "x", tmp_path / "said"

    def limited() -> None:
        call_at(LeJEPA, "forward", 15, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
        try:
            train(out)
        except OSError as error:
            said.write_text(str(error))

    assert in_child(limited) == 0
    assert "checkpoint.ckpt could not be written: File too large" in said.read_text()
    assert torch.load(out / "checkpoint.ckpt", weights_only=True)["epoch"] == 0


def test_a_file_system_without_room_keeps_the_last_checkpoint_and_lets_the_run_go_on(tmp_path: Path) -> None:
    """A file system of two megabytes, seen by the child alone, which is filled to its last byte in the second epoch."""
    out, ballast = tmp_path / "x", tmp_path / "ballast"

    def work() -> None:
        mount_small(tmp_path)
        call_at(LeJEPA, "forward", 15, lambda: fill(ballast))
        with pytest.raises(OSError, match=r"^training stopped at step 22: .*No space left on device"):
            train(out)
        assert torch.load(out / "checkpoint.ckpt", weights_only=True)["epoch"] == 0
        assert sorted(os.listdir(out)) == ["checkpoint.ckpt", "config.json", "log.txt", *AFTER_ONE_EPOCH]
        ballast.unlink()
        assert train(out, resume="auto").embed("digits").isfinite().all()

    code = in_child(work)
    if code == CANNOT_MOUNT:
        pytest.skip("file systems cannot be mounted here")
    assert code == 0


AFTER_ONE_EPOCH = ("metrics.csv", "model.safetensors", "tensorboard")
CANNOT_MOUNT = 77


def mount_small(folder: Path) -> None:
    libc, new_namespace, recursively_private = ctypes.CDLL(None), 0x20000, 0x44000
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, recursively_private, None):
        raise SystemExit(CANNOT_MOUNT)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=2m"):
        raise SystemExit(CANNOT_MOUNT)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
