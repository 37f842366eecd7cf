"""Few and small images, and trainings of them that need not import everything anew."""

import numpy as np
import pytest

from jointembed.data import render_shapes
from jointembed.experiments import (
    cells as cells_module,
)
from jointembed.experiments import (
    cifar10_rates,
    gmje_bank,
    gmje_cifar10,
    lejepa_selection,
    vje_ablation,
)


@pytest.fixture
def shapes(tmp_path):
    """In the form of CIFAR-10."""
    (x, y, _), (x_test, y_test, _) = render_shapes(60, seed=0, size=16), render_shapes(40, seed=1, size=16)
    np.savez(tmp_path / "shapes.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return str(tmp_path / "shapes.npz")


@pytest.fixture
def smallest():
    """Settings to train on them with."""
    return {"backbone": "resnet10-tiny", "batch_size": 25, "view_size": 8}


@pytest.fixture
def cells(monkeypatch):
    """Cells run in this process: their arguments and results."""
    done = []

    def run_here(function, arguments, kept, jobs=None, threads=1, fresh=False):
        found = [one | function(**one) for one in arguments]
        done.extend(found)
        return found

    for module in (cells_module, cifar10_rates, gmje_bank, gmje_cifar10, lejepa_selection, vje_ablation):
        monkeypatch.setattr(module, "run_cells", run_here)
    return done
