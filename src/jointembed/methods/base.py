"""What every method is: a backbone with heads, a loss over views, and a latent density for afterwards."""

import inspect
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from jointembed._text import closest_first

_REGISTRY: dict[str, type["Method"]] = {}


class Clock(NamedTuple):
    """How far training is, for schedules. The trainer sets it before every forward pass, after a resumption too.

    Whoever trains without it and sets no clock of their own stays at the start of schedules over all steps, and behind
    every warm-up counted in epochs.
    """

    step: int = 0  # optimiser steps taken
    steps: int = 1  # there will be
    epoch: float = math.inf  # passes over the data, with the part of the present one

    @property
    def share(self) -> float:
        """Of all steps, from 0 to below 1."""
        return self.step / self.steps


class Method(nn.Module, ABC):
    """Base of all methods: subclass with `name="..."`, give `forward` (the loss) and `encode` (the embeddings).

    Args of the subclass's `__init__` after `backbone` are the method's options, on the command line too.
    """

    name: ClassVar[str]
    spaces: tuple[str, ...]  # what `encode` returns; the first is what people want as features
    density_space: ClassVar[str]  # where `log_prob`, `sample` and the anomaly score live
    preset: ClassVar[str]  # augmentation of the method's paper
    generative: ClassVar[bool] = False  # whether the loss holds a density of embeddings or latents: what to draw from
    scores: ClassVar[tuple[str, ...]] = ("density",)  # anomaly scores; the first, minus a log-density, is the default

    clock = Clock()

    density_mean: Tensor
    density_scale_tril: Tensor

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.name = name
            _REGISTRY[name] = cls

    def __init__(self, backbone: nn.Module, density_dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        # NaN until fitted: a model saved halfway loads, and says that it has no density yet.
        self.register_buffer("density_mean", torch.full((density_dim,), torch.nan))
        self.register_buffer("density_scale_tril", torch.full((density_dim, density_dim), torch.nan))

    @abstractmethod
    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        """The loss over V views, each (N, C, H, W), the global ones first: a mapping with "loss" and its terms.

        In `torch.distributed` N counts the images of this rank; the loss is that of all ranks' images together.
        """

    @abstractmethod
    def encode(self, images: Tensor) -> dict[str, Tensor]:
        """Embeddings of images (N, C, H, W), one (N, D) tensor for each of `spaces`."""

    def before_step(self) -> None:
        """Called between the backward pass and the optimiser's step: the place to drop gradients of what is frozen."""

    def after_step(self) -> None:
        """Called after every optimiser step: the place for moving averages and banks."""

    def fit_density(self, z: Tensor) -> None:
        """Keep mean and covariance of the training embeddings z (N, D) of `density_space`."""
        from sklearn.covariance import ledoit_wolf

        # Shrinkage keeps the covariance invertible when there are fewer images than dimensions, or dead dimensions.
        covariance, _ = ledoit_wolf(z.double().cpu().numpy())
        covariance = torch.from_numpy(covariance)
        floor = 1e-6 * covariance.diagonal().mean().clamp_min(1e-12)
        scale_tril = torch.linalg.cholesky(covariance + floor * torch.eye(len(covariance), dtype=torch.float64))
        self.density_mean.copy_(z.double().mean(0))
        self.density_scale_tril.copy_(scale_tril)

    def density(self) -> Distribution:
        """What the method holds for the density in `density_space`: here the Gaussian of the training embeddings."""
        if self.density_mean.isnan().any():
            raise ValueError("model: it has no fitted density; its training ended before the last step (see log.txt)")
        return MultivariateNormal(self.density_mean, scale_tril=self.density_scale_tril, validate_args=False)

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """One of `scores` for each image (N,), higher = stranger, from what `encode` gave.

        `samples` of a posterior are averaged over, drawn with `seed`, where a score depends on one; 0 takes its mean.
        """
        return -self.density().log_prob(encoded[self.density_space].float())

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        """The method's options by name, read off the signature."""
        return {k: p for k, p in inspect.signature(cls).parameters.items() if k != "backbone"}


def names() -> tuple[str, ...]:
    """Every registered method."""
    return tuple(sorted(_REGISTRY))


def get(name: str) -> type[Method]:
    """The method class of that name."""
    if name not in _REGISTRY:
        raise ValueError(f"method: expected one of {', '.join(closest_first(name, _REGISTRY))}, got {name!r}")
    return _REGISTRY[name]


def create(name: str, backbone: nn.Module, **options: Any) -> Method:
    """Build a method on a backbone; unknown options are refused by name."""
    cls = get(name)
    known = cls.options()
    for option in options:
        if option not in known:
            raise ValueError(f"{option}: method {name!r} has no such option; it has {', '.join(known)}")
    return cls(backbone, **options)


def feature_dim(backbone: nn.Module) -> int:
    """D of a backbone made by `jointembed.backbones.create_backbone`, or of any module that says it the same way."""
    dim = getattr(backbone, "num_features", None)
    if not isinstance(dim, int):
        raise ValueError(f"backbone: expected a module with an integer num_features, got {type(backbone).__name__}")
    return dim


def at_least_float32(z: Tensor) -> Tensor:
    """bf16 and half precision as float32: what is summed, squared or divided by a temperature needs the digits."""
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def encode_views(network: nn.Module, views: list[Tensor]) -> Tensor:
    """One pass per image size: V views of (N, C, H, W) to (V, N, D)."""
    sizes = dict.fromkeys(view.shape[-2:] for view in views)
    groups = {size: [i for i, view in enumerate(views) if view.shape[-2:] == size] for size in sizes}
    out: list[Tensor] = [torch.empty(0)] * len(views)
    for members in groups.values():
        encoded = network(torch.cat([views[i] for i in members]))
        for i, z in zip(members, encoded.chunk(len(members)), strict=True):
            out[i] = z
    return torch.stack(out)
