"""The GMJE experiments that train: at the smallest size, what they count and keep."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from jointembed.distributions import GaussianMixture
from jointembed.experiments import gmje_bank, gmje_cifar10, gmje_mnist


def test_a_row_of_the_stability_table_keeps_the_worst_of_its_seeds() -> None:
    one = {
        "knn": 40.0,
        "linear": 50.0,
        "rank": 20.0,
        "dim": 64,
        "sigma": 0.4,
        "floor": 0.2,
        "used": 1.0,
        "minutes": 2.0,
    }
    one["history"] = [{"sigma": 0.5}]
    other = one | {"linear": 54.0, "sigma": 0.3, "used": 0.75}
    found = gmje_cifar10.row("GMJE", 10_000, [{"epochs": 8}] * 3, [one, other, {"diverged": "at step 7"}])
    assert found["linear %"] == "52.00 ± 2.83" and found["not finite"] == 1 and found["seeds"] == 3
    assert found["mean sigma / floor"] == "2.50" and found["smallest sigma / floor"] == "1.50"
    assert found["components in use %"] == "75"
    assert found["effective rank"] == "20.0 ± 0.0 of 64"


def test_stability_looks_at_the_embeddings_and_at_the_mixture(shapes, tmp_path, cells, smallest, monkeypatch) -> None:
    monkeypatch.setattr(gmje_cifar10, "OTHERS", {"GJE, dual": gmje_cifar10.OTHERS["GJE, dual"]})
    gmje_cifar10.run(shapes, str(tmp_path), 50, 2, 1, full_epochs=0, changes=smallest | {"dim": 16})
    rows = {row["run"]: row for row in json.loads((tmp_path / "gmje-cifar10.json").read_text())["rows"]}
    assert list(rows) == [*gmje_cifar10.HEALTHY, *gmje_cifar10.FAILED, "GJE, dual"]
    assert float(rows["GJE, dual"]["linear %"]) > 0 and rows["GJE, dual"]["components in use %"] == "-"
    healthy, network = (next(c for c in cells if c["method"] == name) for name in ("gmje", "gmje-mdn"))
    assert float(rows["GMJE"]["linear %"]) == pytest.approx(healthy["linear"], abs=0.06)
    assert 1 <= healthy["rank"] <= healthy["dim"] == 16
    # Half of the covariance is the prior, in which views agree to 0.9: no direction has less than half of the rest.
    assert healthy["sigma"] ** 2 > healthy["floor"] ** 2 + 0.5 * (1 - 0.9)
    assert network["floor"] < network["sigma"] < 1
    assert [e["epoch"] for e in healthy["history"]] == [0, 1]
    assert (tmp_path / "gmje-cifar10.png").stat().st_size > 10_000


def test_a_queue_keeps_the_newest_and_particles_what_fits(shapes, tmp_path, cells) -> None:
    gmje_bank.run(shapes, str(tmp_path), 50, 3, 10, ratios=(2.0,), seeds=1, changes={"view_size": 8})
    smc, fifo = json.loads((tmp_path / "gmje-bank.json").read_text())["rows"]
    # A queue of two batches is on average half a step old, and holds every key once.
    assert float(fifo["mean age, steps"]) == pytest.approx(0.5, abs=0.05)
    assert fifo["distinct %"] == "100" and int(smc["distinct %"]) < 100
    gain = float(smc["linear %"]) - float(fifo["linear %"])
    assert float(smc["SMC - FIFO, seed by seed"]) == pytest.approx(gain, abs=0.011)
    assert (tmp_path / "gmje-bank.png").stat().st_size > 10_000


@pytest.fixture
def digits(tmp_path):
    """scikit-learn's, in the form of MNIST."""
    x, y = load_digits(return_X_y=True)
    x = np.kron(x.reshape(-1, 8, 8), np.ones((3, 3))).astype(np.uint8) * 15
    np.savez(tmp_path / "digits.npz", x_train=x[:600], y_train=y[:600], x_test=x[600:900], y_test=y[600:900])
    return str(tmp_path / "digits.npz")


@pytest.mark.soak  # three trainings
def test_generation_judges_every_family(digits, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gmje_mnist.Judge, "epochs", 12)  # there are few digits
    monkeypatch.setattr(gmje_mnist, "MAPPED", 60)
    gmje_mnist.run(digits, str(tmp_path / "results"), str(tmp_path / "runs"), 1, 1, samples=200)
    rows = json.loads((tmp_path / "results/gmje-mnist.json").read_text())["rows"]
    assert [row["family"] for row in rows] == ["test images", *["SimCLR"] * 2, *["GJE"] * 2, *["GMJE"] * 5]
    assert rows[0]["Fréchet"] == pytest.approx(0, abs=0.1)
    assert all(row["Fréchet"] > 1 for row in rows[1:])  # one epoch of a decoder makes no digits
    assert 0.95 < rows[0]["coverage"] <= 1
    assert rows[0]["sure (> 0.9) %"] > 80
    for name in ("gmje-mnist.png", "gmje-mnist-map.png"):
        assert (tmp_path / "results" / name).stat().st_size > 10_000


def test_shape_of_codes_all_over_the_sphere_is_the_papers_best() -> None:
    codes = torch.nn.functional.normalize(torch.randn(20_000, 128, generator=torch.Generator().manual_seed(0)), dim=1)
    mixture = GaussianMixture.isotropic(torch.ones(50) / 50, 7 * codes[:50], torch.ones(1))
    found = gmje_mnist.shape(codes, mixture, 7.0)
    # S = I / D: log|S| = -D log D, Tr S = 1; points of a sphere in many dimensions are sqrt(2) apart.
    assert found["log-volume"] == pytest.approx(-128 * math.log(128), rel=2e-3)
    assert found["variance"] == 1.0
    assert found["spread"] == pytest.approx(math.sqrt(2), abs=0.02)
