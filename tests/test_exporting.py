"""A file that left the library says what the model says, to anybody, for any number of images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tiny import tiny_network

import jointembed as je
from jointembed.cli import main
from jointembed.exporting import export
from jointembed.model import Config, Model

SIZES = (1, 5, 9)  # the graphs are made with two images


def a_model(method: str = "lejepa", backbone: str | None = None, **options: object) -> Model:
    """A model with the weights of a few steps' moving averages, and a fitted density."""
    torch.manual_seed(0)
    small = {} if method in ("vje", "vsimsiam") else {"dim": 8}
    config = Config(method, small | options, backbone, 1, 8, [0.3], [0.4])
    model = config.build(None if backbone else tiny_network())
    digits = je.data.open_source("digits").subset(torch.arange(200))
    with torch.no_grad():
        model.method.train()
        for _ in range(4):
            model.method([torch.rand(16, 1, 8, 8), torch.rand(16, 1, 8, 8)], 2)
            model.method.after_step()
    model.method.eval()
    model.method.fit_density(model.embed(digits, model.method.density_space, progress=False))
    return model


def check(model: Model, run) -> set[str]:
    """`run` maps uint8 images to outputs by name; each must be what the model itself gives. The names are returned."""
    seen: set[str] = set()
    for number in SIZES:
        images = torch.as_tensor(je.data.open_source("digits").batch(range(number)))
        scores = model.anomaly_scores(images, progress=False)
        posterior = model.posterior(images, progress=False) if hasattr(model.method, "posterior") else None
        for name, found in run(images).items():
            kind, _, rest = name.partition("_")
            if kind == "score":
                expected = scores[rest]
            elif kind == "posterior":
                expected = getattr(posterior, rest)
            else:
                expected = model.embed(images, None if name == "features" else name, progress=False)
            assert found.shape == expected.shape
            np.testing.assert_allclose(
                found, expected.detach(), atol=1e-4 * max(1, float(expected.abs().max())), err_msg=name
            )
            seen.add(name)
    return seen


def run_onnx(path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(None, {"images": np.asarray(images)}), strict=True))


def run_torchscript(path: Path):
    extra = {"names": ""}
    network = torch.jit.load(str(path), _extra_files=extra)
    return lambda images: dict(zip(json.loads(extra["names"]), network(images), strict=True))


METHODS = [
    ("lejepa", {}, {"features", "projector", "score_density"}),
    ("vje", {}, {"features", "mu", "variance", "score_joint", "score_variance", "score_entropy", "score_density"}),
    ("vje", {"projector": 16, "df": float("inf")}, {"projector", "score_joint"}),
    ("gmje", {"prototypes": 4}, {"posterior_mean", "posterior_variance", "posterior_weights", "score_density"}),
    ("gmje", {"prototypes": 4, "covariance": "full"}, {"posterior_mean", "posterior_variance", "score_density"}),
    ("gmje-mdn", {}, {"posterior_mean", "posterior_weights", "score_density", "score_conditional"}),
    ("gmje-smc", {"bank": 64}, {"posterior_mean", "posterior_variance", "posterior_weights", "score_density"}),
    ("gje", {}, {"posterior_mean", "posterior_variance"}),
    ("gje", {"variant": "dual", "bank": 32}, {"posterior_mean", "posterior_variance"}),
    ("gje", {"variant": "rff", "bank": 32, "num_features": 64}, {"posterior_mean", "posterior_variance"}),
    ("vsimsiam", {"dim": 8}, {"mu", "concentration", "score_likelihood", "score_concentration"}),
    ("vssl", {}, {"mu", "variance", "score_entropy"}),
    ("lejepa-vje", {}, {"mu", "variance", "score_joint"}),
    ("lejepa-mdn", {}, {"posterior_mean", "posterior_variance", "posterior_weights", "score_conditional"}),
]
FEW = ("vje", "gmje", "gmje-mdn", "gje")  # one of each kind of head; the others in `make soak`


def cases(short: bool):
    """Each method once if `short`, the few; else all."""
    few = {name: case for case in reversed(METHODS) if (name := case[0]) in FEW}
    chosen = list(few.values()) if short else METHODS
    ids = ["-".join([method, *map(str, options.values())]) for method, options, _ in chosen]
    return pytest.mark.parametrize(("method", "options", "names"), chosen, ids=ids)


def torchscript(method: str, options: dict, names: set, path: Path) -> None:
    model = a_model(method, **options)
    export(model, path, "torchscript")
    assert check(model, run_torchscript(path)) >= names


