"""A whole LeJEPA training step against a lightly loop of the same network, batch and method, side by side in one run.

    python -m benchmarks.step

Each step goes from uint8 images to updated weights: two 32 x 32 views of 256 images, forward, loss, backward, AdamW.
lightly's side is its documented way of working: `SimCLRTransform` (without blur, as for CIFAR) in a DataLoader with one
worker per core, float32, its own SIGReg and invariance loss, each view through the network by itself. Where the CPU has
bf16, lightly is timed under bf16 autocast as well.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import lightly
import numpy as np
import torch
from lightly.loss.lejepa_loss import SIGReg, lejepa_invariance_loss
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from jointembed import methods
from jointembed.backbones import create_backbone
from jointembed.data import Views
from jointembed.methods.lejepa import projector_mlp
from jointembed.training.engine import keep_freed_memory
from jointembed.training.precision import best_precision

BATCH = 256


class Pictures(Dataset):
    """What lightly's pipeline reads: PIL images, here already decoded."""

    def __init__(self, images: np.ndarray, transform: Callable) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.images[index]))


def lightly_steps(name: str, images: np.ndarray, bf16: bool) -> Iterator[None]:
    torch.manual_seed(0)
    backbone = create_backbone(name)
    network = nn.Sequential(backbone, projector_mlp(backbone.num_features, 512, 64, 3))
    sigreg = SIGReg(knots=9, t_max=5.0)  # the nine non-negative ones of our 17 points
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3)
    transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    loader = DataLoader(Pictures(images, transform), BATCH, True, num_workers=os.cpu_count() or 1, drop_last=True)
    while True:
        for views in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                z = torch.stack([network(view) for view in views]).float()
            loss = 0.98 * lejepa_invariance_loss(all_proj=z, global_proj=z) + 0.02 * sigreg(z)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            yield


def our_steps(name: str, images: np.ndarray) -> Iterator[None]:
    keep_freed_memory()  # as `jointembed.train` does
    torch.manual_seed(0)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    method = methods.create("lejepa", create_backbone(name)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(method.parameters(), 2e-3)
    views = Views(32, "simclr", num_global=2, mean=[0.5] * 3, std=[0.25] * 3)
    step = 0
    while True:
        for indices in torch.randperm(len(pixels)).split(BATCH):
            batch = [view.contiguous(memory_format=torch.channels_last) for view in views(pixels[indices], (0, step))]
            with torch.autocast("cpu", torch.bfloat16, enabled=best_precision() == "bf16-mixed"):
                loss = method(batch, 2)["loss"]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
            yield


def seconds(steps: Iterator[None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        next(steps)
        times.append(time.perf_counter() - began)
    return float(np.median(times))  # not the minimum: a loader that works ahead makes some steps look free


def measure(side: str, backbone: str, repeats: int) -> float:
    """Median step of one side, in this process."""
    images = np.random.default_rng(0).integers(0, 256, (BATCH * 40, 32, 32, 3), dtype=np.uint8)
    if side == "ours":
        steps = our_steps(backbone, images)
    else:
        steps = lightly_steps(backbone, images, bf16=side == "lightly-bf16")
    seconds(steps, 3)  # warm up; for lightly, fill the workers' queues
    return seconds(steps, repeats)


def measure_apart(*arguments: str) -> float:
    """The same in a process of its own: neither side inherits the other's memory or threads."""
    command = [sys.executable, "-m", "benchmarks.step", "--measure", *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbones", nargs="+", default=["resnet10-narrow", "resnet18"])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--measure", nargs=3, metavar=("SIDE", "BACKBONE", "REPEATS"), help="one side only")
    options = parser.parse_args()
    if options.measure:
        print(measure(*options.measure[:2], int(options.measure[2])))
        return
    native = best_precision() == "bf16-mixed"
    capability = torch.backends.cpu.get_cpu_capability()
    print(
        f"torch {torch.__version__}, lightly {lightly.__version__}, {os.cpu_count()} cores {capability}, bf16: {native}"
    )
    print("| backbone | ours, s/step | lightly, s/step | ratio | lightly bf16, s/step | ratio |\n|" + " --- |" * 6)
    for name in options.backbones:
        best = dict.fromkeys(["ours", "lightly", *(["lightly-bf16"] if native else [])], float("inf"))
        for side in [*best] * options.rounds:
            best[side] = min(best[side], measure_apart(side, name, str(options.repeats)))
        ours, theirs = best["ours"], best["lightly"]
        half = f"{best['lightly-bf16']:.3f} | {best['lightly-bf16'] / ours:.2f}" if native else "no native bf16 here | "
        print(f"| {name} | {ours:.3f} | {theirs:.3f} | {theirs / ours:.2f} | {half} |", flush=True)


if __name__ == "__main__":
    main()
