"""The random parameters follow torchvision's laws, at the rates asked for."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import RandomResizedCrop

from jointembed.data.views import PRESETS
from jointembed.data.views.parameters import HUE, NO_JITTER, draw, draw_boxes, generator

SIMCLR = PRESETS["simclr"]


def many(settings=SIMCLR, n=20000, seed=0, blurred=True):
    sizes = np.full(n // 2, 32)
    return draw(generator(seed), settings, settings.crop_scale, sizes, sizes, 2, blurred)


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(32, 32, (0.08, 1.0)), (96, 160, (0.3, 1.0)), (200, 40, (0.05, 0.3)), (300, 60, (0.5, 1.0))],
)
def test_crop_boxes_have_the_distribution_of_torchvisions(height, width, scale):
    n, ratio = 4000, (3 / 4, 4 / 3)
    ours = draw_boxes(generator((height, width)), scale, ratio, np.full(n, height), np.full(n, width))
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= [height, width]).all()
    assert (ours[:, 2:] >= 1).all()
    image = torch.empty(1, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = np.array([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(n)])
    for statistic in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 0] / np.maximum(height - b[:, 2], 1),
    ):
        assert stats.ks_2samp(statistic(ours), statistic(theirs)).pvalue > 1e-3


@pytest.mark.parametrize(("height", "width"), [(10, 200), (200, 10), (1, 50), (3, 3)])
def test_a_crop_that_never_fits_becomes_torchvisions_central_one(height, width):
    image, scale, ratio = torch.empty(1, height, width), (1.0, 1.0), (0.9, 1.1)
    ours = draw_boxes(generator(0), scale, ratio, np.array([height] * 5), np.array([width] * 5))
    assert ours.tolist() == [list(RandomResizedCrop.get_params(image, list(scale), list(ratio)))] * 5


@pytest.mark.parametrize("first", [0, 1])
def test_views_may_differ_in_how_often_something_happens(first):
    settings = replace(PRESETS["dino"], flip=(0.0, 1.0))
    sizes = np.full(4000, 32)
    p = draw(generator(1), settings, settings.crop_scale, sizes, sizes, 3, True, first)
    view = p.slot // len(sizes)
    for happened, chances in ((p.sigma > 0, (1.0, 0.1, 0.5)), (p.solarise, (0.0, 0.2, 0.0)), (p.flip, (0.0, 1.0))):
        for v in range(3):
            rate = chances[min(v + first, len(chances) - 1)]
            count = int(happened[view == v].sum())
            assert (
                stats.binomtest(count, len(sizes), rate).pvalue > 1e-4 if 0 < rate < 1 else count == rate * len(sizes)
            )


def test_operations_happen_at_their_rates():
    settings = replace(SIMCLR, flip=0.5, vertical_flip=0.1, jitter=0.8, grey=0.2, blur=0.3, solarise=0.15)
    p = many(settings)
    for happened, rate in (
        (p.flip, 0.5),
        (p.vertical_flip, 0.1),
        (p.hue_stage != NO_JITTER, 0.8),
        (p.grey, 0.2),
        (p.sigma > 0, 0.3),
        (p.solarise, 0.15),
    ):
        assert stats.binomtest(int(happened.sum()), len(p), rate).pvalue > 1e-3
    for rate in (0.0, 1.0):
        p = many(replace(settings, flip=rate, jitter=rate, grey=rate, blur=rate, solarise=rate), n=1000)
        for happened in (p.flip, p.hue_stage != NO_JITTER, p.grey, p.sigma > 0, p.solarise):
            assert happened.mean() == rate
    assert not many(settings, blurred=False).sigma.any()


def test_the_four_colour_operations_come_in_all_24_orders_equally():
    p = many(replace(SIMCLR, jitter=1.0))
    orders = Counter(tuple(np.insert(blend, stage, HUE)) for blend, stage in zip(p.blend, p.hue_stage, strict=True))
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > 1e-3


def test_strengths_are_uniform_in_torchvisions_ranges():
    p = many(replace(SIMCLR, jitter_strength=(0.4, 0.8, 1.5, 0.2), rotation=30.0, blur=1.0))
    factors = np.take_along_axis(p.factor, p.blend.argsort(1), 1).T
    for values, low, high in (
        (factors[0], 0.6, 1.4),
        (factors[1], 0.2, 1.8),
        (factors[2], 0.0, 2.5),  # no negative saturation
        (p.hue, -0.2, 0.2),
        (p.angle, -30.0, 30.0),
        (p.sigma, 0.1, 2.0),
    ):
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_parameters_of_one_view_are_independent_and_of_neighbouring_seeds_too():
    def columns(p):
        p = p.take(p.slot.argsort())
        return [p.flip, p.hue_stage == NO_JITTER, p.hue, p.factor[:, 0], p.grey, p.sigma, p.solarise, *p.box[:, :3].T]

    settings = replace(SIMCLR, solarise=0.5, grey=0.5)
    one, two = columns(many(settings, seed=(5, 0, 1))), columns(many(settings, seed=(5, 0, 2)))
    within = np.corrcoef(np.array(one[:7], dtype=float))
    across = np.corrcoef(np.array(one, dtype=float), np.array(two, dtype=float))[: len(one), len(one) :]
    bound = 4.5 / np.sqrt(20000)
    assert np.abs(within - np.eye(7)).max() < bound
    assert np.abs(across).max() < bound


def test_global_views_do_not_change_when_local_views_are_added():
    from jointembed.data.views import Views

    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(Views(32)(images, 0)[1], Views(32, num_local=2)(images, 0)[1])
