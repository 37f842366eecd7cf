import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from jointembed.evaluation import draw_per_class, few_shot

Problem = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def problem() -> Problem:
    x, y = make_classification(900, 20, n_informative=8, n_classes=4, class_sep=2.0, random_state=0)
    x, y = torch.from_numpy(x).float() * torch.logspace(-2, 2, 20), torch.from_numpy(y)
    return x[:600], y[:600], x[600:], y[600:]


def test_a_draw_has_k_different_images_of_each_class() -> None:
    labels = torch.tensor([5, 0, 5, 2, 0, 2, 2, 5, 0, 5])
    rows = draw_per_class(labels, 3, seed=1)
    assert labels[rows].tolist() == [0, 0, 0, 2, 2, 2, 5, 5, 5]
    assert len(rows.unique()) == 9
    assert torch.equal(rows, draw_per_class(labels, 3, seed=1))
    draws = {tuple(draw_per_class(labels, 3, seed=seed)[-3:].sort().values.tolist()) for seed in range(60)}
    assert len(draws) == 4  # each way to leave out one of four


def test_each_draw_is_scikit_learns_regression_on_those_images(problem: Problem) -> None:
    x, y, x_test, y_test = problem
    found = few_shot(*problem, shots=(1, 5), draws=3, strength=0.5, seed=7)
    scaler = StandardScaler().fit(x.numpy())
    for k in (1, 5):
        accuracies = []
        for draw in range(3):
            rows = draw_per_class(y, k, (7, k, draw))
            regression = LogisticRegression(C=0.5, max_iter=300, tol=1e-3).fit(
                scaler.transform(x[rows].numpy()), y[rows]
            )
            accuracies.append(regression.score(scaler.transform(x_test.numpy()), y_test))
        assert found[k].accuracies == pytest.approx(accuracies, abs=1e-6)
        assert found[k].mean == pytest.approx(np.mean(found[k].accuracies))
        assert found[k].std == pytest.approx(np.std(found[k].accuracies, ddof=1))


def test_more_labels_are_better_and_labels_without_meaning_are_chance(problem: Problem) -> None:
    found = few_shot(*problem, shots=(1, 10, 100), draws=4)
    assert found[1].mean < found[10].mean < found[100].mean
    assert found[100].std < found[1].std
    x, y, x_test, y_test = problem
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    chance = few_shot(x, shuffled, x_test, y_test, shots=(10,), draws=20)[10]
    assert chance.mean == pytest.approx(0.25, abs=0.05)


def test_too_few_images_are_an_error_by_name(problem: Problem) -> None:
    x, y, x_test, y_test = problem
    some = torch.cat([torch.nonzero(y != 2).flatten(), torch.nonzero(y == 2).flatten()[:7]])
    names = ["ant", "bee", "cat", "dog"]
    with pytest.raises(
        ValueError, match=r"^shots: expected at least 10 training images of every class, got cat \(7\)$"
    ):
        few_shot(x[some], y[some], x_test, y_test, shots=(5, 10), class_names=names)
    with pytest.raises(ValueError, match=r"of every class, got 2 \(7\)$"):
        few_shot(x[some], y[some], x_test, y_test, shots=(5, 10))
    with pytest.raises(ValueError, match="^shots: expected whole numbers of at least 1, got "):
        few_shot(*problem, shots=(0, 1))
    with pytest.raises(ValueError, match="^draws: expected at least 2, .* got 1"):
        few_shot(*problem, draws=1)
    with pytest.raises(ValueError, match="^strength: expected a number above 0, got 0"):
        few_shot(*problem, shots=(1,), strength=0)
    with pytest.raises(ValueError, match=r"^train_labels: expected at least two classes, got \[0\]"):
        few_shot(x, torch.zeros_like(y), x_test, y_test, shots=(1,))
