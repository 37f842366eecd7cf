"""Embeddings of several random views of each image, as the method saw them in training."""

from typing import Any

import torch
from torch import Tensor

from jointembed.data import Source, Views
from jointembed.data.loading import read_batches
from jointembed.model import Model


@torch.inference_mode()
def embed_views(
    model: Model, images: Source, num_views: int = 10, space: str | None = None, seed: int = 0, batch_size: int = 64
) -> Tensor:
    """Embeddings (N, V, D) of V random global views of each image, with the augmentation of the model's training.

    Args:
        model: the model.
        images: a source.
        num_views: V.
        space: which embedding; by default the method's features.
        seed: of the views.
        batch_size: images at a time; each is V images to the network.
    """
    if num_views < 1:
        raise ValueError(f"num_views: expected at least 1, got {num_views}")
    space = space or model.method.spaces[0]
    if space not in model.method.spaces:
        raise ValueError(f"space: expected one of {', '.join(model.method.spaces)}, got {space!r}")
    views = training_views(model, num_views)
    model.method.eval()
    found = []
    for number, batch in enumerate(read_batches(images, batch_size)):
        batch = batch.to(model.device) if isinstance(batch, Tensor) else [image.to(model.device) for image in batch]
        parts = [view.contiguous(memory_format=torch.channels_last) for view in views(batch, (seed, number))]
        found.append(torch.stack([model.method.encode(part)[space].float().cpu() for part in parts], 1))
    return torch.cat(found)


def training_views(model: Model, num_views: int) -> Views:
    """`num_views` global views as in the model's training, at the size it ended with."""
    training = model.config.training
    size = training.get("view_size") or model.config.image_size
    preset = training.get("preset") or model.method.preset
    options: dict[str, Any] = {"mean": model.config.mean, "std": model.config.std}
    options |= training.get("view_options") or {}
    return Views(size[-1] if isinstance(size, list | tuple) else size, preset, num_global=num_views, **options)
