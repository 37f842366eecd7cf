"""Low-discrepancy directions: uniform, more even than random ones, and reproducible."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from jointembed.normality import EppsPulley, SIGReg
from jointembed.normality.directions import random_directions, sobol_directions


def test_each_direction_is_uniform_on_the_sphere_over_steps() -> None:
    # The same point of the sequence, step after step: (1 + a) / 2 of a coordinate is Beta((D-1)/2, (D-1)/2).
    directions = torch.stack([sobol_directions(6, 8, seed=3, step=step) for step in range(3000)])
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(3000, 8))
    for looking in (torch.eye(6)[0], torch.eye(6)[5], torch.ones(6) / 6**0.5):
        for slice_ in (0, 1, 7):
            coordinate = ((1 + directions[:, :, slice_] @ looking) / 2).numpy()
            assert stats.kstest(coordinate, stats.beta(2.5, 2.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dim", [2, 8, 32])
def test_covers_the_sphere_more_evenly_than_random_directions(dim: int) -> None:
    def unevenness(directions: Tensor) -> float:
        return (directions @ directions.T / directions.shape[1] - torch.eye(dim) / dim).square().sum().item()

    sobol, gaussian = (
        sum(unevenness(make(dim, 1024, seed=0, step=step)) for step in range(10))
        for make in (sobol_directions, random_directions)
    )
    assert sobol < 0.5 * gaussian


def test_estimates_the_mean_over_all_directions_with_less_variance() -> None:
    z = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([2.0, 1.0, 0.5, 0.2])
    spread = {}
    for directions in ("gaussian", "sobol"):
        module = SIGReg(num_slices=256, directions=directions)  # type: ignore[arg-type]
        spread[directions] = torch.stack([module(z) for _ in range(20)]).std()
    assert spread["sobol"] < 0.5 * spread["gaussian"]


def test_depend_on_seed_dim_and_step_alone() -> None:
    module = SIGReg(num_slices=32, seed=7, directions="sobol")
    torch.manual_seed(1)
    first = module.directions(16, 4)
    state = torch.random.get_rng_state()
    module(torch.zeros(8, 16))
    assert torch.equal(torch.random.get_rng_state(), state)
    for _ in range(5):  # as many as push the first sequence out of the cache
        module.directions(5 + _)
    assert torch.equal(SIGReg(num_slices=32, seed=7, directions="sobol").directions(16, 4), first)
    other_seed = SIGReg(num_slices=32, seed=8, directions="sobol").directions(16, 4)
    for other in (other_seed, module.directions(16, 5), module.directions(17, 4)[:16]):
        assert (first * other).sum(0).abs().mean() < 0.4


def test_resumed_run_continues_the_sequence() -> None:
    z = torch.randn(20, 5)
    uninterrupted, resumed = (SIGReg(num_slices=8, directions="sobol") for _ in range(2))
    values = [uninterrupted(z).item() for _ in range(3)]
    assert len(set(values)) == 3
    resumed.load_state_dict(uninterrupted.state_dict())
    assert [resumed(z).item() for _ in range(3)] == [uninterrupted(z).item() for _ in range(3)]


def test_sigreg_is_the_mean_over_these_directions() -> None:
    module = SIGReg(num_slices=100, directions="sobol").eval()
    z = torch.randn(40, 6, dtype=torch.float64)
    torch.testing.assert_close(module(z), EppsPulley()(z @ sobol_directions(6, 100, 0, 0).double()).mean())


def test_one_dimension_has_both_signs_and_no_zero() -> None:
    directions = sobol_directions(1, 64, seed=0, step=0)
    assert directions.abs().eq(1).all()
    assert directions.sum() == 0  # 64 points: 32 on either side of the median


def test_first_draw_in_inference_mode_does_not_spoil_training() -> None:
    module = SIGReg(num_slices=11, directions="sobol")
    z = torch.randn(9, 3, requires_grad=True)
    with torch.inference_mode():
        expected = module.eval()(z).item()
    value = module(z)
    value.backward()
    assert value.item() == pytest.approx(expected)


def test_too_many_dimensions_and_unknown_directions_are_named() -> None:
    with pytest.raises(ValueError, match="dim must be at most 21201 with directions='sobol', got 21202"):
        SIGReg(num_slices=2, directions="sobol").directions(21202)
    with pytest.raises(ValueError, match="directions must be one of gaussian, sobol, got 'halton'"):
        SIGReg(directions="halton")  # type: ignore[arg-type]
