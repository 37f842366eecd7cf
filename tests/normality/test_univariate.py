"""What holds for every univariate test: gradients, invariances, precision, power, errors, and use in SIGReg."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from benchmarks.measure import peak_extra_bytes
from jointembed.normality import (
    AndersonDarling,
    CramerVonMises,
    Entropy,
    EppsPulley,
    ExtendedJarqueBera,
    JarqueBera,
    Moments,
    ShapiroWilk,
    SIGReg,
    Watson,
    create,
    names,
)

TESTS: dict[str, nn.Module] = {
    "CramerVonMises": CramerVonMises(),
    "AndersonDarling": AndersonDarling(),
    "Watson": Watson(),
    "ShapiroWilk": ShapiroWilk(),
    "ShapiroFrancia": ShapiroWilk("shapiro-francia"),
    "RahmanGovindarajulu": ShapiroWilk("rahman-govindarajulu"),
    "JarqueBera": JarqueBera(),
    "ExtendedJarqueBera": ExtendedJarqueBera(),
    "Moments": Moments(),
    "Entropy": Entropy(),
}
every_test = pytest.mark.parametrize("test", TESTS.values(), ids=TESTS.keys())


def samples(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(test: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    test(x).sum().backward()
    assert x.grad is not None
    return x.grad


def test_every_test_has_a_name() -> None:
    x = 1.5 * samples(21, 4) + 0.3
    words = {name.replace("-", ""): create(name) for name in names()}
    assert set(words) == {name.lower() for name in TESTS} | {"eppspulley"}
    for name, test in TESTS.items():
        torch.testing.assert_close(words[name.lower()](x), test(x), rtol=0, atol=0)
    torch.testing.assert_close(create("epps-pulley", t_max=3.0, num_points=9)(x), EppsPulley(3.0, 9)(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "first"), [("watsen", "watson"), ("Shapiro-Wilks", "shapiro-wilk"), ("epps", "epps-pulley")]
)
def test_an_unknown_name_lists_the_known_ones_closest_first(name: str, first: str) -> None:
    with pytest.raises(ValueError, match=f"^test: expected one of {first}, .*, got '{name}'$") as raised:
        create(name)
    assert all(known in str(raised.value) for known in names())


@every_test
def test_gradient_passes_gradcheck(test: nn.Module) -> None:
    assert torch.autograd.gradcheck(test, (1.3 * samples(2, 9, 3) + 0.2).requires_grad_())


@every_test
def test_every_column_of_a_batch_is_tested_by_itself(test: nn.Module) -> None:
    x = 1.5 * samples(2, 3, 21, 4)
    result = test(x)
    assert result.shape == (2, 3, 4)
    for index in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        column = x[index[0], index[1], :, index[2]]
        torch.testing.assert_close(result[index], test(column.unsqueeze(1))[0])


@every_test
def test_order_of_samples_does_not_matter(test: nn.Module) -> None:
    x, order = samples(40, 5), torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(test(x[order]), test(x))
    torch.testing.assert_close(gradient(test, x[order]), gradient(test, x)[order])


@every_test
def test_mirrored_samples_are_as_normal(test: nn.Module) -> None:
    x = samples(33, 5).exp() - 1
    torch.testing.assert_close(test(-x), test(x))


@every_test
def test_sigreg_averages_it_and_its_gradient_over_slices(test: nn.Module) -> None:
    module = SIGReg(test, num_slices=50).double().eval()
    z = samples(2, 30, 6).requires_grad_()
    expected = test(z @ module.directions(6).double()).mean()
    (expected_gradient,) = torch.autograd.grad(expected, z)
    actual = module(z)
    (actual_gradient,) = torch.autograd.grad(actual, z)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual_gradient, expected_gradient)


@every_test
def test_descending_makes_samples_more_normal_by_that_test(test: nn.Module) -> None:
    x = samples(200, 1).abs().pow(1.5).mul(2 * (samples(200, 1, seed=1) > -0.5) - 1).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.02)
    before = test(x).item()
    for _ in range(60):
        optimiser.zero_grad()
        test(x).sum().backward()
        optimiser.step()
    assert test(x).item() < 0.5 * before


@every_test
def test_float32_is_close_to_float64_for_a_large_batch(test: nn.Module) -> None:
    x = samples(8192, 3).float()
    torch.testing.assert_close(test(x).double(), test(x.double()), rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(gradient(test, x).double(), gradient(test, x.double()), rtol=1e-2, atol=2e-5)


@every_test
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(test: nn.Module, dtype: torch.dtype) -> None:
    x = samples(60, 4).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = test(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, test(x.double()).float(), rtol=1e-4, atol=1e-5)
    assert gradient(test, x).dtype == dtype


@every_test
def test_nan_stays_in_its_column(test: nn.Module) -> None:
    x = samples(20, 3)
    clean = test(x)
    x[4, 1] = math.nan
    result = test(x)
    assert result.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(result[[0, 2]], clean[[0, 2]])


@every_test
def test_first_use_in_inference_mode_does_not_spoil_training(test: nn.Module) -> None:
    x = samples(37, 2)  # a number of samples no other test here has
    with torch.inference_mode():
        expected = test(x)
    torch.testing.assert_close(test(x.requires_grad_()).detach(), expected.clone())
    assert gradient(test, x).isfinite().all()


@every_test
def test_memory_is_linear_in_samples(test: nn.Module) -> None:
    def peak(n: int) -> int:
        x = samples(n, 8).requires_grad_()
        return peak_extra_bytes(lambda: test(x).sum().backward())

    assert peak(2000) < 20 * 2000 * 8 * 8
    assert peak(2000) < 4.5 * peak(500)


@every_test
def test_too_few_samples_are_named(test: nn.Module) -> None:
    fewest = test.fewest
    assert isinstance(fewest, int)
    test(samples(fewest, 2))
    message = rf"x must have at least {fewest} samples in dimension -2, got shape \({fewest - 1}, 2\)"
    with pytest.raises(ValueError, match=message):
        test(torch.zeros(fewest - 1, 2))


@every_test
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4), r"x must have shape \(..., N, M\), got \(4,\)"),
        (torch.zeros(4, 2, dtype=torch.int64), "x must be of a real floating dtype, got torch.int64"),
        (torch.zeros(4, 2, dtype=torch.complex64), "x must be of a real floating dtype, got torch.complex64"),
    ],
)
def test_bad_input_is_named(test: nn.Module, x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        test(x)


def uniform(n: int, m: int) -> Tensor:
    return math.sqrt(12) * (torch.rand(n, m, generator=torch.Generator().manual_seed(5)) - 0.5)


def laplace(n: int, m: int) -> Tensor:
    u = torch.rand(n, m, generator=torch.Generator().manual_seed(6)) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs()) / math.sqrt(2)


def shifted(n: int, m: int) -> Tensor:
    return samples(n, m, seed=7).float() + 0.3


# By construction these do not see location (and scale), or anything but location and scale.
BLIND = {
    ("ShapiroWilk", "shifted"),
    ("ShapiroFrancia", "shifted"),
    ("RahmanGovindarajulu", "shifted"),
    ("JarqueBera", "shifted"),
    ("Moments", "uniform"),
    ("Moments", "laplace"),
}


@pytest.mark.parametrize("name", TESTS)
def test_power_at_the_one_percent_level_is_full_but_where_the_test_is_blind(name: str) -> None:
    n, test = 1000, TESTS[name]
    critical = torch.quantile(test(samples(n, 1000, seed=8).float()), 0.99)
    for alternative in (uniform, laplace, shifted):
        rejected = (test(alternative(n, 100)) > critical).float().mean().item()
        if (name, alternative.__name__) in BLIND:
            assert rejected < 0.1, alternative.__name__
        else:
            assert rejected > 0.95, alternative.__name__


def test_three_points_with_a_normals_first_five_moments_fool_moments_and_nothing_else() -> None:
    # Theorem 3: the nodes and weights of Gauss-Hermite quadrature with three points.
    root = math.sqrt(3)
    x = torch.tensor([-root, 0.0, 0.0, 0.0, 0.0, root], dtype=torch.float64).repeat(200).unsqueeze(1)
    assert [(x**k).mean().item() for k in range(1, 6)] == pytest.approx([0, 1, 0, 3, 0], abs=1e-12)
    statistics = {name: test(x).item() for name, test in TESTS.items()}
    # What is left is the divisor N - 1 of the variance.
    assert statistics["JarqueBera"] == pytest.approx(0, abs=1e-12)
    assert statistics["Moments"] < 1e-6
    assert statistics["ExtendedJarqueBera"] < 1e-3
    normal = samples(1200, 300, seed=9)
    for name in TESTS.keys() - {"JarqueBera", "Moments", "ExtendedJarqueBera"}:
        assert statistics[name] > 2 * TESTS[name](normal).max(), name
    assert EppsPulley()(x) > 3 * EppsPulley()(normal).max()
