"""The drawn shapes: what their factors say is what the pixels show, and raw pixels do not give the class away."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

from jointembed.data import open_source, render_shapes
from jointembed.data.shapes import CONTRAST, LUMA, SHAPES


@pytest.fixture(scope="module")
def drawn() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    return render_shapes(5000, seed=3)


def shown(images: torch.Tensor, factors: dict[str, torch.Tensor]) -> torch.Tensor:
    """How much of each pixel is shape, from the image and its two colours alone: (N, H, W)."""
    colours = [factors[name][:, :, None, None] for name in ("foreground", "background")]
    axis = colours[0] - colours[1]
    cover = ((images / 255 - colours[1]) * axis).sum(1) / axis.square().sum(1)
    return (cover > 0.5).float()  # gradient and noise stay below half the contrast


def centroid(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(mask.shape[-1]) + 0.5
    area = mask.sum((1, 2))
    return (mask.sum(1) * at).sum(1) / area, (mask.sum(2) * at).sum(1) / area


def test_a_seed_gives_the_same_images_and_another_seed_others() -> None:
    first, again, other = (render_shapes(60, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert all(torch.equal(first[2][name], again[2][name]) for name in first[2])
    assert not torch.equal(first[0], other[0])


def test_threads_of_the_caller_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    render_shapes(10)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("size", [16, 32, 48])
def test_there_are_ten_classes_in_equal_number(size: int) -> None:
    images, labels, factors = render_shapes(205, size=size)
    assert images.shape == (205, 3, size, size)
    assert images.dtype == torch.uint8
    assert sorted(torch.bincount(labels, minlength=10).tolist()) == [20] * 5 + [21] * 5
    assert all(len(value) == 205 for value in factors.values())


def test_factors_place_the_shape(drawn: tuple) -> None:
    images, labels, factors = drawn
    symmetric = torch.tensor([list(SHAPES)[label] in ("disc", "ring", "square", "cross") for label in labels.tolist()])
    inside = symmetric & (factors["radius"] < 9)  # whole inside the image, so that its centroid is its centre
    x, y = centroid(shown(images, factors))
    for found, name in ((x, "x"), (y, "y")):
        assert torch.corrcoef(torch.stack([found, factors[name]]))[0, 1] > 0.9
        error = (found - factors[name])[inside]
        assert error.abs().quantile(0.9) < 0.7
        assert factors[name].std() > 1.5


def test_the_disc_has_the_area_of_its_radius(drawn: tuple) -> None:
    images, labels, factors = drawn
    discs = (labels == 0) & (factors["radius"] < 10)
    area = shown(images, factors)[discs].sum((1, 2))
    expected = np.pi * (0.88 * factors["radius"][discs]) ** 2
    assert ((area / expected - 1).abs()).median() < 0.03


def test_rotation_turns_the_arrow(drawn: tuple) -> None:
    images, labels, factors = drawn
    arrows = labels == list(SHAPES).index("arrow")
    mask, part = shown(images, factors)[arrows], {name: value[arrows] for name, value in factors.items()}
    x, y = centroid(mask)
    dx, dy = x - part["x"], y - part["y"]  # the head is heavier: at rotation 0 the centroid lies above the centre
    # Rotating (0, -1) by the angle, with y down.
    along = dx * torch.sin(part["rotation"]) - dy * torch.cos(part["rotation"])
    across = dx * torch.cos(part["rotation"]) + dy * torch.sin(part["rotation"])
    assert along.mean() > 5 * across.mean().abs()


def test_shape_and_background_differ_in_luminance(drawn: tuple) -> None:
    luma = [drawn[2][name] @ torch.tensor(LUMA) for name in ("foreground", "background")]
    assert (luma[0] - luma[1]).abs().min() >= CONTRAST - 1e-5
    mask = shown(drawn[0], drawn[2])[:, None]
    grey = (drawn[0] / 255 * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
    inside, outside = ((grey * m).sum((1, 2, 3)) / m.sum((1, 2, 3)) for m in (mask, 1 - mask))
    assert (inside - outside).abs().min() > 0.2


def test_background_varies_smoothly_and_noise_is_as_strong_as_it_says(drawn: tuple) -> None:
    images, _, factors = drawn
    corner = images[:, :, :3, :3].float() / 255
    noise = (corner[:, :, :, :-1] - corner[:, :, :, 1:]).flatten(1).std(1) / np.sqrt(2)
    dull = ((factors["background"] > 0.2) & (factors["background"] < 0.8)).all(1)  # not cut at 0 or 1
    assert torch.corrcoef(torch.stack([noise, factors["noise"]])[:, dull])[0, 1] > 0.5


def test_edges_are_anti_aliased() -> None:
    images, labels, factors = render_shapes(200, seed=1)
    discs = labels == 0
    colours = [factors[name][discs][:, :, None, None] for name in ("foreground", "background")]
    axis = colours[0] - colours[1]
    cover = ((images[discs] / 255 - colours[1]) * axis).sum(1) / axis.square().sum(1)
    between = ((cover > 0.3) & (cover < 0.7)).sum((1, 2))
    assert between.float().mean() > 10  # a disc of this size meets about 50 edge pixels


def test_raw_pixels_hide_the_class() -> None:
    train, test = render_shapes(6000, seed=0), render_shapes(1000, seed=1)
    for neighbours in (1, 30):
        model = KNeighborsClassifier(neighbours, n_jobs=1).fit(train[0].flatten(1).numpy(), train[1].numpy())
        assert 0.12 < model.score(test[0].flatten(1).numpy(), test[1].numpy()) < 0.35


def test_a_few_moments_of_the_true_mask_show_the_class(drawn: tuple) -> None:
    """Rotation-free features of the mask: how far its pixels lie from its centroid, in each of a few senses."""
    images, labels, factors = drawn
    mask = shown(images, factors)
    x, y = centroid(mask)
    at = torch.arange(32) + 0.5
    dx, dy = at - x[:, None, None], at[:, None] - y[:, None, None]
    area = mask.sum((1, 2))
    distance = torch.hypot(dx.expand_as(mask), dy.expand_as(mask)) / area.sqrt()[:, None, None]
    features = [((distance**power) * mask).sum((1, 2)) / area for power in (1, 2, 4)]
    for order in (2, 3, 4, 5):  # strength of each rotational symmetry
        angle = order * torch.atan2(dy.expand_as(mask), dx.expand_as(mask))
        parts = [(f(angle) * distance**2 * mask).sum((1, 2)) / area for f in (torch.cos, torch.sin)]
        features.append(torch.hypot(*parts))
    features.append((mask * (distance < 0.15)).sum((1, 2)) / area)  # a hole in the middle
    table = torch.stack(features, 1).numpy()
    model = RandomForestClassifier(40, random_state=0).fit(table[:4000], labels[:4000].numpy())
    assert model.score(table[4000:], labels[4000:].numpy()) > 0.85


def test_open_source_gives_both_splits_with_factors() -> None:
    train, test = open_source("shapes"), open_source("shapes", split="test")
    assert (len(train), len(test), train.class_names) == (10_000, 2_000, tuple(SHAPES))
    assert torch.equal(test.batch(range(2000)), render_shapes(2000, seed=1)[0])
    part = test.subset([7, 3])
    assert torch.equal(part.factors["x"], test.factors["x"][[7, 3]])


@pytest.mark.parametrize(
    "arguments",
    [{"n": 0}, {"n": 2.5}, {"n": 10, "size": 4}, {"n": True}, {"n": 10, "seed": -1}, {"n": 10, "seed": "a"}],
)
def test_bad_arguments_are_value_errors(arguments: dict) -> None:
    with pytest.raises(ValueError, match=next(name for name in reversed(arguments))):
        render_shapes(**arguments)
