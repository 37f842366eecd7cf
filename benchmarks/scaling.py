"""The cost model on paper: what one step of each method would send and hold on many GPUs with a large network.

    python -m benchmarks.scaling --ranks 1024 --batch 16 --backbone vit_giant_patch14_dinov2

Nothing is measured here. Bytes are those of `benchmarks.cost_model`, which holds for what `benchmarks.communication`
counts; the number of parameters and the sizes of buffers are those of the modules. Milliseconds are bytes over an
assumed speed of the link plus, for each collective, an assumed latency times log2 of the ranks.
"""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from benchmarks.communication import RESULTS, Ledger, third_step
from benchmarks.cost_model import VARIANTS, Payload, Sizes, largest, payload
from jointembed import methods
from jointembed.experiments.results import write_results

GPU_BLOCK = 2**26  # elements of SIGReg's block of slices
# Sizes as large as the papers', or as large as one would take here.
SETTINGS: dict[str, dict[str, int]] = {
    "barlow-twins": {"dim": 8192},
    "dino": {"dim": 256, "prototypes": 65_536},
    "gmje-smc": {"dim": 128, "bank": 65_536},
    "gmje-smc, batch": {"dim": 128, "bank": 65_536},
    "lejepa": {"dim": 512, "slices": 1024},
    "lejepa-mdn": {"dim": 512, "slices": 1024},
    "lejepa-vje": {"dim": 512, "slices": 1024},
    "moco-v2": {"dim": 128, "bank": 65_536},
    "simclr": {"dim": 128},
    "swav": {"dim": 128, "prototypes": 3000},
    "vicreg": {"dim": 8192},
}
OTHERWISE = {"dim": 256, "features": 2048, "bank": 4096}


class Wide(nn.Module):
    """Stands for a backbone with so many features: heads are made on it."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def count(backbone: str) -> tuple[int, int]:
    """Parameters and features."""
    with torch.device("meta"):
        network = timm.create_model(backbone, num_classes=0)
    return sum(p.numel() for p in network.parameters()), network.num_features


def buffer_bytes(variant: str, sizes: Sizes, features: int) -> int:
    """What DDP broadcasts before every forward pass, but for the backbone's."""
    name, options = VARIANTS[variant]
    method = methods.create(name, Wide(features), **(sizes.options(name) | options))
    return sum(b.numel() * b.element_size() for b in method.buffers())


def collectives(variant: str) -> int:
    """Of one step; their number depends on no size."""
    ledger = Ledger(2)
    third_step(variant, Sizes(4, 4, 8, 2, 9, 8, 8), ledger)
    return len(ledger.entries)


def rows(base: Sizes, backbone: str, bandwidth: float, latency: float) -> list[dict[str, Any]]:
    """The gradient's all-reduce first, then each method beside it."""
    parameters, features = count(backbone)
    hops = math.ceil(math.log2(base.ranks))

    def row(name: str, sizes: str, sent: float, calls: int, held: float | None, kept: float) -> dict[str, Any]:
        milliseconds = 1e3 * (sent / bandwidth + calls * hops * latency)
        return {
            "method": name,
            "sizes": sizes,
            "sent, MB": _short(sent / 1e6),
            "of the gradients": f"{_short(100 * sent / gradients)} %",
            "collectives": calls,
            "ms": _short(milliseconds),
            "largest tensor, MB": "-" if held is None else _short(held / 1e6),
            "buffers, MB": _short(kept / 1e6),
        }

    gradients = Payload(reduced=4 * parameters).sent(base.ranks)
    found = [row("gradients", f"{parameters / 1e9:.3g} G parameters", gradients, 1, 4 * parameters, 0)]
    for variant in VARIANTS:
        given = OTHERWISE | SETTINGS.get(variant, {})
        sizes = replace(base, **given)
        sent = payload(variant, sizes, GPU_BLOCK).sent(base.ranks)
        words = ", ".join(f"{name} {value}" for name, value in SETTINGS.get(variant, {"dim": given["dim"]}).items())
        held = largest(variant, sizes, GPU_BLOCK)
        found.append(row(variant, words, sent, collectives(variant), held, buffer_bytes(variant, sizes, features)))
    return found


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16, help="images of one rank, seen in two views")
    parser.add_argument("--backbone", default="vit_giant_patch14_dinov2", help="a name that timm knows")
    parser.add_argument("--bandwidth", type=float, default=40e9, help="assumed: bytes a GPU sends in a second")
    parser.add_argument("--latency", type=float, default=20e-6, help="assumed: seconds for each doubling of the ranks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for scaling.json and .md")
    given = parser.parse_args()
    start = time.monotonic()
    found = rows(Sizes(batch=given.batch, ranks=given.ranks), given.backbone, given.bandwidth, given.latency)
    title = (
        f"On paper: one step on {given.ranks:,} ranks with {given.batch} images each and {given.backbone}, float32; "
        f"assumed {given.bandwidth / 1e9:g} GB/s and {1e6 * given.latency:g} µs for each doubling of the ranks"
    )
    write_results(given.results, "scaling", title, found, "python -m benchmarks.scaling", time.monotonic() - start)


if __name__ == "__main__":
    main()
