"""Where the time of a training goes beside the network: start-up, and the breakdown of an epoch on small images.

    python -m benchmarks.overhead

An epoch of `jointembed.train` on images of CIFAR-10's size (50,000 by default, random pixels), with the narrow
ResNet-10 and batches of 256. Every part is timed inside the real training; what is left over is Lightning's own.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTS = ("data", "views", "backbone forward", "loss and heads", "backward", "optimiser", "logging", "callbacks")


class Stopwatch:
    """Seconds by part. Of nested parts the inner one has its time to itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[tuple[str, float]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        now = time.perf_counter()
        if self._running:
            outer, since = self._running[-1]
            self.seconds[outer] += now - since
        self._running.append((name, now))
        try:
            yield
        finally:
            now = time.perf_counter()
            name, since = self._running.pop()
            self.seconds[name] += now - since
            if self._running:
                self._running[-1] = (self._running[-1][0], now)

    def time(self, owner: Any, attribute: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        setattr(owner, attribute, timed)


def watch(stopwatch: Stopwatch) -> None:
    """Put the stopwatch into every part of a training."""
    import torch
    from lightning.pytorch.trainer.connectors.logger_connector import logger_connector
    from timm.models.resnet import ResNet

    from jointembed.data.loading import BatchReader, GrowingViews
    from jointembed.methods.lejepa import LeJEPA
    from jointembed.training import callbacks, folder
    from jointembed.training.module import TrainingModule

    stopwatch.time(BatchReader, "__getitem__", "data")
    stopwatch.time(GrowingViews, "__call__", "views")
    stopwatch.time(ResNet, "forward", "backbone forward")
    stopwatch.time(LeJEPA, "forward", "loss and heads")
    stopwatch.time(TrainingModule, "backward", "backward")
    stopwatch.time(TrainingModule, "on_before_optimizer_step", "optimiser")
    stopwatch.time(TrainingModule, "log_dict", "logging")
    for name in ("update_train_step_metrics", "update_train_epoch_metrics", "on_batch_end"):
        stopwatch.time(logger_connector._LoggerConnector, name, "logging")
    stopwatch.time(torch.optim.AdamW, "zero_grad", "optimiser")
    for cls in (folder.RunFolder, callbacks.CollapseWatch, callbacks.OnlineKNN, callbacks.Progress):
        stopwatch.time(cls, "on_train_epoch_end", "callbacks")
    stopwatch.time(callbacks.Progress, "on_train_batch_end", "callbacks")
    # Lightning hands the whole step to the optimiser as a closure: what the closure does has been taken out above.
    stopwatch.time(torch.optim.AdamW, "step", "optimiser")


def epoch(images: int, batch_size: int, backbone: str) -> tuple[dict[str, float], float]:
    """Seconds of each part in the second epoch of two, and of that epoch."""
    import torch

    import jointembed as je
    from jointembed.training.folder import RunFolder

    stopwatch, ends = Stopwatch(), []
    watch(stopwatch)
    finish = RunFolder.on_train_epoch_end

    def mark(self: RunFolder, *args: Any) -> None:
        finish(self, *args)
        ends.append((time.perf_counter(), dict(stopwatch.seconds)))

    RunFolder.on_train_epoch_end = mark  # type: ignore[method-assign]
    pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as place:
        options = {"epochs": 2, "batch_size": batch_size, "hold_out": 0.0, "watch_every": 1, "progress": False}
        je.train(pixels, backbone=backbone, out=Path(place) / "x", **options)
    (start, before), (end, after) = ends
    return {name: after[name] - before.get(name, 0.0) for name in after}, end - start


def start_up(backbone: str) -> dict[str, float]:
    """Seconds from `jointembed train` to the first step, in a new process, and those of them that imports take."""
    code = (
        "import sys, time; began = time.perf_counter()\n"
        "import jointembed.training, jointembed.cli, timm, torchvision, sklearn.covariance\n"
        "imported = time.perf_counter()\n"
        "from jointembed.methods.lejepa import LeJEPA\n"
        "def first(*args):\n"
        "    print(imported - began, time.perf_counter() - imported, flush=True); import os; os._exit(0)\n"
        "LeJEPA.forward = first\n"
        f"jointembed.cli.main(['train', '--data', 'digits', '--backbone', {backbone!r}, '--out', sys.argv[1]])\n"
    )
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", code, f"{place}/x"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    imports, rest = map(float, said.split())
    return {"imports": imports, "from there to the first step": rest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--backbone", default="resnet10-narrow")
    options = parser.parse_args()
    print("| start-up | s |\n| --- | ---: |")
    for name, seconds in start_up(options.backbone).items():
        print(f"| {name} | {seconds:.2f} |")
    parts, whole = epoch(options.images, options.batch_size, options.backbone)
    parts["Lightning's own"] = whole - sum(parts.values())
    network = parts["backbone forward"] + parts["backward"]
    print(
        f"\n| part of an epoch of {options.images:,} images | s | % | % of the network |\n| --- | ---: | ---: | ---: |"
    )
    for name in (*PARTS, "Lightning's own"):
        print(f"| {name} | {parts[name]:.2f} | {100 * parts[name] / whole:.1f} | {100 * parts[name] / network:.1f} |")
    print(f"| whole | {whole:.2f} | 100 | {100 * whole / network:.1f} |")


if __name__ == "__main__":
    main()
