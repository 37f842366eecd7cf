"""Memory, file handles and processes over many epochs."""

import ctypes
import json
import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import in_child
from tiny import TINY, tiny_network

import jointembed as je
from jointembed.training.folder import RunFolder


class Heap(ctypes.Structure):
    """What glibc's mallinfo2 gives; `uordblks` are the bytes in use."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcdefg", "uordblks", "fordblks", "keepcost"))


def bytes_in_use() -> int:
    if platform.libc_ver()[0] != "glibc":
        return 0
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    return int(mallinfo2().uordblks)


def usage() -> dict[str, int]:
    process = Path("/proc/self")
    return {
        "heap": bytes_in_use(),
        "memory": int((process / "statm").read_text().split()[1]),
        "files": len(os.listdir(process / "fd")),
        "processes": len((process / "task" / str(os.getpid()) / "children").read_text().split()),
    }


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_thirty_epochs_take_no_more_than_three(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    # At 32 pixels this process grew once, in its sixth epoch, by 16 MB (as large as one batch's activations there) and
    # in the 24 epochs after it by 0.3 MB, the bytes in use by 0.1 MB in all 30: no leak, and yet 2.3 % of so small a
    # process. At 16 pixels such a block is a quarter of that.
    sizes = [(16, 16)] * 512 if kind == "memory" else [tuple(rng.integers(24, 40, 2)) for _ in range(512)]
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    seen: list[dict[str, int]] = []

    def work() -> None:
        after_epoch = RunFolder.on_train_epoch_end

        def look(self: RunFolder, *args: object) -> None:
            after_epoch(self, *args)  # type: ignore[arg-type]
            seen.append(usage())

        RunFolder.on_train_epoch_end = look  # type: ignore[method-assign]
        torch.manual_seed(0)
        options = {"epochs": 30, "batch_size": 64, "image_size": 16, "watch_every": 1, "progress": False, **TINY}
        je.train(images, backbone=tiny_network(3), out=tmp_path / "x", **options)
        (tmp_path / "seen").write_text(json.dumps(seen))

    assert in_child(work) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert len(seen) == 30
    assert seen[29]["memory"] == pytest.approx(seen[2]["memory"], rel=0.02)
    assert seen[29]["heap"] == pytest.approx(seen[2]["heap"], rel=0.005)
    assert seen[29]["files"] <= seen[2]["files"]
    assert seen[29]["processes"] <= seen[2]["processes"]
