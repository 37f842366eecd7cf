"""`Views`: from a uint8 batch and a seed to augmented float views."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from jointembed.data.views import colour, geometry
from jointembed.data.views.parameters import Parameters, draw, generator
from jointembed.data.views.presets import Settings, resolve

Images = Tensor | Sequence[Tensor]
Statistic = float | Sequence[float] | Tensor

CHUNK = 2**19  # floats worked on at a time on a CPU: few enough for the cache, many enough to outweigh the calls
MATRIX_LIMIT = 64  # pixels: on a CPU, crops of larger images are cheaper one by one than as matrix products


class Views:
    """Random views of uint8 images: `num_global` of `size` pixels, then `num_local` of `local_size`.

    `views(images, seed)` gives a list of float32 tensors (N, C, size, size) on the images' device. `images` is a uint8
    tensor (N, C, H, W) or a list of (C, H_i, W_i) of any sizes. The result depends on images and seed only; a seed may
    be a tuple such as (seed, epoch, step, rank).

    `preset` names the papers' settings (see `PRESETS`), each of which a keyword overrides:
    `Views(32, "simclr", blur=0.5, crop_scale=(0.2, 1.0))`. Presets blur only views of 64 pixels and more, an explicit
    `blur` blurs all. Colours are normalised by `mean` and `std` (one number or one per channel, for pixels in [0, 1]);
    without them they stay in [0, 1]. `local_size` defaults to the papers' 96/224 of `size`.
    Saturation, hue and grey need RGB and are left out for any other number of channels.
    """

    def __init__(
        self,
        size: int = 32,
        preset: str | Settings = "lejepa",
        num_global: int = 2,
        num_local: int = 0,
        local_size: int | None = None,
        mean: Statistic | None = None,
        std: Statistic | None = None,
        **overrides: Any,
    ) -> None:
        _check_integer("size", size, 1)
        _check_integer("num_global", num_global, 1)
        _check_integer("num_local", num_local, 0)
        if local_size is not None:
            _check_integer("local_size", local_size, 1)
        self.settings = resolve(preset, overrides)
        self.size, self.num_global, self.num_local = size, num_global, num_local
        self.local_size = local_size or max(1, round(size * 96 / 224))
        self.mean, self.std = _statistic("mean", mean, 0.0), _statistic("std", std, 1.0)
        self._normalises = mean is not None or std is not None
        if not (self.std > 0).all():
            raise ValueError(f"std: expected positive numbers, got {std!r}")

    def __call__(self, images: Images, seed: int | tuple[int, ...]) -> list[Tensor]:
        channels = self._check_images(images)
        rng = generator(seed)
        heights, widths = np.array([image.shape[-2:] for image in images]).T
        source = _source(images)
        views: list[Tensor] = []
        for first, number, size, scale in (
            (0, self.num_global, self.size, self.settings.crop_scale),
            (self.num_global, self.num_local, self.local_size, self.settings.local_scale),
        ):
            blurred = size >= self.settings.blur_min_size
            parameters = draw(rng, self.settings, scale, heights, widths, number, blurred, first)
            device = images[0].device
            out = torch.empty(number * len(images), channels, size, size, device=device)
            chunk = max(1, CHUNK // (channels * size * size)) if device.type == "cpu" else len(out)
            with torch.autocast(device.type, enabled=False):  # pixels keep their digits, whatever precision trains
                for start in range(0, len(out), chunk):
                    part = parameters.take(slice(start, start + chunk))
                    out.index_copy_(0, _index(part.slot, out), self._render(source, part, size))
            views += out.split(len(images))[:number]  # splitting nothing gives one empty piece
        return views

    def single(self, images: Images) -> Tensor:
        """The evaluation view (N, C, size, size): short side resized to `size`, centre crop, normalised."""
        self._check_images(images)
        x = self.centre(images) if isinstance(images, Tensor) else torch.stack([self.centre(image) for image in images])
        return self._normalise_(x.to(torch.float32, memory_format=torch.contiguous_format).div_(255))

    def _render(self, source: Images, p: Parameters, size: int) -> Tensor:
        """The views that the parameters describe, one row each: (n, C, size, size)."""
        x = _crop(source, p, size)
        if self.settings.rotation:
            x = geometry.rotate(x, torch.from_numpy(p.angle).to(x))
        colour.jitter_(x, p)
        if p.grey.any() and x.shape[1] == 3:
            colour.grey_(x, _index(p.grey.nonzero()[0], x))
        if p.sigma.any() and size > 1:
            rows = p.sigma.nonzero()[0]
            index = _index(rows, x)
            x.index_copy_(0, index, geometry.blur(x[index], torch.from_numpy(p.sigma[rows]).to(x)))
        if p.solarise.any():
            colour.solarise_(x, _index(p.solarise.nonzero()[0], x), self.settings.solarise_threshold)
        return self._normalise_(x)

    def centre(self, image: Tensor) -> Tensor:
        """The evaluation view's pixels (..., C, size, size), as they are."""
        if min(image.shape[-2:]) != self.size:
            image = TF.resize(image, [self.size], antialias=True)
        return TF.center_crop(image, [self.size, self.size])

    def _normalise_(self, x: Tensor) -> Tensor:
        if not self._normalises:
            return x
        mean, std = (statistic.to(x.device)[:, None, None] for statistic in (self.mean, self.std))
        return x.sub_(mean).mul_(1 / std)

    def _check_images(self, images: Images) -> int:
        """Number of channels."""
        if isinstance(images, Tensor):
            if images.ndim != 4 or images.dtype != torch.uint8 or 0 in images.shape:
                raise ValueError(
                    "images: expected a non-empty uint8 tensor (N, C, H, W) or a list of (C, H, W), "
                    f"got {images.dtype} of shape {tuple(images.shape)}"
                )
        elif not isinstance(images, list | tuple) or not images:
            raise ValueError(f"images: expected a uint8 tensor (N, C, H, W) or a non-empty list, got {images!r:.80}")
        else:
            for i, image in enumerate(images):
                if not isinstance(image, Tensor) or image.ndim != 3 or image.dtype != torch.uint8 or 0 in image.shape:
                    came = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
                    raise ValueError(f"images: expected non-empty uint8 tensors (C, H, W), got {came} at index {i}")
                if image.shape[0] != images[0].shape[0]:
                    raise ValueError(
                        "images: expected one number of channels, "
                        f"got {images[0].shape[0]} at index 0 and {image.shape[0]} at index {i}"
                    )
        channels = images[0].shape[0]
        for name, statistic in (("mean", self.mean), ("std", self.std)):
            if len(statistic) not in (1, channels):
                raise ValueError(
                    f"{name}: has {len(statistic)} values, expected 1 or {channels}, as images have channels"
                )
        return channels


