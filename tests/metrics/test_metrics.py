import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from jointembed.metrics import effective_rank, geometry, knn_distance, knn_predict


def test_knn_agrees_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(5, 12, generator=generator)
    labels = torch.randint(5, (700,), generator=generator)
    z = centres[labels] + 1.5 * torch.randn(700, 12, generator=generator)
    bank, queries = z[:500], z[500:]

    def weights(distance: np.ndarray) -> np.ndarray:  # scikit-learn's cosine distance is 1 - cos
        return np.exp((1 - distance) / 0.07)

    reference = KNeighborsClassifier(30, metric="cosine", weights=weights).fit(bank.double(), labels[:500])
    ours = knn_predict(bank, labels[:500], queries, chunk=64)
    torch.testing.assert_close(
        (ours / ours.sum(1, keepdim=True)).double(),
        torch.from_numpy(reference.predict_proba(queries.double())),
        atol=1e-5,
        rtol=0,
    )


def test_knn_with_more_neighbours_than_images_uses_all() -> None:
    scores = knn_predict(torch.eye(3), torch.tensor([0, 1, 1]), torch.eye(3)[:1], k=30, temperature=1.0)
    torch.testing.assert_close(scores[0], torch.tensor([1.0, 2 * np.exp(-1.0)], dtype=torch.float32))


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_effective_rank_of_an_isotropic_subspace_is_its_dimension(rank: int) -> None:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(20, 20, generator=generator, dtype=torch.float64)).Q[:rank]
    coordinates = torch.linalg.qr(torch.randn(200, rank, generator=generator, dtype=torch.float64)).Q
    coordinates = torch.linalg.qr(coordinates - coordinates.mean(0)).Q
    assert effective_rank(coordinates @ basis + 3) == pytest.approx(rank)


def test_geometry_of_a_known_cloud() -> None:
    z = torch.tensor([[3.0, 4.0], [3.0, -4.0], [-3.0, 4.0], [-3.0, -4.0]])
    found = geometry(z)
    assert found.norm == pytest.approx(5)
    assert found.std == pytest.approx(((9 + 16) * 4 / 3 / 2) ** 0.5)
    p = np.array([3, 4]) / 7
    assert found.effective_rank == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert geometry(torch.ones(5, 3)).effective_rank == 1


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="labels: expected one for each of the 4 rows"):
        knn_predict(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"queries: expected \(Q, 2\)"):
        knn_predict(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="k: expected at least 1"):
        knn_predict(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), torch.zeros(1, 2), k=0)


@pytest.mark.parametrize("k", [1, 5])
def test_the_distance_to_the_nearest_agrees_with_scikit_learn(k: int) -> None:
    generator = torch.Generator().manual_seed(2)
    bank, queries = 3 * torch.randn(300, 12, generator=generator), torch.randn(150, 12, generator=generator)
    distances, _ = NearestNeighbors(n_neighbors=k, metric="cosine").fit(bank.double()).kneighbors(queries.double())
    ours = knn_distance(bank, queries, k, chunk=64)
    torch.testing.assert_close(ours.double(), torch.from_numpy(distances.mean(1)), atol=1e-5, rtol=0)


def test_the_distance_is_nothing_to_itself_and_two_to_its_opposite() -> None:
    distance = knn_distance(torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 1.0], [-3.0, 0.0]]), k=9)
    torch.testing.assert_close(distance, torch.tensor([0.0, 1.0, 2.0]))


def test_bad_arguments_of_the_distance_are_named() -> None:
    with pytest.raises(ValueError, match=r"^bank: expected \(N, D\) with at least one row, got \(0, 2\)"):
        knn_distance(torch.zeros(0, 2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"^queries: expected \(Q, 2\)"):
        knn_distance(torch.zeros(4, 2), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="^k: expected at least 1"):
        knn_distance(torch.zeros(4, 2), torch.zeros(1, 2), k=0)
