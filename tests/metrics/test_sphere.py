import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.special import ive

from jointembed.metrics import alignment, uniformity


@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_uniformity_agrees_with_scipys_pairs(chunk: int) -> None:
    z = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = z.numpy() / np.linalg.norm(z.numpy(), axis=1, keepdims=True)
    for t in (0.5, 2.0):
        reference = np.log(np.exp(-t * pdist(x, "sqeuclidean")).mean())
        assert uniformity(3 * z, t, chunk) == pytest.approx(reference, rel=1e-10)


def test_uniformity_of_known_point_sets() -> None:
    assert uniformity(torch.tensor([[2.0, 0.0], [-5.0, 0.0]])) == pytest.approx(-8)  # opposite: |x - y|^2 = 4
    assert uniformity(torch.eye(4)) == pytest.approx(-4)  # all pairs at right angles
    assert uniformity(torch.ones(10, 3)) == pytest.approx(0, abs=1e-12)
    square = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    assert uniformity(square) == pytest.approx(math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6))


def test_uniformity_of_the_circle_is_a_bessel_function() -> None:
    """On the whole circle E exp(-t |x - y|^2) = exp(-2 t) I_0(2 t); the n points miss one of n pairs, the one at 0."""
    n = 2000
    angle = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    whole = ive(0, 4.0)  # exp(-4) I_0(4)
    assert uniformity(torch.stack([angle.cos(), angle.sin()], 1)) == pytest.approx(
        math.log((n * whole - 1) / (n - 1)), rel=1e-10
    )


def test_alignment_is_the_mean_over_all_pairs_of_views() -> None:
    rng = np.random.default_rng(0)
    views = rng.normal(size=(20, 4, 5))
    x = views / np.linalg.norm(views, axis=2, keepdims=True)
    for alpha in (1.0, 2.0):
        reference = np.mean([pdist(image) ** alpha for image in x])
        assert alignment(torch.from_numpy(views), alpha) == pytest.approx(reference, rel=1e-12)


def test_alignment_at_its_ends() -> None:
    same = torch.randn(9, 1, 4, generator=torch.Generator().manual_seed(0)).expand(9, 3, 4)
    assert alignment(same * torch.tensor([1.0, 2.0, 3.0])[:, None]) == pytest.approx(0, abs=1e-12)  # length is nothing
    assert alignment(torch.stack([same[:, 0], -same[:, 0]], 1)) == pytest.approx(4)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"^views: expected \(N, V, D\) of at least 1 x 2 x 1, got \(5, 3\)"):
        alignment(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="^alpha: expected a number above 0, got 0"):
        alignment(torch.zeros(5, 2, 3), alpha=0)
    with pytest.raises(ValueError, match=r"^z: expected \(N, D\) of at least 2 x 1, got \(1, 3\)"):
        uniformity(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="^t: expected a number above 0, got -1"):
        uniformity(torch.zeros(5, 3), t=-1)
    with pytest.raises(ValueError, match="^chunk: expected at least 1, got 0"):
        uniformity(torch.zeros(5, 3), chunk=0)
