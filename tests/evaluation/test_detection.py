from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors
from tiny import TINY, tiny_network
from torch import Tensor, nn

import jointembed as je
from jointembed.data import Source, open_source
from jointembed.evaluation import OneClassResult, detection_metrics, one_class, out_of_distribution


class Fake:
    """A model whose features are pixels, and which finds strange what is far from the mean image it was made for."""

    method = SimpleNamespace(scores=("far", "near"))

    def __init__(self, mean: Tensor | float = 0.0) -> None:
        self.mean = mean

    def open(self, images: object, split: str = "train") -> Source:
        return open_source(images, split, minimum=1)

    def embed(self, images: object, space: str | None = None, progress: bool = True) -> Tensor:
        source = self.open(images)
        return source.batch(range(len(source))).flatten(1).float()

    def anomaly_scores(
        self, images: object, scores: Sequence[str] | None = None, progress: bool = True
    ) -> dict[str, Tensor]:
        far = (self.embed(images) - self.mean).norm(dim=1)
        both = {"far": far, "near": -far}
        return {score: both[score] for score in scores or self.method.scores}


def images(n: int, low: int, high: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 1, 4, 4), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(("number", "levels"), [(400, None), (400, 5), (37, 3), (7, 4)])
def test_the_metrics_agree_with_scikit_learns_curves(number: int, levels: int | None) -> None:
    generator = torch.Generator().manual_seed(number)
    normal = 30 * torch.randn(500, generator=generator)
    anomalous = 30 * torch.randn(number, generator=generator) + 25
    if levels:  # ties, also between the classes
        normal, anomalous = (100 * (x / 100 * levels).round() for x in (normal, anomalous))
    truth, scores = np.repeat([0, 1], [500, number]), torch.cat([normal, anomalous]).numpy()
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    found = detection_metrics(normal, anomalous)
    assert found["auroc"] == pytest.approx(auc(fpr, tpr))
    assert found["fpr95"] == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min())
    # Average precision from its definition: precision at each threshold, weighted by the recall it adds.
    thresholds = np.unique(scores)[::-1]
    caught = np.array([(anomalous.numpy() >= t).sum() for t in thresholds])
    precision = caught / np.array([(scores >= t).sum() for t in thresholds])
    assert found["aupr"] == pytest.approx((precision * np.diff(caught, prepend=0) / number).sum())


def test_known_cases() -> None:
    low, high = torch.arange(20.0), torch.arange(20.0) + 100
    assert detection_metrics(low, high) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
    assert detection_metrics(high, low)["auroc"] == 0
    assert detection_metrics(high, low)["fpr95"] == 1
    same = detection_metrics(torch.zeros(30), torch.zeros(10))  # nothing to tell them apart
    assert same == {"auroc": 0.5, "aupr": 0.25, "fpr95": 1.0}
    # 19 of 20 anomalies are 95 %: the threshold is 101, and the normal image at 101 is a false alarm.
    assert detection_metrics(torch.tensor([0.0, 100.0, 100.5, 101.0]), high)["fpr95"] == 0.25


def test_scores_far_from_zero_keep_their_differences() -> None:
    assert detection_metrics(1e6 + torch.arange(50.0), 1e6 + 50 + torch.arange(50.0))["auroc"] == 1


def test_every_score_has_a_row_and_the_bank_adds_one() -> None:
    inside, outside, bank = images(60, 0, 200), images(40, 50, 256, seed=1), images(80, 0, 200, seed=2)
    result = out_of_distribution(Fake(), inside, outside, bank=bank, k=3)
    assert list(result) == ["far", "near", "knn"]
    far = torch.cat([inside, outside]).flatten(1).double().norm(dim=1)
    truth = np.repeat([0, 1], [60, 40])
    assert result["far"]["auroc"] == pytest.approx(roc_auc_score(truth, far))
    assert result["near"]["auroc"] == pytest.approx(1 - result["far"]["auroc"])
    neighbours = NearestNeighbors(n_neighbors=3, metric="cosine").fit(bank.flatten(1).double())
    distance = neighbours.kneighbors(torch.cat([inside, outside]).flatten(1).double())[0].mean(1)
    assert result["knn"]["auroc"] == pytest.approx(roc_auc_score(truth, distance), abs=1e-3)
    assert list(out_of_distribution(Fake(), inside, outside, scores=["near"])) == ["near"]


