"""The Lightning modules: batches, views, loss, optimiser, schedule. Nothing here knows which method it trains."""

import math
import signal
from typing import Any

import lightning as L
import numpy as np
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor
from torch.utils.data import DataLoader

from jointembed._distributed import rank, world_size
from jointembed.data import Source
from jointembed.data.loading import BatchReader, EpochBatches, GrowingViews, Start, num_workers
from jointembed.methods import Method
from jointembed.methods.base import Clock

from .sharding import shard, whole

GRACE = 30  # seconds that workers outlive a SIGTERM


class Diverged(FloatingPointError):
    """The loss became NaN or infinite."""


class Batches(L.LightningDataModule):
    """The loader, made when ranks know their numbers: in each process, once it has met the others."""

    def __init__(self, source: Source, views: GrowingViews, batch_size: int, seed: int, start: Start) -> None:
        super().__init__()
        self.source, self.views, self.batch_size, self.seed, self.start = source, views, batch_size, seed, start

    def train_dataloader(self) -> DataLoader[Any]:
        workers = num_workers(self.source)
        return DataLoader(
            BatchReader(self.source, self.views, self.seed, rank()),
            sampler=EpochBatches(len(self.source), self.batch_size, self.seed, rank(), world_size(), self.start),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=_outlive_sigterm,
        )


def _outlive_sigterm(worker: int) -> None:
    """A cluster sends SIGTERM to every process of a job: workers stay until the checkpoint can be written."""
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))


def lr_share(step: int, steps: int, warmup: float) -> float:
    """The learning rate at a step, as a share of its peak: a linear warm-up over `warmup` steps, a cosine to zero."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / max(steps - warmup, 1))


class TrainingModule(L.LightningModule):
    """One method in training. Its random numbers are functions of (seed, epoch, step, rank), never of history."""

    def __init__(
        self,
        method: Method,
        views: GrowingViews,
        optimizer: str,
        lr: float,
        weight_decay: float,
        warmup_epochs: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.method, self.views = method, views
        self.optimizer, self.lr, self.weight_decay, self.warmup_epochs = optimizer, lr, weight_decay, warmup_epochs
        self.seed = seed

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # of FSDP
            shard(self.method, self.device_mesh["data_parallel"])

    def on_train_start(self) -> None:
        self.steps = int(self.trainer.estimated_stepping_batches)

    def training_step(self, batch: Tensor | list[Tensor], batch_idx: int) -> Tensor:
        key = (self.seed, self.current_epoch, batch_idx, self.global_rank)
        # Dropout and stochastic depth draw from the global generator: it too starts from the key.
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
        views = self.views(batch, key) if isinstance(batch, Tensor) else batch
        views = [view.contiguous(memory_format=torch.channels_last) for view in views]
        # Lightning keeps step and epoch in its checkpoints: the clock needs no state of its own.
        epoch = self.current_epoch + batch_idx / self.trainer.num_training_batches
        self.method.clock = Clock(self.global_step, self.steps, epoch)
        terms = self.method(views, self.views.num_global)
        if not torch.isfinite(terms["loss"]):
            values = ", ".join(f"{name} {value.item():g}" for name, value in terms.items())
            raise Diverged(
                f"the loss is not finite at step {self.global_step} (epoch {self.current_epoch}): {values}. "
                "The last good checkpoint is kept; try a smaller learning rate, or --precision 32"
            )
        self.log_dict(terms, on_step=False, on_epoch=True, batch_size=len(views[0]), sync_dist=True)
        return terms["loss"]

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.method.before_step()
        self._check_gradient(optimizer)

    def _check_gradient(self, optimizer: torch.optim.Optimizer) -> None:
        """A finite loss may have a gradient that is not, and one step with it spoils every weight."""
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            return  # with float16 that is ordinary: the scaler skips such steps
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        if not torch.isfinite(norm):
            raise Diverged(
                f"the gradient is not finite at step {self.global_step} (epoch {self.current_epoch}): its norm is "
                f"{norm.item():g}. The last good checkpoint is kept; try a smaller learning rate, or --precision 32"
            )

    def on_train_batch_end(self, *args: Any) -> None:
        self.method.after_step()

    def configure_optimizers(self) -> Any:
        # timm leaves biases and norms out of the weight decay, and knows every optimiser the papers use.
        optimizer = create_optimizer_v2(
            self.method, opt=self.optimizer, lr=self.lr, weight_decay=self.weight_decay, filter_bias_and_bn=True
        )
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = self.warmup_epochs * steps / max(self.trainer.max_epochs or 1, 1)

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_share(step, steps, warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
