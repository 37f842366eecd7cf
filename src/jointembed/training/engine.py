"""Lightning, set up and run as a training here wants it: memory, whole checkpoints, signals."""

import ctypes
import logging
import platform
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException

from .folder import WholeFiles
from .module import Batches, TrainingModule
from .precision import best_precision
from .sharding import FullySharded

log = logging.getLogger("jointembed")
SHARDING = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
TERMINATED = 128 + signal.SIGTERM  # exit code 143: what a shell reports of a process that SIGTERM ended


def keep_freed_memory() -> None:
    """Keep glibc from mapping large blocks anew, and returning them, in every step.

    It helped where activations are large (resnet10-narrow) and hurt where they are small (resnet10-tiny, small views).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def make_trainer(
    folder: Path, epochs: int, precision: str, loggers: list[Logger], options: dict[str, Any]
) -> L.Trainer:
    """Lightning's trainer with our defaults; whatever `options` says goes before them."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    defaults = {
        "max_epochs": epochs,
        "precision": best_precision() if precision == "auto" else precision,
        "logger": loggers or False,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
        "sync_batchnorm": torch.cuda.is_available() and options.get("accelerator") != "cpu",
        "use_distributed_sampler": False,  # EpochBatches knows ranks
        "enable_checkpointing": False,  # RunFolder writes them
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    options = options | {"strategy": known_strategy(options.get("strategy", "auto"))}
    given = options.get("plugins") or []
    plugins = list(given) if isinstance(given, list | tuple) else [given]
    if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        plugins.append(WholeFiles())
    try:
        return L.Trainer(**{**defaults, **options, "plugins": plugins})
    except TypeError as error:
        raise ValueError(f"trainer: expected arguments of lightning.Trainer, got {options}: {error}") from error


def known_strategy(strategy: Any) -> Any:
    """Lightning's own, except those that share the model out: of these there is one, which knows how a run is saved."""
    if strategy == "fsdp":
        return FullySharded()
    named = isinstance(strategy, str) and strategy.startswith(("deepspeed", "fsdp", "model_parallel"))
    if named or isinstance(strategy, SHARDING):
        raise ValueError(
            "strategy: expected one that keeps the whole model in every process, such as 'ddp', or 'fsdp', "
            f"got {strategy!r}"
        )
    return strategy


def fit(trainer: L.Trainer, module: TrainingModule, batches: Batches, checkpoint: Path | None) -> None:
    """Lightning's fit. On Ctrl-C it returns, so that the model can be finished and saved; SIGTERM leaves no time."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")  # reading from memory needs none
            warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*")  # EpochBatches knows its start
            warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated.*")  # Lightning's business
            warnings.filterwarnings("ignore", ".*recommended to use `self.log.*sync_dist=True.*")  # one rank has these
            # Nobody writes to the losses that a method returns.
            warnings.filterwarnings("ignore", ".*FSDP2-wrapped module .* returned a view tensor.*")
            trainer.fit(module, datamodule=batches, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        log.warning("SIGTERM at step %d; go on with --resume auto", trainer.global_step)
        raise SystemExit(TERMINATED) from None
    except OSError as error:
        raise OSError(
            f"training stopped at step {trainer.global_step}: {error}. Its last checkpoint is whole; "
            "when there is room to write again, go on with --resume auto"
        ) from error
    except SystemExit:  # how Lightning answers Ctrl-C
        if not trainer.interrupted:
            raise
        log.warning("interrupted at step %d; finishing the model", trainer.global_step)
    finally:
        signal.signal(signal.SIGINT, handler)
