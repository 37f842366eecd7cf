import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from jointembed.evaluation import confusion, per_class_accuracy


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    labels, predicted = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 2, 2, 2, 0])
    assert confusion(predicted, labels).tolist() == [[1, 0, 2], [0, 0, 0], [1, 0, 1]]
    np.testing.assert_allclose(per_class_accuracy(predicted, labels), [1 / 3, np.nan, 1 / 2])
    assert confusion(predicted, labels, classes=4).shape == (4, 4)


def test_both_agree_with_scikit_learn_and_with_each_other() -> None:
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 6, 500), rng.integers(0, 6, 500)
    ours = confusion(torch.from_numpy(predicted), torch.from_numpy(labels)).numpy()
    assert (ours == confusion_matrix(labels, predicted)).all()
    accuracy = per_class_accuracy(torch.from_numpy(predicted), torch.from_numpy(labels)).numpy()
    np.testing.assert_allclose(accuracy, ours.diagonal() / ours.sum(1))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="^predicted: expected class numbers from 0 .* got torch.float32"):
        confusion(torch.zeros(3), torch.zeros(3).long())
    with pytest.raises(ValueError, match="^labels: expected class numbers from 0"):
        per_class_accuracy(torch.zeros(3).long(), torch.tensor([0, -1, 0]))
    with pytest.raises(ValueError, match="^labels: expected one for each of the 3 predictions, got 2"):
        confusion(torch.zeros(3).long(), torch.zeros(2).long())
    with pytest.raises(ValueError, match="^classes: expected at least 4, .* got 3"):
        confusion(torch.tensor([0, 3]), torch.tensor([0, 1]), classes=3)
