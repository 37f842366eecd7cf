"""What a network sees where: features of patches as colours, and the attention of a vision transformer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointembed._files import atomic
from jointembed.data.loading import read_batches
from jointembed.model import Model

from .contact import _displayed

TILE, TITLE = 1.25, 0.3  # inches
LARGEST = 100  # images on a sheet
HEADS = 6  # shown one by one, at most


@torch.no_grad()
def patch_features(model: Model, images: Any, batch_size: int = 64) -> Tensor:
    """Features (N, H, W, D) of the patches: a transformer's last tokens, or a convolutional network's last map.

    Args:
        model: on a network of timm's, or one of the small ResNets and the small transformer.
        images: what `jointembed.data.open_source` takes.
        batch_size: images per forward pass.
    """
    network: Any = model.method.backbone
    return torch.cat([_last_map(network, view).float().cpu() for view in _views(model, images, batch_size)])


def patch_rgb(features: Tensor, together: bool = False) -> Tensor:
    """The first three principal components of features (N, H, W, D) as red, green and blue: (N, H, W, 3) in [0, 1].

    Each component is stretched over its whole range, and turned so that its largest loading is positive.

    Args:
        features: of patches.
        together: components of all images, so that colours mean the same in all; otherwise of each image alone, as in
            LeJEPA's Figure 14.
    """
    if features.ndim != 4 or features.shape[1] * features.shape[2] < 2:
        raise ValueError(f"features: expected (N, H, W, D) with two patches or more, got {tuple(features.shape)}")
    x = features.double().reshape(1 if together else len(features), -1, features.shape[-1])  # (N or 1, patches, D)
    u, s, axes = torch.linalg.svd(x - x.mean(1, keepdim=True), full_matrices=False)
    signs = axes.gather(-1, axes.abs().argmax(-1, keepdim=True)).sign()[:, None, :, 0]
    scores = nn.functional.pad(u * s[:, None] * signs, (0, 3))[..., :3]  # zeros where there are fewer than three
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    # A component that is only rounding stays dark.
    span = (high - low).clamp_min(1e-6 * float(x.abs().amax()) + torch.finfo(torch.float32).tiny)
    return ((scores - low) / span).float().reshape(*features.shape[:3], 3)


@torch.no_grad()
def attention_maps(model: Model, images: Any, batch_size: int = 64) -> Tensor:
    """Attention (N, heads, H, W) in the last block of a vision transformer.

    It is what the class token pays each patch or, where there is none, what the patches pay it on average.

    Args:
        model: on a vision transformer of timm's.
        images: what `jointembed.data.open_source` takes.
        batch_size: images per forward pass.
    """
    network: Any = model.method.backbone
    prefix = getattr(network, "num_prefix_tokens", 0)
    with _watched(_last_attention(network)) as seen:
        maps = [_last_map(network, view) for view in _views(model, images, batch_size)]
    weights = torch.cat([attention.float().cpu() for attention in seen])  # (N, heads, tokens, tokens)
    if getattr(network, "cls_token", None) is not None:
        rows = weights[:, :, 0, prefix:]
    else:
        rows = weights[:, :, prefix:, prefix:].mean(2)
    return rows.unflatten(-1, maps[0].shape[1:3])


def patch_sheet(model: Model, images: Any, path: str | Path, together: bool = False) -> None:
    """A PNG with a row per image: itself, its patches in colour and, of a vision transformer, its attention.

    Every tile is stretched over its own range, from dark to bright.

    Args:
        model: as for `patch_features`.
        images: what `jointembed.data.open_source` takes, at most 100.
        path: the .png to write.
        together: as for `patch_rgb`.
    """
    from matplotlib.figure import Figure

    from jointembed.decoding import _targets

    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"path: expected a file name ending in .png, got {path}")
    source = model.open(images)
    if len(source) > LARGEST:
        raise ValueError(f"images: expected at most {LARGEST}, got {len(source)}")
    columns: dict[str, Any] = {"principal components": patch_rgb(patch_features(model, source), together)}
    if has_attention(model.method.backbone):
        attention = attention_maps(model, source)
        columns["attention"] = attention.mean(1)
        heads = min(attention.shape[1], HEADS)
        columns |= {f"head {number + 1}": attention[:, number] for number in range(heads)}
    pictures = torch.cat([_targets(model, batch) for batch in read_batches(source, 256)])
    tall, wide = len(pictures) * TILE + TITLE, (1 + len(columns)) * TILE + 0.2
    figure = Figure(figsize=(wide, tall), layout="constrained")
    axes = figure.subplots(len(pictures), 1 + len(columns), squeeze=False)
    for number, line in enumerate(axes):
        line[0].imshow(_displayed(pictures[number]), cmap="gray", vmin=0, vmax=255)
        for axis, tiles in zip(line[1:], columns.values(), strict=True):
            axis.imshow(tiles[number].numpy(), cmap="magma", interpolation="nearest")
        for axis in line:
            axis.set_axis_off()
    for axis, title in zip(axes[0], ("image", *columns), strict=True):
        axis.set_title(title.replace(" ", "\n", 1) if len(title) > 10 else title, fontsize=9)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)


def has_attention(network: nn.Module) -> bool:
    """Whether its last block has an attention of timm's that can be watched."""
    try:
        _last_attention(network)
    except ValueError:
        return False
    return True


def _last_map(network: Any, view: Tensor) -> Tensor:
    """(N, H, W, D) of views (N, C, height, width)."""
    if hasattr(network, "forward_intermediates"):
        options = {"norm": True, "output_fmt": "NCHW", "intermediates_only": True}
        features = network.forward_intermediates(view, indices=1, **options)[-1]
    elif hasattr(network, "forward_features"):
        features = network.forward_features(view)
    else:
        features = None
    if not isinstance(features, Tensor) or features.ndim != 4:
        raise ValueError(f"model: expected a backbone of timm's with a map of features, got {type(network).__name__}")
    return features.permute(0, 2, 3, 1)


def _last_attention(network: Any) -> Any:
    blocks = getattr(network, "blocks", None)
    attention = getattr(blocks[-1], "attn", None) if isinstance(blocks, nn.Sequential | nn.ModuleList) else None
    if not hasattr(attention, "fused_attn") or not hasattr(attention, "attn_drop"):
        raise ValueError(f"model: expected a vision transformer of timm's, got {type(network).__name__}")
    return attention


@contextmanager
def _watched(attention: Any) -> Iterator[list[Tensor]]:
    """What the softmax gives, (N, heads, tokens, tokens) for every pass.

    timm hands it to the dropout, but not if it uses the fused kernel. Its own AttentionExtract leaves that on, and its
    hooks behind.
    """
    seen: list[Tensor] = []
    fused, attention.fused_attn = attention.fused_attn, False
    handle = attention.attn_drop.register_forward_hook(lambda module, given, weights: seen.append(weights))
    try:
        yield seen
    finally:
        handle.remove()
        attention.fused_attn = fused


def _views(model: Model, images: Any, batch_size: int) -> Iterator[Tensor]:
    """Batches of whole images, as the network wants them."""
    source = model.open(images)
    if source.channels != model.config.channels:
        raise ValueError(f"images: expected {model.config.channels} channels, got {source.channels} ({source.name})")
    model.method.eval()
    for batch in read_batches(source, batch_size):
        batch = batch.to(model.device) if isinstance(batch, Tensor) else [image.to(model.device) for image in batch]
        yield model.views.single(batch).contiguous(memory_format=torch.channels_last)
