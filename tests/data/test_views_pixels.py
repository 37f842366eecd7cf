"""With its parameters fixed, each operation gives torchvision's pixels."""

import itertools

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as TF

from jointembed.data.views import Views, colour, geometry
from jointembed.data.views.parameters import BRIGHTNESS, CONTRAST, HUE, NO_JITTER, SATURATION, Parameters

BILINEAR = TF.InterpolationMode.BILINEAR


def photos(n: int, channels: int = 3, size: int = 32) -> torch.Tensor:
    """Float images with greys, pure colours, black and white among them."""
    x = torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(n))
    x[0] = x[0, :1]
    x[1] = x[1].round()
    x[2, :, : size // 2], x[2, :, size // 2 :] = 0.0, 1.0
    return x


def close(ours: torch.Tensor, reference, atol: float = 2e-6) -> None:
    torch.testing.assert_close(ours, torch.stack(list(reference)), atol=atol, rtol=0)


@pytest.mark.parametrize("size", [8, 24, 32, 50])
def test_the_matrix_crop_is_the_antialiased_resized_crop_with_flips(size):
    images = torch.randint(0, 256, (40, 3, 32, 48), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    rng = np.random.default_rng(0)
    height, width = rng.integers(1, 33, 40), rng.integers(1, 49, 40)
    box = np.stack([rng.integers(0, 33 - height), rng.integers(0, 49 - width), height, width], 1)
    flips = torch.from_numpy(rng.random((2, 40)) < 0.5)
    ours = geometry.crop_matrix(images, torch.from_numpy(box).float(), *flips, size)

    def reference(dtype, divisor):
        for image, corners, flip, vertical_flip in zip(images, box.tolist(), *flips, strict=True):
            view = TF.resized_crop(image.to(dtype), *corners, [size, size], antialias=True).float() / divisor
            view = TF.hflip(view) if flip else view
            yield TF.vflip(view) if vertical_flip else view

    close(ours, reference(torch.float32, 255), atol=1e-5)
    listed = [image[None].contiguous(memory_format=torch.channels_last) for image in images]
    close(geometry.crop_each(listed, box.tolist(), *flips, size), reference(torch.uint8, 255), atol=1.01 / 255)


def test_rotation_is_torchvisions():
    x, degrees = photos(6), [0.0, 10.0, -20.0, 45.0, 90.0, 180.0]
    close(geometry.rotate(x, torch.tensor(degrees)), map(lambda a, b: TF.rotate(a, b, BILINEAR), x, degrees), atol=2e-5)


@pytest.mark.parametrize(("size", "kernel"), [(32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_is_torchvisions_with_a_kernel_of_a_tenth_of_the_size(size, kernel):
    x, sigmas = photos(4, size=size), [0.1, 0.5, 1.0, 2.0]
    close(
        geometry.blur(x, torch.tensor(sigmas)),
        map(lambda a, b: TF.gaussian_blur(a, [kernel, kernel], [b, b]), x, sigmas),
    )


def test_hue_is_torchvisions():
    turns = torch.linspace(-0.5, 0.5, 41)
    x = photos(41)
    ours = x.clone()
    colour.turn_hue_(ours, turns)
    close(ours, map(TF.adjust_hue, x, turns.tolist()))


def test_grey_and_solarise_are_torchvisions_and_leave_other_rows_alone():
    x, rows = photos(5), torch.tensor([1, 3])
    for operation, reference in (
        (lambda y: colour.grey_(y, rows), lambda a: TF.rgb_to_grayscale(a, 3)),
        (lambda y: colour.solarise_(y, rows, 0.5), lambda a: TF.solarize(a, 0.5)),
    ):
        ours = x.clone()
        operation(ours)
        close(ours, [reference(a) if i in rows else a for i, a in enumerate(x)])


@pytest.mark.parametrize("threshold", [0.0, 128 / 255, 1.0])
def test_solarise_inverts_the_threshold_itself(threshold):
    x = torch.tensor([0.0, 127 / 255, 128 / 255, 0.5, 1.0]).view(1, 1, 1, 5)
    ours = x.clone()
    colour.solarise_(ours, torch.tensor([0]), threshold)
    close(ours, [TF.solarize(x[0], threshold)])


def test_the_jitter_is_torchvisions_in_each_of_its_24_orders():
    orders = np.array([*itertools.permutations(range(4))] * 2 + [range(4)])
    n = len(orders)
    factors = np.random.default_rng(0).uniform(0.2, 1.8, (n, 4))
    factors[:, HUE] = np.random.default_rng(1).uniform(-0.5, 0.5, n)
    stage = (orders == HUE).argmax(1)
    stage[-1] = NO_JITTER
    blend = orders[orders != HUE].reshape(n, 3)
    nothing = np.zeros(n)
    p = Parameters(
        image=nothing, slot=np.arange(n), box=nothing, flip=nothing, vertical_flip=nothing, angle=nothing,
        hue_stage=stage, blend=blend, factor=np.take_along_axis(factors, blend, 1), hue=factors[:, HUE],
        grey=nothing, sigma=nothing, solarise=nothing,
    ).take(stage.argsort(kind="stable"))  # fmt: skip
    operations = {
        BRIGHTNESS: TF.adjust_brightness,
        CONTRAST: TF.adjust_contrast,
        SATURATION: TF.adjust_saturation,
        HUE: TF.adjust_hue,
    }

    def reference(image, order, factor):
        for operation in order:
            image = operations[operation](image, factor[operation])
        return image

    x = photos(n)
    ours = x.clone()
    colour.jitter_(ours, p)
    # The hue of a nearly grey pixel is all rounding, but its colour is not: errors stay at a few units of 1e-7.
    expected = [reference(x[i], orders[s] if i < n - 1 else (), factors[s]) for i, s in enumerate(p.slot)]
    close(ours, expected, atol=1e-5)

    grey = photos(n, channels=1)
    ours = grey.clone()
    colour.jitter_(ours, p)
    no_colour = [[operation for operation in orders[s] if operation <= CONTRAST] for s in p.slot]
    expected = [reference(grey[i], no_colour[i] if i < n - 1 else (), factors[s]) for i, s in enumerate(p.slot)]
    close(ours, expected)


def test_a_view_with_everything_certain_is_torchvisions_pipeline():
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    views = Views(
        32, "simclr", num_global=1, crop_scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=1.0, jitter=0.0, grey=1.0, blur=1.0,
        blur_sigma=(1.5, 1.5), solarise=1.0, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4),
    )  # fmt: skip
    x = TF.rgb_to_grayscale(TF.hflip(images / 255), 3)
    x = TF.solarize(TF.gaussian_blur(x, [3, 3], [1.5, 1.5]), 128 / 255)
    torch.testing.assert_close(
        views(images, 0)[0], TF.normalize(x, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), atol=1e-5, rtol=0
    )
