"""LeJEPA's small experiments: the claims themselves at the smallest size, beside scipy, closed forms and quadrature."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from jointembed.experiments import (
    lejepa_gradients,
    lejepa_isotropy,
    lejepa_moments,
    lejepa_quadrature,
    lejepa_slices,
    lejepa_x,
    lejepa_x_sizes,
)
from jointembed.normality import EppsPulley, SIGReg

pytestmark = pytest.mark.usefixtures("_one_thread")


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The table a run left, once its Markdown and its figure are there as well."""
    assert (folder / f"{name}.md").is_file()
    assert (folder / f"{name}.png").stat().st_size > 10_000
    return json.loads((folder / f"{name}.json").read_text())["rows"]


def test_the_x_is_uncorrelated_with_normal_marginals() -> None:
    z = lejepa_x.cross(20_000, 4, 0)
    torch.testing.assert_close(torch.cov(z.mT), torch.eye(4), rtol=0, atol=0.04)
    torch.testing.assert_close(z[:, 1].abs(), z[:, 0].abs())
    with pytest.raises(ValueError, match="even dim"):
        lejepa_x.cross(100, 5, 0)


def test_epps_pulley_dissolves_the_x_and_moments_do_not(tmp_path: Path) -> None:
    lejepa_x.run(str(tmp_path), dim=8, steps=100, statistics=("Epps-Pulley", "Moments"))
    rows = {(row["descent"], row["statistic"]): row for row in rows_of(tmp_path, "lejepa-x")}
    assert float(rows["-", "before"]["correlation of squares, X"]) == 1
    for descent in ("Adam", "plain"):
        flattened, kept = rows[descent, "Epps-Pulley"], rows[descent, "Moments"]
        for column in ("Henze-Zirkler, X", "correlation of squares, X"):
            assert float(flattened[column]) < float(kept[column]) < float(rows["-", "before"][column])
    passes = {key: row["X passes for N(0, I)"] for key, row in rows.items()}
    assert (passes["-", "before"], passes["Adam", "Moments"], passes["Adam", "Epps-Pulley"]) == ("no", "no", "yes")


@pytest.mark.parametrize("name", [*lejepa_x.TESTS, "random gradients"])
def test_first_plain_steps_are_equally_long(name: str) -> None:
    start = lejepa_x.cross(50, 8, 0)
    moved = []
    for which in (name, "Epps-Pulley"):
        rate = lejepa_x.plain_rate(start, lejepa_x.loss_of(which, 4, 0), 4, 0)
        z = lejepa_x.descend(start, lejepa_x.loss_of(which, 4, 0), 1, rate, "plain")
        moved.append(float((z - start).norm()))
    assert moved[0] == pytest.approx(moved[1], rel=1e-3)


def test_every_size_has_its_row(tmp_path: Path) -> None:
    lejepa_x_sizes.run(str(tmp_path), samples=30, dims=(4,), slices=(2, 5), steps=3)
    rows = rows_of(tmp_path, "lejepa-x-sizes")
    assert len(rows) == 2 * len(lejepa_x.DRAWN_IN_THE_PAPER)
    assert {(row["dim"], row["slices"]) for row in rows} == {(4, 2), (4, 5)}


def test_few_new_directions_beat_many_fixed_ones(tmp_path: Path) -> None:
    lejepa_slices.run(str(tmp_path), 48, 32, resampled=(16,), fixed=(4, 64, 256), steps=120)
    rows = {
        (row["directions"], row["per step"]): float(row["mean statistic"]) for row in rows_of(tmp_path, "lejepa-slices")
    }
    assert rows["drawn anew", 16] < rows["fixed", 256] < rows["fixed", 64] < rows["fixed", 4] <= rows["before", "-"]


def test_new_directions_are_new_and_fixed_ones_stay() -> None:
    z = torch.randn(20, 6)
    for training in (True, False):
        sigreg = SIGReg(num_slices=3).train(training)
        assert (float(sigreg(z)) != float(sigreg(z))) is training


@pytest.mark.parametrize("name", list(lejepa_quadrature.DISTRIBUTIONS))
def test_exact_integral_is_that_of_scipy(name: str) -> None:
    x = lejepa_quadrature.draw_samples(40, 0)[name]
    values = x.numpy()

    def integrand(t: float) -> float:
        return abs(np.exp(1j * t * values).mean() - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2)

    integral = 2 * 40 * quad(integrand, 0, 12, limit=400)[0]
    assert lejepa_quadrature.exact(x) == pytest.approx(integral, rel=1e-6)


def test_quadrature_error_falls_faster_than_quadratically(tmp_path: Path) -> None:
    lejepa_quadrature.run(str(tmp_path), samples=200)
    for row in rows_of(tmp_path, "lejepa-quadrature"):
        if row["t_max"] == "8" and not row["distribution"].startswith("wide"):
            coarse, fine, finest = (float(row[f"{number} points"]) for number in (9, 33, 129))
            assert fine < coarse / 16 and finest < 1e-10
        if row["t_max"] == "5" and not row["distribution"].startswith("wide"):
            assert float(row["17 points"]) < 0.01


