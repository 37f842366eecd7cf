import csv
import json
import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler
from PIL import Image
from tiny import TINY, tiny_network
from torch import nn

import jointembed as je
from jointembed.methods.lejepa import LeJEPA
from jointembed.training import Diverged


def train(out: Path, seed: int = 0, **options: object) -> je.Model:
    torch.manual_seed(seed)
    settings = {"epochs": 2, "batch_size": 128, **TINY, **options}
    return je.train("digits", backbone=tiny_network(), out=out, seed=seed, **settings)


def weights(model: je.Model) -> torch.Tensor:
    return torch.cat([p.flatten() for p in model.method.state_dict().values() if p.is_floating_point()])


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    a, b, c = train(tmp_path / "a"), train(tmp_path / "b"), train(tmp_path / "c", seed=1)
    assert torch.equal(weights(a), weights(b))
    assert not torch.equal(weights(a), weights(c))


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", epochs=4)
    calls = 0
    forward = LeJEPA.forward

    def power_cut(self: LeJEPA, *args: object) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 27:  # in the middle of the third epoch of 11 steps
            raise RuntimeError("power cut")
        return forward(self, *args)

    monkeypatch.setattr(LeJEPA, "forward", power_cut)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "cut", epochs=4)
    monkeypatch.undo()
    resumed = train(tmp_path / "cut", epochs=4, resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    epochs = [row["epoch"] for row in csv.DictReader((tmp_path / "cut" / "metrics.csv").open())]
    assert epochs == ["0", "1", "2", "3"]


def test_training_leaves_the_callers_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    network = tiny_network()
    torch.manual_seed(7)
    je.train("digits", backbone=network, out=tmp_path / "x", epochs=1, batch_size=256, **TINY)
    assert torch.equal(torch.rand(3), expected)


def test_training_learns_to_tell_digits_apart(tmp_path: Path) -> None:
    options = {
        "epochs": 15,
        "watch_every": 15,
        "view_options": {"crop_scale": (0.7, 1.0), "flip": 0.0, "solarise": 0.0},
    }
    trained = train(tmp_path / "x", **options)
    untrained = je.evaluate(train(tmp_path / "y", lr=1e-9), "digits", linear="none")
    result = je.evaluate(trained, "digits")
    assert 1 - result["knn"] < 0.8 * (1 - untrained["knn"])  # random features are good on digits; these are better
    rows = list(csv.DictReader((tmp_path / "x" / "metrics.csv").open()))
    assert float(rows[-1]["sigreg"]) < 0.5 * float(rows[0]["sigreg"])
    assert float(rows[-1]["effective_rank"]) > 8


def test_a_nan_loss_stops_at_its_step_and_keeps_the_last_good_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = LeJEPA.forward, 0

    def poisoned(self: LeJEPA, *args: object) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        terms = forward(self, *args)
        return terms if calls <= 15 else {**terms, "loss": terms["loss"] * torch.nan}

    monkeypatch.setattr(LeJEPA, "forward", poisoned)
    with pytest.raises(Diverged, match=r"not finite at step 15 \(epoch 1\)"):
        train(tmp_path / "x")
    model = je.load(tmp_path / "x", backbone=tiny_network())
    assert weights(model)[~weights(model).isnan()].numel() > 0
    assert model.embed("digits").isfinite().all()
    with pytest.raises(ValueError, match="no fitted density"):
        model.anomaly_score("digits")


class Collapsed(nn.Module):
    """Gives every image the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features.expand(len(x), -1)


def test_the_collapse_watch_warns_in_words_and_stops_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"epochs": 3, "batch_size": 256, "watch_every": 1, **TINY}
    with caplog.at_level(logging.WARNING, "jointembed"):
        je.train("digits", backbone=Collapsed(), out=tmp_path / "x", stop_on_collapse=True, **options)
    assert "collapse after epoch 1: all images get nearly the same features" in caplog.text
    assert len(list(csv.DictReader((tmp_path / "x" / "metrics.csv").open()))) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "jointembed"):
        je.train("digits", backbone=tiny_network(), out=tmp_path / "y", **options)
    assert "collapse" not in caplog.text


def test_ctrl_c_leaves_a_loadable_model(tmp_path: Path) -> None:
    out = tmp_path / "x"
    command = [sys.executable, "-m", "jointembed", "train", "--data", "digits", "--backbone", "resnet10-narrow"]
    command += ["--epochs", "10000", "--out", str(out), "--num-slices", "16", "--dim", "8", "--batch-size", "512"]
    # A shell's background job ignores Ctrl-C, and its children inherit that.
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=default)
    deadline = time.monotonic() + 120
    while not (out / "checkpoint.ckpt").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    finally:
        process.kill()
    assert process.returncode == 130, process.stderr.read() if process.stderr else ""
    assert je.load(out).anomaly_score("digits").isfinite().all()
    assert not [path for path in os.listdir(out) if path.startswith(".")]


def test_fewer_images_than_a_batch_shrink_the_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    with caplog.at_level(logging.WARNING, "jointembed"):
        je.train(images, backbone=tiny_network(), out=tmp_path / "x", epochs=2, **TINY)
    assert "batch_size: 256 is more than the 20 images; using 20" in caplog.text
    assert json.loads((tmp_path / "x" / "config.json").read_text())["training"]["batch_size"] == 20


def test_local_views_and_five_channels_train(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 5, 12, 12), dtype=torch.uint8)
    model = je.train(
        images, backbone=tiny_network(5), out=tmp_path / "x", epochs=1, batch_size=20, num_local=2, local_size=6, **TINY
    )
    assert model.embed(images).shape == (40, 32)


def test_a_folder_of_photographs_trains_embeds_and_lists_what_it_skipped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "photos" / ("dogs" if i % 2 else "cats")
        folder.mkdir(parents=True, exist_ok=True)
        size = tuple(rng.integers(20, 40, 2))
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    (tmp_path / "photos" / "cats" / "broken.jpg").write_bytes(b"not a picture")
    options = {"epochs": 2, "batch_size": 16, "image_size": 16, **TINY}
    runs = []
    for name in "ab":  # the second run reads the cache, in other workers
        torch.manual_seed(0)
        runs.append(je.train(tmp_path / "photos", backbone=tiny_network(3), out=tmp_path / name, **options))
    assert torch.equal(*map(weights, runs))
    assert "skipped cats/broken.jpg" in (tmp_path / "a" / "log.txt").read_text()
    assert runs[0].embed(tmp_path / "photos").shape == (40, 32)


def test_lightning_stays_reachable(tmp_path: Path) -> None:
    model = train(tmp_path / "x", trainer={"max_steps": 3, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0})
    checkpoint = torch.load(tmp_path / "x" / "checkpoint.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3
    assert model.method.sigreg.step == 6


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("epochs", {"epochs": 0}),
        ("batch_size", {"batch_size": -1}),
        ("lr", {"lr": float("nan")}),
        ("num_local", {"num_local": -1}),
        ("method", {"method": "lejeppa"}),
        ("slices", {"slices": 3}),
        ("projector_layers", {"projector_layers": 7}),
        ("preset", {"preset": "simclear"}),
        ("backbone", {"backbone": "resnet19"}),
        ("data", {"data": "digitss"}),
        ("labels", {"labels": [1, 2, 3]}),
        ("resume", {"resume": True}),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(tmp_path: Path, argument: str, options: dict) -> None:
    settings = {"data": "digits", "backbone": "resnet10-narrow", "epochs": 1, "out": tmp_path / "x", **options}
    with pytest.raises(ValueError, match=f"^{argument}"):
        je.train(**settings)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_not_empty_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="out: .* exists and is not an empty folder"):
        train(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_is_resumed_only_as_it_began(tmp_path: Path) -> None:
    train(tmp_path / "x", epochs=1)
    with pytest.raises(ValueError, match=r"resume: the run in .* has lr 0.002, got 0.1"):
        train(tmp_path / "x", epochs=2, lr=0.1, resume=True)
    # A method may have gained an option since: it has its default, and the run goes on.
    config = tmp_path / "x/config.json"
    written = json.loads(config.read_text())
    del written["method_options"]["predictor_width"]
    config.write_text(json.dumps(written))
    assert torch.equal(weights(train(tmp_path / "x", epochs=2, resume=True)), weights(train(tmp_path / "y", epochs=2)))


def test_a_trainer_may_be_given_objects(tmp_path: Path) -> None:
    train(tmp_path / "x", epochs=1, trainer={"profiler": PassThroughProfiler(), "max_steps": 1})
    recorded = json.loads((tmp_path / "x" / "config.json").read_text())["training"]["trainer"]
    assert recorded["max_steps"] == 1
    assert "PassThroughProfiler" in recorded["profiler"]
