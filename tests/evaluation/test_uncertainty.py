import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import spearmanr
from torch import Tensor

import jointembed as je
from jointembed.data import Source, open_source
from jointembed.evaluation import aurc, corrupt, corruption_response, error_tracking, knn_accuracy, risk_coverage
from jointembed.evaluation.linear import linear_accuracy
from jointembed.evaluation.uncertainty import spearman
from jointembed.metrics import knn_predict


class Fake:
    """A model whose features are pixels; "contrast" is how little an image has, "light" its mean, "none" constant."""

    method = SimpleNamespace(scores=("contrast", "light", "none"))
    config = SimpleNamespace(channels=1)

    def open(self, images: object, split: str = "train") -> Source:
        return open_source(images, split, minimum=1)

    def embed(self, images: object, space: str | None = None) -> Tensor:
        source = self.open(images)
        return source.batch(range(len(source))).flatten(1).float()

    def anomaly_score(self, images: object, score: str | None = None) -> Tensor:
        x = self.embed(images)
        return {"contrast": -x.std(1), "light": x.mean(1), "none": torch.ones(len(x))}[score or "contrast"]


@pytest.fixture(scope="module")
def images() -> Tensor:
    """20 images of 16 px, all noise."""
    return torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_without_ties_the_risk_is_the_share_of_errors_so_far() -> None:
    generator = torch.Generator().manual_seed(0)
    uncertainty, correct = torch.randn(50, generator=generator), torch.rand(50, generator=generator) < 0.7
    coverage, risk = risk_coverage(uncertainty, correct)
    wrong = [not bool(correct[i]) for i in np.argsort(uncertainty.numpy())]
    assert coverage.tolist() == pytest.approx([n / 50 for n in range(1, 51)])
    assert risk.tolist() == pytest.approx([sum(wrong[:n]) / n for n in range(1, 51)])


