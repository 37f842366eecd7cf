"""`Views` as a whole: what goes in and out, and that it is a function of images and seed."""

import random

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as TF

from jointembed.data.views import PRESETS, Settings, Views, pipeline, presets

GENERATOR = torch.Generator().manual_seed(0)


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=GENERATOR, dtype=torch.uint8)


def test_global_views_come_first_and_each_has_its_size():
    views = Views(32, "lejepa", num_global=2, num_local=3, local_size=16)(noise(5, 3, 40, 48), 0)
    assert [tuple(view.shape) for view in views] == [(5, 3, 32, 32)] * 2 + [(5, 3, 16, 16)] * 3
    assert all(view.dtype == torch.float32 and view.is_contiguous() for view in views)


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_every_preset_takes_any_number_of_channels(preset, channels):
    for view in Views(16, preset, num_local=1, blur=0.5)(noise(20, channels, 20, 24), 1):
        assert view.shape[1] == channels
        assert view.isfinite().all()
        assert view.min() >= -1e-6
        assert view.max() <= 1 + 1e-6


def test_same_seed_gives_the_same_bits_and_any_other_number_in_the_tuple_other_views():
    images, views = noise(8, 3, 32, 32), Views(32, "simclr")
    first = views(images, (1, 2, 3, 0))
    assert all(torch.equal(a, b) for a, b in zip(first, views(images, (1, 2, 3, 0)), strict=True))
    assert not torch.equal(first[0], first[1])
    seeds = [(1, 2, 3, 1), (1, 2, 4, 0), (1, 3, 3, 0), (2, 2, 3, 0), (1, 2, 3), (1, 2, 3, 0, 0), 1, 0, 2**32, (0, 1)]
    seen = [first, *(views(images, seed) for seed in seeds)]
    assert all(
        not torch.equal(a[v], b[w]) for i, a in enumerate(seen) for b in seen[:i] for v in (0, 1) for w in (0, 1)
    )


