"""Files made to do harm: nothing in them runs, and they can ask for nothing that is not ours to give."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TINY

import jointembed as je
from jointembed import methods
from jointembed.cli import main
from jointembed.data import open_source
from jointembed.decoding import load_decoder, train_decoder
from jointembed.model import Config


class Bomb:
    """Unpickling this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


@pytest.fixture
def bomb(tmp_path: Path) -> Bomb:
    return Bomb(tmp_path / "exploded")


def write_run(folder: Path, method: str = "lejepa", **options: object) -> Path:
    Config(method, options, "resnet10-tiny", 1, 8, [0.3], [0.4]).build().save(folder)
    return folder


def as_torch_file(path: Path, content: object) -> None:
    torch.save({"state_dict": {}, "x": content}, path)


def as_pickle(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("plant", [as_torch_file, as_pickle])
def test_a_checkpoint_is_never_unpickled(run: Path, tmp_path: Path, bomb: Bomb, plant: Callable) -> None:
    shutil.copytree(run, tmp_path / "x")
    plant(tmp_path / "x" / "checkpoint.ckpt", bomb)
    settings = {"backbone": "resnet10-narrow", "epochs": 2, "batch_size": 128, **TINY, "hold_out": 0.05}
    with pytest.raises(ValueError, match=r"^resume: expected a checkpoint of this library, .*checkpoint.ckpt"):
        je.train("digits", out=tmp_path / "x", resume=True, **settings)
    assert not bomb.path.exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "scores.safetensors"])
@pytest.mark.parametrize("plant", [as_torch_file, as_pickle])
def test_a_model_is_never_unpickled(tmp_path: Path, bomb: Bomb, name: str, plant: Callable) -> None:
    folder = write_run(tmp_path / "x")
    plant(folder / name, bomb)
    with pytest.raises(ValueError, match=name):
        je.load(folder)
    assert not bomb.path.exists()


@pytest.mark.parametrize("name", ["decoder.json", "decoder.safetensors"])
def test_a_decoder_is_never_unpickled(run: Path, tmp_path: Path, bomb: Bomb, name: str) -> None:
    shutil.copytree(run, tmp_path / "x")
    images = open_source("digits").batch(range(32))
    train_decoder(tmp_path / "x", images, epochs=1, batch_size=16)
    as_pickle(tmp_path / "x" / name, bomb)
    with pytest.raises(ValueError, match="decoder"):
        load_decoder(tmp_path / "x")
    assert not bomb.path.exists()


@pytest.mark.parametrize("name", ["index.json", "pixels"])
def test_a_cache_is_never_unpickled(tmp_path: Path, bomb: Bomb, name: str) -> None:
    for i in range(3):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    expected = open_source(tmp_path / "photos", cache=tmp_path / "cache").batch(range(3))
    (planted,) = (tmp_path / "cache").rglob(f"{name}*")
    as_pickle(planted, bomb)
    assert torch.equal(open_source(tmp_path / "photos", cache=tmp_path / "cache").batch(range(3)), expected)
    assert not bomb.path.exists()


def test_torchvisions_own_pickles_are_opened_only_if_they_are_the_originals(
    tmp_path: Path, bomb: Bomb, monkeypatch: pytest.MonkeyPatch
) -> None:
    import urllib.request

    def closed(*_: object, **__: object) -> None:
        raise OSError("the network is closed")

    monkeypatch.setattr(urllib.request, "urlopen", closed)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "batches.meta"):
        as_pickle(folder / name, bomb)
    with pytest.raises(ValueError, match="'cifar10' could not be had"):
        open_source("cifar10", root=tmp_path)
    assert not bomb.path.exists()


def test_a_yaml_file_names_no_code(tmp_path: Path, bomb: Bomb) -> None:
    for text in (
        f"data: !!python/object/apply:os.mknod ['{bomb.path}']",
        f"data: {{class_path: pathlib.Path, init_args: {{}}}}\nout: {tmp_path / 'x'}",
        f"data: digits\ntrainer: {{class_path: os.mknod, init_args: {{path: '{bomb.path}'}}}}\nout: {tmp_path / 'x'}",
    ):
        (tmp_path / "run.yaml").write_text(text)
        with pytest.raises((SystemExit, TypeError)):
            main(["train", "--config", str(tmp_path / "run.yaml"), "--epochs", "1", "--backbone", "conv4"])
        assert not bomb.path.exists()


