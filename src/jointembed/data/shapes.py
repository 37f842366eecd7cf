"""`shapes`: ten classes of drawn shapes with every nuisance known, for demos and tests that need no download.

Position, size, rotation, colours, gradient and noise vary so much that nearest neighbours of raw pixels share a place
and a colour rather than a shape; the shape itself stays plain to the eye, also after cropping, flips and grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
CONTRAST = 0.3  # how much lighter than its background a shape is, at least, in luminance
TILT = math.radians(18)  # largest rotation either way
CHUNK = 100  # images drawn at once, so that the working set stays in the caches

# Signed distances in units of the shape's radius, negative inside; x to the right, y down, both (N, H, W).
# Only the zero line and the slope beside it matter for drawing, so unions and intersections may bend the rest.


def _disc(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.88


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.72).abs() - 0.2


def _box(x: Tensor, y: Tensor, half_width: float, half_height: float) -> Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _square(x: Tensor, y: Tensor) -> Tensor:
    return _box(x, y, 0.76, 0.76)


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    # Three half-planes at distance 1/2 from the centre: an equilateral triangle with its tip at distance 1.
    slanted = x.abs() * (math.sqrt(3) / 2) - y * 0.5
    return torch.maximum(slanted, y) - 0.5


def _star(x: Tensor, y: Tensor) -> Tensor:
    # Fold the plane into one half-spike: there the edge is a straight line from the tip to the notch.
    sector = math.pi / 5
    angle = torch.remainder(torch.atan2(x, -y), 2 * sector)
    angle = torch.minimum(angle, 2 * sector - angle)
    radius = torch.hypot(x, y)
    u, v = radius * torch.cos(angle), radius * torch.sin(angle)
    tip, notch = (1.05, 0.0), (0.42 * math.cos(sector), 0.42 * math.sin(sector))
    length = math.hypot(tip[0] - notch[0], notch[1])
    return ((u - tip[0]) * notch[1] + v * (tip[0] - notch[0])) / length


def _cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_box(x, y, 0.95, 0.27), _box(x, y, 0.27, 0.95))


def _crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(torch.hypot(x, y) - 0.95, 0.75 - torch.hypot(x - 0.5, y))


def _heart(x: Tensor, y: Tensor) -> Tensor:
    # A square on its corner and a disc on each of its two upper sides.
    half = 0.55
    y = y - 0.1
    square = (x.abs() + y.abs()) * math.sqrt(0.5) - half
    centre = half * math.sqrt(0.5)
    return torch.minimum(square, torch.hypot(x.abs() - centre, y + centre) - half)


def _arrow(x: Tensor, y: Tensor) -> Tensor:
    # The head widens from its tip at (0, -1) down to y = 0, where the shaft takes over.
    head = torch.maximum((x.abs() - (y + 1.0) * 0.8) / math.hypot(1.0, 0.8), y)
    return torch.minimum(head, _box(x, y - 0.4, 0.2, 0.55))


def _hourglass(x: Tensor, y: Tensor) -> Tensor:
    slanted = (x.abs() - y.abs() * 0.8 - 0.06) / math.hypot(1.0, 0.8)
    return torch.maximum(slanted, y.abs() - 0.88)


SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "crescent": _crescent,
    "heart": _heart,
    "arrow": _arrow,
    "hourglass": _hourglass,
}


def render_shapes(n: int, seed: int = 0, size: int = 32) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Draw `n` images: uint8 (n, 3, size, size), labels (n,), and the factors that made them, each (n,) or (n, 3).

    `x`, `y`: the centre in pixels; `radius` in pixels; `rotation` in radians; `foreground`, `background`: colours in
    [0, 1]; `gradient`: change of the background's brightness from its centre to its edge; `gradient_angle`; `noise`:
    standard deviation of the pixel noise in [0, 1]. Classes are as equal in number as `n` allows.
    """
    for name, value, least in (("n", n, 1), ("size", size, 8), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}: expected a whole number of at least {least}, found {value!r}")
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(generator.permutation(np.arange(n) % len(SHAPES)))
    factors = _draw_factors(n, size, generator)
    images = torch.empty(n, 3, size, size, dtype=torch.uint8)
    with _one_thread():
        # Class by class, so that only the distance needed is computed; noise follows the same fixed order.
        for number, distance in enumerate(SHAPES.values()):
            for rows in (labels == number).nonzero()[:, 0].split(CHUNK):
                part = {name: value[rows] for name, value in factors.items()}
                grain = torch.from_numpy(generator.standard_normal((len(rows), 3, size, size), dtype=np.float32))
                images[rows] = _draw(distance, part, grain)
    return images, labels, factors


