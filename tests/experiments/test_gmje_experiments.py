"""The GMJE experiments: their measures on known densities, and the failures that must fail."""

import pytest
import torch

from jointembed.distributions import GaussianMixture
from jointembed.experiments import gmje_failures, gmje_synthetic


def grid(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = torch.linspace(-1, 1, 50)[:, None], torch.linspace(-2.5, 2.5, 2001)
    return x, y, torch.cat([branch(x) for branch in gmje_synthetic.SETS[name]], 1)


@pytest.mark.parametrize("name", ["A", "B"])
def test_the_true_density_has_no_error(name: str) -> None:
    _, y, middle = grid(name)
    density = gmje_synthetic.density_of(middle).log_prob(y[:, None, None].expand(-1, 50, 1)).exp().T
    torch.testing.assert_close(density.sum(1) * (y[1] - y[0]), torch.ones(50), rtol=0, atol=1e-4)
    found = gmje_synthetic.measure(density, y, middle, list(middle[:, :, None]))
    assert found["mode error"] == 0
    assert max(found["weight error"], found["sigma error"], found["in the gaps"]) < 2e-3


def test_a_single_gaussian_has_the_errors_one_can_work_out() -> None:
    _, y, middle = grid("A")
    wide = GaussianMixture.isotropic(torch.ones(1), middle.mean(1)[:, None, None], torch.ones(1))
    density = wide.log_prob(y[:, None, None].expand(-1, 50, 1)).exp().T
    found = gmje_synthetic.measure(density, y, middle, list(wide.means))
    apart = torch.stack([(middle[:, i] - middle[:, j]).abs() for i, j in ((0, 1), (0, 2), (1, 2))]).amin(0) > 0.3
    expected = (middle - middle.mean(1, keepdim=True)).abs()[apart].mean()
    assert found["mode error"] == pytest.approx(float(expected), rel=1e-4)
    assert found["in the gaps"] > 0.5


def test_pairs_lie_on_their_branches() -> None:
    x, y, truth = gmje_synthetic.draw_pairs(gmje_synthetic.SETS["B"], 4000, 0)
    middle = torch.cat([branch(x) for branch in gmje_synthetic.SETS["B"]], 1)
    assert float((y - middle).abs().amin(1).max()) < 5 * gmje_synthetic.NOISE
    # The entropy of three branches apart is that of one and log 3; where they meet it is less.
    assert -0.49 - 0.1 < -float(truth.log_prob(y).mean()) < -0.49 + 0.02


@pytest.mark.parametrize("name", ["trace trap", "identity collapse"])
def test_what_fails_falls_and_its_remedy_does_not(name: str) -> None:
    _, failure, remedy, _ = gmje_failures.FAILURES[name]
    failed, held = (gmje_failures.train(setting, 400, 0)["watched"] for setting in (failure, remedy))
    assert failed[-1] / failed[0] < 0.5 * held[-1] / held[0]
    assert failed[-1] < 0.3 * failed[0]
