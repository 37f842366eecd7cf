"""Callbacks: the progress of the run, the online k-NN and the collapse watch."""

import logging
import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from jointembed._distributed import alone
from jointembed.data import Source
from jointembed.metrics import Geometry, geometry, knn_predict
from jointembed.model import Model

from .loggers import embedding_picture, log_picture

log = logging.getLogger("jointembed")


class Watch(Callback):
    """Base of callbacks that look at a fixed set of images after an epoch, once: on the first rank."""

    def __init__(self, model: Model, source: Source, every: int) -> None:
        self.model, self.source, self.every = model, source, every

    def due(self, trainer: L.Trainer) -> bool:
        epoch = trainer.current_epoch + 1
        return epoch % self.every == 0 or epoch == trainer.max_epochs

    def features(self) -> Tensor:
        """Features in the space people will use, as they will be computed: in evaluation mode."""
        with alone():
            z = self.model.embed(self.source, progress=False)
        self.model.method.train()
        return z


class OnlineKNN(Watch):
    """k-NN accuracy on a fifth of the images, the rest as bank: labels watch the training, and never enter it."""

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self.due(trainer) or not trainer.is_global_zero:
            return
        z, labels, cut = self.features(), self.source.labels, len(self.source) // 5
        assert labels is not None
        predicted = knn_predict(z[cut:], labels[cut:], z[:cut]).argmax(1)
        module.log("knn", (predicted == labels[:cut]).float().mean(), rank_zero_only=True)


class CollapseWatch(Watch):
    """Says in plain words when the features collapse: all to one point, or into a few dimensions; and shows them."""

    def __init__(self, model: Model, source: Source, every: int, stop: bool) -> None:
        super().__init__(model, source, every)
        self.stop = stop

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self.due(trainer):
            return
        words = self.look(trainer, module) if trainer.is_global_zero else ""
        if self.stop and trainer.strategy.reduce_boolean_decision(bool(words), all=False):  # ranks stop together
            trainer.should_stop = True

    def look(self, trainer: L.Trainer, module: L.LightningModule) -> str:
        """What is wrong, or nothing."""
        z = self.features()
        found = geometry(z)
        values = {"effective_rank": found.effective_rank, "feature_std": found.std, "feature_norm": found.norm}
        module.log_dict(values, rank_zero_only=True)
        log_picture(trainer.loggers, "embeddings", embedding_picture(z, self.source.labels), trainer.global_step)
        if words := diagnosis(found, z.shape[1]):
            log.warning("collapse after epoch %d: %s", trainer.current_epoch + 1, words)
        return words


def diagnosis(found: Geometry, dim: int) -> str:
    """What is wrong with features of that geometry, or nothing."""
    if found.std * dim**0.5 < 1e-3 * found.norm or found.norm == 0:
        return (
            f"all images get nearly the same features (spread {found.std:.2g} per dimension at norm {found.norm:.2g}). "
            "The model tells nothing apart; check the learning rate and the weight of the anti-collapse term"
        )
    if found.effective_rank < min(4.0, dim / 2):
        return (
            f"the features use about {found.effective_rank:.1f} of {dim} dimensions. The model tells little apart; "
            "raise the weight of the anti-collapse term, the batch size or the learning rate"
        )
    return ""


class Progress(Callback):
    """One bar for the whole run with loss, images/s and the time left; a log line per epoch in any case."""

    def __init__(self, bar: bool) -> None:
        self.show = bar and sys.stderr.isatty()
        self.bar: Any = None
        self.said: dict[str, float] = {}
        self.began = time.perf_counter()
        self.images, self.earlier = 0, 0.0  # seen, and the seconds before this start: an interrupted run adds up

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.images, "seconds": self.seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images, self.earlier = state["images"], state["seconds"]

    def seconds(self) -> float:
        """Spent in training, over all starts of the run."""
        return self.earlier + time.perf_counter() - self.began

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.began = time.perf_counter()
        if not (self.show and trainer.is_global_zero):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        self.bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True))
        steps = int(trainer.estimated_stepping_batches)
        self.task = self.bar.add_task("training", total=steps, completed=trainer.global_step, rate="")
        self.bar.start()

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *args: Any) -> None:
        self.images += len(args[0]) if isinstance(args[0], Tensor) else len(args[0][0])
        if self.bar:
            rate = self.images / self.seconds()
            text = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, loss {float(outputs['loss']):.4f}"
            self.bar.update(self.task, completed=trainer.global_step, description=text, rate=f"{rate:.0f} images/s")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        seconds, steps = self.seconds(), trainer.estimated_stepping_batches
        rate = self.images * trainer.world_size / seconds
        left = seconds / trainer.global_step * (steps - trainer.global_step)
        module.log_dict({"images_per_second": rate, "minutes": seconds / 60}, rank_zero_only=True)
        metrics = {  # on all ranks, who exchange them here
            k: float(v) for k, v in trainer.callback_metrics.items() if k not in ("images_per_second", "minutes")
        }
        # Lightning goes on showing what was last measured: say only what is new.
        text = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if value != self.said.get(name))
        self.said = metrics
        where = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        log.info("%s: %s; %.0f images/s, %.1f min left", where, text, rate, left / 60)

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
