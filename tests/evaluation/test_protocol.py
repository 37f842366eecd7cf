"""What `evaluate` gives on request, against its parts."""

import numpy as np
import pytest
import torch
from tiny import tiny_network
from untrained import untrained_model

import jointembed as je
from jointembed.data import Source, Views, open_source
from jointembed.evaluation import confusion, embed_views, feature_geometry, few_shot, fine_tune, linear_predict
from jointembed.metrics import alignment, gaussianity, information, knn_predict, lidar, rank_me, uniformity
from jointembed.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return untrained_model(tiny_network(), view_options={"flip": 0.0, "crop_scale": [0.5, 1.0]}, view_size=[6, 7])


@pytest.fixture(scope="module")
def digits() -> tuple[Source, Source]:
    return open_source("digits"), open_source("digits", split="test")


def test_nothing_is_measured_that_was_not_asked_for(model: Model) -> None:
    found = je.evaluate(model, "digits", linear="none")
    assert list(found) == ["train_images", "test_images", "classes", "knn", "seconds"]


def test_few_shots_and_classes_agree_with_their_parts(model: Model, digits: tuple[Source, Source]) -> None:
    train, test = digits
    found = je.evaluate(model, "digits", shots=(1, 2), draws=2, per_class=True, seed=3)
    z, z_test = model.embed(train), model.embed(test)
    parts = few_shot(z, train.labels, z_test, test.labels, (1, 2), draws=2, seed=3)
    assert found["few_shot"] == {k: {"mean": part.mean, "std": part.std} for k, part in parts.items()}

    predicted = {"knn": knn_predict(z, train.labels, z_test).argmax(1)}
    predicted["linear"] = linear_predict(z, train.labels, z_test, seed=3)
    for name, classes in predicted.items():
        assert found[name] == pytest.approx((classes == test.labels).double().mean())
        assert found["confusion"][name] == confusion(classes, test.labels).tolist()
        for c in range(10):
            right = (classes == c)[test.labels == c].double().mean()
            assert found["per_class"][name][str(c)] == pytest.approx(right)


def test_fine_tuning_is_measured_on_request(model: Model, digits: tuple[Source, Source]) -> None:
    options = {"flip": 0.0}
    found = je.evaluate(model, "digits", linear="none", fine_tune_epochs=1, view_options=options, seed=2)
    assert found["fine_tune"] == fine_tune(model, *digits, epochs=1, seed=2, view_options=options).accuracy


def test_views_are_those_of_the_training(model: Model, digits: tuple[Source, Source]) -> None:
    images = digits[0].subset(range(70))
    z = embed_views(model, images, 3, "projector", seed=5, batch_size=70)
    views = Views(7, "lejepa", num_global=3, mean=[0.3], std=[0.4], flip=0.0, crop_scale=(0.5, 1.0))
    parts = views(images.batch(range(70)), (5, 0))
    with torch.inference_mode():
        reference = [model.method.encode(part)["projector"] for part in parts]
    torch.testing.assert_close(z, torch.stack(reference, 1), rtol=1e-4, atol=1e-5)
    assert not torch.equal(z, embed_views(model, images, 3, "projector", seed=6, batch_size=70))


def test_the_geometry_is_that_of_the_embeddings(model: Model, digits: tuple[Source, Source]) -> None:
    images = digits[0].subset(range(200))
    found = feature_geometry(model, images)
    z, views = model.embed(images), embed_views(model, images, 10)
    assert found["rank_me"] == pytest.approx(rank_me(z))
    assert found["uniformity"] == pytest.approx(uniformity(z))
    assert found["lidar"] == pytest.approx(lidar(views)) and found["information"] == pytest.approx(information(views))
    assert found["alignment"] == pytest.approx(alignment(views))
    normal = gaussianity(model.embed(images, "projector"))
    assert found["sigreg"] == pytest.approx(normal.value)
    assert found["sigreg_p_value"] == normal.p_value


def test_bad_requests_are_refused_before_any_work(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*args: object, **kwargs: object) -> None:
        raise AssertionError("worked")

    monkeypatch.setattr(Model, "embed", work)
    with pytest.raises(ValueError, match=r"^shots: expected at least 150 training images of every class, got 0 \("):
        je.evaluate(model, "digits", shots=[150])
    with pytest.raises(ValueError, match="^fine_tune_epochs: expected at least 0, got -1"):
        je.evaluate(model, "digits", fine_tune_epochs=-1)
    with pytest.raises(ValueError, match="^num_views: expected at least 1, got 0"):
        embed_views(model, open_source(np.zeros((3, 8, 8), np.uint8)), 0)
