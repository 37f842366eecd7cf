"""The best recipes: files that the command line takes, and a row for each that was run."""

import json
from importlib.resources import files

import pytest
import yaml

import jointembed as je
from jointembed.evaluation import knn_accuracy
from jointembed.experiments import cifar10_flagship
from jointembed.experiments.small import parts


def test_recipes_come_with_the_package_and_name_only_what_train_or_their_method_knows():
    import inspect

    known = set(inspect.signature(je.train).parameters)
    assert cifar10_flagship.names()
    for name in cifar10_flagship.names():
        recipe = yaml.safe_load((files("jointembed.experiments") / f"recipes/{name}.yaml").read_text())
        assert set(recipe) <= known | set(je.methods.get(recipe["method"]).options()), name
        assert {"data", "out"}.isdisjoint(recipe), name


def test_a_recipe_is_trained_by_the_command_line_and_its_row_says_what_the_model_can(shapes, tmp_path):
    small = {"devices": 1, "strategy": "auto", "backbone": "resnet10-tiny", "batch_size": 25, "view_size": 8}
    out, kept = str(tmp_path / "run"), str(tmp_path / "kept.json")
    cifar10_flagship.run(shapes, out=out, results=str(tmp_path), epochs=1, kept=kept, changes=small)
    rows = json.loads((tmp_path / "cifar10-flagship.json").read_text())["rows"]
    ours, *paper = rows
    source, test = parts(shapes, 60, held_out=False)
    model = je.load(out)
    assert model.config.training["images"] == len(source) and model.config.training["epochs"] == 1
    accuracy = 100 * knn_accuracy(model.embed(source), source.labels, model.embed(test), test.labels)
    assert float(ours["k-NN %"]) == pytest.approx(accuracy, abs=0.006)
    assert [row["linear %"] for row in paper] == ["81.50", "79.04", "79.02", "74.52"]


@pytest.mark.parametrize(("change", "message"), [({"recipe": "lejepa"}, "recipe"), ({"data": "nowhere.npz"}, "data")])
def test_what_is_missing_is_named_before_any_work(shapes, tmp_path, change, message):
    with pytest.raises(ValueError, match=f"^{message}: expected"):
        cifar10_flagship.run(**({"data": shapes, "results": str(tmp_path)} | change))
    assert not (tmp_path / "cifar10-flagship.md").exists()
