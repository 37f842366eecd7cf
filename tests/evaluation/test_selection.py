import json
import math
from pathlib import Path

import pytest
import torch
from untrained import write_run

import jointembed as je
from jointembed.data import open_source
from jointembed.evaluation import embed_views, select
from jointembed.metrics import alpha_req, information, lidar, rank_me, uniformity

SAME = {"data": "digits", "batch_size": 128, "epochs": 2}


def lejepa_run(folder: Path, losses: list[float], weight: float | None = 0.02, **training: object) -> Path:
    """What `select` reads of a LeJEPA run: its configuration and its losses."""
    folder.mkdir()
    config = {"method": "lejepa", "method_options": {} if weight is None else {"weight": weight}, "backbone": "x"}
    config |= {"channels": 1, "image_size": 8, "mean": [0.3], "std": [0.4], "training": SAME | training}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [f",{epoch},{loss},{11 * epoch + 10}" for epoch, loss in enumerate(losses)]
    # A row without a loss, such as a watch may leave behind, is not the last loss.
    (folder / "metrics.csv").write_text("\n".join(["knn,epoch,loss,step", *rows, "0.5,,,99"]) + "\n")
    return folder


def test_lejepa_runs_are_ranked_by_the_last_loss_over_lambda_to_the_0_4(tmp_path: Path) -> None:
    runs = [
        lejepa_run(tmp_path / "low", [0.9, 0.10], weight=0.01),  # the lowest loss, at the lowest lambda
        lejepa_run(tmp_path / "high", [0.9, 0.20], weight=0.1),
        lejepa_run(tmp_path / "default", [0.1, 0.30], weight=None),  # 0.02, the default of the method
    ]
    found = select(runs)
    by_hand = {"low": 0.10 / 0.01**0.4, "high": 0.20 / 0.1**0.4, "default": 0.30 / 0.02**0.4}
    assert by_hand["high"] == pytest.approx(0.50238, abs=1e-5)
    assert by_hand["low"] == pytest.approx(0.63096, abs=1e-5)
    assert [Path(row["run"]).name for row in found.rows] == ["high", "low", "default"]
    for rank, row in enumerate(found.rows, 1):
        assert (row["method"], row["criterion"], row["rank"]) == ("lejepa", "lejepa", rank)
        assert row["value"] == pytest.approx(by_hand[Path(row["run"]).name])
    assert found.notes == []


def test_equal_runs_share_a_rank(tmp_path: Path) -> None:
    found = select([lejepa_run(tmp_path / name, [1.0, loss]) for name, loss in (("a", 0.3), ("b", 0.2), ("c", 0.2))])
    assert [(Path(row["run"]).name, row["rank"]) for row in found.rows] == [("b", 1), ("c", 1), ("a", 3)]


def test_losses_that_do_not_measure_the_same_are_pointed_out(tmp_path: Path) -> None:
    runs = [lejepa_run(tmp_path / "a", [0.2, 0.1]), lejepa_run(tmp_path / "b", [0.2], batch_size=64, num_global=4)]
    assert select(runs).notes == [
        "lejepa: the runs differ in batch_size, num_global, so that their losses are not alike",
        f"{tmp_path / 'b'}: stopped after 1 of 2 epochs",
    ]


@pytest.mark.parametrize(("test", "notes"), [("epps-pulley", 0), ("watson", 1)])
def test_a_run_from_before_an_option_was_there_is_one_with_its_default(test: str, notes: int, tmp_path: Path) -> None:
    old, new = (lejepa_run(tmp_path / name, [0.2, 0.1]) for name in ("old", "new"))
    config = json.loads((new / "config.json").read_text())
    (new / "config.json").write_text(json.dumps(config | {"method_options": {"weight": 0.02, "test": test}}))
    assert len(select([old, new]).notes) == notes


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("others")
    return [write_run(folder / str(seed), "vje", seed) for seed in range(3)]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return open_source("digits").batch(range(60))


@pytest.mark.parametrize("criterion", ["auto", "rank_me", "alpha_req", "lidar", "uniformity"])
def test_other_methods_are_ranked_by_their_features(others: list[Path], images: torch.Tensor, criterion: str) -> None:
    found = select(others, criterion, images)
    models = [je.load(run) for run in others]
    if criterion in ("auto", "lidar"):
        measure = lidar if criterion == "lidar" else information
        value = [measure(embed_views(model, open_source(images), 10)) for model in models]
    elif criterion == "alpha_req":
        value = [abs(alpha_req(model.embed(images)) - 1) for model in models]
    elif criterion == "rank_me":
        value = [rank_me(model.embed(images)) for model in models]
    else:
        value = [uniformity(model.embed(images)) for model in models]
    lower_is_better = criterion in ("uniformity", "alpha_req")
    best_first = sorted(range(3), key=lambda i: value[i] if lower_is_better else -value[i])
    assert [row["run"] for row in found.rows] == [str(others[i]) for i in best_first]
    assert [row["value"] for row in found.rows] == pytest.approx([value[i] for i in best_first])
    assert {row["criterion"] for row in found.rows} == {"information" if criterion == "auto" else criterion}
    assert found.notes == []


