"""The estimators pass scikit-learn's own checks, and do what they are for."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score, r2_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import jointembed as je
from jointembed import methods
from jointembed.sklearn import GrowingNeuralGas, JointEmbedding, MixtureRegressor, SIGRegTest


@parametrize_with_checks(
    [
        MixtureRegressor("gmje-em", components=2),
        MixtureRegressor(options={"steps": 100}),
        GrowingNeuralGas(max_nodes=15),
        SIGRegTest(num_slices=8, draws=9),
        JointEmbedding(epochs=2, width=16, features=8, options={"dim": 8, "projector_width": 16, "num_slices": 16}),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def branches(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 1, (n, 1))
    return x, rng.choice([-1, 1], n) * x[:, 0] + 0.05 * rng.normal(size=n)


def test_the_regressor_gives_both_branches_and_fit_pairs_numbers():
    x, y = branches(600, 0)
    model = MixtureRegressor("gmje-em", components=4, random_state=0).fit(x, y)
    at = np.array([[0.6], [0.9]])
    for value, modes in zip(at[:, 0], model.predict_modes(at, least=0.3), strict=True):
        assert sorted(np.round(modes[:, 0], 1)) == pytest.approx([-value, value], abs=0.1)
    assert np.abs(model.predict(at)).max() < 0.2
    drawn = model.sample_y(at, 2000)
    assert drawn.shape == (2, 2000)
    assert np.abs(np.abs(drawn).mean(1) - at[:, 0]).max() < 0.05
    density = model.predict_distribution(at)
    assert model.log_prob(at, [0.6, -0.9]) == pytest.approx(
        density.log_prob(torch.tensor([[0.6], [-0.9]], dtype=torch.float64)).numpy()
    )
    x_new, y_new = branches(300, 1)
    assert model.score(x_new, y_new) == pytest.approx(r2_score(y_new, model.predict(x_new)))


def test_the_number_of_components_is_found_by_grid_search():
    x, y = branches(400, 0)
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), MixtureRegressor("gmje-em", random_state=0)),
        {"mixtureregressor__components": [1, 4]},
        scoring=lambda model, x, y: model[-1].log_prob(model[0].transform(x), y).mean(),
        cv=3,
    ).fit(x, y)
    assert grid.best_params_ == {"mixtureregressor__components": 4}


def test_the_gas_has_the_defaults_of_the_one_it_wraps():
    ours, theirs = (inspect.signature(gas).parameters for gas in (GrowingNeuralGas, methods.gmje.GrowingNeuralGas))
    shared = ours.keys() & theirs.keys()
    assert {"max_nodes", "eps_b", "eps_n", "max_age", "insert_every"} <= shared
    assert all(ours[name].default == theirs[name].default for name in shared)


def test_the_gas_finds_the_number_of_clusters():
    x, y = make_blobs(900, centers=4, cluster_std=0.4, random_state=3)
    gas = GrowingNeuralGas(max_nodes=40, random_state=0).fit(x)
    assert gas.n_clusters_ == 4
    assert adjusted_rand_score(y, gas.labels_) > 0.99
    assert (gas.predict(x) == gas.labels_).all()
    assert gas.transform(x).min(1) @ gas.transform(x).min(1) == pytest.approx(gas.inertia_)


def test_p_values_are_uniform_for_gaussians_and_small_for_others():
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(3, 3))
    found = [
        SIGRegTest(num_slices=16, draws=49, random_state=i).fit(rng.normal(size=(60, 3)) @ mix).pvalue_
        for i in range(80)
    ]
    assert kstest(found, "uniform").pvalue > 0.01
    assert SIGRegTest(draws=199, random_state=0).fit(rng.exponential(size=(200, 3))).pvalue_ == 1 / 200


def test_embedding_rows_helps_a_classifier_and_finds_outliers():
    x, y = load_digits(return_X_y=True)
    model = JointEmbedding(epochs=15, random_state=0).fit(x[:1200])
    few = slice(0, 60)
    raw = make_pipeline(StandardScaler(), KNeighborsClassifier(1)).fit(x[few], y[few]).score(x[1200:], y[1200:])
    z = model.transform(x)
    assert KNeighborsClassifier(1).fit(z[few], y[few]).score(z[1200:], y[1200:]) > raw
    strange = np.random.default_rng(0).permuted(x[1200:], axis=1)
    scores = model.score_samples(np.concatenate([x[1200:], strange]))
    assert roc_auc_score(np.arange(len(scores)) < len(scores) // 2, scores) > 0.95
    assert (model.predict(x[:1200]) == -1).mean() == pytest.approx(0.05, abs=0.002)


def test_images_are_trained_as_train_does(tmp_path):
    images = je.data.open_source("digits").batch(range(200)).numpy()
    options = {"backbone": "conv4", "epochs": 1, "batch_size": 50, "lr": 1e-3}
    model = JointEmbedding(**options, random_state=5).fit(images)
    seed = int(np.random.RandomState(5).randint(2**31))
    peer = je.train(images, out=tmp_path / "run", seed=seed, hold_out=0.0, **options)
    assert np.array_equal(model.transform(images), peer.embed(images).numpy())
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.score_samples(images), -peer.anomaly_score(images).double().numpy())
