"""What a model says of images, all from one pass over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointembed.data import Source
from jointembed.model import Model

BATCH = 256  # as everywhere: scores that draw random numbers depend on it
SLOW = ("sphere",)  # an integral over the sphere for every image, where "joint" orders them much the same
CONSTANT = 1e-5  # relative spread below which uncertainties differ by rounding only


@dataclass(frozen=True)
class Encoded:
    """One row per image."""

    features: Tensor  # (N, D), what people use
    latents: Tensor  # (N, L), where the density lives
    scores: dict[str, Tensor]  # (N,) each, higher = stranger
    uncertainty: Tensor | None  # (N,), the variance of the image's posterior, summed over its dimensions
    why_not: str  # there is no uncertainty, in a sentence


@torch.no_grad()
def encode(model: Model, source: Source, names: Sequence[str]) -> Encoded:
    """Features, latents, the named scores and the posterior's variance of all images."""
    method = model.method
    why_not = "" if hasattr(method, "posterior") else f"{method.name} gives each image a point, not a distribution."
    features, latents, variances = [], [], []
    scores: dict[str, list[Tensor]] = {name: [] for name in names}
    for number, encoded in enumerate(model._encode(source, BATCH, True)):
        features.append(encoded[method.spaces[0]].float().cpu())
        latents.append(encoded[method.density_space].float().cpu())
        for name in names:
            scores[name].append(method.score(encoded, name, 0, number).float().cpu())
        if not why_not:
            try:
                variances.append(method.posterior(encoded).variance.sum(-1).float().cpu())  # type: ignore[operator]
            except ValueError as error:  # of a training that ended before there was one
                why_not = f"This run has no posterior: {error}."
    z = torch.cat(features)
    if not z.isfinite().all():
        bad = int((~z.isfinite().all(1)).sum())
        raise ValueError(f"run: expected finite features, got others for {bad:,} of {len(z):,} images of {source.name}")
    uncertainty = None if why_not else torch.cat(variances)
    if uncertainty is not None and not uncertainty.isfinite().all():
        uncertainty, why_not = None, "The posterior's variance is not finite for every image."
    elif uncertainty is not None and uncertainty.max() - uncertainty.min() <= CONSTANT * uncertainty.abs().max():
        uncertainty, why_not = None, f"The posterior of {method.name} is equally sure of every image."
    found = {name: torch.cat(parts) for name, parts in scores.items()}
    return Encoded(z, torch.cat(latents), found, uncertainty, why_not)


def affordable_scores(model: Model, chosen: str | None) -> list[str]:
    """The scores a model can give, the chosen one first, or by default the method's first; without the slow ones."""
    names = [name for name in model.method.scores if name != "density" or has_density(model)]
    first = chosen if chosen in names else next(iter(names), None)
    return [name for name in names if name == first] + [n for n in names if n != first and n not in SLOW]


def has_density(model: Model) -> bool:
    """Whether its training came far enough to leave a density."""
    try:
        model.method.density()
    except ValueError:
        return False
    return True


def nearest(bank: Tensor, queries: Tensor, k: int, same: bool = False) -> tuple[Tensor, Tensor]:
    """Distances and indices (Q, k) of the k nearest of the bank (N, D), nearest first.

    `same` where the queries are the bank: then no row is its own neighbour.
    """
    distances, indices = [], []
    bank = bank.double()
    for rows in torch.arange(len(queries)).split(512):
        found = torch.cdist(queries[rows].double(), bank)
        if same:
            found[torch.arange(len(rows)), rows] = torch.inf
        near = found.topk(min(k, len(bank) - same), largest=False)
        distances.append(near.values)
        indices.append(near.indices)
    return torch.cat(distances), torch.cat(indices)