HUGE = 10**9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "hf-hub:timm/resnet18.a1_in1k"}, "backbone: expected .*never a place"),
        ({"backbone": "local-dir:/etc"}, "backbone: expected .*never a place"),
        ({"backbone": "../../etc/passwd"}, "backbone: expected .*never a place"),
        ({"backbone": "builtins.eval"}, "backbone: no network called"),
        ({"backbone": ["resnet18"]}, "backbone: expected a name or null"),
        ({"method": "os.system"}, "method: expected one of"),
        ({"method": ["lejepa"]}, "method: expected a name"),
        ({"method_options": {"dim": HUGE}}, "config.json asks for more than"),
        ({"method_options": {"projector_width": HUGE}}, "config.json asks for more than"),
        ({"method_options": {"dim": 10**30}}, "config.json describes no model"),
        ({"method_options": {"dim": "64"}}, "config.json describes no model"),
        ({"method_options": {"dim": {"a": 1}}}, "method_options: expected options by name"),
        ({"method_options": {"__class__": 1}}, "__class__: .* has no such option"),
        ({"method_options": {"backbone": "x"}}, "config.json describes no model: .*'backbone'"),
        ({"image_size": HUGE}, "image_size: expected images of at most"),
        ({"image_size": "8"}, "image_size: expected a whole number"),
        ({"image_size": -1}, "image_size: expected a whole number"),
        ({"image_size": True}, "image_size: expected a whole number"),
        ({"channels": HUGE, "mean": [0.1], "std": [0.1]}, "mean: expected 1000000000 finite numbers"),
        ({"mean": [float("nan")]}, "mean: expected 1 finite numbers"),
        ({"std": [0]}, "std: expected 1 finite numbers above 0"),
        ({"std": "x"}, "std: expected"),
        ({"source_size": [1, 2, 3]}, "source_size: expected two"),
        ({"training": []}, "training: expected settings"),
        ({"format": [1]}, "expected format 1"),
        ({"code": "import os"}, "expected the config.json of a jointembed run"),
    ],
)
def test_a_config_asks_for_nothing_out_of_the_ordinary(tmp_path: Path, changes: dict, message: str) -> None:
    folder = write_run(tmp_path / "x")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))
    with pytest.raises(ValueError, match=message):
        je.load(folder)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "[]", "null", "{} " * 10**6, "\ud800"])
def test_json_that_would_choke_a_reader_is_refused(tmp_path: Path, content: str) -> None:
    folder = write_run(tmp_path / "x")
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"config\.json: expected the config.json of a jointembed run"):
        je.load(folder)


@pytest.mark.parametrize("method", methods.names())
def test_no_size_of_a_method_exhausts_memory(tmp_path: Path, method: str) -> None:
    """Each whole number among the options a thousand million: refused, or without effect on memory."""
    folder = write_run(tmp_path / "x", method)
    values = json.loads((folder / "config.json").read_text())
    sizes = [name for name, p in methods.get(method).options().items() if "int" in str(p.annotation)]
    for name in sizes:
        (folder / "config.json").write_text(json.dumps(values | {"method_options": {name: HUGE}}))
        try:
            je.load(folder)
        except ValueError as error:
            assert "config.json" in str(error) or name in str(error) or "model.safetensors" in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["dim", "hidden", "width", "image_size", "channels"])
@pytest.mark.parametrize("value", [HUGE, 0, -3, "x", None, 1.5])
def test_a_decoder_asks_for_nothing_out_of_the_ordinary(tmp_path: Path, name: str, value: object) -> None:
    from jointembed._files import save_tensors
    from jointembed.decoding import Decoder, DecoderConfig

    values = {"dim": 4, "channels": 1, "image_size": 8, "hidden": 8, "width": 16}
    save_tensors(tmp_path / "decoder.safetensors", Decoder(DecoderConfig(**values)).state_dict())
    (tmp_path / "decoder.json").write_text(json.dumps(values | {name: value}))
    with pytest.raises(ValueError, match="decoder"):
        load_decoder(tmp_path)


def test_a_library_that_others_could_have_left_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jointembed.normality import _native

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "jointembed").mkdir(mode=0o755)
    assert _native._cache_directory() == tmp_path / "jointembed"
    os.chmod(tmp_path / "jointembed", 0o777)
    assert _native._cache_directory().parent != tmp_path