@cases(short=True)
def test_torchscript_says_what_the_model_says(method: str, options: dict, names: set, tmp_path: Path) -> None:
    torchscript(method, options, names, tmp_path / "x.pt")


@pytest.mark.soak
@cases(short=False)
def test_torchscript_says_what_every_model_says(method: str, options: dict, names: set, tmp_path: Path) -> None:
    torchscript(method, options, names, tmp_path / "x.pt")


def test_onnx_says_what_the_model_says(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = a_model("vje")
    how = model.export(tmp_path / "x.onnx")
    assert check(model, run_onnx(tmp_path / "x.onnx")) >= METHODS[1][2]
    assert "uint8 (N, 1, 8, 8) -> features, mu, variance" in how
    kept = {p.key: p.value for p in onnx.load(tmp_path / "x.onnx").metadata_props}
    assert json.loads(kept["jointembed.mean"]) == [0.3]
    assert [path.name for path in tmp_path.iterdir()] == ["x.onnx"]


@pytest.mark.soak
@cases(short=False)
def test_onnx_says_what_the_model_says_for_every_method(method: str, options: dict, names: set, tmp_path: Path) -> None:
    model = a_model(method, **options)
    export(model, tmp_path / "x.onnx", "onnx")
    assert check(model, run_onnx(tmp_path / "x.onnx")) >= names


@pytest.mark.parametrize("backbone", ["resnet10-tiny", "resnet18", "vit-narrow"])
def test_the_printed_lines_make_timm_give_the_same_features(backbone: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = Config("lejepa", {"dim": 8}, backbone, 1, 8, [0.3], [0.4]).build()
    with torch.no_grad():
        for buffer in model.method.backbone.buffers():  # statistics that are not those of a fresh network
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    how = model.export(tmp_path / "x.safetensors", "timm")
    images = torch.as_tensor(je.data.open_source("digits").batch(range(5)))
    space = {"timm": timm, "torch": torch}
    exec(how, space)
    with torch.no_grad():
        found = space["network"].eval()((images / 255 - 0.3) / 0.4)
    torch.testing.assert_close(found, model.embed(images, progress=False), atol=1e-4, rtol=1e-4)


def test_timm_is_refused_what_it_cannot_make(tmp_path: Path) -> None:
    for model, what in ((a_model(), "a module of your own"), (a_model(backbone="conv4"), "conv4")):
        with pytest.raises(ValueError, match=f"format: expected a backbone that timm can make, got {what}"):
            model.export(tmp_path / "x.safetensors", "timm")
    assert not list(tmp_path.iterdir())


def test_safetensors_hold_the_weights_and_what_images_must_be_like(run: Path, tmp_path: Path, capsys) -> None:
    main(["export", str(run), "--format", "safetensors", "--out", str(tmp_path / "x.safetensors")])
    assert f"{tmp_path / 'x.safetensors'}: use it with" in capsys.readouterr().out
    model = je.load(run)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        known = file.metadata()
        for name, value in model.method.backbone.state_dict().items():
            assert torch.equal(file.get_tensor(name), value)
    assert json.loads(known["mean"]) == model.config.mean and json.loads(known["std"]) == model.config.std
    assert (known["method"], known["backbone"], known["image_size"]) == ("lejepa", "resnet10-narrow", "8")
    assert known["data"] == model.config.training["data"]


def test_export_refuses_before_it_works(run: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.onnx"
    there.write_text("mine")
    for flags, words in (
        (["--out", str(there)], "out: expected a name that is free, .*there.onnx exists"),
        (["--out", "x.pt"], "out: expected a file name ending in .onnx for onnx, got x.pt"),
        (["--format", "torchscript", "--out", "x.onnx"], "out: expected a file name ending in .pt for torchscript"),
    ):
        with pytest.raises(SystemExit, match=f"^jointembed: {words}"):
            main(["export", "no-such-run", *flags])
    assert there.read_text() == "mine"
    with pytest.raises(ValueError, match="format: expected one of onnx, torchscript, timm, safetensors, got 'gguf'"):
        je.load(run).export("x", "gguf")
    untrained = Config("lejepa", {}, "conv4", 1, 8, [0.3], [0.4]).build()
    with pytest.raises(ValueError, match="model: it has no fitted density"):
        untrained.export(tmp_path / "x.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]


def test_a_file_that_says_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    monkeypatch.setattr("jointembed.graphs.Components.forward", lambda self, z: z)
    with pytest.raises(ArithmeticError, match="x.pt was not written: its score_density would be"):
        model.export(tmp_path / "x.pt", "torchscript")
    assert not list(tmp_path.iterdir())
