"""`fit_pairs` on data whose density is known."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch.distributions import Normal

import jointembed as je
from jointembed.pairs import FITS


def crossing(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """y = x or -x with equal chance, with noise 0.1; and the mean log-density of these y."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=g) - 1
    sign = torch.randint(2, (n, 1), generator=g) * 2 - 1
    y = sign * x + 0.1 * torch.randn(n, 1, generator=g)
    true = torch.stack([Normal(x, 0.1).log_prob(y), Normal(-x, 0.1).log_prob(y)]).logsumexp(0) - math.log(2)
    return x, y, float(true.mean())


@pytest.mark.parametrize(
    ("method", "options", "gap"),
    [("gmje-mdn", {"components": 2, "steps": 600}, 0.05), ("gmje-em", {"components": 6}, 0.15), ("gmje-gng", {}, 0.25)],
)
def test_two_branches_are_told_apart(method: str, options: dict, gap: float) -> None:
    x, y, _ = crossing(1500, 0)
    x_new, y_new, true = crossing(2000, 1)
    pairs = je.fit_pairs(x, y, method, **options)
    assert float(pairs.log_prob(x_new, y_new).mean()) > true - gap
    at = torch.tensor([[-0.8], [0.7]])
    for value, found in zip(at[:, 0].abs(), pairs.modes(at, least=0.2), strict=True):
        assert float((found - value).abs().min()) < 0.1  # both branches are there
        assert float((found + value).abs().min()) < 0.1
        assert float((found.abs() - value).abs().max()) < 0.2  # and nothing else
    assert float(pairs.predict(at).abs().max()) < 0.25  # the mean lies between
    samples = pairs.sample(at, 500, seed=3)
    assert samples.shape == (500, 2, 1) and samples.equal(pairs.sample(at, 500, seed=3))
    assert float((samples.abs() - at.abs()).abs().mean()) < 0.2


def test_a_single_gaussian_or_process_cannot_say_so() -> None:
    x, y, _ = crossing(600, 0)
    x_new, y_new, true = crossing(2000, 1)
    for method in ("gje", "gje-rbf", "jepa"):
        options = {"steps": 200} if method == "jepa" else {}
        pairs = je.fit_pairs(x, y, method, **options)
        assert float(pairs.log_prob(x_new, y_new).mean()) < true - 0.5
        assert all(len(found) == 1 for found in pairs.modes(x_new[:3]))


def test_the_process_is_scikit_learns() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 2, generator=g), torch.randn(60, 1, generator=g)
    new = torch.randn(9, 2, generator=g)
    pairs = je.fit_pairs(x, y, "gje-rbf", learn=False, lengthscale=0.7, amplitude=1.3, noise=0.2)
    kernel = ConstantKernel(1.3) * RBF(0.7) + WhiteKernel(0.2)
    standard = [((a - a.mean(0)) / a.std(0)).double().numpy() for a in (x, y)]
    peer = GaussianProcessRegressor(kernel, optimizer=None).fit(*standard)
    mean, std = peer.predict(((new - x.mean(0)) / x.std(0)).double().numpy(), return_std=True)
    np.testing.assert_allclose(pairs.predict(new)[:, 0], y.mean().item() + y.std().item() * mean.ravel(), rtol=1e-4)
    np.testing.assert_allclose(pairs.condition(new).variance[:, 0].sqrt(), y.std().item() * std, rtol=1e-4)


def test_the_process_learns_its_noise() -> None:
    g = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(400, 1, generator=g)
    y = torch.sin(2 * x) + 0.3 * torch.randn(400, 1, generator=g)
    pairs = je.fit_pairs(x, y, "gje-rbf")
    inside = torch.linspace(0.5, 3.5, 50)[:, None]
    torch.testing.assert_close(pairs.predict(inside).float(), torch.sin(2 * inside), rtol=0, atol=0.2)
    assert float(pairs.condition(inside).variance.sqrt().mean()) == pytest.approx(0.3, abs=0.04)
    assert float(pairs.condition([[50.0]]).variance) > 2 * float(pairs.condition([[2.0]]).variance)


@pytest.mark.parametrize("method", ["gmje-em", "gje-matern32", "gmje-gng", "gmje-mdn"])
def test_units_do_not_matter(method: str) -> None:
    """Metres or millimetres: the same density, but for the width of a unit."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 2, generator=g), torch.randn(300, 2, generator=g)
    y[:, 0] += x[:, 1]
    options = {"steps": 50} if method == "gmje-mdn" else {}
    scale = torch.tensor([1000.0, 0.01])
    one, other = je.fit_pairs(x, y, method, **options), je.fit_pairs(x * scale - 7, y * scale + 3, method, **options)
    shift = float(scale.log().sum())
    torch.testing.assert_close(
        other.log_prob(x * scale - 7, y * scale + 3) + shift, one.log_prob(x, y), rtol=1e-2, atol=2e-2
    )


def test_numpy_columns_and_constants_are_taken() -> None:
    x = np.stack([np.linspace(0, 1, 50), np.full(50, 3.0)], 1)
    pairs = je.fit_pairs(x, 2 * x[:, 0], "gje")
    torch.testing.assert_close(pairs.predict(x)[:, 0].double(), torch.from_numpy(2 * x[:, 0]), rtol=0, atol=1e-2)


def test_bad_input_is_named() -> None:
    x = torch.randn(20, 2)
    with pytest.raises(ValueError, match="method: expected one of " + ", ".join(FITS)):
        je.fit_pairs(x, x, "magic")
    with pytest.raises(ValueError, match="x_target: expected 20 rows as x_context has, got 19"):
        je.fit_pairs(x, x[1:])
    with pytest.raises(ValueError, match="x_context: expected finite values, got 1"):
        je.fit_pairs(x.clone().index_put_((torch.tensor(0), torch.tensor(0)), torch.tensor(math.nan)), x)
    with pytest.raises(ValueError, match=r"x_target: expected shape \(N, D\), got \(2, 2, 2\)"):
        je.fit_pairs(x[:2], torch.zeros(2, 2, 2))
    with pytest.raises(ValueError, match="components: expected 1 to 20"):
        je.fit_pairs(x, x, "gmje-em", components=30)
    with pytest.raises(ValueError, match="noise: expected above 0"):
        je.fit_pairs(x, x, "gje-rbf", noise=-1.0)
    pairs = je.fit_pairs(x, x, "gje")
    with pytest.raises(ValueError, match=r"x: expected shape \(N, 2\), got \(4, 3\)"):
        pairs.predict(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="y: expected 20 rows as x has, got 7"):
        pairs.log_prob(x, x[:7])
