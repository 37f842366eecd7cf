"""Thresholds against the theory and by simulation; tables read back by other libraries."""

import csv
import importlib.util
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from jointembed.data import Source, open_source
from jointembed.scoring import check_table, percentile, score_images, smallest_rate, threshold, write_table


class FakeModel:
    """Scores an image by its mean pixel ("mean") or its largest ("peak")."""

    method = SimpleNamespace(scores=("mean", "peak"))

    def __init__(self, **reference: torch.Tensor) -> None:
        self.reference = {key.replace("__", "/"): value for key, value in reference.items()}
        self.asked: list[tuple[Any, ...]] = []

    def open(self, images: Any) -> Source:
        return open_source(images, minimum=1)

    def anomaly_score(self, images: Source, score: str | None = None, batch_size: int = 256) -> torch.Tensor:
        self.asked.append((score, batch_size))
        pixels = images.batch(range(len(images))).float().flatten(1)
        return pixels.mean(1) if score == "mean" else pixels.amax(1)


@pytest.fixture
def images() -> torch.Tensor:
    """Solid grey, from 0 to 190."""
    return (10 * torch.arange(20, dtype=torch.uint8))[:, None, None, None].expand(20, 1, 4, 4).clone()


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(
        train__mean=torch.arange(0.0, 100.0), held_out__mean=torch.arange(1.0, 40.0), train__peak=torch.ones(30)
    )


@pytest.mark.parametrize("per_cent", [1, 5, 7, 10, 29, 50, 57, 99])
@pytest.mark.parametrize("n", [99, 100, 137, 399])
def test_the_threshold_is_the_lowest_that_keeps_the_rate(n: int, per_cent: int) -> None:
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(n)).float()
    above = int((scores > threshold(scores, per_cent / 100).value).sum())
    # A new score has one more gap to fall into than there are scores above; in whole numbers, to be exact.
    assert 100 * (above + 1) <= per_cent * (n + 1) < 100 * (above + 2)


@pytest.mark.parametrize(("n", "rate"), [(99, 0.05), (71, 0.05), (19, 0.05), (1000, 0.013)])
def test_the_interval_is_the_beta_distributions(n: int, rate: float) -> None:
    found = threshold(torch.arange(float(n)), rate, confidence=0.9)
    k = math.ceil((n + 1) * (1 - rate) - 1e-9)
    assert found.value == k - 1
    assert (found.low, found.high) == pytest.approx(stats.beta(n - k + 1, k).interval(0.9), rel=1e-9)
    assert (found.false_alarm_rate, found.images) == (rate, n)


@pytest.mark.parametrize(
    "distribution", [stats.norm(3, 2), stats.expon(), stats.cauchy()], ids=["normal", "exp", "cauchy"]
)
def test_simulated_false_alarms_keep_the_rate_and_the_interval(distribution: Any) -> None:
    n, rate, repeats = 119, 0.05, 2000
    draws = torch.from_numpy(distribution.rvs((repeats, n), random_state=np.random.default_rng(0)))
    thresholds = [threshold(scores, rate) for scores in draws]
    true = np.array([distribution.sf(found.value) for found in thresholds])
    error = true.std() / repeats**0.5
    assert true.mean() < rate + 3 * error
    assert true.mean() == pytest.approx(6 / 120, abs=3 * error)  # no stricter than it has to be
    assert stats.kstest(true, stats.beta(6, 114).cdf).pvalue > 0.001
    inside = np.mean([found.low <= rate_ <= found.high for found, rate_ in zip(thresholds, true, strict=True)])
    assert inside == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / repeats) ** 0.5)


def test_scores_with_ties_are_flagged_less_often_never_more() -> None:
    generator = np.random.default_rng(0)
    draws = torch.from_numpy(generator.integers(0, 8, (2000, 99))).float()
    true = np.array([(7 - threshold(scores, 0.2).value) / 8 for scores in draws])
    assert true.mean() < 0.2
    assert threshold(torch.ones(99), 0.05).value == 1  # strictly above: no copy of a held-out image is flagged


