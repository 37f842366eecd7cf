"""The run folder: what is in it, whether it may be written to, and how a run comes back after an interruption."""

import io
import logging
import pickle
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from jointembed._files import atomic, leftovers
from jointembed.data.loading import Start
from jointembed.model import Model

from .logs import read_metrics, write_metrics
from .module import Diverged
from .sharding import whole

log = logging.getLogger("jointembed")
CHECKPOINT = "checkpoint.ckpt"


def check_folder(folder: Path, resume: bool | Literal["auto"]) -> bool:
    """Whether there is a run to go on with; anything else in the folder is an error, and is left alone."""
    if resume not in (True, False, "auto"):
        raise ValueError(f"resume: expected true, false or 'auto', got {resume!r}")
    for path in (folder, folder / "log.txt", folder / "tensorboard"):
        if path.is_symlink():  # what it points to may be anybody's
            raise ValueError(f"out: expected a folder that no link leads out of, {path} is a link to {path.readlink()}")
    is_run = (folder / "config.json").is_file()
    if resume is True and not is_run:
        raise ValueError(f"resume: expected a run to continue, {folder / 'config.json'} does not exist")
    if resume and folder.is_dir():
        for path in leftovers(folder):
            path.unlink(missing_ok=True)
    if resume and is_run:
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out: {folder} exists and is not an empty folder; choose another, or resume the run in it")
    return False


def check_checkpoint(path: Path) -> None:
    """Refuse what is no checkpoint of ours before anything is made of it. Nothing in it is executed."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"state_dict", "optimizer_states", "loops", "callbacks"} - set(content)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"resume: expected a checkpoint of this library, {path} cannot be read: {reason}") from None
    if missing:
        raise ValueError(f"resume: expected a checkpoint of this library, {path} has no {', '.join(sorted(missing))}")


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that are whole or not there. Lightning's own go through /tmp, where a kill leaves them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        # Through memory: on a full disk torch's own writer does not say that the disk is full.
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with atomic(Path(path)) as temporary:
            temporary.write_bytes(content.getbuffer())


class RunFolder(Checkpoint):
    """Keeps an exact checkpoint, a loadable model and metrics.csv in the run folder, written after every epoch.

    The checkpoint goes first and holds the rows of metrics.csv: whatever a kill kept from being written after it is
    written when the run goes on. A SIGTERM is answered with a checkpoint in the middle of the epoch.
    """

    def __init__(self, folder: Path, model: Model, start: Start) -> None:
        self.folder, self.model, self.start = folder, model, start
        self.rows: list[dict[str, Any]] = []
        self.next = (0, 0)  # epoch and step to go on with
        self.begun: tuple[int, dict[str, float]] = (0, {})  # of a cut epoch: steps taken, and the means over them

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "next": self.next, "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.next, self.begun = state["rows"], state["next"], state["begun"]
        self.start.epoch, self.start.step = self.next

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        path = self.folder / "metrics.csv"
        if not self.rows and path.is_file():  # of a checkpoint that kept no rows
            self.rows = read_metrics(path)
        if self.rows and trainer.is_global_zero:
            write_metrics(path, self.rows)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        check_finite(module.method, f"after epoch {trainer.current_epoch + 1}")
        row = {"epoch": trainer.current_epoch, "step": trainer.global_step - 1}
        self.rows.append(row | self._means(trainer, int(trainer.num_training_batches)))
        self.next, self.begun = (trainer.current_epoch + 1, 0), (0, {})
        trainer.save_checkpoint(self.folder / CHECKPOINT)
        if trainer.is_global_zero:
            self.model.save(self.folder)
            write_metrics(self.folder / "metrics.csv", self.rows)

    def on_exception(self, trainer: L.Trainer, module: Any, exception: BaseException) -> None:
        step = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        if not isinstance(exception, SIGTERMException) or step in (0, trainer.num_training_batches):
            return  # between epochs there is a checkpoint already
        if step % trainer.accumulate_grad_batches:
            log.warning("SIGTERM between accumulated gradients, which no checkpoint holds: the run goes back an epoch")
            return
        check_finite(module.method, f"at step {trainer.global_step}")
        self.next, self.begun = (trainer.current_epoch, step), (step, self._means(trainer, step))
        trainer.save_checkpoint(self.folder / CHECKPOINT)

    def _means(self, trainer: L.Trainer, steps: int) -> dict[str, float]:
        """What this epoch logged over its first `steps`, those before an interruption included."""
        assert trainer._results is not None
        # Not callback_metrics: they go on holding what earlier epochs measured.
        found = {name: float(value) for name, value in trainer._results.metrics(on_step=False)["log"].items()}
        before, means = self.begun
        share = before / steps
        return found | {name: share * mean + (1 - share) * found[name] for name, mean in means.items() if name in found}


def check_finite(method: nn.Module, when: str) -> None:
    """Weights that have exploded must not take the place of the last good ones."""
    statistics = ((name, value) for name, value in method.named_buffers() if "running_" in name)
    for name, value in (*method.named_parameters(), *statistics):
        if not whole(value.isfinite().all()):
            raise Diverged(
                f"{name} is not finite {when}. The last good checkpoint is kept; try a smaller learning rate, or "
                "--precision 32"
            )
