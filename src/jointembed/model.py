"""The trained artefact: a folder with `config.json` and `model.safetensors`, and what one can ask of it."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributions import Distribution

from jointembed import methods
from jointembed._files import atomic, save_tensors
from jointembed._limits import SPARE, Budget, check_config, check_image, read_json
from jointembed._text import printable
from jointembed.backbones import create_backbone
from jointembed.data import Source, Views, open_source
from jointembed.data.loading import read_batches

if TYPE_CHECKING:
    from jointembed.exporting import Format

FORMAT = 1


@dataclass(frozen=True)
class Config:
    """Everything needed to rebuild the network and feed it; `training` records how it came about."""

    method: str
    method_options: dict[str, Any]
    backbone: str | None  # None: a module of the user's own, to be given again when loading
    channels: int
    image_size: int
    mean: list[float]
    std: list[float]
    source_size: list[int] | None = None  # of the training images, where they all had one
    training: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @classmethod
    def read(cls, path: Path) -> "Config":
        values = read_json(path, "the config.json of a jointembed run")
        try:
            config = cls(**values)
        except TypeError as error:
            raise ValueError(f"{path}: expected the config.json of a jointembed run, got {error}") from error
        if config.format != FORMAT:
            raise ValueError(f"{path}: expected format {FORMAT}, got {config.format!r:.80}")
        check_config(path, values)
        return config

    def build(self, backbone: nn.Module | None = None) -> "Model":
        """The untrained model of this configuration."""
        if backbone is None and self.backbone is None:
            raise ValueError("backbone: this model was trained on a module of your own; expected it here, got None")
        check_image(self.channels, self.image_size)
        network = create_backbone(backbone or str(self.backbone), self.channels, self.image_size)
        return Model(methods.create(self.method, network, **self.method_options), self)


FILES = ("config.json", "model.safetensors", "scores.safetensors")  # a model's, the last one not always there


class Model(ModelHubMixin, library_name="jointembed", tags=["self-supervised-learning"]):
    """A method with its backbone, and the images it expects. Made by `jointembed.train` and `jointembed.load`.

    `save_pretrained`, `push_to_hub` and `from_pretrained` are those of the Hugging Face Hub.
    """

    def __init__(self, method: methods.Method, config: Config) -> None:
        self.method = method.eval().to(memory_format=torch.channels_last)
        self.config = config
        self.views = Views(config.image_size, method.preset, mean=config.mean, std=config.std)
        # Scores of training images, "train/<score>", and of images held out of it, "held_out/<score>".
        self.reference: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        c = self.config
        return f"Model({c.method} on {c.backbone}, {c.channels} x {c.image_size} x {c.image_size})"

    @property
    def device(self) -> torch.device:
        return self.method.density_mean.device

    def to(self, device: str | torch.device) -> "Model":
        self.method.to(device)
        return self

    def embed(self, images: Any, space: str | None = None, batch_size: int = 256, progress: bool = True) -> Tensor:
        """Embeddings (N, D) of a folder, an array, a tensor, a list of PIL images, or any other source.

        Args:
            images: what `jointembed.data.open_source` takes.
            space: one of the method's spaces, for LeJEPA "backbone" (the features to use) or "projector" (where its
                Gaussian lives); by default the method's first.
            batch_size: images per forward pass.
            progress: show a progress bar on a terminal.
        """
        space = space or self.method.spaces[0]
        if space not in self.method.spaces:
            raise ValueError(f"space: expected one of {', '.join(self.method.spaces)}, got {space!r}")
        return torch.cat([z[space].float().cpu() for z in self._encode(self.open(images), batch_size, progress)])

    def open(self, images: Any, split: str = "train") -> Source:
        """The images as a source, grey or coloured as the model expects files to be."""
        channels = self.config.channels if self.config.channels in (1, 3) else None
        return open_source(images, split, channels=channels, minimum=1)

    @torch.inference_mode()
    def _encode(self, source: Source, batch_size: int, progress: bool) -> Iterator[dict[str, Tensor]]:
        if source.channels != self.config.channels:
            raise ValueError(f"images: expected {self.config.channels} channels, got {source.channels} ({source.name})")
        side, size = self.config.image_size, self.config.source_size
        if size and source.names is None and source.image_size not in (None, (side, side), tuple(size)):
            raise ValueError(
                f"images: expected {size[0]} x {size[1]} as in training, got {source.image_size} ({source.name}); "
                "resize them if they show the same things"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        self.method.eval()
        batches: Any = read_batches(source, batch_size)
        if progress and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            total = -(-len(source) // batch_size)
            batches = track(batches, "embedding", total, console=Console(stderr=True), transient=True)
        for batch in batches:
            batch = batch.to(self.device) if isinstance(batch, Tensor) else [image.to(self.device) for image in batch]
            yield self.method.encode(self.views.single(batch).contiguous(memory_format=torch.channels_last))

    def log_prob(self, images: Any, batch_size: int = 256) -> Tensor:
        """Log-density (N,) of the images' embeddings, as the method models it.

        For VJE that of each embedding under its own posterior; for LeJEPA under the Gaussian of the training images.
        """
        return -self.anomaly_score(images, batch_size=batch_size)

    def anomaly_score(
        self,
        images: Any,
        score: str | None = None,
        samples: int = 0,
        seed: int = 0,
        batch_size: int = 256,
        progress: bool = True,
    ) -> Tensor:
        """One number per image (N,), higher = stranger.

        Args:
            images: what `jointembed.data.open_source` takes.
            score: one of the method's `scores`: "density" (minus the log-density under the Gaussian of the training
                images); for VJE also "joint", "sphere", "variance" and "entropy". By default its first.
            samples: of the posterior to average over; 0 takes the posterior mean.
            seed: of these samples.
            batch_size: images per forward pass.
            progress: show a progress bar on a terminal.
        """
        score = score or self.method.scores[0]
        if score not in self.method.scores:
            raise ValueError(f"score: expected one of {', '.join(self.method.scores)}, got {score!r}")
        return self.anomaly_scores(images, (score,), samples, seed, batch_size, progress)[score]

    def anomaly_scores(
        self,
        images: Any,
        scores: Sequence[str] | None = None,
        samples: int = 0,
        seed: int = 0,
        batch_size: int = 256,
        progress: bool = True,
    ) -> dict[str, Tensor]:
        """Several scores from one pass over the images; by default all the method has."""
        scores = tuple(scores or self.method.scores)
        if samples < 0:
            raise ValueError(f"samples: expected at least 0, got {samples}")
        if "density" in scores:
            self.method.density()  # fitted, or an error before any work
        found: dict[str, list[Tensor]] = {name: [] for name in scores}
        for number, encoded in enumerate(self._encode(self.open(images), batch_size, progress)):
            for name in scores:
                found[name].append(self.method.score(encoded, name, samples, seed + number).float().cpu())
        return {name: torch.cat(parts) for name, parts in found.items()}

    def sample(self, n: int, seed: int = 0) -> Tensor:
        """n latents (n, D) drawn from the density of the training embeddings in the method's density space.

        Only of methods whose loss holds a density of embeddings or latents. The Gaussian that others are scored by has
        no part in their training: nothing makes what is drawn from it like their embeddings.
        """
        if n < 1:
            raise ValueError(f"n: expected at least 1, got {n}")
        self.check_generative()
        density = self.method.density()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return density.sample(torch.Size([n])).cpu()

    def check_generative(self) -> None:
        """Refuse a method that has nothing to sample from, and say which have."""
        if not self.method.generative:
            have = [name for name in methods.names() if methods.get(name).generative]
            raise ValueError(
                f"method: {self.config.method!r} has no density to sample from, for nothing in its training makes "
                f"embeddings follow one; those that have: {', '.join(have)}"
            )

    def posterior(self, images: Any, batch_size: int = 256, progress: bool = True) -> Distribution:
        """A distribution over R^D per image, with batch shape (N,), where the method has one.

        For VJE that of the latent; for GJE and GMJE that of another view's embedding given this one's.
        """
        posterior: Any = getattr(self.method, "posterior", None)
        if posterior is None:
            have = [name for name in methods.names() if hasattr(methods.get(name), "posterior")]
            raise ValueError(
                f"method: {self.config.method!r} gives no posterior per image; those that do: {', '.join(have)}"
            )
        batches = list(self._encode(self.open(images), batch_size, progress))
        return posterior({name: torch.cat([z[name].float().cpu() for z in batches]) for name in batches[0]})

    def export(self, out: str | Path, format: "Format" = "onnx") -> str:
        """Write a file that needs no jointembed, and return how to use it: see `jointembed.exporting.export`."""
        from jointembed.exporting import export

        return export(self, out, format)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        backbone: nn.Module | None = None,
        device: str | torch.device = "cpu",
        **download: Any,
    ) -> "Model":
        """Load a folder, or a repository of the Hugging Face Hub, with the checks of `jointembed.load`.

        Args:
            pretrained_model_name_or_path: a folder, or a repository's name.
            backbone: the module it was trained on, if that was one of your own.
            device: where to put it.
            **download: what `huggingface_hub.snapshot_download` takes: revision, token, cache_dir, ...
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = Path(snapshot_download(str(pretrained_model_name_or_path), allow_patterns=list(FILES), **download))
        return load(folder, backbone, device)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README.md of `save_pretrained`: what the configuration knows, and how to use the model."""
        from jointembed.card import model_card

        return model_card(self)

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`; each is replaced whole or not at all."""
        folder = Path(folder)
        # What is known of older weights goes first: a kill in between must not leave their scores beside these.
        (folder / "scores.safetensors").unlink(missing_ok=True)
        with atomic(folder / "config.json") as path:
            path.write_text(json.dumps(asdict(self.config), indent=2) + "\n")
        # A weight-averaged copy may share nothing, but tied weights would: clones keep every name on its own.
        state = {k: v.detach().cpu().contiguous().clone() for k, v in self.method.state_dict().items()}
        save_tensors(folder / "model.safetensors", state)
        if self.reference:
            save_tensors(folder / "scores.safetensors", self.reference)


