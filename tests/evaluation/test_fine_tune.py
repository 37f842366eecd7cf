import numpy as np
import pytest
import torch
from torch import nn
from untrained import narrow_network, untrained_model

from jointembed.backbones import create_backbone
from jointembed.data import open_source
from jointembed.evaluation import fine_tune, linear_accuracy
from jointembed.evaluation.fine_tune import FineTuned

DIGITS = {"epochs": 4, "lr": 1e-2, "batch_size": 64, "view_options": {"flip": 0.0, "crop_scale": (0.8, 1.0)}}


def test_it_learns_what_random_features_do_not_tell_and_leaves_the_model_alone() -> None:
    model = untrained_model(narrow_network())
    train, test = open_source("digits"), open_source("digits", split="test")
    probed = linear_accuracy(model.embed(train), train.labels, model.embed(test), test.labels)
    before = {name: value.clone() for name, value in model.method.state_dict().items()}
    requires_grad = [p.requires_grad for p in model.method.parameters()]
    random_state = torch.random.get_rng_state()

    found = fine_tune(model, train, test, **DIGITS)
    assert probed < 0.7
    assert found.accuracy > 0.88
    assert found.accuracy == pytest.approx((found.predictions == test.labels).double().mean())

    for name, value in model.method.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    assert [p.requires_grad for p in model.method.parameters()] == requires_grad
    assert not model.method.training and not model.method.backbone.training
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_the_same_seed_gives_the_same_predictions_and_another_one_others() -> None:
    model = untrained_model(narrow_network())
    train, test = open_source("digits").subset(range(200)), open_source("digits", split="test")
    options = DIGITS | {"epochs": 2}
    first = fine_tune(model, train, test, **options).predictions
    assert torch.equal(first, fine_tune(model, train, test, **options).predictions)
    assert not torch.equal(first, fine_tune(model, train, test, **options, seed=1).predictions)


def test_images_of_different_sizes_can_be_trained_on() -> None:
    """Bright against dark images, in sizes from 8 to 12."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = [rng.integers(0, 60, (8 + i % 5, 9), np.uint8) + np.uint8(150 * (i % 2)) for i in range(60)]
    source = open_source((images, labels))
    assert source.image_size is None
    assert fine_tune(untrained_model(narrow_network()), source, source, epochs=3, lr=1e-2).accuracy == 1


def test_bad_arguments_are_named() -> None:
    model, digits = untrained_model(narrow_network()), open_source("digits")
    images = open_source(np.zeros((10, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="^train, test: expected sources with labels"):
        fine_tune(model, images, digits)
    with pytest.raises(ValueError, match="^train: expected a label of two classes or more on each image"):
        fine_tune(model, open_source((np.zeros((10, 8, 8), np.uint8), np.zeros(10, int))), digits)
    with pytest.raises(ValueError, match="^epochs: expected a number above 0, got 0"):
        fine_tune(model, digits, digits, epochs=0)
    with pytest.raises(ValueError, match="^batch_size: expected at least 2, got 1"):
        fine_tune(model, digits, digits, batch_size=1)


def test_bf16_learns_as_much_and_is_left_out_where_its_gradients_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last kernels of conv4 reach beyond what is left of 8 pixels: "auto" has to be float32 there, bit for bit."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    train, test = open_source("digits"), open_source("digits", split="test")

    def tuned(network: nn.Module, precision: str) -> FineTuned:
        return fine_tune(untrained_model(network), train, test, **DIGITS, precision=precision)

    sound = {precision: tuned(narrow_network(), precision) for precision in ("auto", "bf16-mixed", "32-true")}
    assert torch.equal(sound["auto"].predictions, sound["bf16-mixed"].predictions)
    assert not torch.equal(sound["auto"].predictions, sound["32-true"].predictions)
    assert sound["auto"].accuracy == pytest.approx(sound["32-true"].accuracy, abs=0.03)

    ill = create_backbone("conv4", 1, 8)
    assert torch.equal(tuned(ill, "auto").predictions, tuned(ill, "32-true").predictions)
