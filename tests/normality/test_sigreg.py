"""SIGReg: directions, views, resuming, and what minimising it does."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from jointembed.normality import EppsPulley, SIGReg, _native, sigreg
from jointembed.normality.directions import random_directions


def value_and_gradient(module: SIGReg, z: Tensor) -> tuple[Tensor, Tensor]:
    z = z.detach().clone().requires_grad_()
    value = module(z)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


@pytest.mark.parametrize("shape", [(40, 6), (3, 40, 6)])
@pytest.mark.parametrize("block", [2**6, 2**26])
def test_is_the_mean_of_the_test_over_slices_and_views(
    shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sigreg.BLOCK_ELEMENTS, "cpu", block)
    module = SIGReg(num_slices=600).double().eval()
    z = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = EppsPulley()(z @ module.directions(6, 0).double()).mean()
    (expected_gradient,) = torch.autograd.grad(expected, z)
    value, gradient = value_and_gradient(module, z)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, expected_gradient)


def test_views_are_tested_one_by_one_and_not_pooled() -> None:
    # Two half-normal-like views pool into a Gaussian; each by itself is not one.
    z = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    left, right = z[z < 0][:1900], z[z > 0][:1900]
    module = SIGReg(num_slices=8).eval()
    pooled = module(torch.cat([left, right]).unsqueeze(1))
    separate = module(torch.stack([left, right]).unsqueeze(2))
    assert pooled < 5
    torch.testing.assert_close(separate, (module(left.unsqueeze(1)) + module(right.unsqueeze(1))) / 2)
    assert separate > 100


def test_any_test_of_the_interface_can_be_plugged_in() -> None:
    class Variance(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.var(-2) - 1) ** 2

    z = torch.randn(30, 4, dtype=torch.float64, requires_grad=True)
    module = SIGReg(Variance(), num_slices=9).eval()
    assert torch.autograd.gradcheck(module, z)
    torch.testing.assert_close(module(z), ((z @ module.directions(4).double()).var(0) - 1).square().mean())


def test_directions_are_uniform_on_the_sphere() -> None:
    directions = random_directions(6, 60_000, seed=3, step=5)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(60_000))
    torch.testing.assert_close(directions @ directions.T / 60_000, torch.eye(6) / 6, rtol=0, atol=4e-3)
    # A coordinate of a uniform direction in D dimensions has (1 + a) / 2 ~ Beta((D-1)/2, (D-1)/2), from any side.
    for looking in (torch.eye(6)[0], torch.eye(6)[5], torch.ones(6) / 6**0.5):
        assert stats.kstest(((1 + looking @ directions) / 2).numpy(), stats.beta(2.5, 2.5).cdf).pvalue > 1e-3
    neighbours = (directions[:, 1:] * directions[:, :-1]).sum(0)
    assert stats.kstest(((1 + neighbours) / 2).numpy(), stats.beta(2.5, 2.5).cdf).pvalue > 1e-3


def test_directions_depend_on_seed_dim_and_step_alone() -> None:
    module = SIGReg(num_slices=32, seed=7)
    torch.manual_seed(1)
    first = module.directions(16, 4)
    module(torch.randn(8, 16))
    torch.testing.assert_close(module.directions(16, 4), first, rtol=0, atol=0)
    others = [SIGReg(num_slices=32, seed=8).directions(16, 4), module.directions(16, 5), module.directions(17, 4)[:16]]
    for other in others:
        assert (first * other).sum(0).abs().mean() < 0.4


def test_drawing_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    SIGReg(num_slices=8)(torch.zeros(4, 3))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_training_counts_steps_and_evaluation_does_not() -> None:
    module, z = SIGReg(num_slices=8), torch.randn(20, 5)
    values = [module(z).item() for _ in range(3)]
    assert module.step == 3
    assert len(set(values)) == 3
    module.eval()
    assert module(z) == module(z)
    assert module.step == 3


def test_resumed_run_continues_the_sequence_of_directions() -> None:
    z = torch.randn(20, 5)
    uninterrupted = SIGReg(num_slices=8)
    for _ in range(3):
        uninterrupted(z)
    resumed = SIGReg(num_slices=8)
    resumed.load_state_dict(uninterrupted.state_dict())
    assert [resumed(z).item() for _ in range(3)] == [uninterrupted(z).item() for _ in range(3)]


@pytest.mark.skipif(_native.kernels() is None, reason="no C++ compiler")
@pytest.mark.parametrize("shape", [(70, 33), (2, 19, 5)])
def test_compiled_equals_eager(shape: tuple[int, ...]) -> None:
    z = 2 * torch.randn(shape)
    eager, compiled = SIGReg(num_slices=77).eval(), SIGReg(num_slices=77, compiled=True).eval()
    torch.testing.assert_close(compiled.directions(shape[-1]), eager.directions(shape[-1]), rtol=0, atol=1e-6)
    for actual, expected in zip(value_and_gradient(compiled, z), value_and_gradient(eager, z), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_autocast_does_not_lower_the_precision() -> None:
    z = torch.randn(64, 32)
    module = SIGReg(num_slices=64).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = value_and_gradient(module, z)
    outside = value_and_gradient(module, z)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_descending_turns_a_ring_and_two_clumps_into_a_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    angle = 6.283 * torch.rand(256, generator=generator)
    clump = torch.sign(torch.rand(256, generator=generator) - 0.5) + 0.1 * torch.randn(256, generator=generator)
    z = torch.stack([1.4 * angle.cos(), 1.4 * angle.sin(), clump], dim=1).requires_grad_()
    module = SIGReg(EppsPulley(num_points=33), num_slices=64)
    optimiser = torch.optim.Adam([z], lr=0.03)

    def smallest_p_value() -> float:
        looking = random_directions(3, 20, seed=99, step=0)
        return min(stats.kstest(column, "norm").pvalue for column in (z.detach() @ looking).T.numpy())

    assert smallest_p_value() < 1e-4
    for _ in range(200):
        optimiser.zero_grad()
        module(z).backward()
        optimiser.step()
    assert smallest_p_value() > 0.2
    torch.testing.assert_close(z.detach().T.cov(), torch.eye(3), rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(4), r"z must be non-empty, of shape \(N, D\) or \(V, N, D\), got \(4,\)"),
        (torch.zeros(0, 4), r"z must be non-empty.*got \(0, 4\)"),
        (torch.zeros(4, 2, dtype=torch.int64), "z must be of a real floating dtype, got torch.int64"),
    ],
)
def test_bad_input_is_named(z: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SIGReg(num_slices=4)(z)


def test_bad_num_slices_is_named() -> None:
    with pytest.raises(ValueError, match="num_slices must be at least 1, got 0"):
        SIGReg(num_slices=0)