def load(run: str | Path, backbone: nn.Module | None = None, device: str | torch.device = "cpu") -> Model:
    """Load a run folder. Nothing in it is executed: JSON and safetensors only.

    Args:
        run: a folder written by `jointembed.train` or `Model.save`.
        backbone: the module it was trained on, if that was one of your own.
        device: where to put it.
    """
    folder = Path(run)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"run: expected a folder with config.json and model.safetensors, {folder} has no {name}")
    model = _build(folder, Config.read(folder / "config.json"), backbone)
    model.reference = _read_scores(folder / "scores.safetensors")
    return model.to(device)


def _build(folder: Path, config: Config, backbone: nn.Module | None) -> Model:
    """The model of a configuration, which may not ask for much more memory than its weights take, with them in it."""
    weights = folder / "model.safetensors"
    try:
        with Budget(4 * weights.stat().st_size + SPARE, f"run: {folder / 'config.json'}"):
            model = config.build(backbone)
    except ValueError:
        raise
    except Exception as error:  # of options of the wrong kind, torch and timm raise anything
        raise ValueError(f"run: {folder / 'config.json'} describes no model: {_line(error)}") from error
    try:
        model.method.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ValueError(f"run: {weights} does not fit its config.json: {_line(error)}") from error
    return model


def _read_scores(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        return {}
    try:
        scores = load_file(path)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"run: {path} cannot be read: {_line(error)}") from error
    for name, values in scores.items():
        if values.ndim != 1 or not values.is_floating_point():
            raise ValueError(f"run: {path}: expected floats (N,) for {name!r:.80}, got {values.dtype} {values.shape}")
    return scores


def _line(error: Exception) -> str:
    text = printable(" ".join(str(error).split()))
    return text if len(text) <= 400 else text[:400] + " ..."