def test_too_few_images_for_the_rate_is_an_error_that_says_how_many() -> None:
    message = "false_alarm_rate: 0.01 needs at least 99 held-out images, there are 98; .* allow at least 0.0102"
    with pytest.raises(ValueError, match=message):
        threshold(torch.arange(98.0), 0.01)
    assert threshold(torch.arange(98.0), 0.0102).value == 97
    assert threshold(torch.arange(99.0), 0.01).value == 98


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5, math.nan])
def test_a_rate_outside_0_and_1_is_refused(rate: float, model: FakeModel, images: torch.Tensor) -> None:
    for call in (lambda: threshold(torch.arange(99.0), rate), lambda: score_images(model, images, None, 0, rate)):
        with pytest.raises(ValueError, match="false_alarm_rate: expected a number between 0 and 1, got"):
            call()
    with pytest.raises(ValueError, match="confidence: expected a number between 0 and 1, got"):
        threshold(torch.arange(99.0), 0.05, confidence=rate)
    assert not model.asked


def test_scores_that_cannot_set_a_threshold_are_refused() -> None:
    with pytest.raises(ValueError, match="held_out: expected finite scores, got 2 of 99 that are not"):
        threshold(torch.tensor([math.nan, math.inf, *range(97)]), 0.05)
    with pytest.raises(ValueError, match=r"held_out: expected at least one score, shape \(N,\), got shape \(3, 33\)"):
        threshold(torch.zeros(3, 33), 0.05)
    with pytest.raises(ValueError, match=r"train: expected at least one score, shape \(N,\), got shape \(0,\)"):
        percentile(torch.empty(0), torch.zeros(3))


def test_percentiles_are_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(500, generator=generator).round(decimals=1)  # with ties
    scores = torch.cat([torch.randn(200, generator=generator).round(decimals=1), torch.tensor([-9.0, 9.0])])
    expected = stats.percentileofscore(train.numpy(), scores.numpy(), kind="weak")
    np.testing.assert_allclose(percentile(train, scores).numpy(), expected)
    assert percentile(train, scores)[-2:].tolist() == [0, 100]


def test_images_are_scored_ranked_and_flagged(model: FakeModel, images: torch.Tensor) -> None:
    found = score_images(model, images, false_alarm_rate=0.1, batch_size=7)
    assert model.asked == [("mean", 7)]
    assert list(found.names) == list(range(20))
    assert found.score.tolist() == [10.0 * i for i in range(20)]
    assert found.percentile.tolist() == [min(10 * i + 1, 100) for i in range(20)]
    assert found.threshold.value == 36  # the 36th of 1, ..., 39: 40 * 0.9
    assert found.flag.tolist() == [i > 3 for i in range(20)]
    assert (found.threshold.low, found.threshold.high) == pytest.approx(stats.beta(4, 36).interval(0.95))
    assert found.kind == "mean"
    assert list(found.columns()) == ["name", "score", "percentile", "flag"]


def test_an_image_that_has_no_score_is_flagged(model: FakeModel, images: torch.Tensor) -> None:
    model.anomaly_score = lambda source, *rest, **options: torch.full((len(source),), math.nan)  # type: ignore[method-assign]
    assert score_images(model, images).flag.all()


