"""Public functions with arguments of any kind: they work, or a ValueError names the argument."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import flipped, truncated
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jointembed as je
from jointembed.methods.lejepa import lejepa_loss
from jointembed.model import Config
from jointembed.normality import SIGReg
from jointembed.scoring import percentile, threshold, write_table

shared = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
quick = settings(max_examples=100, deadline=None, suppress_health_check=shared)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def works_or_names(call: Any, *names: str) -> Any:
    try:
        return call()
    except (ValueError, OSError) as error:
        assert any(name in str(error) for name in names), error  # noqa: PT017
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    options = {"dim": 4, "projector_width": 8, "num_slices": 8}
    Config("lejepa", options, "resnet10-tiny", 1, 8, [0.3], [0.4], source_size=[8, 8]).build().save(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> je.Model:
    return je.load(folder)


def changed(folder: Path, name: str, content: bytes) -> None:
    """`load`, with another file in the place of that one."""
    original = (folder / name).read_bytes()
    (folder / name).write_bytes(content)
    try:
        model = works_or_names(lambda: je.load(folder), "config.json", "model.safetensors", *FIELDS, *OPTIONS)
        if model is not None:
            works_or_names(lambda: model.embed(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)), "images", "space")
    finally:
        (folder / name).write_bytes(original)


FIELDS = list(Config.__dataclass_fields__)
OPTIONS = ["weight", "dim", "projector_width", "projector_layers", "num_points", "t_max", "centre", "swa"]


@quick
@given(st.sampled_from(FIELDS), json_values)
def test_configs_with_any_value(folder: Path, field: str, value: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    changed(folder, "config.json", json.dumps(values | {field: value}).encode())


@settings(quick, max_examples=60)
@given(st.sampled_from(OPTIONS), json_values)
def test_method_options_with_any_value(folder: Path, option: str, value: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["method_options"][option] = value
    changed(folder, "config.json", json.dumps(values).encode())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_spoiled_run_folders(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for part in (*truncated(content, 10), *flipped(content, 20)):
        changed(folder, name, part)


@settings(quick, max_examples=60)
@given(hnp.arrays(st.sampled_from(["u1", "f4", "i8", "?"]), hnp.array_shapes(min_dims=0, max_dims=4, max_side=9)))
def test_embedding_arrays_of_any_kind(model: je.Model, array: np.ndarray) -> None:
    z = works_or_names(lambda: model.embed(array), "data", "images", "layout")
    assert z is None or (z.ndim == 2 and len(z) == len(array))


numbers = hnp.arrays(st.sampled_from(["f4", "f8"]), hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=30))


@quick
@given(numbers, st.floats())
def test_thresholds_of_any_scores(scores: np.ndarray, rate: float) -> None:
    found = works_or_names(lambda: threshold(torch.from_numpy(scores), rate), "held_out", "false_alarm_rate")
    if found is not None:
        assert (scores > found.value).mean() <= rate


@quick
@given(numbers, numbers)
def test_percentiles_of_any_scores(train: np.ndarray, scores: np.ndarray) -> None:
    found = works_or_names(lambda: percentile(torch.from_numpy(train), torch.from_numpy(scores)), "train", "scores")
    assert found is None or bool(((found >= 0) & (found <= 100)).all())


@quick
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]))))
@example(["a\rb", "\r", "'", "''"])
def test_any_names_come_back_from_a_table(tmp_path: Path, names: list[str]) -> None:
    write_table(tmp_path / "x.csv", {"name": names, "n": np.arange(len(names))})
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        found = [row["name"].removeprefix("'") for row in csv.DictReader(file)]
    assert found == names
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@settings(quick, max_examples=60)
@given(
    hnp.arrays("f4", hnp.array_shapes(min_dims=0, max_dims=4, max_side=5), elements=st.floats(-9, 9, width=32)),
    st.integers(-1, 5),
    st.floats(-1, 2),
)
def test_losses_of_any_shape(z: np.ndarray, num_global: int, weight: float) -> None:
    sigreg = SIGReg(num_slices=4)
    terms = works_or_names(
        lambda: lejepa_loss(torch.from_numpy(z), num_global, sigreg, weight), "z", "num_global", "weight"
    )
    assert terms is None or bool(terms["loss"].isfinite())


@settings(quick, max_examples=60)
@given(numbers, numbers)
def test_pairs_of_any_arrays(x: np.ndarray, y: np.ndarray) -> None:
    works_or_names(
        lambda: je.fit_pairs(x, y, method="gje-linear", learn=False).predict(x), "x_context", "x_target", "x:"
    )


TRAIN = ["epochs", "batch_size", "num_global", "num_local", "watch_every", "seed", "lr", "weight_decay", "hold_out"]
TRAIN += ["warmup_epochs", "method", "backbone", "optimizer", "resume", "preset"]


@quick
@given(
    st.sampled_from(TRAIN),
    st.none() | st.text(max_size=5) | st.just(float("nan")) | st.lists(st.integers(), max_size=2),
)
def test_train_names_arguments_that_are_not_numbers_or_names(tmp_path: Path, name: str, value: Any) -> None:
    if name == "preset" and not value:
        return  # the default
    with pytest.raises(ValueError, match=name):
        je.train("digits", out=tmp_path / "x", **({"backbone": "conv4"} | {name: value}))
    assert not list(tmp_path.iterdir())
