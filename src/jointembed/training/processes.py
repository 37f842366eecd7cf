"""What `train` sees to where there are several processes."""

import atexit
import logging
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed
from torch.nn.modules.batchnorm import _BatchNorm

from jointembed._distributed import everywhere
from jointembed.model import Model

from .sharding import FullySharded

log = logging.getLogger("jointembed")


def fitting_batch(batch_size: int, images: int, processes: int) -> int:
    """At most an equal share of the images for each process."""
    if images < processes:
        raise ValueError(f"devices: expected at most one process for each of the {images} images, got {processes}")
    most = images // processes
    if batch_size > most:
        each = f" for each of {processes} processes" if processes > 1 else ""
        warn = rank_zero_only(log.warning)
        warn("batch_size: %d%s is more than the %d images; using %d", batch_size, each, images, most)
    return min(batch_size, most)


def warn_of_batch_norm(model: Model, trainer: L.Trainer) -> None:
    """PyTorch's SyncBatchNorm, which Lightning puts in place on GPUs, does not run on CPUs."""
    on_gpus = trainer.strategy.root_device.type == "cuda"
    if trainer.world_size > 1 and not on_gpus and any(isinstance(m, _BatchNorm) for m in model.method.modules()):
        log.warning(
            "BatchNorm: on CPUs each of the %d processes normalises by its own images only; a larger batch_size makes "
            "that matter less",
            trainer.world_size,
        )


class EndTogether(L.Callback):
    """When ranks are told to end, whichever of them, all stop after the same step.

    Lightning tells the others from within the signal's handler. Where that runs between two collectives of a loss,
    ranks wait for each other in different ones for ever.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.told = False
        trainer._signal_connector._sigterm_notifier_fn = self.tell  # type: ignore[method-assign]

    def tell(self, signum: Any, _: Any) -> None:
        self.told = True

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if not everywhere(torch.tensor(not self.told, device=module.device)):
            trainer._signal_connector.received_sigterm = True  # what Lightning looks at after the step


def share(model: Model, trainer: L.Trainer) -> None:
    """Give all ranks what the first has found; the last thing that they have to say to each other."""
    if trainer.world_size > 1:
        state, model.reference = trainer.strategy.broadcast((model.method.state_dict(), model.reference))
        model.method.load_state_dict(state)
        if not isinstance(trainer.strategy, FullySharded):  # whose weights hold on to their groups
            atexit.register(leave)


def leave() -> None:
    """Part from the other ranks when the interpreter ends, while there is one.

    Lightning does so with NCCL only. Gloo's threads, when they outlive it, may abort a process that has done its work.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
