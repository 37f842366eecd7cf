"""Trains on the digits with so many processes for so many epochs: `resume_digits.py OUT DEVICES EPOCHS STOP`.

With STOP above 0 the first process kills itself, and by that the run, when so many epochs are written.
"""

import os
import signal
import sys

import torch
from train_digits import VIEWS, Network

import jointembed as je
from jointembed.training.folder import RunFolder


def stop_after(epochs: int) -> None:
    after_epoch = RunFolder.on_train_epoch_end

    def then_die(self: RunFolder, *args: object) -> None:
        after_epoch(self, *args)  # type: ignore[arg-type]
        if len(self.rows) == epochs:
            os.kill(os.getpid(), signal.SIGKILL)

    RunFolder.on_train_epoch_end = then_die  # type: ignore[method-assign]


def train(out: str, devices: int, epochs: int) -> None:
    torch.manual_seed(0)
    je.train(
        "digits",
        method="gmje-smc",  # a teacher, and a bank that resamples
        backbone=Network(),
        epochs=epochs,
        out=out,
        batch_size=128 // devices,
        view_options=VIEWS | {"crop_scale": (0.5, 1.0)},  # each process has its own
        resume="auto",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        dim=8,
        bank=300,
        projector_width=16,
    )


if __name__ == "__main__":
    out, devices, epochs, stop = sys.argv[1], *map(int, sys.argv[2:])
    if stop:
        stop_after(stop)
    train(out, devices, epochs)
