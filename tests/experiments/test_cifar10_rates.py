"""Learning rates of the table: two tried for each method, on held-out images, and the best one named."""

import json
from math import log

import pytest

from jointembed.experiments import cifar10_rates, cifar10_table


@pytest.mark.parametrize(("peak", "best"), [(1e-4, "0.002"), (2.1e-3, "0.002"), (4.9e-3, "0.005"), (1.0, "0.005")])
def test_the_better_rate_is_chosen(peak, best, tmp_path, cells, monkeypatch) -> None:
    def peaked(lr, **settings):
        accuracy = 50 - abs(log(lr / peak))
        return {"lr": lr, "linear": accuracy, "knn": accuracy - 5, "minutes": 1.0, **settings}

    monkeypatch.setattr(cifar10_rates, "search_cell", peaked)
    cifar10_rates.run("some.npz", str(tmp_path), only=("vje",), kept=str(tmp_path / "kept.json"))
    (row,) = json.loads((tmp_path / "cifar10-rates.json").read_text())["rows"]
    assert [cell["lr"] for cell in cells] == [2e-3, 5e-3] and row["best"] == best
    assert {cell["batch_size"] for cell in cells} == {cifar10_table.SETTINGS["vje"]["batch_size"]}  # the table's own
    for rate in cifar10_rates.RATES:
        assert row[f"{rate:g}"] == f"{50 - abs(log(rate / peak)):.1f}"


def test_a_rate_that_diverges_is_not_chosen(tmp_path, cells, monkeypatch) -> None:
    def fragile(lr, **settings):
        return {"diverged": "loss"} if lr > 2e-3 else {"linear": 40.0 + 1000 * lr, "knn": 30.0, "minutes": 1.0}

    monkeypatch.setattr(cifar10_rates, "search_cell", fragile)
    cifar10_rates.run("some.npz", str(tmp_path), only=("simclr",), kept=str(tmp_path / "kept.json"))
    (row,) = json.loads((tmp_path / "cifar10-rates.json").read_text())["rows"]
    assert row["0.005"] == "not finite" and row["best"] == "0.002" and row["its k-NN %"] == "30.0"


def test_unknown_methods_are_named_before_any_work(tmp_path) -> None:
    with pytest.raises(ValueError, match="method: expected one of simclr"):
        cifar10_rates.run("some.npz", str(tmp_path), only=("simcrl",))
    assert not (tmp_path / "cifar10-rates.md").exists()
