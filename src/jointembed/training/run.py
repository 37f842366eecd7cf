"""`train`: one call from images to a model in a run folder."""

import json
import logging
import platform
import time
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from timm.optim import Lamb, Lars, get_optimizer_info
from torch import nn

from jointembed import __version__, methods
from jointembed._distributed import alone
from jointembed._text import printable
from jointembed.data import Source, Views, open_source
from jointembed.data.loading import GrowingViews, Start, channel_statistics
from jointembed.model import Config, Model

from .callbacks import CollapseWatch, OnlineKNN, Progress
from .engine import fit, keep_freed_memory, make_trainer
from .folder import CHECKPOINT, RunFolder, check_checkpoint, check_finite, check_folder
from .loggers import make_loggers
from .logs import log_file, only_errors
from .module import Batches, TrainingModule
from .precision import keep_gradients_true
from .processes import EndTogether, fitting_batch, share, warn_of_batch_norm
from .sharding import to_train

log = logging.getLogger("jointembed")

LARGEST_DEFAULT_SIZE = 96  # larger images are trained at this side unless asked otherwise: what a CPU can still do
DENSITY_IMAGES = 20_000  # enough for the covariance of a few hundred dimensions
REFERENCE_IMAGES = 5_000  # whose scores are kept: a percentile needs no more
WATCHED_IMAGES = 5_000


