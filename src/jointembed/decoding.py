"""Pictures from embeddings: a decoder of frozen embeddings, so that what a density draws can be looked at."""

import json
import logging
import math
import sys
import warnings
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from jointembed._files import atomic, save_tensors
from jointembed._limits import SPARE, Budget, is_whole, read_json
from jointembed._text import printable
from jointembed.data.loading import read_batches
from jointembed.model import Model

log = logging.getLogger("jointembed")
NAMES = ("decoder.json", "decoder.safetensors")


@dataclass(frozen=True)
class DecoderConfig:
    """What rebuilds a decoder."""

    dim: int
    channels: int
    image_size: int
    hidden: int = 512
    width: int = 256


class Decoder(nn.Module):
    """Embeddings (N, D) to images (N, C, H, W) in [-1, 1]: two linear layers and four transposed convolutions.

    Embeddings are standardised first. Where all it was trained on had one norm, others are brought to it: a density
    draws from around a sphere, not from it.
    """

    mean: Tensor
    std: Tensor
    radius: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.start = math.ceil(config.image_size / 16)
        widths = [config.width // 2**i for i in range(4)]
        self.linear = nn.Sequential(
            nn.Linear(config.dim, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.width * self.start**2),
            nn.ReLU(),
        )
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], config.channels, 4, 2, 1), nn.Tanh())
        self.register_buffer("mean", torch.zeros(config.dim))
        self.register_buffer("std", torch.ones(config.dim))
        self.register_buffer("radius", torch.tensor(torch.nan))  # none

    def fit_scale(self, z: Tensor) -> None:
        """Learn mean, deviation and, if they share one, the norm of embeddings (N, D)."""
        self.mean.copy_(z.mean(0))
        self.std.copy_(z.std(0).clamp_min(1e-6))
        norms = z.norm(dim=1)
        self.radius.fill_(norms.mean() if norms.std() < 1e-3 * norms.mean() else torch.nan)

    def forward(self, z: Tensor) -> Tensor:
        if not self.radius.isnan():
            z = self.radius * nn.functional.normalize(z, dim=1)
        h = self.linear((z - self.mean) / self.std).unflatten(1, (-1, self.start, self.start))
        x = self.layers(h)
        edge = (x.shape[-1] - self.config.image_size) // 2  # sizes that are no multiple of 16 are cut from the middle
        return x[..., edge : edge + self.config.image_size, edge : edge + self.config.image_size]

    @torch.inference_mode()
    def decode(self, z: Tensor, batch_size: int = 256) -> Tensor:
        """uint8 images (N, C, H, W) of embeddings (N, D)."""
        if z.ndim != 2 or z.shape[1] != self.config.dim:
            raise ValueError(f"z: expected (N, {self.config.dim}), got shape {tuple(z.shape)}")
        self.eval()
        parts = [((self(part.float()) + 1) * 127.5).round().clamp(0, 255).byte() for part in z.split(batch_size)]
        return torch.cat(parts)