def test_two_criteria_give_two_rankings_and_a_note(tmp_path: Path, others: list[Path], images: torch.Tensor) -> None:
    a, b = lejepa_run(tmp_path / "a", [1.0, 0.2]), lejepa_run(tmp_path / "b", [1.0, 0.1])
    found = select([a, others[0], b], data=images)
    assert [(row["run"], row["criterion"], row["rank"]) for row in found.rows] == [
        (str(b), "lejepa", 1),
        (str(a), "lejepa", 2),
        (str(others[0]), "information", 1),
    ]
    assert "ranked apart, by lejepa and by information: their values cannot be compared" in found.notes[0]


def test_one_criterion_for_all_methods_is_one_ranking_with_a_warning(
    tmp_path: Path, others: list[Path], images
) -> None:
    lejepa = write_run(tmp_path / "lejepa", "lejepa", 9)  # no metrics.csv is needed for this
    found = select([others[0], lejepa], "rank_me", images)
    assert [row["rank"] for row in found.rows] == [1, 2]
    less = "the runs differ in method or backbone, across which it says less"
    assert found.notes == [f"rank_me: {less}"]
    by_default = select([others[0], lejepa], "information", images)
    assert by_default.notes[-1] == f"information: {less}; across methods rank_me is tested, it is not"


@pytest.mark.parametrize("criterion", ["information", "lidar", "rank_me"])
def test_measures_of_views_say_where_methods_bring_views_of_their_own(
    criterion: str, tmp_path: Path, others: list[Path], images: torch.Tensor
) -> None:
    """The preset is the method's where none was asked for, the size that of the images."""
    own = write_run(tmp_path / "own", "lejepa", view_size=8)
    said = any(
        "differ in preset, so that their views" in note for note in select([others[0], own], criterion, images).notes
    )
    assert said == (criterion != "rank_me")
    same = write_run(tmp_path / "same", "lejepa", preset=je.methods.get("vje").preset)
    assert not any("views" in note for note in select([others[0], same], criterion, images).notes)


def test_bad_runs_are_refused_by_name_before_any_work(
    tmp_path: Path, others: list[Path], images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jointembed.evaluation.selection.load", lambda run: pytest.fail("worked"))
    good, empty = lejepa_run(tmp_path / "good", [1.0]), tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=f"^runs: expected run folders with a config.json, not so: {empty}, nowhere$"):
        select([others[0], empty, good, "nowhere"], data=images)
    with pytest.raises(ValueError, match=f"^runs: expected each run once, got {good}, {good}"):
        select([good, good])
    with pytest.raises(ValueError, match="^runs: expected a list of run folders"):
        select(str(good))
    (empty / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="config.json: expected the config.json of a jointembed run"):
        select([empty])
    with pytest.raises(ValueError, match="^criterion: expected one of auto, lejepa, information, rank_me.* got 'luck'"):
        select([good], "luck")
    with pytest.raises(ValueError, match=rf"^criterion: 'lejepa' compares losses .* not so: {others[0]} \(vje\)"):
        select([good, others[0]], "lejepa")
    with pytest.raises(ValueError, match=rf"^data: expected images .* for {others[0]} \(vje\), got None"):
        select([good, others[0]])
    with pytest.raises(ValueError, match=f"^runs: expected a trained model, {good} has no model.safetensors"):
        select([good], "rank_me", images)


def test_a_loss_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    for name, losses, weight, message in (
        ("zero", [0.1], 0.0, r"expected a weight \(lambda\) above 0, .* zero has 0.0"),
        ("diverged", [0.1, math.nan], 0.1, "expected a finite training loss, .*diverged ended with nan"),
        ("begun", [], 0.1, "expected epochs and losses in .*begun"),
    ):
        with pytest.raises(ValueError, match=message.replace(" zero", ".*zero")):
            select([lejepa_run(tmp_path / name, losses, weight)])
    run = lejepa_run(tmp_path / "none", [0.1])
    (run / "metrics.csv").unlink()
    with pytest.raises(ValueError, match="^runs: expected a metrics.csv with the training loss, .*none has none"):
        select([run])