def train(
    data: Any,
    method: str = "lejepa",
    backbone: str | nn.Module = "resnet18",
    epochs: int = 100,
    out: str | Path | None = None,
    batch_size: int = 256,
    image_size: int | None = None,
    view_size: int | list[int] | None = None,
    num_global: int = 2,
    num_local: int = 0,
    local_size: int | None = None,
    preset: str | None = None,
    view_options: dict[str, Any] | None = None,
    optimizer: str = "adamw",
    lr: float = 2e-3,
    weight_decay: float = 5e-4,
    warmup_epochs: float = 1.0,
    precision: str = "auto",
    seed: int = 0,
    hold_out: float = 0.05,
    watch_every: int = 5,
    stop_on_collapse: bool = False,
    resume: bool | Literal["auto"] = False,
    labels: Any = None,
    root: str | Path | None = None,
    progress: bool = True,
    logger: Any = "tensorboard",
    devices: int | str = 1,
    strategy: str = "auto",
    num_nodes: int = 1,
    trainer: dict[str, Any] | None = None,
    **method_options: Any,
) -> Model:
    """Train a method on unlabelled images and return the model; everything it needs is in the run folder `out`.

    Args:
        data: a folder of images, an .npz or .npy file, an array, a torch Dataset, or a name such as "shapes".
        method: one of `jointembed.methods.names()`; its own options can be given by name as well.
        backbone: a small network ("resnet10-narrow"), any timm or torchvision name, or a module giving (N, D).
        epochs: passes over the data.
        out: the run folder; by default runs/ with the method and the time.
        batch_size: images per step, of each process where there are several; each is seen once per view.
        image_size: side of the images the model is made for; by default their own, at most 96.
        view_size: side of the global views in training; by default image_size. A random crop enlarges what it shows, so
            views of about three quarters of image_size show things about as large as whole images, for half the work.
            Several sizes, e.g. [16, 20, 24], share the epochs equally.
        num_global: global views per image.
        num_local: local views per image, smaller crops at `local_size`.
        local_size: side of the local views; by default half of view_size.
        preset: augmentation preset; by default the one of the method's paper.
        view_options: settings of the preset to change, e.g. crop_scale or grey.
        optimizer: any name timm knows: adamw, sgd, lars, lamb, ...
        lr: peak learning rate of a linear warm-up and a cosine to zero. 2e-3 suits small networks; 5e-4 larger ones.
        weight_decay: 5e-4 for convolutional networks, 5e-2 for vision transformers.
        warmup_epochs: length of the warm-up.
        precision: "auto" is bf16 autocast where the hardware has it, else 32; or any of Lightning's.
        seed: of the weights, the order and the views: on one CPU machine the same seed gives the same bits.
        hold_out: share of the images kept out of training: what `jointembed score` sets its alarm by. 0 for none.
        watch_every: epochs between looks at k-NN accuracy (if there are labels) and at collapse.
        stop_on_collapse: stop when the features have collapsed, instead of only warning.
        resume: continue the run in `out` after its last checkpoint: that of its last whole epoch, or the one with which
            it answered a SIGTERM before it ended with exit code 143. "auto" begins where there is no run yet.
        labels: one integer per image, used only to watch and evaluate.
        root: where torchvision data sets are, or go.
        progress: show a progress bar on a terminal.
        logger: who is told of losses, and every watch_every epochs shown the embeddings: "tensorboard", "wandb", "csv",
            "none", a logger of Lightning's, or a list of these. metrics.csv and log.txt are there in any case.
        devices: processes on this machine, one for each GPU, or sharing the CPU; "auto" for all GPUs there are. Losses
            and whatever follows the batch are those of all processes' images together, as one process would have them;
            so are BatchNorm's statistics on GPUs, while on CPUs each process has its own. Views and other random
            numbers differ between processes.
        strategy: Lightning's, e.g. "ddp": by default what suits the devices. "fsdp" shares weights and optimiser out
            over the processes, for networks that are too large for one.
        num_nodes: machines, on each of which the same command is started.
        trainer: further arguments of lightning.Trainer: accelerator, gradient_clip_val, ...
        **method_options: options of the method.
    """
    arguments = dict(locals())
    _check_arguments(arguments)
    cls = methods.get(method)
    folder = Path(out) if out else Path("runs") / f"{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    processes = {"devices": devices, "strategy": strategy, "num_nodes": num_nodes}
    lightning = make_trainer(folder, epochs, precision, make_loggers(logger, folder), processes | (trainer or {}))
    checkpoint = folder / CHECKPOINT if resume and (folder / CHECKPOINT).is_file() else None
    # Other ranks come when the first has begun to write.
    going_on = check_folder(folder, resume) if lightning.is_global_zero else checkpoint is not None
    if checkpoint:
        check_checkpoint(checkpoint)
    whole = open_source(data, labels=labels, root=root)
    source, held_out = _hold_out(whole, hold_out, seed)
    batch_size = fitting_batch(batch_size, len(source), lightning.world_size)
    if image_size is None:
        image_size = min(LARGEST_DEFAULT_SIZE, *(source.image_size or (LARGEST_DEFAULT_SIZE,)))
    mean, std = channel_statistics(source)
    sizes = view_size if isinstance(view_size, list | tuple) else [view_size or image_size]
    if not sizes:
        raise ValueError("view_size: expected a size or a list of sizes, got an empty list")
    options = {"num_global": num_global, "num_local": num_local, "mean": mean, "std": std, **(view_options or {})}
    stages = [Views(n, preset or cls.preset, local_size=local_size or max(n // 2, 8), **options) for n in sizes]
    views = GrowingViews(stages, epochs)
    config = Config(
        method=method,
        method_options={name: p.default for name, p in cls.options().items()} | method_options,
        backbone=backbone if isinstance(backbone, str) else None,
        channels=source.channels,
        image_size=image_size,
        mean=mean,
        std=std,
        source_size=list(whole.image_size) if whole.image_size else None,
        training={k: v for k, v in arguments.items() if k not in _NOT_RECORDED}
        | {"batch_size": batch_size, "processes": lightning.world_size}
        | {"trainer": json.loads(json.dumps(trainer, default=repr))}  # whose values may be objects
        | {"data": source.name, "images": len(source), "versions": versions()},
    )
    if going_on:
        _check_same(folder, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = config.build(backbone if isinstance(backbone, nn.Module) else None)
        in_training, gathering = to_train(model, lightning)
        if checkpoint is None and lightning.is_global_zero:
            model.save(folder)
        with log_file(folder / "log.txt") if lightning.is_global_zero else only_errors():
            parameters = sum(p.numel() for p in model.method.parameters()) / 1e6
            log.info(
                "%s, %.2f M parameters, %d images of %s, into %s", model, parameters, len(source), source.name, folder
            )
            for name, reason in source.skipped:
                log.warning("skipped %s: %s", printable(name), printable(reason))
            warn_of_batch_norm(model, lightning)
            keep_gradients_true(lightning, model.method.backbone, source.channels, views)
            module = TrainingModule(in_training, views, optimizer, lr, weight_decay, warmup_epochs, seed)
            start = Start()
            watches = _watches(model, source, watch_every, stop_on_collapse, seed)
            ending = [EndTogether(lightning)] if lightning.world_size > 1 else []
            ours = [*gathering, *ending, *watches, Progress(progress), RunFolder(folder, model, start)]
            lightning.callbacks += ours  # type: ignore[attr-defined]  # Lightning's connector gives it this list
            keep_freed_memory()
            module.method.train()
            fit(lightning, module, Batches(source, views, batch_size, seed, start), checkpoint)
            if lightning.is_global_zero:
                _finish(model, source, held_out, folder)
            if lightning.interrupted:
                raise KeyboardInterrupt
            share(model, lightning)
    return model


def _hold_out(source: Source, share: float, seed: int) -> tuple[Source, Source | None]:
    """Images to train on, and a random share of them to keep apart; two at least are trained on."""
    count = min(round(share * len(source)), len(source) - 2)
    if count < 1:
        return source, None
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    return source.subset(order[count:].sort().values), source.subset(order[:count].sort().values)


_NOT_RECORDED = (
    "data",
    "method",
    "backbone",
    "out",
    "image_size",
    "labels",
    "root",
    "resume",
    "progress",
    "logger",
    "devices",
    "strategy",
    "num_nodes",
    "method_options",
)
_MAY_CHANGE = ("epochs", "watch_every", "stop_on_collapse", "trainer", "versions")  # between a run and its resumption


def _check_arguments(arguments: dict[str, Any]) -> None:
    for name in ("epochs", "batch_size", "num_global", "watch_every", "num_local", "seed"):
        if not isinstance(arguments[name], Integral):
            raise ValueError(f"{name}: expected a whole number, got {arguments[name]!r}")
    for name in ("lr", "weight_decay", "warmup_epochs", "hold_out"):
        if not isinstance(arguments[name], Real):
            raise ValueError(f"{name}: expected a number, got {arguments[name]!r}")
    try:
        optimizer = get_optimizer_info(str(arguments["optimizer"]).lower().removeprefix("lookahead_"))
    except ValueError as error:
        raise ValueError(f"optimizer: expected a name that timm knows, got {arguments['optimizer']!r}") from error
    for name in ("epochs", "batch_size", "num_global", "watch_every", "lr"):
        if not arguments[name] > 0:
            raise ValueError(f"{name}: expected a number above 0, got {arguments[name]}")
    for name in ("num_local", "weight_decay", "warmup_epochs", "seed"):
        if not arguments[name] >= 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {arguments[name]}")
    if optimizer.opt_class in (Lamb, Lars) and not arguments["weight_decay"]:
        raise ValueError(
            f"weight_decay: expected a number above 0 with {arguments['optimizer']}, which adapts the steps of weights "
            "that decay, and of no others: without decay it would adapt none, got 0"
        )
    if not 0 <= arguments["hold_out"] < 1:
        raise ValueError(f"hold_out: expected a share from 0 to below 1, got {arguments['hold_out']}")
    method = str(arguments["method"])
    known = methods.get(method).options()
    for name in arguments["method_options"]:
        if name not in known:
            raise ValueError(f"{name}: neither train nor {method} has this option; {method} has {', '.join(known)}")


def _check_same(folder: Path, config: Config) -> None:
    """A run goes on as it began: whatever shapes the weights or their order must be what it was."""

    def flat(config: Config) -> dict[str, Any]:
        values = json.loads(json.dumps(asdict(config)))
        values |= {k: v for k, v in values.pop("training").items() if k not in _MAY_CHANGE}
        return values | {f"option {k}": v for k, v in values.pop("method_options").items()}

    before, now = flat(Config.read(folder / "config.json")), flat(config)
    for name in before:
        if before[name] != now.get(name):
            raise ValueError(f"resume: the run in {folder} has {name} {before[name]}, got {now.get(name)}")


def _watches(model: Model, source: Source, every: int, stop: bool, seed: int) -> list[L.Callback]:
    some = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    watches: list[L.Callback] = [CollapseWatch(model, source.subset(some[:1000]), every, stop)]
    labelled = some[source.labels[some] >= 0][:WATCHED_IMAGES] if source.labels is not None else some[:0]
    if len(labelled) >= 10:
        watches.append(OnlineKNN(model, source.subset(labelled), every))
    return watches


@alone()
def _finish(model: Model, source: Source, held_out: Source | None, folder: Path) -> None:
    """Fit the density of the training embeddings, keep the scores of known images, and save for the last time."""
    check_finite(model.method, "at the end")
    some = source.subset(torch.linspace(0, len(source) - 1, min(len(source), DENSITY_IMAGES)).long())
    z = model.embed(some, model.method.density_space, progress=False)
    if z.isfinite().all():
        model.method.fit_density(z)
        few = some.subset(torch.linspace(0, len(some) - 1, min(len(some), REFERENCE_IMAGES)).long())
        for name, images in (("train", few), ("held_out", held_out)):
            if images is not None:
                found = model.anomaly_scores(images, progress=False)
                model.reference |= {f"{name}/{score}": values for score, values in found.items()}
    else:
        log.warning("the embeddings are not finite; the model is saved without a density")
    model.save(folder)


def versions() -> dict[str, str]:
    """What a figure depends on besides the code."""
    import timm
    import torchvision

    return {
        "jointembed": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "lightning": L.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
