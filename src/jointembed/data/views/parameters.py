"""The dice: everything random about a batch of views, drawn at once on the CPU from a seed and nothing else.

NumPy's generator rather than torch's: torch's Mersenne twister keeps 32 bits of its seed, too few to tell every
(seed, epoch, step, rank) of a long run apart.
"""

import operator
from dataclasses import dataclass, fields

import numpy as np

from jointembed.data.views.presets import Chance, Range, Settings

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NO_JITTER = 4
TRIES = 10  # torchvision's: a crop that does not fit ten times becomes a central one


@dataclass
class Parameters:
    """One row per view, sorted by `hue_stage`, so that each step of the jitter works on slices, not scattered rows."""

    image: np.ndarray  # which image of the batch
    slot: np.ndarray  # which row of the output: view v of image i of N goes to v * N + i
    box: np.ndarray  # (n, 4) top, left, height, width
    flip: np.ndarray
    vertical_flip: np.ndarray
    angle: np.ndarray  # degrees, counter-clockwise
    hue_stage: np.ndarray  # the hue turns before the blend of this number (3: after all), NO_JITTER: nothing happens
    blend: np.ndarray  # (n, 3) the other three operations in this image's own order
    factor: np.ndarray  # (n, 3) their factors
    hue: np.ndarray  # turns of the colour circle
    grey: np.ndarray
    sigma: np.ndarray  # blur, 0 for none
    solarise: np.ndarray

    def __len__(self) -> int:
        return len(self.image)

    def take(self, rows: np.ndarray | slice) -> "Parameters":
        return Parameters(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def generator(seed: int | tuple[int, ...]) -> np.random.Generator:
    """Independent streams for neighbouring seeds, also for tuples of different lengths."""
    try:
        numbers = [operator.index(number) for number in (seed if isinstance(seed, tuple | list) else (seed,))]
    except TypeError:
        numbers = []
    if not numbers or not all(0 <= number < 2**64 for number in numbers):
        raise ValueError(f"seed: expected an integer in [0, 2**64) or a tuple of them, got {seed!r}")
    # SeedSequence splits numbers into 32-bit words and ignores trailing zeros: fixed widths and the length keep
    # (1,), (1, 0) and (2**32,), (0, 1) apart.
    words = [word for number in numbers for word in (number >> 32, number & 0xFFFFFFFF)]
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence([len(numbers), *words])))


def draw(
    rng: np.random.Generator,
    settings: Settings,
    scale: Range,
    heights: np.ndarray,
    widths: np.ndarray,
    num_views: int,
    blurred: bool,
    first: int = 0,
) -> Parameters:
    """Parameters of `num_views` views of each image, whose sizes are given; `first` is the number of the first one."""

    def chance(p: Chance) -> float | np.ndarray:
        if not isinstance(p, tuple | list):
            return p
        return np.repeat([p[min(view, len(p) - 1)] for view in range(first, first + num_views)], count)

    count = len(heights)
    n = count * num_views
    image = np.tile(np.arange(count), num_views)
    box = draw_boxes(rng, scale, settings.ratio, heights[image], widths[image])
    coin = rng.random((6, n))
    strength = np.array(settings.jitter_strength)
    low = np.maximum(0, 1 - strength)
    factor = low + (1 + strength - low) * rng.random((n, 4))
    factor[:, HUE] = strength[HUE] * (2 * rng.random(n) - 1)
    order = rng.random((n, 4)).argsort(1)
    blend = order[order != HUE].reshape(n, 3)
    sigma_low, sigma_high = settings.blur_sigma
    sigma = sigma_low + (sigma_high - sigma_low) * rng.random(n)
    angle = settings.rotation * (2 * rng.random(n) - 1)
    hue_stage = np.where(coin[2] < chance(settings.jitter), (order == HUE).argmax(1), NO_JITTER)
    parameters = Parameters(
        image=image,
        slot=np.arange(n),
        box=box,
        flip=coin[0] < chance(settings.flip),
        vertical_flip=coin[1] < chance(settings.vertical_flip),
        angle=angle,
        hue_stage=hue_stage,
        blend=blend,
        factor=np.take_along_axis(factor, blend, 1),
        hue=factor[:, HUE],
        grey=coin[3] < chance(settings.grey),
        sigma=np.where(blurred & (coin[4] < chance(settings.blur)), sigma, 0.0),
        solarise=coin[5] < chance(settings.solarise),
    )
    return parameters.take(hue_stage.argsort(kind="stable"))


def draw_boxes(
    rng: np.random.Generator, scale: Range, ratio: Range, heights: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """(n, 4) crop boxes by the law of torchvision's RandomResizedCrop."""
    whole = np.stack([heights, widths], 1)
    size = np.empty_like(whole)
    corner = np.empty_like(whole)
    pending = np.arange(len(whole))
    for _ in range(TRIES):
        bounds = whole[pending]
        fraction, place = rng.random((2, len(pending))), rng.random((len(pending), 2))
        area = bounds.prod(1) * (scale[0] + (scale[1] - scale[0]) * fraction[0])
        root = np.exp(0.5 * (np.log(ratio[0]) + np.log(ratio[1] / ratio[0]) * fraction[1]))  # of the aspect ratio
        side = np.sqrt(area)
        tried = np.rint(np.stack([side / root, side * root], 1)).astype(np.int64)
        size[pending] = tried
        corner[pending] = place * (bounds - tried + 1)
        pending = pending[((tried < 1) | (tried > bounds)).any(1)]
        if not len(pending):
            break
    else:  # the largest central crop whose ratio is allowed
        bounds = whole[pending]
        closest = np.clip(bounds[:, 1] / bounds[:, 0], *ratio)
        largest = np.stack([np.rint(bounds[:, 1] / closest), np.rint(bounds[:, 0] * closest)], 1)
        size[pending] = np.clip(largest, 1, bounds)
        corner[pending] = (bounds - size[pending]) // 2
    return np.concatenate([corner, size], 1)
