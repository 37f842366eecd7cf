"""The machinery of the experiments, and the experiments themselves at the smallest size."""

import inspect
import json
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from waiting import where

from jointembed.cli import build_parser
from jointembed.experiments import vje_ablation, vje_influence, vje_one_class_grid, vje_uncertainty
from jointembed.experiments.cells import key_of, run_cells, run_some
from jointembed.experiments.results import command
from jointembed.experiments.vje_one_class_grid import correlation


def test_cells_come_in_order_and_are_computed_once(tmp_path):
    kept = tmp_path / "kept.json"
    cells = [{"a": 1, "b": math.inf}, {"a": 2}, {"a": 3}]
    assert run_cells(dict, cells[:2], kept, jobs=2) == cells[:2]
    assert run_cells(dict, cells[::-1], kept, jobs=1) == cells[::-1]
    assert run_cells(None, cells, kept) == cells  # nothing is called any more
    assert len(json.loads(kept.read_text())) == 3


def test_a_fresh_cell_has_a_process_of_its_own(tmp_path):
    found = run_cells(where, [{"cell": 1}, {"cell": 2}], tmp_path / "kept.json", jobs=1, fresh=True)
    assert len({one["process"] for one in found} - {os.getpid()}) == 2
    for one in found:  # torch and whatever brings threads of its own, for NumPy, SciPy and OpenMP
        assert len(one) >= 4 and set(one.values()) - {one["process"]} == {1}


def test_some_cells_by_name_bring_what_is_remembered_of_the_others(tmp_path):
    kept = tmp_path / "kept.json"
    cells = {"one": {"a": 1}, "two": {"a": 2}, "three": {"a": 3}}
    kept.write_text(json.dumps({key_of(cells[name]): {"found": name} for name in ("two", "three")}))
    assert run_some(None, cells, ("two",), kept) == {"two": {"found": "two"}, "three": {"found": "three"}}


@pytest.mark.soak
def test_a_killed_start_leaves_no_training_behind(tmp_path):
    told = tmp_path / "told"
    script = Path(__file__).with_name("waiting.py")
    process = subprocess.Popen([sys.executable, script, told, tmp_path / "kept.json"])
    while not (told.exists() and told.read_text().endswith("\n")):
        assert process.poll() is None, "ended before the cell began"
        time.sleep(0.1)
    worker = Path("/proc") / told.read_text().strip()
    assert worker.exists()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()


def test_command_gives_the_arguments_back():
    """What the results say to repeat, read by the command line again, is what was run."""
    given = {name: p.default for name, p in inspect.signature(vje_one_class_grid.run).parameters.items()}
    given |= {"data": "/some/where/cifar10.npz", "epochs": 3, "dfs": (0.5, math.inf), "changes": {"lr": 1e-4}}
    words = shlex.split(command(vje_one_class_grid.run, given))
    assert words[:3] == ["jointembed", "reproduce", "vje-one-class-grid"]
    read = build_parser(words[1:]).parse_args(words[1:]).reproduce
    places = ("results", "kept", "jobs")
    for name in given.keys() - places:
        assert read[name] == ("cifar10.npz" if name == "data" else given[name]), name
    assert not any("--" + place in words for place in places)


def test_influence_table_is_the_closed_form(tmp_path):
    vje_influence.run(str(tmp_path), largest=6.0)
    rows = json.loads((tmp_path / "vje-influence.json").read_text())["rows"]
    for row, df in zip(rows, vje_influence.TAILS, strict=True):
        finite = df if math.isfinite(df) else 1e12
        assert float(row["loss at 6"]) == pytest.approx((finite + 1) / 2 * math.log1p(36 / finite), abs=2e-3)
        assert float(row["influence at 6"]) == pytest.approx((finite + 1) * 6 / (finite + 36), abs=2e-3)
        if math.isfinite(df):
            assert float(row["largest influence"]) == pytest.approx((df + 1) / (2 * math.sqrt(df)), abs=2e-3)
            assert float(row["at residual (√df)"]) == pytest.approx(math.sqrt(df), abs=0.01)
    assert (tmp_path / "vje-influence.png").stat().st_size > 10_000


def test_correlation_leaves_out_what_diverged():
    a, b = np.array([[1.0, 2.0], [3.0, math.nan]]), np.array([[2.0, 4.1], [6.0, 9.0]])
    assert correlation(a, b) == pytest.approx(np.corrcoef([1, 2, 3], [2, 4.1, 6])[0, 1])


def test_uncertainty_is_told_for_every_score(shapes, tmp_path, smallest):
    vje_uncertainty.run(shapes, str(tmp_path), 50, 1, test_images=30, changes=smallest)
    rows = json.loads((tmp_path / "vje-uncertainty.json").read_text())["rows"]
    assert [row["score"] for row in rows] == list(vje_uncertainty.SCORES)
    for row in rows:
        assert float(row["k-NN errors"]) >= 0 and float(row["linear errors"]) >= 0
        for corruption in ("blur", "noise", "occlusion"):
            assert -1 <= float(row[f"{corruption}, rank correlation"].split()[0]) <= 1
    # Entropy and the sum of variances order images almost alike; so they must respond almost alike.
    entropy, variance = (float(rows[i]["noise, rank correlation"].split()[0]) for i in (0, 1))
    assert abs(entropy - variance) < 0.5


def test_ablation_fills_its_table(shapes, tmp_path, cells, smallest):
    vje_ablation.run(shapes, str(tmp_path), 50, 1, changes=smallest)
    rows = json.loads((tmp_path / "vje-ablation.json").read_text())["rows"]
    assert [row["objective"] for row in rows] == [" + ".join(terms) for terms in vje_ablation.OBJECTIVES]
    for row, cell in zip(rows, cells, strict=True):
        assert float(row["k-NN %"]) == pytest.approx(cell["knn"], abs=0.06)
        assert float(row["variance"]) == pytest.approx(cell["variance"], rel=0.05)
    assert (tmp_path / "vje-ablation.png").is_file()
