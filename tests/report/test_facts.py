"""What a report says, against computations that share nothing with it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neighbors import NearestNeighbors
from torchmetrics.functional.classification import binary_calibration_error

import jointembed as je
from jointembed.data import open_source
from jointembed.evaluation import knn_accuracy, reliability
from jointembed.report.alarm import alarm, histogram
from jointembed.report.facts import choose, gather
from jointembed.report.history import read_history
from jointembed.report.judged import wilson
from jointembed.report.words import summarise

IMAGES = 160


@pytest.fixture(scope="module")
def facts(run: Path) -> dict[str, Any]:
    return gather([run], "digits", IMAGES)


@pytest.fixture(scope="module")
def features(run: Path) -> np.ndarray:
    shown = choose("digits", 1, IMAGES, None, 0).shown
    return je.load(run).embed(shown).numpy()


def test_neighbours_are_those_of_scikit_learn(facts: dict[str, Any], features: np.ndarray) -> None:
    found = np.array(facts["runs"][0]["neighbours"])
    distance, _ = NearestNeighbors(n_neighbors=9, metric="cosine").fit(features).kneighbors(features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    ours = 1 - (unit[:, None] * unit[found]).sum(-1)
    np.testing.assert_allclose(ours, distance[:, 1:], atol=1e-5)  # by distance: ties may come in any order
    assert (found != np.arange(IMAGES)[:, None]).all()


def test_scores_are_those_of_the_model_and_order_the_images(run: Path, facts: dict[str, Any]) -> None:
    found = facts["runs"][0]
    scores = je.load(run).anomaly_score(choose("digits", 1, IMAGES, None, 0).shown).numpy()
    np.testing.assert_allclose(found["scores"]["density"], scores, rtol=1e-4)
    assert scores[found["extremes"]["strangest"]].min() >= np.sort(scores)[-12]
    assert scores[found["extremes"]["typical"]].max() <= np.sort(scores)[11]


def test_thresholds_are_conformal_quantiles_of_the_held_out_images(run: Path, facts: dict[str, Any]) -> None:
    found = facts["runs"][0]["alarm"]
    known = je.load(run).reference["held_out/density"].double().numpy()
    scores = je.load(run).anomaly_score(choose("digits", 1, IMAGES, None, 0).shown).double().numpy()
    assert found["known"] == "held_out" and found["known_images"] == len(known)
    for step in found["steps"]:
        k = math.ceil(round((len(known) + 1) * (1 - step["rate"]), 9))
        assert step["value"] == np.quantile(known, (k - 1) / (len(known) - 1), method="nearest")
        assert step["above"] == (scores > step["value"]).sum()
        interval = stats.beta(len(known) + 1 - k, k).ppf([0.025, 0.975])
        np.testing.assert_allclose([step["low"], step["high"]], interval, rtol=1e-6)
    assert found["steps"][found["chosen"]]["rate"] == 0.05
    assert [step["above"] for step in found["steps"]] == sorted(step["above"] for step in found["steps"])


def test_a_rate_that_few_images_do_not_allow_gives_the_smallest_that_they_do(run: Path) -> None:
    model = je.load(run)
    model.reference = {"held_out/density": torch.arange(9.0)}
    found = alarm(model, "density", torch.arange(20.0), 0.05)
    assert found["steps"][found["chosen"]] | {"low": 0, "high": 0} == {
        "rate": 0.1,
        "value": 8.0,
        "low": 0,
        "high": 0,
        "above": 11,
    }
    model.reference = {"train/density": torch.arange(99.0)}
    found = alarm(model, "density", torch.tensor([98.5, torch.nan, 3.0]), 0.01)
    assert found["known"] == "train" and found["steps"][found["chosen"]]["low"] is None
    assert found["steps"][found["chosen"]]["above"] == 2  # what is no number is no typical image
    model.reference = {}
    assert "kept no scores" in alarm(model, "density", torch.ones(3), 0.05)["missing"]


def test_the_histogram_counts_every_image_once() -> None:
    scores = torch.cat([torch.randn(500, generator=torch.Generator().manual_seed(0)), torch.tensor([1e6, torch.inf])])
    found = histogram(scores, torch.zeros(10))
    assert sum(found["images"]) == pytest.approx(1)
    assert found["beyond"] == 1 and found["edges"][-1] < 1000
    assert found["images"][-1] == pytest.approx(1 / 501)


def test_accuracies_are_those_of_evaluation_on_the_same_images(run: Path, facts: dict[str, Any]) -> None:
    found = facts["runs"][0]["evaluation"]
    chosen, model = choose("digits", 1, IMAGES, None, 0), je.load(run)
    assert chosen.test is not None and chosen.test.labels is not None and chosen.shown.labels is not None
    z, z_test = model.embed(chosen.shown), model.embed(chosen.test)
    accuracy = knn_accuracy(z, chosen.shown.labels, z_test, chosen.test.labels)
    assert found["accuracy"]["k-NN"]["value"] == accuracy
    assert np.trace(found["confusion"]) / np.sum(found["confusion"]) == pytest.approx(accuracy)
    counts = np.bincount(open_source("digits", split="test").labels.numpy()[_rows(chosen.test)])
    assert np.sum(found["confusion"], axis=1).tolist() == counts.tolist()
    assert found["chance"] == pytest.approx(counts.max() / counts.sum())
    assert found["split"] == "the test split"


def _rows(source: Any) -> np.ndarray:
    return source._rows


def test_risk_and_coverage_by_hand(facts: dict[str, Any]) -> None:
    found = facts["runs"][0]["evaluation"]
    curve = found["risk_coverage"]["k-NN votes"]
    wrong = 1 - found["accuracy"]["k-NN"]["value"]
    assert curve["coverage"][-1] == 1 and curve["risk"][-1] == pytest.approx(wrong)
    assert np.mean(curve["halves"]) == pytest.approx(wrong, abs=1e-6)
    assert curve["aurc"] == pytest.approx(np.mean(curve["risk"]), abs=1e-3)  # all points, as there are few images
    assert "posterior variance" not in found["risk_coverage"]


def test_reliability_by_hand_and_by_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(400, generator=generator)
    correct = torch.rand(400, generator=generator) < 0.8
    found = reliability(confidence, correct, 10)
    error = binary_calibration_error(confidence.double(), correct.int(), n_bins=10, norm="l1")
    assert found["ece"] == pytest.approx(float(error), abs=1e-6)
    small = reliability(torch.tensor([0.05, 0.09, 0.95]), torch.tensor([False, True, True]), 10)
    assert small["count"] == [2, 1] and small["accuracy"] == [0.5, 1.0]
    np.testing.assert_allclose(small["confidence"], [0.07, 0.95], atol=1e-7)
    with pytest.raises(ValueError, match=r"^confidence: expected numbers from 0 to 1"):
        reliability(torch.tensor([1.5]), torch.tensor([True]))
    with pytest.raises(ValueError, match=r"^bins: "):
        reliability(torch.tensor([0.5]), torch.tensor([True]), 0)


def test_intervals_are_scipys() -> None:
    expected = stats.binomtest(37, 120).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(37 / 120, 120), expected, rtol=1e-5)


def test_the_curves_are_those_of_the_run_and_the_learning_rate_follows_its_schedule(run: Path) -> None:
    model = je.load(run)
    found = read_history(run, model.config)
    titles = [curve["title"] for curve in found["curves"]]
    expected = ["Loss", "Term: prediction", "Term: sigreg", "Effective rank", "Online k-NN accuracy", "Learning rate"]
    assert titles == expected
    rate = found["curves"][-1]["series"]["lr"]
    peak = model.config.training["lr"]  # two epochs of ten steps, 1,365 images at 128
    assert rate[0] == pytest.approx(peak * 10 / 11)  # the last step of a warm-up over the first epoch
    assert rate[1] == pytest.approx(peak * (0.5 + 0.5 * math.cos(math.pi * 9 / 10)))
    assert found["epochs"] == 2 and found["minutes"] > 0


@pytest.mark.parametrize("content", ["epoch,step,loss\n0,1,<b>\n", "a,b\n1,2\n", "", "epoch,step,loss\n0,1,2,3\n"])
def test_a_broken_history_is_left_out_with_a_sentence(run: Path, tmp_path: Path, content: str) -> None:
    config = je.load(run).config
    (tmp_path / "metrics.csv").write_text(content)
    found = read_history(tmp_path, config)
    assert found["curves"] == [] and found["missing"].startswith("metrics.csv is not what")
    (tmp_path / "metrics.csv").unlink()
    assert "no metrics.csv" in read_history(tmp_path, config)["missing"]


def test_samples_come_with_their_nearest_images(run: Path, facts: dict[str, Any]) -> None:
    model = je.load(run)
    latents = model.embed(choose("digits", 1, IMAGES, None, 0).shown, "projector").numpy()
    distance, _ = NearestNeighbors(n_neighbors=5).fit(latents).kneighbors(model.sample(12).numpy())
    found = facts["runs"][0]["samples"]
    np.testing.assert_allclose(found["distance"], distance[:, 0], rtol=1e-4)
    assert found["pictures"] is None
    own, _ = NearestNeighbors(n_neighbors=2).fit(latents).kneighbors(latents)
    ratio = np.quantile(distance[:, 0], 0.5, method="lower") / np.quantile(own[:, 1], 0.5, method="lower")
    assert found["ratio"] == pytest.approx(ratio, rel=1e-4)


def test_the_summary_says_what_the_numbers_say(facts: dict[str, Any]) -> None:
    found = facts["runs"][0]
    text = " ".join(found["summary"]["sentences"])
    assert "lejepa" in text and "resnet10-narrow" in text and "1,365 images" in text and "2 epochs" in text
    verdicts = {check["name"]: check["verdict"] for check in found["summary"]["checks"]}
    assert verdicts["Uncertainty"] == "unknown" and verdicts["Collapse"] == "good"
    collapsed = found | {"geometry": found["geometry"] | {"collapse": "the features use about 1.2 of 64 dimensions"}}
    assert summarise(collapsed)["checks"][0]["verdict"] == "warn"
    assert "about 1.2 of 64" in summarise(collapsed)["checks"][0]["text"]
    many = found["alarm"] | {"steps": [step | {"above": IMAGES} for step in found["alarm"]["steps"]]}
    assert summarise(found | {"alarm": many})["checks"][2]["verdict"] == "warn"
    stopped = found | {"training": found["training"] | {"epochs": 10}}
    assert any("2 of 10 epochs" in words for words in summarise(stopped)["next"])
    poor = found["evaluation"] | {"chance": 0.999}
    assert summarise(found | {"evaluation": poor})["checks"][1]["verdict"] == "warn"
