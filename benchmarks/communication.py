"""What each method adds to DDP's own traffic: bytes a rank sends in one step, against batch, dimension, slices, ranks.

    python -m benchmarks.communication

Nothing is sent: one process stands for all, whose ranks have the same images, and every collective is entered in a
ledger. A ring sends 2 (R - 1) / R of what it reduces, R - 1 times what it gathers, and once what it broadcasts. The
third step is counted, in which banks are full: forward, backward, and what follows the step. DDP adds its own: the
gradients, reduced, and the buffers, broadcast (`python -m benchmarks.scaling`).
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.cost_model import VARIANTS, Payload, Sizes
from jointembed import _distributed, methods
from jointembed.experiments.results import write_results

RESULTS = Path(__file__).parents[1] / "results"


class Ledger:
    """`torch.distributed` of `ranks` ranks that are all like this one, and what they would put into collectives."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.entries: list[tuple[str, int]] = []

    @property
    def payload(self) -> Payload:
        sums = {kind: sum(size for name, size in self.entries if name == kind) for kind, _ in self.entries}
        return Payload(**sums)

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self) -> int:
        return self.ranks

    def get_rank(self) -> int:
        return 0

    def _enter(self, kind: str, x: Tensor) -> None:
        self.entries.append((kind, x.numel() * x.element_size()))

    def all_reduce(self, x: Tensor, op: Any = None) -> None:
        self._enter("reduced", x)
        x *= self.ranks

    def all_gather(self, parts: list[Tensor], x: Tensor) -> None:
        self._enter("gathered", x)
        for part in parts:
            part.copy_(x)

    def broadcast(self, x: Tensor, source: int) -> None:
        self._enter("broadcast", x)


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor made in here."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for x in tree_iter(found):
            if isinstance(x, Tensor):
                self.size = max(self.size, x.numel() * x.element_size())
        return found


class Flat(nn.Module):
    """(N, 1, 2, 2) to (N, D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features, self.linear = dim, nn.Linear(4, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def create(variant: str, sizes: Sizes) -> methods.Method:
    """The method on a small network. VJE and the like have no projector: their D is the network's."""
    name, options = VARIANTS[variant]
    known = methods.get(name).options()
    narrow = {k: v for k, v in {"projector_width": 8, "width": 8}.items() if k in known}
    torch.manual_seed(0)
    return methods.create(name, Flat(sizes.dim), **(sizes.options(name) | narrow | options)).train()


def third_step(variant: str, sizes: Sizes, ledger: Any) -> int:
    """Take it, with its collectives entered in the ledger; returns the bytes of the largest tensor."""
    method = create(variant, sizes)
    with patch.object(_distributed, "dist", ledger):
        for _ in range(3):
            ledger.entries.clear()
            views = [torch.randn(sizes.batch, 1, 2, 2) for _ in range(2)]
            with Largest() as largest:
                method(views, 2)["loss"].backward()
                method.before_step()
                method.after_step()
    return largest.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--methods", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="METHOD")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for communication.json and .md")
    options = vars(parser.parse_args())
    variants, results = options.pop("methods"), options.pop("results")
    base = Sizes(**options)
    start = time.monotonic()
    columns = {"as above": base}
    columns |= {f"{name} x 2": replace(base, **{name: 2 * getattr(base, name)}) for name in list(options)[:4]}
    columns |= {f"{ranks} ranks": replace(base, ranks=ranks) for ranks in (8,)}
    rows = []
    for variant in variants:
        row: dict[str, Any] = {"method": variant}
        for column, sizes in columns.items():
            ledger = Ledger(sizes.ranks)
            size = third_step(variant, sizes, ledger)
            if sizes is base:
                row |= {"collectives": len(ledger.entries), "largest tensor, MB": f"{size / 1e6:.3g}"}
            row[column] = f"{ledger.payload.sent(sizes.ranks) / 1e3:.3g}"
        rows.append(row)
    settings = ", ".join(f"{name} {value}" for name, value in options.items())
    title = f"kB that a rank sends in one step beside DDP's own; {settings}; then each of four doubled, and 8 ranks"
    write_results(results, "communication", title, rows, "python -m benchmarks.communication", time.monotonic() - start)


if __name__ == "__main__":
    main()