def test_a_name_stands_for_its_test_split_and_a_bank_for_the_training_split() -> None:
    named = out_of_distribution(Fake(), "digits", images(50, 0, 256).repeat(1, 1, 2, 2), bank="digits")
    train, test = open_source("digits"), open_source("digits", split="test")
    given = out_of_distribution(Fake(), test, images(50, 0, 256).repeat(1, 1, 2, 2), bank=train)
    assert named == given


def test_the_rows_of_a_trained_model_are_its_scores_and_neighbours_tell_digits_from_noise(run: Path) -> None:
    noise = images(300, 0, 256).repeat(1, 1, 2, 2)
    result = out_of_distribution(run, "digits", noise, bank="digits")
    model = je.load(run)
    normal, strange = model.anomaly_score(open_source("digits", split="test")), model.anomaly_score(noise)
    truth = np.repeat([0, 1], [len(normal), len(strange)])
    assert result[model.method.scores[0]]["auroc"] == pytest.approx(roc_auc_score(truth, torch.cat([normal, strange])))
    assert set(result) == {*model.method.scores, "knn"}
    assert result["knn"]["auroc"] > 0.8  # two epochs are too few to ask as much of the density


def test_the_summary_is_the_papers_mean_and_deviation() -> None:
    auroc = [0.872, 0.976, 0.851, 0.828, 0.884, 0.897, 0.909, 0.935, 0.940, 0.937]  # VJE, one-class CIFAR-10
    rows = [{"class": str(i), "score": "joint", "auroc": a, "aupr": 0.5, "fpr95": a / 2} for i, a in enumerate(auroc)]
    rows += [{"class": "0", "score": "knn", "auroc": 0.6, "aupr": 0.7, "fpr95": 0.8}]
    summary = OneClassResult(rows).summary()
    assert summary["joint"]["auroc"] == pytest.approx(0.903, abs=5e-4)
    assert summary["joint"]["auroc_std"] == pytest.approx(0.043, abs=5e-4)
    assert summary["joint"]["fpr95_std"] == pytest.approx(np.std(auroc) / 2)
    assert summary["joint"]["aupr_std"] == pytest.approx(0, abs=1e-12)
    assert summary["knn"]["aupr"] == 0.7 and summary["knn"]["aupr_std"] == 0


def test_each_class_trains_on_its_own_images_without_labels_and_from_the_same_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict] = []

    def train(source: Source, **arguments: object) -> Fake:
        assert source.labels is None and source.class_names is None
        pixels = source.batch(range(len(source)))
        calls.append({**arguments, "pixels": pixels, "weight": arguments["backbone"].weight.detach().clone()})
        nn.init.zeros_(arguments["backbone"].weight)  # training leaves its mark on the module it is given
        return Fake(pixels.flatten(1).float().mean(0))

    monkeypatch.setattr("jointembed.evaluation.detection.train", train)
    backbone = nn.Linear(2, 2)
    start = backbone.weight.detach().clone()
    result = one_class("digits", classes=["3", 7], out=tmp_path, seed=5, backbone=backbone, epochs=9)
    train_images, test = open_source("digits"), open_source("digits", split="test")
    for number, call in zip((3, 7), calls, strict=True):
        expected = train_images.batch(torch.nonzero(train_images.labels == number).flatten())
        assert torch.equal(call["pixels"], expected)
        assert torch.equal(call["weight"], start)
        assert (call["out"], call["seed"], call["epochs"]) == (tmp_path / str(number), 5, 9)
        far = (test.batch(range(len(test))).flatten(1).double() - expected.flatten(1).double().mean(0)).norm(dim=1)
        row = next(row for row in result.rows if row["class"] == str(number) and row["score"] == "far")
        assert row["auroc"] == pytest.approx(roc_auc_score(test.labels != number, far), abs=1e-4)
    assert [(row["class"], row["score"]) for row in result.rows] == [
        (c, score) for c in ("3", "7") for score in ("far", "near", "knn")
    ]


