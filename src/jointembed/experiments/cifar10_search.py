"""Short trials on CIFAR-10 images held out of training: what the flagship's recipes were chosen by, failures too."""

import json
import time
from pathlib import Path
from typing import Any

from .cells import run_some, spent
from .results import command, write_results
from .small import features, rounded

PROBED = 10_000  # training images that k-NN and linear probe see: enough to rank trials
# Every trial begins here and says what it changes: 450,000 views of 16 pixels.
BASE: dict[str, Any] = {
    "method": "lejepa",
    "epochs": 5,
    "batch_size": 128,
    "preset": "lejepa",
    "view_options": {"crop_scale": [0.2, 1.0], "blur": 0.0, "solarise": 0.0},
    "watch_every": 100,
}
LEJEPA: dict[str, Any] = {"weight": 0.03, "num_slices": 256}
GJE: dict[str, Any] = {"method": "gje"}
GMJE: dict[str, Any] = {"method": "gmje"}
MDN: dict[str, Any] = {"method": "gmje-mdn", "num_global": 4, "epochs": 3, "lr": 5e-3}
VJE: dict[str, Any] = {"method": "vje", "batch_size": 32}
STRONG = {**BASE["view_options"], "jitter_strength": [0.4, 0.4, 0.4, 0.1]}
TRIALS: dict[str, dict[str, Any]] = {
    "LeJEPA": LEJEPA,
    "GJE": GJE,
    "LeJEPA, 4 views": LEJEPA | {"num_global": 4, "epochs": 3, "weight": 0.04},
    "GJE, 4 views": GJE | {"num_global": 4, "epochs": 3},
    "GJE, jitter 0.2": GJE | {"jitter": 0.2},
    "LeJEPA, learning rate 5e-3": LEJEPA | {"lr": 5e-3},
    "GMJE": GMJE,
    "VJE": VJE,
    "LeJEPA, more saturation": LEJEPA | {"view_options": STRONG},
    "LeJEPA, images at 24 pixels": LEJEPA | {"image_size": 24},
    "LeJEPA, strided stem, 32 pixels": LEJEPA | {"backbone": "resnet10-strided", "view_size": 32},
    "LeJEPA, strided stem, images at 40 pixels": LEJEPA
    | {"backbone": "resnet10-strided", "view_size": 32, "image_size": 40},
    "LeJEPA, 1,024 features": LEJEPA | {"backbone": "resnet10-headed"},
    "VJE, learning rate 5e-3": VJE | {"lr": 5e-3},
    "GMJE, learning rate 5e-3": GMJE | {"lr": 5e-3},
    "VJE, 1,024 features": VJE | {"backbone": "resnet10-headed"},
    "GMJE, 1,024 features, learning rate 5e-3": GMJE | {"backbone": "resnet10-headed", "lr": 5e-3},
    "VJE, 4 views": VJE | {"num_global": 4, "epochs": 3},
    "GMJE, 4 views, learning rate 5e-3": GMJE | {"num_global": 4, "epochs": 3, "lr": 5e-3},
    "GMJE-MDN, 4 views, learning rate 5e-3": MDN,
    "GMJE-MDN, 4 views, learning rate 5e-3, 1,024 features": MDN | {"backbone": "resnet10-headed"},
    "VJE, 4 views, 1,024 features, projected to 256": VJE
    | {"num_global": 4, "epochs": 3, "backbone": "resnet10-headed", "projector": 256},
    "GJE, learning rate 5e-3": GJE | {"lr": 5e-3},
    "GJE, learning rate 5e-3, 1,024 features": GJE | {"lr": 5e-3, "backbone": "resnet10-headed"},
    "GJE, 4 views, learning rate 5e-3": GJE | {"num_global": 4, "epochs": 3, "lr": 5e-3},
    "GJE, 4 views, learning rate 5e-3, 1,024 features": GJE
    | {"num_global": 4, "epochs": 3, "lr": 5e-3, "backbone": "resnet10-headed"},
}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 45_000,
    only: tuple[str, ...] = (),
    kept: str = "results/cifar10-search-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train every trial on one thread and score its features on the 5,000 training images that no trial sees.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table goes.
        images: training images, at most 45,000.
        only: trials to run now; by default all. The table has whatever was run before as well.
        kept: where finished trials are remembered.
        jobs: trials beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change in every trial.
    """
    arguments, began = dict(locals()), time.perf_counter()
    for name in only:
        if name not in TRIALS:
            raise ValueError(f"only: expected some of {'; '.join(TRIALS)}, got {name!r}")
    shared = {"data": data, "images": images, **BASE}
    cells = {name: shared | trial | (changes or {}) for name, trial in TRIALS.items()}
    found = run_some(search_cell, cells, only or tuple(TRIALS), Path(kept), jobs=jobs)
    rows = [row(name, TRIALS[name], found.get(name)) for name in TRIALS]
    title = f"Trials for the CIFAR-10 recipes: {images:,} images, one thread, one seed, held-out training images"
    seconds = spent(began, found.values(), jobs)
    write_results(Path(results), "cifar10-search", title, rows, command(run, arguments), seconds)


def search_cell(data: str, images: int, method: str, **training: Any) -> dict[str, Any]:
    """One trial."""
    return features(data, images, True, method, PROBED, **training)


def row(name: str, trial: dict[str, Any], found: dict[str, Any] | None) -> dict[str, Any]:
    """A line of the table."""
    ours = found or {}
    return {
        "trial": name,
        "settings": json.dumps(trial).strip("{}").replace('"', ""),
        "k-NN %": "not run yet" if found is None else rounded(ours.get("knn"), 1),
        "linear %": "not finite" if "diverged" in ours else rounded(ours.get("linear"), 1),
        "minutes": rounded(ours.get("minutes"), 1),
    }
