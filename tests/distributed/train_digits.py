"""Trains on the digits in several processes and keeps what each got: `train_digits.py OUT DEVICES BATCH STRATEGY`."""

import atexit
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import jointembed as je

METHODS = {"lejepa": {"projector_layers": 1, "num_slices": 32, "dim": 8}, "moco-v2": {"bank": 300, "ema": 0.9}}
# Nothing random: the whole image, and the whole image made smaller. Views are drawn for each rank by itself.
VIEWS = {"crop_scale": (1.0, 1.0), "local_scale": (1.0, 1.0), "ratio": (1.0, 1.0)} | dict.fromkeys(
    ("flip", "jitter", "grey", "blur", "solarise"), 0.0
)


class Network(nn.Module):
    """(N, 1, S, S) to (N, 32), without BatchNorm."""

    num_features = 32

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(nn.functional.adaptive_avg_pool2d(self.convolution(x).relu(), 2).flatten(1))


def train(out: Path, devices: int, batch_size: int, strategy: str = "auto") -> dict[str, je.Model]:
    models = {}
    for method, options in METHODS.items():
        torch.manual_seed(0)
        models[method] = je.train(
            "digits",
            method=method,
            backbone=Network(),
            epochs=2,
            out=out / method,
            batch_size=batch_size,
            num_global=1,
            num_local=1,
            local_size=6,
            view_options=VIEWS,
            optimizer="sgd",
            lr=0.1,
            precision="32",
            watch_every=1,
            devices=devices,
            strategy=strategy,
            **options,
        )
    return models


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), os.environ.get("LOCAL_RANK", 0)
    # Registered before, called after what the training registers.
    atexit.register(lambda: (folder / f"parted-{rank}").write_text(str(not torch.distributed.is_initialized())))
    for name, model in train(folder, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]).items():
        kept = {"state": model.method.state_dict(), "reference": model.reference}
        torch.save(kept, folder / f"{name}-{rank}.pt")