def test_a_test_source_of_its_own_and_names_that_are_no_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def train(source: Source, out: Path, **arguments: object) -> Fake:
        folders.append(out)
        return Fake(source.batch(range(len(source))).flatten(1).float().mean(0))

    monkeypatch.setattr("jointembed.evaluation.detection.train", train)
    dark, bright = images(20, 0, 100), images(20, 150, 256)
    labels = np.array(["../dark"] * 20 + ["bright"] * 20)
    pixels = torch.cat([dark, bright])
    result = one_class((pixels, labels), test=(pixels.flip(0), labels[::-1].copy()), out=tmp_path)
    assert folders == [tmp_path / "0", tmp_path / "bright"]
    assert result.summary()["far"]["auroc"] == 1  # the classes are far apart
    with pytest.raises(ValueError, match="^test: expected the classes"):
        one_class((pixels, labels), test=(dark, ["grey"] * 20))


def test_one_class_trains_for_real_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"epochs": 2, "batch_size": 64, "backbone": tiny_network(), "progress": False, **TINY}
    first = one_class("digits", classes=[0], out=tmp_path, **options)
    assert (tmp_path / "0" / "model.safetensors").is_file()
    written = (tmp_path / "0" / "metrics.csv").read_text()
    result = one_class("digits", classes=[0, 1], out=tmp_path, resume=True, **options)
    assert (tmp_path / "0" / "metrics.csv").read_text() == written  # nothing was trained again
    assert [row for row in result.rows if row["class"] == "0"] == first.rows
    assert {row["class"] for row in result.rows} == {"0", "1"}
    assert result.summary()["knn"]["auroc"] > 0.7


def test_every_score_of_vje_has_a_row_and_no_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    options = {"method": "vje", "epochs": 1, "batch_size": 64, "backbone": tiny_network(), "progress": False}
    rows = one_class("digits", classes=[0], **options).rows
    assert [row["score"] for row in rows] == ["joint", "sphere", "variance", "entropy", "density", "knn"]
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_named() -> None:
    good, four = torch.zeros(3), images(4, 0, 256)
    labelled = (four, [0, 0, 1, 1])
    for message, call in {
        r"normal: expected scores of shape \(N,\)": lambda: detection_metrics(torch.zeros(0), good),
        "anomalous: expected scores": lambda: detection_metrics(good, torch.zeros(2, 2)),
        "anomalous: expected finite scores, got 1": lambda: detection_metrics(good, torch.tensor([0.0, torch.nan])),
        "scores: expected a list of some of far, near": lambda: out_of_distribution(Fake(), four, four, scores=["x"]),
        "scores: .* got 'far'": lambda: out_of_distribution(Fake(), four, four, scores="far"),
        "k: expected at least 1": lambda: out_of_distribution(Fake(), four, four, k=0),
        "scores: expected a list of some of density": lambda: one_class("digits", scores=["x"], method="lejepa"),
        "resume: expected out": lambda: one_class("digits", resume=True),
        "classes: expected some of 0, 1, got 7": lambda: one_class(labelled, test=labelled, classes=[7]),
        "classes: expected at least two": lambda: one_class((four, [0, 0, 0, 1]), test=labelled),
        "classes: .* 2 among 2": lambda: one_class(labelled, test=(four[:2], [0, 0]), classes=[0]),
        "data: expected labels": lambda: one_class(four),
    }.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