def test_ties_are_averaged_over_all_their_orders() -> None:
    uncertainty = torch.tensor([2.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    correct = torch.tensor([False, True, False, True, True, True, False])
    orders = [o for o in itertools.permutations(range(7)) if (uncertainty[list(o)].diff() >= 0).all()]
    assert len(orders) == math.factorial(4) * math.factorial(2)
    curves = np.array([np.cumsum(~correct.numpy()[list(o)]) / np.arange(1, 8) for o in orders])
    np.testing.assert_allclose(risk_coverage(uncertainty, correct)[1], curves.mean(0), rtol=1e-12)
    shuffled = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(
        risk_coverage(uncertainty, correct)[1], risk_coverage(uncertainty[shuffled], correct[shuffled])[1]
    )


def test_the_oracle_has_its_closed_form_and_the_random_order_the_error_rate() -> None:
    # For many predictions with error rate r the oracle's area is r + (1 - r) ln(1 - r), the integral of its curve.
    r = 0.3
    correct = torch.rand(200_000, generator=torch.Generator().manual_seed(0)) >= r
    found = aurc(torch.rand(200_000, generator=torch.Generator().manual_seed(1)), correct)
    assert found["oracle"] == pytest.approx(r + (1 - r) * math.log(1 - r), abs=3e-3)
    assert found["random"] == float((~correct).double().mean())
    assert found["aurc"] == pytest.approx(r, abs=5e-3)
    assert found["normalised"] == pytest.approx(1, abs=0.02)


def test_the_normalised_area_is_nothing_for_the_oracle_one_without_knowledge_and_more_for_the_reverse() -> None:
    correct = torch.arange(100) % 4 > 0
    assert aurc((~correct).float(), correct)["normalised"] == 0
    assert aurc(torch.zeros(100), correct)["normalised"] == pytest.approx(1)
    assert aurc(correct.float(), correct)["normalised"] > 1.5
    assert math.isnan(aurc(torch.rand(10), torch.ones(10, dtype=torch.bool))["normalised"])


def test_errors_are_tracked_on_the_test_split() -> None:
    train, test = open_source("digits"), open_source("digits", split="test")
    labels = train.labels.clone()
    labels[::3] = (labels[::3] + 1) % 10  # so that there are errors to track
    model = Fake()
    source = open_source((train.batch(range(len(train))), labels))
    result = error_tracking(model, source, "light", k=5)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    held = len(train) // 5
    fit, scored = source.subset(order[held:]), source.subset(order[:held])
    z, z_test = model.embed(fit), model.embed(scored)
    assert result["knn"]["accuracy"] == knn_accuracy(z, fit.labels, z_test, scored.labels, k=5)
    assert result["linear"]["accuracy"] == linear_accuracy(z, fit.labels, z_test, scored.labels)
    for row in result.values():
        assert row["random"] == pytest.approx(1 - row["accuracy"], abs=1e-6)
        assert row["oracle"] < row["aurc"]
    named = error_tracking(model, "digits", "none", k=5)
    assert named["knn"]["accuracy"] == knn_accuracy(model.embed(train), train.labels, model.embed(test), test.labels, 5)
    assert named["knn"]["normalised"] == pytest.approx(1)  # a constant says nothing


def test_a_score_that_knows_the_errors_is_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = open_source("digits"), open_source("digits", split="test")
    model = Fake()
    wrong = knn_predict(model.embed(train), train.labels, model.embed(test)).argmax(1) != test.labels
    monkeypatch.setattr(model, "anomaly_score", lambda images, score: wrong.float(), raising=False)
    result = error_tracking(model, "digits", None)
    assert result["knn"]["normalised"] == 0
    assert 0 < result["linear"]["normalised"] < 1  # both stumble over some of the same digits


@pytest.mark.parametrize("corruption", ["blur", "noise", "occlusion"])
def test_severity_nought_changes_nothing_and_more_changes_more(images: Tensor, corruption: str) -> None:
    before = images.clone()
    assert torch.equal(corrupt(images, corruption, 0), images)
    change = [(corrupt(images, corruption, s).float() - images).abs().mean() for s in (0.1, 0.3, 0.5)]
    assert 0 < change[0] < change[1] < change[2]
    assert torch.equal(images, before)
    assert torch.equal(corrupt(images, corruption, 0.3, seed=1), corrupt(images, corruption, 0.3, seed=1))


@pytest.mark.parametrize("severity", [0.1, 0.4, 1.2])
def test_blur_is_scipys(images: Tensor, severity: float) -> None:
    sigma = severity * 16 / 4
    radius = min(math.ceil(3 * sigma), 15)
    expected = gaussian_filter(images.double().numpy(), sigma, mode="mirror", radius=radius, axes=(2, 3))
    assert np.abs(corrupt(images, "blur", severity).numpy() - expected).max() < 0.51  # rounding to whole levels


def test_noise_has_its_standard_deviation_and_a_seed() -> None:
    grey = torch.full((300, 1, 16, 16), 128, dtype=torch.uint8)  # more than one chunk
    noisy = corrupt(grey, "noise", 0.1).double()
    assert noisy.mean() == pytest.approx(128, abs=0.5)
    assert noisy.std() == pytest.approx(25.5, rel=0.01)
    assert not torch.equal(noisy, corrupt(grey, "noise", 0.1, seed=1).double())
    assert not torch.equal(noisy[:44], noisy[256:])
    # The same noise at every severity, only more of it.
    more = corrupt(grey, "noise", 0.2).double()
    assert (more - 128 - 2 * (noisy - 128)).abs()[(more > 0) & (more < 255)].max() <= 1.5


def test_occlusion_is_a_grey_square_that_grows_around_itself() -> None:
    white = torch.full((300, 3, 16, 24), 255, dtype=torch.uint8)
    previous = torch.zeros(300, 3, 16, 24, dtype=torch.bool)
    for severity in (0.25, 0.5, 0.75, 1.0):
        grey = corrupt(white, "occlusion", severity) == 128
        side = round(16 * severity)
        assert (grey.sum((2, 3)) == side**2).all()
        assert (grey.any(3).sum(2) == side).all() and (grey.any(2).sum(2) == side).all()  # as high as it is wide
        assert (grey | ~previous).all()
        previous = grey
    corners = (corrupt(white, "occlusion", 0.25) == 128)[:, 0].flatten(1).float().argmax(1)
    assert len(corners.unique()) > 100  # all over the image: 13 x 21 places


def test_the_response_is_what_the_score_says_of_the_corrupted_images(images: Tensor) -> None:
    grey, severities = images[:, :1].contiguous(), (0.2, 0.4, 0.8)
    result = corruption_response(Fake(), grey, severities=severities, seed=3)
    assert list(result) == ["blur", "noise", "occlusion"]
    for corruption, found in result.items():
        worse = [corrupt(grey, corruption, s, seed=3) for s in (0, *severities)]
        scores = np.array([[-float(x.float().std()) for x in batch] for batch in worse])  # (S, N)
        assert found["severity"] == pytest.approx([0, *severities])
        np.testing.assert_allclose(found["score"], scores.mean(1), rtol=1e-5)
        np.testing.assert_allclose(found["rose"], (scores > scores[:1]).mean(1))
        expected = np.mean([spearmanr((0, *severities), one).statistic for one in scores.T])
        assert found["spearman"] == pytest.approx(expected, abs=1e-6)
        assert found["monotone"] == bool((np.diff(scores.mean(1)) > 0).all())
    assert result["blur"]["monotone"] and result["blur"]["spearman"] == pytest.approx(1)  # blur takes all contrast
    assert result["blur"]["rose"] == [0, 1, 1, 1]
    assert not result["noise"]["monotone"] and result["noise"]["spearman"] < 0  # noise adds contrast


def test_a_constant_score_does_not_respond(images: Tensor) -> None:
    result = corruption_response(Fake(), images, ("noise",), score="none")["noise"]
    assert (result["monotone"], result["spearman"], max(result["rose"])) == (False, 0, 0)


def test_rank_correlation_with_ties_is_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.arange(6.0), torch.randint(0, 4, (30, 6), generator=generator).double()
    expected = [spearmanr(x, row).statistic for row in y]
    np.testing.assert_allclose(spearman(x, y), expected, atol=1e-9)


def test_a_trained_model_can_be_asked(run: Path) -> None:
    model, test = je.load(run), open_source("digits", split="test")
    tracked = error_tracking(run, "digits", None)
    assert tracked["knn"]["accuracy"] == je.evaluate(run, "digits", linear="none")["knn"]
    assert tracked["knn"]["oracle"] < tracked["knn"]["aurc"]
    response = corruption_response(run, "digits", ("noise",), (0.5,))["noise"]
    noisy = corrupt(test.batch(range(len(test))), "noise", 0.5)
    means = [float(model.anomaly_score(images).double().mean()) for images in (test, noisy)]
    assert response["score"] == pytest.approx(means, rel=1e-5)
    assert abs(means[1] - means[0]) > 0.1  # the comparison is not of equals


def test_bad_arguments_are_named(images: Tensor) -> None:
    good, right = torch.zeros(3), torch.ones(3, dtype=torch.bool)
    mixed = [np.zeros((8, 8), np.uint8), np.zeros((9, 8), np.uint8)]
    for message, call in {
        r"uncertainty: expected shape \(N,\)": lambda: risk_coverage(torch.zeros(0), right[:0]),
        "uncertainty: expected finite": lambda: risk_coverage(torch.tensor([0.0, torch.inf, 1.0]), right),
        "correct: expected bool": lambda: aurc(good, good),
        r"correct: .* got torch.bool of shape \(2,\)": lambda: aurc(good, right[:2]),
        "score: expected one of contrast, light, none, got 'entropy'": lambda: error_tracking(Fake(), "digits"),
        "k: expected at least 1": lambda: error_tracking(Fake(), "digits", None, k=0),
        "score: expected one of": lambda: corruption_response(Fake(), images, score="x"),
        "corruption: expected one of blur, noise, occlusion": lambda: corruption_response(Fake(), images, ("fog",)),
        "severities: expected finite, rising": lambda: corruption_response(Fake(), images, severities=(0.2, 0.1)),
        "severities: .*": lambda: corruption_response(Fake(), images, severities=(0.0, 0.1)),
        "images: expected one size": lambda: corruption_response(Fake(), mixed),
        "images: expected uint8": lambda: corrupt(images.float(), "blur", 0.1),
        "severity: expected a number of at least 0": lambda: corrupt(images, "blur", math.nan),
    }.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
