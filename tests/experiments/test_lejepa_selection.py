"""Ranking runs without labels: the criteria, and the table over a small grid."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from jointembed.experiments import lejepa_selection

INFORMATION = {"information, backbone": 3.0, "information, projector": 2.0}


def test_criteria_are_the_papers_and_more_is_better() -> None:
    found = {"loss": 0.5, "rank_me": 30.0, "lidar": 9.0, "isotropy": 0.4, "uniformity": -2.0, "alpha_req": 1.5}
    found |= INFORMATION | {"prediction": 0.3, "sigreg": 1.5}
    pairs = [({"weight": 0.05}, found | {"linear": 40.0}), ({"weight": 0.2}, found | {"linear": 41.0})]
    criteria = lejepa_selection.criteria_of(pairs)
    assert criteria["loss / lambda^0.4"] == pytest.approx([-0.5 / 0.05**0.4, -0.5 / 0.2**0.4])
    assert criteria["loss"] == [-0.5, -0.5] and criteria["alpha-ReQ, |alpha - 1|"] == [-0.5, -0.5]
    assert criteria["uniformity"] == [2.0, 2.0] and criteria["RankMe"] == [30.0, 30.0]
    assert criteria["LiDAR"] == [9.0, 9.0] and criteria["information, projector"] == [2.0, 2.0]
    assert criteria["loss, all at lambda = 0.02"] == pytest.approx([-0.98 * 0.3 - 0.02 * 1.5] * 2)


def test_the_best_power_of_lambda_is_the_one_the_accuracies_follow() -> None:
    """Accuracies made to fall with loss / lambda^0.7, over losses and lambdas that no other tenth orders alike."""
    rng = np.random.default_rng(0)
    loss, weight = rng.uniform(0.1, 1, 200), 10 ** rng.uniform(-2, 0, 200)
    names = "rank_me", "lidar", "isotropy", "uniformity", "alpha_req", "prediction", "sigreg", *INFORMATION
    others = dict.fromkeys(names, 0.0)
    pairs = [({"weight": w}, others | {"loss": x, "linear": -x / w**0.7}) for x, w in zip(loss, weight, strict=True)]
    (name,) = [name for name in lejepa_selection.criteria_of(pairs) if "hindsight" in name]
    assert name.startswith("loss / lambda^0.7,")


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
