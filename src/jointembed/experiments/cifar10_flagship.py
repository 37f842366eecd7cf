"""CIFAR-10 in 90 minutes on two cores: recipes as YAML files, beside the GMJE paper's GPU runs."""

import csv
import json
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from jointembed import load
from jointembed._files import atomic
from jointembed.data import Source
from jointembed.evaluation import knn_accuracy, linear_accuracy

from .cells import key_of, remembered
from .results import command, write_results
from .small import parts, rounded

RECIPES = files(__package__) / "recipes"
# Section 5.2.2: ResNet-18, 200 epochs on a datacentre GPU, linear accuracy.
PAPER = {"SimCLR": 81.50, "BYOL": 79.04, "MoCo v2": 79.02, "SMC-GMJE": 74.52}


def names() -> list[str]:
    """The recipes there are: YAML files that `jointembed train --config` takes as well."""
    return sorted(Path(one.name).stem for one in RECIPES.iterdir() if one.name.endswith(".yaml"))


def run(
    data: str = "cifar10.npz",
    recipe: str = "cifar10-lejepa",
    out: str | None = None,
    results: str = "results",
    epochs: int | None = None,
    held_out: bool = False,
    kept: str = "results/cifar10-flagship-rows.json",
    changes: dict[str, Any] | None = None,
) -> None:
    """Train a recipe on the 50,000 training images without their labels, then score its features on the test images.

    Rows that are there already are kept. An interrupted training goes on where it was.

    Args:
        data: CIFAR-10 as an .npz.
        recipe: cifar10-lejepa, cifar10-vje, cifar10-gmje or cifar10-gje.
        out: the run folder; by default runs/ and the recipe's name.
        results: where the table goes.
        epochs: other than the recipe's.
        held_out: to tune by: train on 45,000 images, score the other 5,000 training images, and keep no row.
        kept: where finished rows are remembered.
        changes: settings of the recipe to change.
    """
    arguments = dict(locals())
    if recipe not in names():
        raise ValueError(f"recipe: expected one of {', '.join(names())}, got {recipe!r}")
    if not Path(data).is_file():
        raise ValueError(f"data: expected an .npz file, got {data!r}")
    settings = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text()) | (changes or {})
    settings |= {"epochs": epochs} if epochs else {}
    source, test = parts(data, 10**9, held_out)
    folder = Path(out or f"runs/{recipe}")
    train_apart(source, settings, folder)
    row = scored(folder, source, test) | {"recipe": recipe, "epochs": settings["epochs"]}
    if held_out:
        print(json.dumps(row | {"changes": changes}))
        return
    rows = remembered(Path(kept)) | {key_of({"recipe": recipe, "settings": settings}): row}
    with atomic(Path(kept)) as path:
        path.write_text(json.dumps(rows, indent=2) + "\n")
    title = "CIFAR-10 on two cores: recipes, test images, one seed"
    table = [shown(one) for one in sorted(rows.values(), key=lambda one: (one["recipe"], one["epochs"]))]
    table += [
        shown({"recipe": f"paper: {name}", "epochs": 200, "linear": linear, "backbone": "resnet18, GPU"})
        for name, linear in PAPER.items()
    ]
    seconds = 60 * sum(one["minutes"] for one in rows.values())
    write_results(Path(results), "cifar10-flagship", title, table, command(run, arguments), seconds)


def train_apart(source: Source, settings: dict[str, Any], folder: Path) -> None:
    """`jointembed train --config` in processes of its own, of which a recipe may want several."""
    with tempfile.TemporaryDirectory() as place:
        images = source.batch(range(len(source)))
        assert isinstance(images, torch.Tensor) and source.labels is not None
        np.savez(Path(place) / "cifar10.npz", x_train=images.permute(0, 2, 3, 1).numpy(), y_train=source.labels.numpy())
        (Path(place) / "recipe.yaml").write_text(yaml.safe_dump(settings))
        words = ["train", "--config", f"{place}/recipe.yaml", "--data", f"{place}/cifar10.npz"]
        words += ["--out", str(folder), "--resume", "auto"]
        subprocess.run([sys.executable, "-m", "jointembed", *words], check=True)


def scored(folder: Path, source: Source, test: Source) -> dict[str, Any]:
    """Accuracy of the features of the model in a run folder, and what its training took."""
    assert source.labels is not None and test.labels is not None
    model = load(folder)
    with (folder / "metrics.csv").open() as file:
        minutes = float(list(csv.DictReader(file))[-1]["minutes"])  # of all starts of the run
    began = time.perf_counter()
    z, z_test = model.embed(source), model.embed(test)
    return {
        "backbone": model.config.backbone,
        "M parameters": sum(p.numel() for p in model.method.backbone.parameters()) / 1e6,
        "minutes": minutes,
        "knn": 100 * knn_accuracy(z, source.labels, z_test, test.labels),
        "linear": 100 * linear_accuracy(z, source.labels, z_test, test.labels),
        "scoring_minutes": (time.perf_counter() - began) / 60,
    }


def shown(one: dict[str, Any]) -> dict[str, Any]:
    """A line of the table."""
    return {
        "recipe": one["recipe"],
        "backbone": one["backbone"],
        "M parameters": rounded(one.get("M parameters"), 1),
        "epochs": one["epochs"],
        "training minutes": rounded(one.get("minutes"), 1),
        "k-NN %": rounded(one.get("knn"), 2),
        "linear %": rounded(one["linear"], 2),
    }