class _Fit(L.LightningModule):
    def __init__(self, decoder: Decoder, lr: float) -> None:
        super().__init__()
        self.decoder, self.lr = decoder, lr

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        z, images = batch
        loss = nn.functional.mse_loss(self.decoder(z), images.float() / 127.5 - 1)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train_decoder(
    run: str | Path,
    data: Any,
    epochs: int = 20,
    batch_size: int = 256,
    lr: float = 1e-3,
    seed: int = 0,
    trainer: dict[str, Any] | None = None,
) -> Decoder:
    """Train a decoder of a run's embeddings, in the space where its density lives, and put it into the run folder.

    The model itself does not change.

    Args:
        run: the run folder.
        data: images to learn from, as for `jointembed.train`; best those the model was trained on.
        epochs: passes over them.
        batch_size: images per step.
        lr: learning rate of Adam, with a cosine to zero.
        seed: of the weights and the order.
        trainer: further arguments of lightning.Trainer.
    """
    from jointembed.model import load

    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("lr", lr)):
        if not value > 0:
            raise ValueError(f"{name}: expected a number above 0, got {value}")
    model = load(run)
    source = model.open(data)
    z = model.embed(source, model.method.density_space)
    images = torch.cat([_targets(model, batch) for batch in read_batches(source, 256)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = Decoder(DecoderConfig(z.shape[1], model.config.channels, model.config.image_size))
        decoder.to(memory_format=torch.channels_last)  # nearly twice as fast on a CPU
        decoder.fit_scale(z)
        loader = DataLoader(TensorDataset(z, images), min(batch_size, len(z)), shuffle=True, drop_last=len(z) > 1)
        fit = _Fit(decoder, lr)
        options = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "devices": 1}
        options |= {"enable_progress_bar": sys.stderr.isatty()}
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*|.*LeafSpec.*is deprecated.*")
            lightning = L.Trainer(max_epochs=epochs, **(options | (trainer or {})))
            lightning.fit(fit, loader)
    log.info("decoder of %s: mean squared error %.4f of [-1, 1]", run, float(lightning.callback_metrics["loss"]))
    folder = Path(run)
    with atomic(folder / NAMES[0]) as path:
        path.write_text(json.dumps(asdict(decoder.config), indent=2) + "\n")
    save_tensors(folder / NAMES[1], decoder.state_dict())
    return decoder.eval()


def _targets(model: Model, batch: Tensor | list[Tensor]) -> Tensor:
    """Images as the model sees them, before normalisation, in uint8."""
    x = model.views.single(batch)
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.config.mean, model.config.std))
    return ((x * std + mean) * 255).round().clamp(0, 255).byte()


def load_decoder(run: str | Path) -> Decoder:
    """The decoder in a run folder. Nothing in it is executed."""
    folder = Path(run)
    for name in NAMES:
        if not (folder / name).is_file():
            raise ValueError(f"run: {folder} has no {name}; make one with `jointembed decode {folder} --data ...`")
    values = read_json(folder / NAMES[0], "the description of a decoder")
    weights = folder / NAMES[1]
    for name, value in values.items():
        if not is_whole(value):
            raise ValueError(f"{folder / NAMES[0]}: {name}: expected a whole number above 0, got {value!r:.80}")
    try:
        with Budget(4 * weights.stat().st_size + SPARE, f"run: {folder / NAMES[0]}"):
            decoder = Decoder(DecoderConfig(**values))
        decoder.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, TypeError, ArithmeticError, KeyError) as error:
        reason = printable(" ".join(str(error).split()))[:400]
        raise ValueError(f"run: the decoder in {folder} cannot be read: {reason}") from error
    return decoder.eval()


def sample_images(run: str | Path, n: int, context: Any = None, seed: int = 0) -> Tensor:
    """Images (n, C, H, W) drawn from the density of a run, or, given context images (N), (N, n, C, H, W).

    With a context, the embedding of another view of each image is drawn from the method's posterior.
    """
    from jointembed.model import load

    if n < 1:
        raise ValueError(f"n: expected at least 1, got {n}")
    model = load(run)
    if context is None:
        model.check_generative()  # before a decoder is asked for
        return load_decoder(run).decode(model.sample(n, seed))
    decoder = load_decoder(run)
    posterior = model.posterior(context)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        z = posterior.sample(torch.Size([n])).transpose(0, 1)  # (N, n, D)
    return decoder.decode(z.flatten(0, 1).cpu()).unflatten(0, (-1, n))


def picture(run: str | Path, n: int, context: Any = None, seed: int = 0) -> tuple[Tensor, int]:
    """Samples as a picture's tiles (N, 1 or 3, H, W) in [0, 1], and how many of them make a row.

    With a context, every row is one of its images, then n others. Other numbers of channels are shown as their mean.
    """
    from jointembed.model import load

    images = sample_images(run, n, context, seed)
    columns = math.ceil(math.sqrt(n))
    if context is not None:
        model = load(run)
        given = torch.cat([_targets(model, batch) for batch in read_batches(model.open(context), 256)])
        images, columns = torch.cat([given[:, None], images], 1).flatten(0, 1), n + 1
    tiles = images.float() / 255
    return tiles if tiles.shape[1] in (1, 3) else tiles.mean(1, keepdim=True), columns
