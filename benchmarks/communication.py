"""What each method adds to DDP's own traffic: bytes a rank sends in one step, against batch, dimension, slices, ranks.

    python -m benchmarks.communication

Nothing is sent: one process stands for all, whose ranks have the same images, and every collective is entered in a
ledger. A ring sends 2 (R - 1) / R of what it reduces, R - 1 times what it gathers, and once what it broadcasts. The
third step is counted, in which banks are full: forward, backward, and what follows the step. DDP adds 2 (R - 1) / R
times the gradients, 44 MB for a ResNet-18 on two ranks.
"""

import argparse
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed
from torch import Tensor, nn

from jointembed import _distributed, methods


class Ledger:
    """`torch.distributed` of `ranks` ranks that are all like this one, and what they would send."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sent: dict[str, float] = defaultdict(float)
        self.calls = 0

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self) -> int:
        return self.ranks

    def get_rank(self) -> int:
        return 0

    def _enter(self, name: str, x: Tensor, times: float) -> None:
        self.sent[name] += times * x.numel() * x.element_size()
        self.calls += 1

    def all_reduce(self, x: Tensor, op: Any = None) -> None:
        self._enter("all_reduce", x, 2 * (self.ranks - 1) / self.ranks)
        x *= self.ranks

    def all_gather(self, parts: list[Tensor], x: Tensor) -> None:
        self._enter("all_gather", x, self.ranks - 1)
        for part in parts:
            part.copy_(x)

    def broadcast(self, x: Tensor, source: int) -> None:
        self._enter("broadcast", x, 1)


class Flat(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features, self.linear = dim, nn.Linear(64, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


# Options beside the default ones. VJE has no projector: its D is the backbone's.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in methods.names()} | {
    "gje, hsic": ("gje", {"variant": "hsic"}),
    "gje, dual": ("gje", {"variant": "dual"}),
    "gje, rff": ("gje", {"variant": "rff"}),
    "gmje-smc, batch": ("gmje-smc", {"policy": "batch"}),
}


def ledger_of(variant: str, batch: int, dim: int, slices: int, ranks: int) -> Ledger:
    """The third step of training."""
    name, options = VARIANTS[variant]
    given = {"dim": dim, "num_slices": slices, "bank": 2 * batch, "projector_width": 32}
    options = {k: v for k, v in given.items() if k in methods.get(name).options()} | options
    torch.manual_seed(0)
    method = methods.create(name, Flat(dim), **options).train()
    for _ in range(3):
        ledger = Ledger(ranks)
        with patch.object(_distributed, "dist", ledger):
            method([torch.randn(batch, 1, 8, 8) for _ in range(2)], 2)["loss"].backward()
            method.before_step()
            method.after_step()
    return ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="images of one rank, seen in two views")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--slices", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="METHOD")
    options = parser.parse_args()
    base = {name: getattr(options, name) for name in ("batch", "dim", "slices", "ranks")}
    columns = {"": {}} | {name: {name: 2 * value} for name, value in base.items()} | {"8 ranks": {"ranks": 8}}
    print(", ".join(f"{name} {value}" for name, value in base.items()) + "; then each of them doubled, and 8 ranks\n")
    print(
        "| kB sent per rank and step | collectives | as above | " + " | ".join(f"{name} x 2" for name in base), end=""
    )
    print(" | 8 ranks |\n" + "| --- " * (len(columns) + 2) + "|")
    for variant in options.methods:
        found = [ledger_of(variant, **(base | change)) for change in columns.values()]
        cells = [f"{sum(ledger.sent.values()) / 1e3:.3g}" for ledger in found]
        print(f"| {variant} | {found[0].calls} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
