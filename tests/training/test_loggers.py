from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import Logger
from tiny import TINY, tiny_network

import jointembed as je
from jointembed.training.loggers import COLOURS, MARGIN, SIDE, embedding_picture, make_loggers


class Told(Logger):
    """A logger that remembers."""

    name, version = "told", "0"

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.pictures: list[tuple[str, np.ndarray, int]] = []

    def log_hyperparams(self, *args, **kwargs) -> None: ...

    def log_metrics(self, metrics, step=None) -> None:
        self.metrics |= metrics

    def log_image(self, key, images, step) -> None:
        self.pictures += [(key, image, step) for image in images]


def test_every_logger_is_told_and_shown_the_same(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = Told()
    options = {"epochs": 3, "watch_every": 2, "batch_size": 256, "progress": False}
    je.train(
        "digits", backbone=tiny_network(), out=tmp_path / "x", logger=["tensorboard", "csv", told], **options, **TINY
    )
    events = EventAccumulator(str(tmp_path / "x/tensorboard"))
    events.Reload()
    last = events.Scalars("loss")[-1].value
    rows = (tmp_path / "x/metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("loss")
    assert float(rows[-1].split(",")[column]) == pytest.approx(last, rel=1e-6) == told.metrics["loss"]
    assert "loss" in (tmp_path / "x/csv/metrics.csv").read_text().splitlines()[0]
    steps = [step for name, _, step in told.pictures if name == "embeddings"]
    assert steps == [event.step for event in events.Images("embeddings")]  # after epochs 2 and 3
    assert len(steps) == 2 and steps[1] * 2 == steps[0] * 3
    assert (events.Images("embeddings")[0].width, events.Images("embeddings")[0].height) == (SIDE, SIDE)
    assert all({tuple(c) for c in COLOURS} & {tuple(p) for p in image.reshape(-1, 3)} for _, image, _ in told.pictures)


def test_dots_lie_along_the_principal_axes() -> None:
    z = torch.zeros(4, 5)
    z[0, 3], z[1, 3], z[2, 1], z[3, 1] = 2.0, -2.0, 1.0, -1.0
    picture = embedding_picture(z, torch.tensor([0, 1, 2, -1]))
    middle = SIDE // 2
    row = {tuple(picture[middle, x]) for x in (MARGIN, SIDE - MARGIN)}
    assert row == {tuple(COLOURS[0]), tuple(COLOURS[1])}  # the first axis from left to right
    half = (SIDE // 2 - MARGIN) // 2
    column = {tuple(picture[middle + sign * half, middle]) for sign in (-1, 1)}
    assert column == {tuple(COLOURS[2]), (200, 200, 200)}
    assert (embedding_picture(torch.full((4, 5), torch.nan), None) == 255).all()
    assert (embedding_picture(torch.ones(4, 5), None)[middle, middle] == COLOURS[0]).all()


def test_loggers_are_checked_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match="logger: expected tensorboard, wandb, csv, none or a logger of Lightning's, got 'x'"
    ):
        je.train("digits", out=tmp_path / "x", logger="x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"logger: wandb needs the package of that name: pip install jointembed\[wandb\]"
    ):
        je.train("digits", out=tmp_path / "x", logger="wandb")
    assert make_loggers("none", tmp_path) == [] and not list(tmp_path.iterdir())
