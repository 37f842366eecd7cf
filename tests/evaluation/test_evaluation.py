from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jointembed as je
from jointembed.data import open_source
from jointembed.evaluation import knn_accuracy, labelled_splits, linear_accuracy, linear_accuracy_sgd


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, ...]:
    x, y = make_classification(3000, 30, n_informative=10, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    return x[:2000], y[:2000], x[2000:], y[2000:]


def test_the_linear_probe_is_as_good_as_scikit_learns_cross_validated_one(problem: tuple[torch.Tensor, ...]) -> None:
    x, y, x_test, y_test = problem
    reference = make_pipeline(
        StandardScaler(),
        LogisticRegressionCV(l1_ratios=(0,), use_legacy_attributes=False, scoring="accuracy", max_iter=1000),
    ).fit(x.numpy(), y.numpy())
    assert linear_accuracy(*problem) == pytest.approx(reference.score(x_test.numpy(), y_test.numpy()), abs=0.015)


def test_the_probe_needs_no_particular_scale(problem: tuple[torch.Tensor, ...]) -> None:
    x, y, x_test, y_test = problem
    scale = torch.logspace(-4, 4, 30)
    assert linear_accuracy(x * scale + 5, y, x_test * scale + 5, y_test) == pytest.approx(
        linear_accuracy(*problem), abs=0.01
    )


def test_features_without_information_score_at_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2000, 8, generator=generator), torch.randint(4, (2000,), generator=generator)
    for accuracy in (knn_accuracy, linear_accuracy):
        assert accuracy(x[:1000], y[:1000], x[1000:], y[1000:]) == pytest.approx(0.25, abs=0.06)


def test_evaluate_reads_both_splits_and_agrees_with_its_parts(run: Path) -> None:
    model = je.load(run)
    train, test = open_source("digits"), open_source("digits", split="test")
    result = je.evaluate(run, "digits", pixels=True)
    z, z_test = model.embed(train), model.embed(test)
    assert result["knn"] == knn_accuracy(z, train.labels, z_test, test.labels)
    assert result["linear"] == linear_accuracy(z, train.labels, z_test, test.labels)
    assert (result["train_images"], result["test_images"], result["classes"]) == (len(train), len(test), 10)
    assert result["pixel_knn"] > 0.9  # digits are easy for pixels


@pytest.mark.soak  # many epochs of a small head
def test_the_sgd_protocol_learns_from_labels_and_only_from_them(run: Path) -> None:
    model = je.load(run)
    train, test = open_source("digits"), open_source("digits", split="test")
    options = {"epochs": 8, "batch_size": 32, "lr": 0.3, "view_options": {"flip": 0.0, "crop_scale": (0.9, 1.0)}}
    accuracy = linear_accuracy_sgd(model, train, test, **options)
    assert accuracy > 0.4
    assert accuracy == linear_accuracy_sgd(model, train, test, **options)
    images, shuffled = train.batch(range(len(train))), train.labels[torch.randperm(len(train))]
    assert linear_accuracy_sgd(model, open_source((images, shuffled)), test, **options) < 0.25


def test_a_source_without_a_test_part_is_split_and_unlabelled_images_are_left_out() -> None:
    images = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
    labels = np.arange(100) % 5
    labels[:10] = -1
    train, test = labelled_splits((images, labels))
    assert len(train) + len(test) == 90
    assert not {image.numpy().tobytes() for image in train.batch(range(len(train)))} & {
        image.numpy().tobytes() for image in test.batch(range(len(test)))
    }


def test_bad_arguments_are_named(run: Path) -> None:
    images = np.zeros((30, 8, 8), np.uint8)
    with pytest.raises(ValueError, match="^data: expected labels"):
        je.evaluate(run, images)
    with pytest.raises(ValueError, match="^linear: expected 'lbfgs'"):
        je.evaluate(run, "digits", linear="svm")
    with pytest.raises(ValueError, match="^train_labels: expected at least two classes"):
        linear_accuracy(torch.zeros(4, 2), torch.zeros(4).long(), torch.zeros(4, 2), torch.zeros(4).long())
