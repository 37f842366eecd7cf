"""Ranking runs without labels: the criteria, and the table over a small grid."""

import json

import pytest
from scipy.stats import spearmanr

from jointembed.experiments import lejepa_selection


def test_criteria_are_the_papers_and_more_is_better() -> None:
    found = {"loss": 0.5, "rank_me": 30.0, "isotropy": 0.4, "uniformity": -2.0, "alpha_req": 1.5}
    criteria = lejepa_selection.criteria_of([({"weight": 0.05}, found), ({"weight": 0.2}, found)])
    assert criteria["loss / lambda^0.4"] == pytest.approx([-0.5 / 0.05**0.4, -0.5 / 0.2**0.4])
    assert criteria["loss"] == [-0.5, -0.5] and criteria["alpha-ReQ, |alpha - 1|"] == [-0.5, -0.5]
    assert criteria["uniformity"] == [2.0, 2.0] and criteria["RankMe"] == [30.0, 30.0]


def test_correlations_are_over_all_runs_of_the_grid(shapes, tmp_path, cells, smallest, monkeypatch) -> None:
    monkeypatch.setattr(
        lejepa_selection, "GRID", {"lr": (1e-4, 1e-2), "weight_decay": (0.0,), "weight": (0.02, 0.2), "epochs": (1,)}
    )
    lejepa_selection.run(shapes, str(tmp_path), 50, changes=smallest)
    assert [(c["lr"], c["weight"]) for c in cells] == [(1e-4, 0.02), (1e-4, 0.2), (1e-2, 0.02), (1e-2, 0.2)]
    rows = {row["criterion"]: row for row in json.loads((tmp_path / "lejepa-selection.json").read_text())["rows"]}
    expected = spearmanr([c["rank_me"] for c in cells], [c["knn"] for c in cells]).statistic
    assert float(rows["RankMe"]["with k-NN accuracy"]) == pytest.approx(expected, abs=5e-4, nan_ok=True)
    best = max(cells, key=lambda c: c["rank_me"])
    assert float(rows["RankMe"]["linear % of the run it picks"]) == pytest.approx(best["linear"], abs=0.06)
    assert (tmp_path / "lejepa-selection.png").stat().st_size > 10_000
