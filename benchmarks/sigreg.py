"""SIGReg against its peers, forward and backward, drawing of directions counted for all: `python -m benchmarks.sigreg`.

Contenders run in turn within each round, so that whatever else the machine does hits all of them; the minimum over
rounds counts. Peak extra memory is the largest number of bytes of new tensors alive at once, from `torch.profiler`'s
record of every allocation and release. "Points" are the non-negative grid points, those that need computing (17 on
[-5, 5] are 9); Algorithm 1 of the paper computes the negative ones too, as written there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
from lightly.loss.lejepa_loss import SIGReg as LightlySIGReg
from torch import Tensor

from benchmarks.measure import best_seconds, peak_extra_bytes
from jointembed.normality import EppsPulley, SIGReg

NUM_SLICES, T_MAX = 1024, 5.0


def paper_algorithm_1(x: Tensor, step: int, num_points: int) -> Tensor:
    """The paper's listing: complex exponentials of an (N, M, num_points) tensor of angles, autograd behind them."""
    generator = torch.Generator().manual_seed(step)
    directions = torch.randn(x.shape[1], NUM_SLICES, generator=generator)
    directions /= directions.norm(p=2, dim=0)
    t = torch.linspace(-T_MAX, T_MAX, num_points)
    gaussian = torch.exp(-0.5 * t**2)
    ecf = (1j * ((x @ directions).unsqueeze(2) * t)).exp().mean(0)
    error = (ecf - gaussian).abs().square().mul(gaussian)
    return (torch.trapz(error, t, dim=1) * len(x)).mean()


def contenders(z: Tensor, points: int) -> dict[str, Callable[[], object]]:
    """Name -> one forward and backward pass."""
    directions = torch.randn(z.shape[1], NUM_SLICES)
    data = z.detach()
    eager = SIGReg(EppsPulley(T_MAX, 2 * points - 1), NUM_SLICES)
    compiled = SIGReg(EppsPulley(T_MAX, 2 * points - 1, compiled=True), NUM_SLICES, compiled=True)
    lightly = LightlySIGReg(knots=points, t_max=T_MAX, num_vectors=NUM_SLICES)
    return {
        "bare": lambda: (data @ directions) @ directions.T,
        "eager": lambda: eager(z).backward(),
        "compiled": lambda: compiled(z).backward(),
        "lightly": lambda: lightly(z).backward(),
        "paper": lambda: paper_algorithm_1(z, 0, 2 * points - 1).backward(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[9, 17], help="non-negative grid points")
    parser.add_argument("--samples", type=int, nargs="+", default=[256, 512, 2048])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--seconds", type=float, default=0.5, help="time given to each contender in each row")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{torch.get_num_threads()} threads, M = {NUM_SLICES}, load average {load:.1f}; times in ms, memory in MB")
    print(
        "points    N    D |   bare  eager compiled lightly   paper | eager x compiled x | eager/bare compiled/bare | ",
        end="",
    )
    print("memory: eager compiled lightly  paper  best peer/eager")
    for points in arguments.points:
        for dim in arguments.dims:
            for samples in arguments.samples:
                z = torch.randn(samples, dim, requires_grad=True)
                calls = contenders(z, points)
                t = {name: 1e3 * seconds for name, seconds in best_seconds(calls, arguments.seconds).items()}
                mb = {name: peak_extra_bytes(call) / 2**20 for name, call in calls.items()}
                peer, leanest = min(t["lightly"], t["paper"]), min(mb["lightly"], mb["paper"])
                print(
                    f"{points:6} {samples:4} {dim:4} | {t['bare']:6.2f} {t['eager']:6.2f} {t['compiled']:8.2f}"
                    f" {t['lightly']:7.1f} {t['paper']:7.1f} | {peer / t['eager']:7.1f} {peer / t['compiled']:10.1f} |"
                    f" {t['eager'] / t['bare']:10.2f} {t['compiled'] / t['bare']:13.2f} | {mb['eager']:13.1f}"
                    f" {mb['compiled']:8.1f} {mb['lightly']:7.1f} {mb['paper']:6.1f} {leanest / mb['eager']:16.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
