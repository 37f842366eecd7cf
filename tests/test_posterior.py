"""A trained VJE model: posteriors, scores and what does not fit, against scipy and torch."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats as st
import torch
from tiny import tiny_network
from torch.distributions import Independent, Normal

import jointembed as je


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vje") / "run"
    je.train("digits", "vje", "resnet10-tiny", epochs=2, out=folder, batch_size=128, df=2.0, progress=False)
    return folder


@pytest.fixture
def model(folder: Path) -> je.Model:
    return je.load(folder)


@pytest.fixture
def images() -> torch.Tensor:
    return je.data.open_source("digits").batch(range(40))


def test_posterior_is_an_independent_normal_with_the_embedded_moments(model, images):
    posterior = model.posterior(images)
    assert isinstance(posterior, Independent) and isinstance(posterior.base_dist, Normal)
    assert posterior.batch_shape == (40,) and posterior.event_shape == model.embed(images).shape[1:]
    torch.testing.assert_close(posterior.mean, model.embed(images, "mu"))
    torch.testing.assert_close(posterior.variance, model.embed(images, "variance"))
    assert (posterior.variance > 0).all()
    torch.testing.assert_close(model.posterior(images, batch_size=7).mean, posterior.mean, rtol=1e-4, atol=1e-4)


def test_log_prob_and_scores_are_what_they_say(model, images):
    z, mu, variance = (model.embed(images, space).double().numpy() for space in ("z", "mu", "variance"))
    for i in range(5):
        unit = lambda x: x / np.linalg.norm(x)  # noqa: E731
        direction = st.multivariate_t(unit(mu[i]), np.diag(variance[i]), 2.0).logpdf(unit(z[i]))
        radius = st.t(2.0).logpdf(np.linalg.norm(z[i]) - np.linalg.norm(mu[i]))
        assert float(model.log_prob(images[i : i + 1])) == pytest.approx(direction + radius, rel=1e-3)
    scores = model.anomaly_scores(images)
    assert list(scores) == ["joint", "sphere", "variance", "entropy", "density"]
    torch.testing.assert_close(scores["joint"], -model.log_prob(images))
    np.testing.assert_allclose(scores["variance"], variance.sum(1), rtol=1e-4)
    entropy = [st.norm(scale=np.sqrt(v)).entropy().sum() for v in variance]
    np.testing.assert_allclose(scores["entropy"], entropy, rtol=1e-4)
    gaussian = st.multivariate_normal(
        model.method.density_mean.numpy(), (model.method.density_scale_tril @ model.method.density_scale_tril.T).numpy()
    )
    np.testing.assert_allclose(scores["density"], -gaussian.logpdf(z), rtol=1e-2, atol=0.5)
    polar = je.distributions.PolarStudentT(torch.from_numpy(mu), torch.from_numpy(variance), 2.0)
    expected = scores["joint"] + polar.direction_log_mass(2000)
    np.testing.assert_allclose(scores["sphere"], expected, atol=1.0)


def test_samples_average_over_the_posterior(model, images):
    one = torch.stack([model.anomaly_score(images, samples=1, seed=seed) for seed in range(50)])
    many = model.anomaly_score(images, samples=200, seed=99)
    error = one.std(0) * (1 / 50 + 1 / 200) ** 0.5
    assert ((one.mean(0) - many).abs() < 5 * error).all()
    assert (one.std(0) > 0).all()
    assert torch.equal(model.anomaly_score(images, samples=3), model.anomaly_score(images, samples=3))


def test_reference_scores_are_kept_with_the_run(model, folder):
    whole = je.data.open_source("digits")
    held_out = len(model.reference["held_out/joint"])
    assert held_out == round(0.05 * len(whole))
    assert len(model.reference["train/entropy"]) == len(whole) - held_out
    everything = torch.cat([model.reference["train/joint"], model.reference["held_out/joint"]]).sort().values
    torch.testing.assert_close(everything, model.anomaly_score(whole).sort().values, rtol=1e-3, atol=1e-2)


def test_what_does_not_fit_is_named(model, images):
    for words, ask in {
        r"images: expected 8 x 8 as in training, got \(16, 16\)": lambda: model.posterior(
            torch.zeros(3, 1, 16, 16).byte()
        ),
        "images: expected 1 channels, got 3": lambda: model.posterior(torch.zeros(3, 3, 8, 8).byte()),
        "score: expected one of joint, sphere, variance, entropy, density, got 'knn'": lambda: model.anomaly_score(
            images, "knn"
        ),
        "samples: expected at least 0, got -1": lambda: model.anomaly_score(images, samples=-1),
    }.items():
        with pytest.raises(ValueError, match=words):
            ask()


def test_bad_options_stop_before_anything_is_written(tmp_path):
    for options, words in [
        ({"df": -1.0}, "df: expected degrees of freedom above 0, got -1"),
        ({"beta": -1.0}, "beta"),
        ({"target": "frozen"}, "target: expected 'detached', 'attached' or 'ema', got 'frozen'"),
        ({"ema": 1.0}, "ema: expected a decay"),
        ({"bottleneck": 0}, "bottleneck"),
        ({"hold_out": 1.0}, "hold_out: expected a share from 0 to below 1, got 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            je.train("digits", "vje", tiny_network(), epochs=1, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_infinite_df_survives_saving(tmp_path):
    model = je.train(
        "digits", "vje", "resnet10-tiny", epochs=1, out=tmp_path / "run", df=math.inf, view_size=8, progress=False
    )
    images = je.data.open_source("digits").batch(range(4))
    torch.testing.assert_close(je.load(tmp_path / "run").log_prob(images), model.log_prob(images))
    assert je.load(tmp_path / "run").method.df == math.inf