def test_the_gradient_of_epps_pulley_keeps_its_bound_and_others_have_none(tmp_path: Path) -> None:
    lejepa_gradients.run(str(tmp_path), largest=1000.0, num=41)
    rows = {row["statistic"]: row for row in rows_of(tmp_path, "lejepa-gradients")}
    for column in ("one sample leaves: largest", "all too narrow: largest", "all too wide: largest"):
        assert float(rows["Epps-Pulley"][column]) < lejepa_gradients.GRADIENT_BOUND
    # One sample far out: the k-th moment is x^k / N, so its square has the slope x^(2k - 1).
    assert float(rows["moments to 8"]["power, last decade"]) == pytest.approx(15, abs=0.1)
    assert float(rows["Extended Jarque-Bera"]["power, last decade"]) == pytest.approx(3, abs=0.1)
    assert float(rows["Anderson-Darling"]["power, last decade"]) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_no_sample_exceeds_the_bounds(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 10, generator=g, dtype=torch.float64) * torch.logspace(-3, 3, 200).double()[:, None]
    assert float(lejepa_gradients.gradients(EppsPulley(), x).abs().max()) <= lejepa_gradients.GRADIENT_BOUND
    assert float(lejepa_gradients.curvatures(x).abs().max()) <= lejepa_gradients.curvature_bound(10)


def test_the_largest_gradient_is_reached() -> None:
    x = torch.full((1, 20_000), math.sqrt(2) + 1).double()
    x[0, 0] = math.sqrt(2)
    found = float(lejepa_gradients.gradients(EppsPulley(8.0, 65), x)[0, 0])
    assert found == pytest.approx(lejepa_gradients.LARGEST_GRADIENT, rel=1e-3)


@pytest.mark.parametrize("number", [2, 3, 5, 8])
def test_atoms_share_moments_with_the_normal(number: int) -> None:
    x, weights = lejepa_moments.atoms(number)
    for k in range(1, 2 * number):
        assert weights @ x**k == pytest.approx(norm.moment(k), rel=1e-10, abs=1e-10)
    assert weights @ x ** (2 * number) != pytest.approx(norm.moment(2 * number), rel=1e-3)
    # Many samples, in proportion to the weights, have the statistic of the atoms.
    counts = np.round(weights * 200_000).astype(int)
    sample = torch.from_numpy(np.repeat(x, counts))[:, None]
    per_sample = float(EppsPulley(8.0, 65)(sample)) / len(sample)
    assert per_sample == pytest.approx(lejepa_moments.squared_distance(x, weights), rel=0.02, abs=1e-9)


def test_equal_moments_deceive_tests_of_moments_and_not_epps_pulley(tmp_path: Path) -> None:
    lejepa_moments.run(str(tmp_path), nodes=(2, 3), samples=600, draws=100)
    two, three = rows_of(tmp_path, "lejepa-moments")
    for row in (two, three):
        assert float(row["their largest relative difference"]) < 1e-10
        assert row["Epps-Pulley rejects"] == "100%"
        assert int(row["Moments rejects"][:-1]) <= 15
    for name in ("Jarque-Bera", "Extended Jarque-Bera", "moments to 4"):
        assert two[f"{name} rejects"] == "100%"  # its fourth moment differs
        assert int(three[f"{name} rejects"][:-1]) <= 15


def test_isotropic_gaussians_are_best_for_every_probe(tmp_path: Path) -> None:
    lejepa_isotropy.run(str(tmp_path), conditions=(1.0, 10.0, 100.0), draws=200)
    rows = rows_of(tmp_path, "lejepa-isotropy")
    values = {key: [float(row[title].split()[0]) for row in rows[:3]] for key, title in lejepa_isotropy.COLUMNS.items()}
    for key in ("bias", "mean_bias", "variance", "neighbours", "kernel"):
        assert values[key] == sorted(values[key]), key
    isotropic = rows[0]
    for key in ("neighbours", "kernel"):
        title = lejepa_isotropy.COLUMNS[key]
        for row in rows[3:]:
            assert float(row[title].split()[0]) > float(isotropic[title].split()[0]), row["embeddings"]
        simulated, formula = isotropic[title].split()
        assert float(simulated) == pytest.approx(float(formula.strip("()")), rel=0.1)


def test_linear_probes_have_the_variance_of_the_formula() -> None:
    found = lejepa_isotropy.linear(lejepa_isotropy.spectrum(10.0, 4), 60, 4000, seed=0)
    for key in ("variance", "prediction"):
        assert found[key][0] == pytest.approx(found[key][1], rel=0.05)


def test_fisher_information_is_the_closed_form() -> None:
    for name, expected in {"Gaussian": 1.0, "Student, 5 df": 1.25, "Laplace": 2.0}.items():
        assert lejepa_isotropy.fisher_information(lejepa_isotropy.SHAPES[name]) == pytest.approx(expected, rel=1e-3)