def _source(images: Images) -> Images:
    """As the crop wants them: a batch (N, C, H, W) for the matrix products, or one tensor (1, C, H, W) per image."""
    if isinstance(images, Tensor) and (images.device.type != "cpu" or max(images.shape[2:]) <= MATRIX_LIMIT):
        return images
    return [image[None].contiguous(memory_format=torch.channels_last) for image in images]


def _crop(source: Images, p: Parameters, size: int) -> Tensor:
    device = source[0].device
    flips = torch.from_numpy(p.flip).to(device), torch.from_numpy(p.vertical_flip).to(device)
    if isinstance(source, Tensor):
        box = torch.from_numpy(p.box).to(device, torch.float32)
        return geometry.crop_matrix(source.index_select(0, _index(p.image, source)), box, *flips, size)
    return geometry.crop_each([source[i] for i in p.image.tolist()], p.box.tolist(), *flips, size)


def _index(rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(like.device)


def _check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected an integer >= {least}, got {value!r}")


def _statistic(name: str, value: Statistic | None, default: float) -> Tensor:
    try:
        statistic = torch.as_tensor(default if value is None else value, dtype=torch.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        statistic = torch.empty(0)
    if not len(statistic) or not statistic.isfinite().all():
        raise ValueError(f"{name}: expected a number or one per channel, got {value!r}")
    return statistic
