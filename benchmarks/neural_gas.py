"""Growing Neural Gas in mini-batches against a loop over samples, side by side: `python -m benchmarks.neural_gas`.

The loop is numpy for the distances and a dictionary of ages per node, touching only what a sample touches. All see the
same stream of samples; the first 100 per node let the gas grow, and the rest is timed at its full size. The minimum
over pieces of the stream counts, and contenders take turns piece by piece, so that whatever else the machine does hits
all of them. The quantisation error is that of samples nobody has seen.
"""

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import torch

from jointembed.methods.gmje import GrowingNeuralGas

PIECE = 4096  # samples timed at once


class Loop:
    """Fritzke's algorithm, sample by sample, as lean as Python and numpy are."""

    def __init__(self, start: np.ndarray, max_nodes: int) -> None:
        self.w, self.error, self.ages = start.copy(), np.zeros(2), [{}, {}]
        self.steps, self.max_nodes = 0, max_nodes

    def partial_fit(self, x: np.ndarray, eps_b: float = 0.2, eps_n: float = 0.006) -> None:
        for xi in x:
            distance = ((self.w - xi) ** 2).sum(1)
            first, second = np.argpartition(distance, 1)[:2].tolist()
            mine = self.ages[first]
            self.error[first] += distance[first]
            self.w[first] += eps_b * (xi - self.w[first])
            for other in mine:
                mine[other] = self.ages[other][first] = mine[other] + 1
                self.w[other] += eps_n * (xi - self.w[other])
            mine[second] = self.ages[second][first] = 0
            for other in [other for other, age in mine.items() if age > 50]:
                del mine[other], self.ages[other][first]
                if not self.ages[other]:
                    self.remove(other)
                    break  # at most one edge expires here at a time, but for rare ties
            self.steps += 1
            if self.steps % 100 == 0 and len(self.w) < self.max_nodes:
                self.insert()
            self.error *= 1 - 0.005

    def remove(self, node: int) -> None:
        self.w, self.error = np.delete(self.w, node, 0), np.delete(self.error, node)
        del self.ages[node]
        self.ages = [{other - (other > node): age for other, age in mine.items()} for mine in self.ages]

    def insert(self) -> None:
        q = int(self.error.argmax())
        f = max(self.ages[q], key=lambda node: self.error[node])
        del self.ages[q][f], self.ages[f][q]
        self.ages[q][len(self.w)] = self.ages[f][len(self.w)] = 0
        self.ages.append({q: 0, f: 0})
        self.w = np.vstack([self.w, (self.w[q] + self.w[f]) / 2])
        self.error[[q, f]] *= 0.5
        self.error = np.append(self.error, self.error[q])


def stream(samples: int, dim: int) -> torch.Tensor:
    """A mixture of 30 Gaussians, float32."""
    random = np.random.default_rng(0)
    centres = 2 * random.normal(size=(30, dim))
    x = centres[random.integers(30, size=samples)] + random.normal(size=(samples, dim))
    return torch.from_numpy(x.astype(np.float32))


def compare(nodes: int, dim: int, pieces: int, batch_sizes: list[int]) -> None:
    grown = 100 * nodes
    x = stream(grown + (pieces + 1) * PIECE, dim)
    unseen = x[-PIECE:]
    gases = {size: GrowingNeuralGas(nodes, batch_size=size) for size in batch_sizes}
    loop = Loop(x[:2].numpy(), nodes)
    learn: dict[str, Callable[[torch.Tensor], object]] = {"loop": lambda part: loop.partial_fit(part.numpy())}
    learn |= {f"batch {size}": gas.partial_fit for size, gas in gases.items()}
    growing, full = {}, dict.fromkeys(learn, float("inf"))
    for name, call in learn.items():
        began = time.perf_counter()
        call(x[:grown])
        growing[name] = (time.perf_counter() - began) / grown
    for piece in x[grown : grown + pieces * PIECE].split(PIECE):
        for name, call in learn.items():
            began = time.perf_counter()
            call(piece)
            full[name] = min(full[name], (time.perf_counter() - began) / PIECE)
    reference = GrowingNeuralGas(nodes)
    reference.nodes = torch.from_numpy(loop.w)
    errors = {"loop": reference.quantisation_error(unseen)}
    errors |= {f"batch {size}": gas.quantisation_error(unseen) for size, gas in gases.items()}
    for name in learn:
        print(
            f"{nodes:4} {dim:4} {name:>10} | {1e6 * growing[name]:8.1f} {growing['loop'] / growing[name]:6.1f} |"
            f" {1e6 * full[name]:8.1f} {full['loop'] / full[name]:6.1f} |"
            f" {errors[name]:8.3f} {errors[name] / errors['loop'] - 1:+7.2%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 64])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--pieces", type=int, default=8, help=f"of {PIECE} samples, timed at full size")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}; microseconds per sample")
    print("   K    D            |  growing  ratio | at size K ratio | quantisation error")
    for nodes in arguments.nodes:
        for dim in arguments.dims:
            compare(nodes, dim, arguments.pieces, arguments.batch_sizes)


if __name__ == "__main__":
    main()
