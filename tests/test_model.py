import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import multivariate_normal
from tiny import TINY

import jointembed as je
from jointembed.data import open_source
from jointembed.training.run import _hold_out


@pytest.fixture(scope="module")
def model(run: Path) -> je.Model:
    return je.load(run)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return open_source("digits", split="test").batch(torch.arange(40))


def test_arrays_tensors_pictures_and_folders_embed_alike(model: je.Model, images: torch.Tensor, tmp_path: Path) -> None:
    expected = model.embed(images)
    assert expected.shape == (40, 256)
    pictures = [Image.fromarray(image[0].numpy()) for image in images]
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i:02}.png")
    for given in (images.numpy(), pictures, tmp_path, str(tmp_path)):
        torch.testing.assert_close(model.embed(given), expected, atol=1e-5, rtol=1e-4)


def test_batches_do_not_matter(model: je.Model, images: torch.Tensor) -> None:
    torch.testing.assert_close(model.embed(images, batch_size=7), model.embed(images), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.embed(images[:1]), model.embed(images)[:1], atol=1e-5, rtol=1e-4)


def test_a_run_loads_in_another_process_with_the_same_embeddings(
    run: Path, model: je.Model, images: torch.Tensor, tmp_path: Path
) -> None:
    np.save(tmp_path / "images.npy", images.numpy())
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.json", "model.safetensors"):  # and nothing else
        (moved / name).write_bytes((run / name).read_bytes())
    code = "import sys, jointembed as je, numpy as np; np.save(sys.argv[3], je.load(sys.argv[1]).embed(sys.argv[2]))"
    paths = [str(path) for path in (moved, tmp_path / "images.npy", tmp_path / "z.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "z.npy")), model.embed(images), atol=1e-5, rtol=1e-4)


def test_log_prob_is_the_gaussian_of_the_training_embeddings(model: je.Model, images: torch.Tensor) -> None:
    trained_on, _ = _hold_out(open_source("digits"), 0.05, seed=0)
    train = model.embed(trained_on, "projector").double().numpy()
    z = model.embed(images, "projector").double().numpy()
    from sklearn.covariance import LedoitWolf

    fitted = LedoitWolf().fit(train)
    expected = multivariate_normal(fitted.location_, fitted.covariance_).logpdf(z)
    np.testing.assert_allclose(model.log_prob(images), expected, rtol=1e-3, atol=1e-2)
    assert torch.equal(model.anomaly_score(images), -model.log_prob(images))


def test_other_digits_are_stranger_than_those_it_learned() -> None:
    result = je.evaluation.one_class(
        "digits", classes=[0], backbone="resnet10-tiny", epochs=10, batch_size=32, preset="mnist", progress=False,
        **(TINY | {"view_options": None}),
    )  # fmt: skip
    assert result.summary()["density"]["auroc"] > 0.75


def test_samples_have_the_density_s_mean_and_covariance(model: je.Model) -> None:
    density = model.method.density()
    z = model.sample(20_000)
    scale = density.stddev
    assert ((z.mean(0) - density.mean) / scale).abs().max() < 0.05
    assert ((z.T.cov() - density.covariance_matrix) / (scale[:, None] * scale)).abs().max() < 0.06
    assert torch.equal(model.sample(3, seed=5), model.sample(3, seed=5))


def test_what_does_not_fit_is_named(model: je.Model, images: torch.Tensor) -> None:
    for argument, call in {
        "space": lambda: model.embed(images, "posterior"),
        "images": lambda: model.embed(images.expand(-1, 3, -1, -1)),
        "batch_size": lambda: model.embed(images, batch_size=0),
        "n": lambda: model.sample(0),
        "method: 'lejepa' gives no posterior": lambda: model.posterior(images),
        "run": lambda: je.load("no/such/folder"),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}"):
            call()


def test_broken_run_folders_are_refused_and_nothing_in_them_runs(run: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "exploded",))

    config = (run / "config.json").read_bytes()
    weights = (run / "model.safetensors").read_bytes()
    foreign = json.dumps({**json.loads(config), "format": 99}).encode()
    for number, (a, b) in enumerate(
        [
            (pickle.dumps(Bomb()), weights),
            (config, pickle.dumps(Bomb())),
            (config, weights[:1000]),
            (b"{}", weights),
            (foreign, weights),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_bytes(a)
        (folder / "model.safetensors").write_bytes(b)
        with pytest.raises(ValueError, match=r"config\.json|model\.safetensors"):
            je.load(folder)
    assert not (tmp_path / "exploded").exists()
