"""LeJEPA's trainings by the dozen, at the smallest size: settings, architectures, labels."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jointembed import train
from jointembed.data import open_source
from jointembed.experiments import lejepa_architectures, lejepa_in_domain, lejepa_stability
from jointembed.experiments.lejepa_stability import TABLES, USUAL
from jointembed.methods.lejepa import LeJEPA


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Cells run in this process: their arguments and results."""
    done: list[dict[str, Any]] = []

    def run_here(function: Any, arguments: Any, kept: Path, jobs: int | None = None, threads: int = 1) -> Any:
        found = [one | function(**one) for one in arguments]
        done.extend(found)
        return found

    for module in (lejepa_stability, lejepa_architectures, lejepa_in_domain):
        monkeypatch.setattr(module, "run_cells", run_here)
    return done


def table(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def test_the_papers_best_lambdas_are_in_the_table() -> None:
    entries = TABLES["lambda"].entries
    best = {}
    for views in (2, 4, 8):
        told = [entry for entry in entries if entry.change["num_global"] == views and entry.paper is not None]
        best[views] = max(told, key=lambda entry: entry.paper or 0).change["weight"]
    assert best == {2: 0.01, 4: 0.02, 8: 0.05}


def test_every_table_but_one_holds_the_usual_setting_once_and_changes_what_there_is() -> None:
    known = {*LeJEPA.options(), *inspect.signature(train).parameters}
    for name, one in TABLES.items():
        settings = [USUAL | entry.change for entry in one.entries]
        assert len({json.dumps(setting, sort_keys=True) for setting in settings}) == len(settings)
        assert settings.count(USUAL) == (0 if name == "statistic" else 1), name  # the paper has 512 and 2048 slices
        assert all(entry.change.keys() <= known for entry in one.entries)


def test_stability_tells_the_range_of_each_table_then_every_training(shapes, tmp_path, here, smallest, monkeypatch):
    few = {"seeds": slice(2), "batch": slice(0, 3, 2), "heads": slice(0, None, 11)}
    short = {name: TABLES[name]._replace(entries=TABLES[name].entries[some]) for name, some in few.items()}
    monkeypatch.setattr(lejepa_stability, "TABLES", short)
    small = smallest | {"num_slices": 16, "projector_width": 32}
    lejepa_stability.run(shapes, str(tmp_path), 50, 1, changes=small)
    assert [one["batch_size"] for one in here] == [25, 25, 32, 128, 25, 25]
    assert here[5]["predictor_width"] and here[5]["swa"] and not here[4]["predictor_width"]
    assert [one["seed"] for one in here] == [0, 1, 0, 0, 0, 0]
    rows = table(tmp_path, "lejepa-stability")["rows"]
    assert len(rows) == 3 + 6
    low, high = sorted(one["knn"] for one in here[2:4])
    assert rows[1]["k-NN %"] == f"{low:.1f} to {high:.1f}" and rows[1]["paper, linear %"] == "72.2 to 72.2"
    for row, one in zip(rows[3:], here, strict=True):
        assert float(row["linear %"]) == pytest.approx(one["linear"], abs=0.06)
    assert [row["steps"] for row in rows[3:]] == [2, 2, 1, 1, 2, 2]
    assert (tmp_path / "lejepa-stability.png").stat().st_size > 10_000

    lejepa_stability.run(shapes, str(tmp_path), 50, 1, only="batch", changes=small)
    assert len(here) == 6 + 2 and len(table(tmp_path, "lejepa-stability-batch")["rows"]) == 3
    with pytest.raises(ValueError, match="^only: expected one of seeds, batch, heads, got 'views'"):
        lejepa_stability.run(shapes, str(tmp_path), only="views")


def test_a_network_stands_beside_what_it_was_and_a_failure_says_why(shapes, tmp_path, here) -> None:
    small = {"batch_size": 25, "num_slices": 16}
    names = ("resnet10-tiny", "test_vit", "no-such-net")
    lejepa_architectures.run(shapes, str(tmp_path), 50, 1, 16, names, changes=small)
    results = ("backbone", "parameters", "minutes", "before", "after", "failed")
    commands = [{name: value for name, value in cell.items() if name not in results} for cell in here]
    assert commands[0] == commands[1] == commands[2]  # nothing is changed but the network
    rows = table(tmp_path, "lejepa-architectures")["rows"]
    assert rows[0]["family"] == "-" and rows[1]["family"] == "ViT"
    assert float(rows[1]["M parameters"]) < 1 and float(rows[1]["linear %"]) == pytest.approx(
        here[1]["after"]["linear"], abs=0.06
    )
    assert "no network called 'no-such-net'" in rows[2]["minutes"] and rows[2]["linear %"] == "-"
    assert "2 of 3 networks" in table(tmp_path, "lejepa-architectures")["title"]
    assert (tmp_path / "lejepa-architectures.png").stat().st_size > 10_000


def test_there_are_twenty_architectures_and_each_has_one_name() -> None:
    assert len(lejepa_architectures.NAMES) == len(set(lejepa_architectures.NAMES)) > 20
    assert len(lejepa_architectures.FAMILIES) > 8


def test_the_untrained_network_is_the_one_training_began_with(shapes, tmp_path, smallest) -> None:
    model = train(shapes, out=tmp_path / "run", epochs=1, lr=1e-12, weight_decay=0.0, seed=3, **smallest)
    start = lejepa_architectures.untrained(model, 3)
    for now, then in zip(model.method.parameters(), start.method.parameters(), strict=True):
        torch.testing.assert_close(now, then)
    other = lejepa_architectures.untrained(model, 4)
    assert not torch.equal(other.method.backbone.conv1.weight, start.method.backbone.conv1.weight)


def test_labels_are_given_to_both_networks_alike(shapes, tmp_path, here, smallest, monkeypatch) -> None:
    def parts(data: str, images: int, held_out: bool) -> Any:
        whole = open_source(data)
        return whole.subset(range(40)), whole.subset(range(40, 60)) if held_out else open_source(data, split="test")

    monkeypatch.setattr(lejepa_in_domain, "parts", parts)
    monkeypatch.setattr(lejepa_in_domain, "STEPS", 2)
    small = smallest | {"num_slices": 16, "projector_width": 32, "batch_size": 20}
    options: dict[str, Any] = {"shots": (1,), "draws": 2, "passes": 1, "rates": (1e-4, 1e-2), "changes": small}
    lejepa_in_domain.run(shapes, str(tmp_path / "run"), str(tmp_path), 40, 1, **options)
    trials, finals = here[:8], here[8:]
    assert all(one["held_out"] for one in trials) and not any(one["held_out"] for one in finals)
    assert len(finals) == 8  # two networks, one label per class or all, two draws
    for one in finals:  # at the rate that was best on the images held out
        same = [t for t in trials if (t["pretrained"], t["k"]) == (one["pretrained"], one["k"])]
        assert len(same) == 2 and one["lr"] == max(same, key=lambda t: (t["accuracy"], t["lr"]))["lr"]
    rows = table(tmp_path, "lejepa-in-domain")["rows"]
    assert [row["labels per class"] for row in rows] == [1, "all"]
    scratch = [one["accuracy"] for one in finals if not one["pretrained"] and one["k"] == 1]
    tuned = [one["accuracy"] for one in finals if one["pretrained"] and one["k"] == 1]
    assert float(rows[0]["from scratch %"].split()[0]) == pytest.approx(np.mean(scratch), abs=0.06)
    gain = float(rows[0]["fine-tuned - from scratch, draw by draw"].split()[0])
    assert gain == pytest.approx(np.mean(tuned) - np.mean(scratch), abs=0.06)
    assert rows[1]["paper, fine-tuned %"] == "82.15" and "±" not in rows[1]["frozen %"]
    assert (tmp_path / "lejepa-in-domain.png").stat().st_size > 10_000

    folder = tmp_path / "run"
    before = (folder / "metrics.csv").read_text()
    train(parts(shapes, 40, False)[0], out=folder, resume=True, **_settings(small))  # a finished run is only loaded
    assert (folder / "metrics.csv").read_text() == before


def _settings(small: dict[str, Any]) -> dict[str, Any]:
    return lejepa_in_domain.SMALL | lejepa_in_domain.PRETRAINING | {"epochs": 1} | small