@pytest.mark.parametrize("side", [32, 80])
def test_views_are_the_same_bits_where_a_training_runs_in_bfloat16(side):
    images, views = noise(8, 3, side, side), Views(32, "simclr", blur=0.5, rotation=10.0, num_local=1)
    plain = views(images, 0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = views(images, 0)
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


def test_an_integer_seed_is_the_tuple_of_it():
    images, views = noise(4, 3, 32, 32), Views(32)
    assert torch.equal(views(images, 7)[0], views(images, (7,))[0])


def test_global_random_state_is_neither_read_nor_touched():
    images, views = noise(4, 3, 32, 32), Views(32, "simclr", blur=0.5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = views(images, 0)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    assert states[2] == random.getstate()
    torch.manual_seed(123)
    assert torch.equal(first[0], views(images, 0)[0])


def test_images_are_not_changed():
    images = noise(4, 3, 32, 32)
    copy = images.clone()
    Views(32, "simclr")(images, 0)
    Views(32).single(images)
    assert torch.equal(images, copy)


@pytest.mark.parametrize("source", [32, 80])
def test_views_do_not_depend_on_the_chunks(monkeypatch, source):
    images, views = noise(20, 3, source, source), Views(32, "lejepa", blur=0.5, rotation=10.0)
    whole = views(images, 0)
    monkeypatch.setattr(pipeline, "CHUNK", 3 * 3 * 32 * 32)
    for a, b in zip(whole, views(images, 0), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_a_list_of_images_of_one_size_gives_what_the_batch_gives():
    images = noise(12, 3, 40, 32)
    views = Views(24, "moco-v2", jitter=0.0, vertical_flip=0.5)
    for a, b in zip(views(images, 3), views(list(images), 3), strict=True):
        torch.testing.assert_close(a, b, atol=1.01 / 255, rtol=0)  # one by one, crops are rounded to uint8


def test_memory_layout_of_the_images_does_not_matter():
    images, views = noise(6, 3, 32, 32), Views(32, "simclr")
    strided = images.to(memory_format=torch.channels_last)
    assert torch.equal(views(images, 0)[0], views(strided, 0)[0])
    assert torch.equal(views(images[::2], 0)[0], views(images[::2].clone(), 0)[0])


def test_images_of_different_sizes_make_one_batch():
    views = Views(32, "simclr", num_local=1)([noise(3, 50, 40), noise(3, 31, 200), noise(3, 1, 7)], 0)
    assert [tuple(view.shape) for view in views] == [(3, 3, 32, 32)] * 2 + [(3, 3, 14, 14)]


def test_views_are_normalised_by_mean_and_std():
    images, mean, std = noise(6, 3, 32, 32), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    plain = Views(32, "simclr")(images, 0)[0]
    normal = Views(32, "simclr", mean=mean, std=std)(images, 0)[0]
    torch.testing.assert_close(normal, TF.normalize(plain, mean, std), atol=1e-5, rtol=0)
    grey = Views(32, mean=0.5, std=0.5).single(noise(2, 1, 32, 32))
    assert grey.min() >= -1
    assert grey.min() < 0


def test_single_is_the_resized_central_part():
    views, images = Views(32, mean=0.5, std=0.25), noise(3, 3, 64, 100)
    expected = TF.center_crop(TF.resize(images, [32], antialias=True), [32, 32]).float() / 255
    level = 1.01 / 255 / 0.25  # of uint8, where torchvision's resizing kernels round differently
    torch.testing.assert_close(views.single(images), (expected - 0.5) / 0.25, atol=level, rtol=0)
    torch.testing.assert_close(views.single(list(images)), views.single(images), atol=level, rtol=0)
    assert views.single([noise(3, 64, 40), noise(3, 20, 90)]).shape == (2, 3, 32, 32)


def test_single_leaves_an_image_of_the_right_size_alone():
    images = noise(3, 3, 32, 32)
    torch.testing.assert_close(Views(32).single(images), images.float() / 255, atol=1e-7, rtol=0)


def test_presets_blur_large_views_only_unless_told():
    def blurs(size, local_size, **overrides):
        settings = {"jitter": 0.0, "grey": 0.0, "flip": 0.0, "crop_scale": (1.0, 1.0), "local_scale": (1.0, 1.0)}
        views = Views(size, "simclr", 1, 1, local_size, ratio=(1.0, 1.0), **(settings | overrides))
        images = (torch.arange(64)[:, None] + torch.arange(64)).remainder(2).mul(255).to(torch.uint8)
        images = images.expand(20, 3, 64, 64)[..., :size, :size]
        plain = Views(size, "simclr", 1, 1, local_size, ratio=(1.0, 1.0), blur=0.0, **settings)(images, 0)
        return [not torch.equal(a, b) for a, b in zip(views(images, 0), plain, strict=True)]

    assert blurs(64, 32) == [True, False]
    assert blurs(32, 32) == [False, False]
    assert blurs(32, 32, blur=0.5) == [True, True]
    assert blurs(64, 32, blur=0.5, blur_min_size=64) == [True, False]


def test_settings_can_be_overridden_or_given_whole():
    assert Views(32, "simclr", flip=0.25).settings.flip == 0.25
    assert Views(32, Settings(flip=0.25)).settings.flip == 0.25
    assert Views(32, "simclr").settings == PRESETS["simclr"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "simcrl"}, "preset: expected one of 'simclr', .*'lejepa'.*got 'simcrl'"),
        ({"preset": "mocov2"}, "preset: expected one of 'moco-v2', "),
        ({"preset": 3}, "preset: expected a name or Settings, got int"),
        ({"fliip": 0.5}, "fliip: not a setting .* expected one of 'flip'"),
        ({"size": 0}, "size: expected an integer >= 1, got 0"),
        ({"size": 32.0}, "size: expected an integer >= 1, got 32.0"),
        ({"num_global": 0}, "num_global: expected an integer >= 1, got 0"),
        ({"num_local": -1}, "num_local: expected an integer >= 0, got -1"),
        ({"local_size": 0}, "local_size: expected an integer >= 1, got 0"),
        ({"flip": 1.5}, r"flip: expected a number in \[0, 1\], or one for each view, got 1.5"),
        ({"grey": "yes"}, r"grey: expected a number in \[0, 1\], or one for each view, got 'yes'"),
        ({"jitter": float("nan")}, r"jitter: expected a number in \[0, 1\], or one for each view, got nan"),
        ({"blur": ()}, r"blur: expected a number in .*, got \(\)"),
        ({"blur": (0.5, 2.0)}, r"blur: expected a number in .*, got \(0.5, 2.0\)"),
        ({"solarise_threshold": (0.5,)}, r"solarise_threshold: expected a number in \[0, 1\], got"),
        ({"crop_scale": (0.5, 0.1)}, r"crop_scale: expected \(low, high\) .*, got \(0.5, 0.1\)"),
        ({"local_scale": (0.0, 0.1)}, "local_scale: expected"),
        ({"crop_scale": 0.5}, "crop_scale: expected .*, got 0.5"),
        ({"crop_scale": (0.5, 2.0)}, "crop_scale: expected"),
        ({"ratio": (2.0, 1.0)}, "ratio: expected"),
        ({"blur_sigma": (0.0, 1.0)}, "blur_sigma: expected"),
        ({"rotation": 200}, r"rotation: expected degrees in \[0, 180\], got 200"),
        ({"jitter_strength": (0.4, 0.4, 0.4)}, "jitter_strength: expected"),
        ({"jitter_strength": (0.4, 0.4, 0.4, 0.6)}, "jitter_strength: expected"),
        ({"blur_min_size": 0}, "blur_min_size: expected"),
        ({"mean": "x"}, "mean: expected a number or one per channel, got 'x'"),
        ({"std": (0.2, 0.0, 0.2)}, "std: expected positive"),
    ],
)
def test_a_bad_setting_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        Views(**arguments)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 8, 8), r"images: expected .*uint8.*got torch.float32 of shape \(2, 3, 8, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"images: expected .*\(3, 8, 8\)"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "images: expected a non-empty"),
        ([], "images: expected .* non-empty list"),
        ("photo.png", "images: expected"),
        ([torch.zeros(8, 8, dtype=torch.uint8)], "images: expected .* at index 0"),
        ([torch.zeros(3, 8, 8, dtype=torch.uint8), torch.rand(3, 8, 8)], "got torch.float32 .* at index 1"),
        ([torch.zeros(c, 8, 8, dtype=torch.uint8) for c in (3, 1)], "one number of channels, got 3 .* 1 at index 1"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "mean: has 3 values, expected 1 or 4"),
    ],
)
def test_bad_images_are_refused(images, message):
    views = Views(8, mean=(0.5, 0.5, 0.5))
    for call in (lambda: views(images, 0), lambda: views.single(images)):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("seed", [-1, 1.5, (), (1, -2), "0", None, 2**64])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match="seed: expected"):
        Views(8)(noise(2, 3, 8, 8), seed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_the_cpu_gives():
    images, views = noise(16, 3, 32, 32), Views(32, "lejepa", num_local=1, blur=0.5)
    for a, b in zip(views(images, 0), views(images.cuda(), 0), strict=True):
        assert b.is_cuda
        torch.testing.assert_close(a, b.cpu(), atol=1e-4, rtol=0)