@pytest.mark.parametrize("held_out", [{}, {"held_out__peak": torch.empty(0)}])
def test_without_held_out_images_the_training_images_serve_with_a_warning(
    held_out: dict[str, torch.Tensor], images: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model = FakeModel(train__peak=torch.arange(0.0, 99.0), held_out__mean=torch.arange(50.0), **held_out)
    with caplog.at_level(logging.WARNING, "jointembed"):
        found = score_images(model, images, "peak")
    assert "probably be flagged more often than the 5 % asked for" in caplog.text
    assert (found.threshold.value, found.threshold.images) == (94, 99)
    assert math.isnan(found.threshold.low) and math.isnan(found.threshold.high)  # none can be given


def test_few_held_out_images_vouch_for_what_they_can(model: FakeModel, images: torch.Tensor) -> None:
    assert score_images(model, images).threshold.false_alarm_rate == 0.05
    held_out = model.reference["held_out/mean"][:9]
    model.reference["held_out/mean"] = held_out
    limit = score_images(model, images).threshold
    assert limit.false_alarm_rate == 0.1 and limit.value == held_out.max()  # one gap of ten is above all nine
    for count in range(1, 400):
        assert threshold(torch.arange(float(count)), smallest_rate(count)).value == count - 1


def test_with_held_out_images_there_is_no_warning(
    model: FakeModel, images: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    score_images(model, images)
    assert not caplog.records


def test_what_cannot_be_answered_is_refused_before_scoring(model: FakeModel, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="score: expected one of mean, peak, got 'density'"):
        score_images(model, images, "density")
    with pytest.raises(ValueError, match="false_alarm_rate: 0.001 needs at least 999 held-out images, there are 39"):
        score_images(model, images, false_alarm_rate=0.001)
    old = FakeModel()
    with pytest.raises(ValueError, match=r"model: expected one that kept the scores of its training images \(mean\)"):
        score_images(old, images)
    assert not model.asked and not old.asked


NAMES = ["a.png", 'b, "c".png', "line\nbreak.png", "Ünïcödé/文.png"]
COLUMNS = {
    "name": NAMES,
    "score": np.array([0.1, -1e30, 3.14159274, 1e-8], np.float32),
    "percentile": np.array([0, 100 / 3, 200 / 3, 100]),
    "flag": np.array([False, True, False, True]),
}


def test_a_csv_reads_back_to_the_same_bits(tmp_path: Path) -> None:
    write_table(tmp_path / "x" / "scores.csv", COLUMNS)
    with (tmp_path / "x" / "scores.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["name", "score", "percentile", "flag"]
    name, score, rank, flag = zip(*rows, strict=True)
    assert list(name) == NAMES
    assert (np.array(score, np.float32) == COLUMNS["score"]).all()
    assert (np.array(rank, np.float64) == COLUMNS["percentile"]).all()
    assert flag == ("0", "1", "0", "1")


def test_parquet_reads_back_to_the_same_bits_and_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "scores.parquet", COLUMNS)
    table = parquet.read_table(tmp_path / "scores.parquet")
    assert [str(field.type) for field in table.schema] == ["string", "float", "double", "bool"]
    assert table.column_names == list(COLUMNS)
    for name, column in COLUMNS.items():
        assert table[name].to_pylist() == list(column)


def test_images_without_names_are_numbered(model: FakeModel, images: torch.Tensor, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = score_images(model, images).columns()
    write_table(tmp_path / "scores.csv", columns)
    assert np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1)[:, 0].tolist() == list(range(20))
    write_table(tmp_path / "scores.parquet", columns)
    assert parquet.read_table(tmp_path / "scores.parquet")["name"].to_pylist() == list(range(20))


def test_file_names_that_are_not_unicode_survive(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "x.csv", {"name": [b"caf\xe9.png".decode("utf-8", "surrogateescape")]})
    assert (tmp_path / "x.csv").read_bytes() == b"name\ncaf\xe9.png\n"
    write_table(tmp_path / "x.parquet", {"name": [b"caf\xe9.png".decode("utf-8", "surrogateescape")]})
    assert parquet.read_table(tmp_path / "x.parquet")["name"].to_pylist() == ["caf\\udce9.png"]


def test_a_table_that_cannot_be_written_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scores.xlsx", "scores", "csv"):
        with pytest.raises(ValueError, match="out: expected a file name ending in .csv or .parquet, got .*" + name):
            check_table(tmp_path / name)
    with pytest.raises(ValueError, match=r"columns: expected one length, got \{'name': 4, 'score': 3\}"):
        write_table(tmp_path / "x.csv", {"name": NAMES, "score": COLUMNS["score"][:3]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    assert importlib.util.find_spec("pyarrow") is None
    with pytest.raises(ValueError, match=r"out: .*x.parquet needs pyarrow: pip install jointembed\[parquet\]"):
        check_table(tmp_path / "x.parquet")
    assert check_table(tmp_path / "x.csv") == tmp_path / "x.csv"
    assert not list(tmp_path.iterdir())
