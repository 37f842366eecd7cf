"""The table of all methods: a row for each, filled when it was run."""

import json
from pathlib import Path

import numpy as np
import pytest

from jointembed import methods
from jointembed.data import render_shapes
from jointembed.experiments import cells as cells_module
from jointembed.experiments import cifar10_table


@pytest.fixture
def shapes(tmp_path):
    """Enough of each class for ten shots."""
    (x, y, _), (x_test, y_test, _) = render_shapes(300, seed=0, size=16), render_shapes(60, seed=1, size=16)
    np.savez(tmp_path / "shapes.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return str(tmp_path / "shapes.npz")


def test_the_table_fills_the_rows_that_were_run_and_says_which_were_not(shapes, tmp_path, cells, smallest) -> None:
    minutes, kept = 1e-6, str(tmp_path / "kept.json")
    cifar10_table.run(
        shapes, str(tmp_path), minutes, ("simclr",), images=300, one_class_epochs=1, kept=kept, changes=smallest
    )
    rows = {row["method"]: row for row in json.loads((tmp_path / "cifar10-table.json").read_text())["rows"]}
    assert tuple(rows) == ("simclr", *(name for name in methods.names() if name != "simclr"))  # best first
    timing, cell = cells
    assert cell["method"] == timing["method"] == "simclr"
    assert cell["temperature"] == timing["temperature"] == cifar10_table.SETTINGS["simclr"]["temperature"]
    ours = rows.pop("simclr")
    assert ours["epochs"] == cell["epochs"] == 1  # as few as there can be
    assert float(ours["images/s"]) == pytest.approx(timing["images_per_second"], abs=0.51)
    assert float(ours["linear %"]) == pytest.approx(cell["linear"], abs=0.06)
    assert 1 <= cell["rank_me"] <= 128 and cell["gigabytes"] > 0.1 and 0 <= cell["auroc"] <= 1
    assert {row["epochs"] for row in rows.values()} == {"not run yet"}
    assert {row["linear %"] for row in rows.values()} == {"-"}


def test_every_method_has_the_learning_rate_that_was_best_on_held_out_images() -> None:
    kept = Path(__file__).parents[2] / "results" / "cifar10-rates.json"
    best = {row["method"]: float(row["best"]) for row in json.loads(kept.read_text())["rows"]}
    settings = {name: cifar10_table.SHARED | cifar10_table.SETTINGS.get(name, {}) for name in methods.names()}
    assert {name: ours["lr"] for name, ours in settings.items()} == best


def test_the_epochs_are_those_that_the_minutes_buy_at_the_speed_of_each_method(shapes, tmp_path, monkeypatch) -> None:
    """300 images: at 100 images/s an epoch takes three seconds, at 200 one and a half."""
    asked = []

    def cell(method, epochs=None, **rest):
        if epochs is None:
            return {"images_per_second": {"simclr": 100.0, "byol": 200.0}[method]}
        asked.append((method, epochs))
        return {"diverged": "enough"}

    def run_here(function, arguments, kept, **how):
        return [cell(**one) for one in arguments]

    monkeypatch.setattr(cells_module, "run_cells", run_here)
    for seconds in (1, 9, 30):
        places = {"results": str(tmp_path), "kept": str(tmp_path / "kept.json")}
        cifar10_table.run(shapes, minutes=seconds / 60, only=("simclr", "byol"), images=300, **places)
    assert asked == [("simclr", 1), ("byol", 1), ("simclr", 3), ("byol", 6), ("simclr", 10), ("byol", 20)]
    rows = {row["method"]: row for row in json.loads((tmp_path / "cifar10-table.json").read_text())["rows"]}
    assert rows["byol"]["epochs"] == "not finite" and rows["byol"]["images/s"] == "200"


def test_a_method_is_as_fast_as_the_fastest_epoch_in_the_middle(shapes, monkeypatch) -> None:
    """The first one starts up, and after the last one the features are looked at: neither is the speed of training."""

    def clocked(source, method, epochs, watch_every, **training):
        assert epochs == watch_every == 5
        return None, [{"minutes": minutes} for minutes in (0.1, 2.1, 2.6, 4.0, 4.1)]

    monkeypatch.setattr(cifar10_table, "trained", clocked)
    assert cifar10_table.timing_cell(shapes, 180, "lejepa")["images_per_second"] == pytest.approx(180 / 30)


def test_a_method_that_diverges_while_it_is_timed_does_not_end_the_table(shapes, monkeypatch) -> None:
    def diverging(*args, **training):
        raise cifar10_table.Diverged("loss")

    monkeypatch.setattr(cifar10_table, "trained", diverging)
    assert cifar10_table.timing_cell(shapes, 180, "lejepa") == {"images_per_second": 0.0}
    assert "diverged" in cifar10_table.table_cell(shapes, 180, False, 1, "lejepa", epochs=1)


def test_a_measure_that_orders_methods_as_labels_do_has_a_correlation_of_one() -> None:
    names = ("rank_me", "lidar", "alpha_req", "isotropy", "uniformity", "alignment")
    rows = [
        # Rank rises with accuracy, isotropy falls; alpha is nearest to 1 in the middle; less alignment is better.
        {"linear": 50.0 + at, "knn": 40.0 - at, **dict.fromkeys(names, 1.0 + at)}
        | {"isotropy": 9.0 - at, "alpha_req": 1 + abs(at - 2), "alignment": 9.0 - at, "uniformity": -at}
        for at in range(5)
    ]
    found = {row["measure"]: row for row in cifar10_table.proxies(rows)}
    for name, linear, picked in (
        ("RankMe", "+1.00", "54.0"),
        ("isotropy", "-1.00", "50.0"),
        ("alignment", "+1.00", "54.0"),
        ("uniformity", "+1.00", "54.0"),
        ("alpha-ReQ, |alpha - 1|", "+0.00", "52.0"),
    ):
        assert found[name]["Spearman with linear accuracy"].replace("-0.00", "+0.00") == linear, name
        assert found[name]["linear % of the method it picks"] == picked
    assert found["RankMe"]["with k-NN accuracy"] == "-1.00" and found["LiDAR"]["best there is"] == "54.0"


def test_unknown_methods_are_named_before_any_work(shapes, tmp_path) -> None:
    with pytest.raises(ValueError, match="method: expected one of simclr"):
        cifar10_table.run(shapes, str(tmp_path), only=("simclr", "simcrl"))
    assert not (tmp_path / "cifar10-table.md").exists()
