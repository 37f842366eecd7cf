"""Every baseline in a short training on digits: it learns, it scores, and it goes on from a checkpoint."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_network

import jointembed as je
from jointembed.metrics import effective_rank

# What suits a hundred steps of a tiny network: short memories, few prototypes.
OPTIONS: dict[str, dict[str, Any]] = {
    "simclr": {"temperature": 0.5},
    "moco-v2": {"bank": 512, "ema": 0.95, "symmetric": True},
    "byol": {"ema": 0.95},
    "simsiam": {},
    "vicreg": {"dim": 64},
    "barlow-twins": {"dim": 64},
    "swav": {"prototypes": 64},
    "dino": {"dim": 64, "prototypes": 256, "ema": 0.99, "batch_norm": True},
    "jepa": {"ema": 0.95},
}
VIEWS = {"crop_scale": (0.6, 1.0), "rotation": 10.0}


def train(method: str, out: Path, data: Any = "digits", **options: Any) -> je.Model:
    torch.manual_seed(0)
    settings = {"projector_width": 64, "dim": 16, "batch_size": 128, "watch_every": 100, "hold_out": 0.0}
    settings |= {"preset": "mnist", "view_options": VIEWS, "progress": False} | OPTIONS[method] | options
    return je.train(data, method, tiny_network(), out=out, **settings)


@torch.no_grad()
def confusion(model: je.Model) -> float:
    """Share of other images whose projection is nearer to a view's than that of the other view of its image."""
    views = je.data.Views(8, "mnist", mean=model.config.mean, std=model.config.std, **VIEWS)
    a, b = (
        model.method.eval().encode(v)["projector"] for v in views(je.data.open_source("digits").batch(range(512)), 0)
    )
    distances = torch.cdist(a, b)
    return float((distances < distances.diagonal()[:, None]).float().mean())


@pytest.mark.parametrize("method", OPTIONS)
def test_training_makes_views_of_an_image_alike_and_images_different(method: str, tmp_path: Path) -> None:
    untrained = train(method, tmp_path / "untrained", epochs=1, lr=1e-9)
    model = train(method, tmp_path / "trained", epochs=6)
    projected = model.embed("digits", "projector")
    assert confusion(model) < 0.75 * confusion(untrained)
    assert float(effective_rank(projected)) > projected.shape[1] / 8
    losses = [float(row["loss"]) for row in csv.DictReader((tmp_path / "trained" / "metrics.csv").open())]
    assert losses[-1] < min(losses[:2])
    images = je.data.open_source("digits").batch(range(20))
    density = torch.distributions.MultivariateNormal(
        model.method.density_mean.double(), scale_tril=model.method.density_scale_tril.double()
    )
    scores = model.anomaly_score(images).double()
    torch.testing.assert_close(scores, -density.log_prob(projected[:20].double()), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("moco-v2", {}),
        ("byol", {}),
        ("swav", {"queue": 100, "queue_start": 1.0, "freeze_epochs": 2.5}),
        ("dino", {"temperature_epochs": 4.0, "freeze_epochs": 2.5, "num_local": 1, "local_size": 6}),
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    method: str, options: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Teacher, queue and centre are in the checkpoint, and schedules go on where they were."""
    data = je.data.open_source("digits").subset(range(300))
    settings = {"data": data, "batch_size": 60, "epochs": 4, **options}
    whole = train(method, tmp_path / "whole", **settings)
    cls, calls = je.methods.get(method), 0
    forward = cls.forward

    def power_cut(self: je.methods.Method, *args: Any) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 13:  # in the middle of the third epoch of 5 steps
            raise RuntimeError("power cut")
        return forward(self, *args)

    monkeypatch.setattr(cls, "forward", power_cut)
    with pytest.raises(RuntimeError, match="power cut"):
        train(method, tmp_path / "cut", **settings)
    monkeypatch.undo()
    resumed = train(method, tmp_path / "cut", **settings, resume=True)
    assert resumed.method.clock == whole.method.clock == (19, 20, 3.8)
    state, expected = resumed.method.state_dict(), whole.method.state_dict()
    assert [name for name in expected if not state[name].equal(expected[name])] == []