@contextmanager
def _one_thread() -> Iterator[None]:
    # These operations are short: threads meeting after each of them cost more than they give (20,000 images take 1.5 s
    # on one core; with two threads 5 s, and 30 s where another program keeps one of the cores busy).
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _draw_factors(n: int, size: int, generator: np.random.Generator) -> dict[str, Tensor]:
    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(generator.uniform(low, high, (n, *shape)).astype(np.float32))

    scale = size / 32
    radius = uniform(7.0 * scale, 9.5 * scale)
    reach = 0.5 * size + 1.0 * scale - radius  # a large shape has less room: it may pass the border by one pixel
    foreground, background = _draw_colours(n, generator)
    return {
        "x": 0.5 * size + uniform(-1, 1) * reach,
        "y": 0.5 * size + uniform(-1, 1) * reach,
        "radius": radius,
        "rotation": uniform(-TILT, TILT),
        "foreground": foreground,
        "background": background,
        "gradient": uniform(0, 0.12),
        "gradient_angle": uniform(0, 2 * math.pi),
        "noise": uniform(0, 0.04),
    }


def _draw_colours(n: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    colours = generator.random((n, 2, 3))
    while True:  # draw again what is too close in luminance; about half passes each time
        luma = colours @ np.array(LUMA)
        close = np.flatnonzero(luma[:, 0] - luma[:, 1] < CONTRAST)
        if not len(close):
            break
        colours[close] = generator.random((len(close), 2, 3))
    pair = torch.from_numpy(colours.astype(np.float32))
    return pair[:, 0], pair[:, 1]


def _draw(distance: Callable[[Tensor, Tensor], Tensor], factors: dict[str, Tensor], grain: Tensor) -> Tensor:
    size = grain.shape[-1]
    column = torch.arange(size) + 0.5
    per_image = {name: value.reshape(len(grain), -1, 1, 1) for name, value in factors.items()}
    dx = column - per_image["x"][:, 0]  # (B, 1, W)
    dy = column[:, None] - per_image["y"][:, 0]  # (B, H, 1)
    cos, sin = torch.cos(per_image["rotation"][:, 0]), torch.sin(per_image["rotation"][:, 0])
    radius = per_image["radius"][:, 0]
    signed = distance((cos * dx + sin * dy) / radius, (cos * dy - sin * dx) / radius) * radius  # (B, H, W), pixels
    cover = (0.5 - signed).clamp_(0, 1)[:, None]  # share of the pixel inside, exact for a straight edge along an axis
    slope = column / size * 2 - 1  # -1 to 1 over the image
    angle, gradient = per_image["gradient_angle"], per_image["gradient"] * 255
    shade = (gradient * torch.cos(angle)) * slope + (gradient * torch.sin(angle)) * slope[:, None]  # (B, 1, H, W)
    # In 0..255 with the half of rounding already added: whole-image passes are what rendering costs.
    image = torch.lerp(per_image["background"] * 255 + 0.5 + shade, per_image["foreground"] * 255 + 0.5, cover)
    return image.addcmul_(grain, per_image["noise"] * 255).clamp_(0, 255).to(torch.uint8)
