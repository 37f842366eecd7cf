"""The Shapiro–Wilk test and two relatives: how straight a line the sorted samples draw against a normal's."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from jointembed.normality.univariate import UnivariateTest, constant

Form = Literal["shapiro-wilk", "shapiro-francia", "rahman-govindarajulu"]

# W = (a . x_(.))^2 / sum (x_i - mean)^2. With m and V the mean and covariance of a normal's order statistics, Shapiro
# and Wilk's a is V^-1 m, normalised. V is costly: each form has its own approximation.

# Royston (1995), algorithm AS R94: corrections to the two outermost coefficients, as polynomials in 1 / sqrt(N).
ROYSTON_LAST = (0.221157, -0.147981, -2.071190, 4.434685, -2.706056)
ROYSTON_LAST_BUT_ONE = (0.042981, -0.293762, -1.752461, 5.682633, -3.582633)


def _normalised(a: Tensor) -> Tensor:
    return a / torch.linalg.vector_norm(a)


def _blom_scores(n: int) -> Tensor:
    """Blom's approximation of m_i, Phi^-1((i - 3/8) / (N + 1/4)), of all i (N,)."""
    return torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.625) / (n + 0.25))


def _shapiro_francia(n: int) -> Tensor:
    return _normalised(_blom_scores(n))


def _shapiro_wilk(n: int) -> Tensor:
    if n == 3:
        return _normalised(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64))
    m = _blom_scores(n)
    ends = [float(_normalised(m)[-1 - k]) for k in range(2 if n > 5 else 1)]
    for k, polynomial in enumerate((ROYSTON_LAST, ROYSTON_LAST_BUT_ONE)[: len(ends)]):
        ends[k] += sum(c * n ** (-power / 2) for power, c in enumerate(polynomial, start=1))
    # The inner coefficients stay in proportion to m, such that sum a_i^2 = 1.
    inner = m[len(ends) : n - len(ends)]
    inner = _normalised(inner) * math.sqrt(1 - 2 * sum(end**2 for end in ends))
    last = torch.tensor(ends[::-1], dtype=torch.float64)
    return torch.cat([-last.flip(0), inner, last])


def _rahman_govindarajulu(n: int) -> Tensor:
    # V_ij = p_i (1 - p_j) / ((N + 2) phi(m_i) phi(m_j)), i <= j, p_i = i / (N + 1), that of the uniform's order
    # statistics carried over by Phi^-1, has a tridiagonal inverse: rows (-phi_{i-1}, 2 phi_i, -phi_{i+1}) phi_i.
    m = torch.special.ndtri(torch.arange(1, n + 1, dtype=torch.float64) / (n + 1))
    phi = torch.exp(-0.5 * m**2)
    weighted = torch.nn.functional.pad(phi * m, (1, 1))
    return _normalised(phi * (2 * weighted[1:-1] - weighted[:-2] - weighted[2:]))


_COEFFICIENTS = {
    "shapiro-wilk": _shapiro_wilk,
    "shapiro-francia": _shapiro_francia,
    "rahman-govindarajulu": _rahman_govindarajulu,
}


@constant
def coefficients(n: int, form: Form, dtype: torch.dtype, device: torch.device) -> Tensor:
    """a (N,), of sum zero and length one."""
    return _COEFFICIENTS[form](n).to(device, dtype)


class ShapiroWilk(UnivariateTest):
    """``1 - W``, between 0 and 1, small where a column is normal with **any mean and variance**: neither is seen.

    Its gradient is at right angles to shifts and scalings of the column, so on its own it leaves both free. A constant
    column has no W: NaN.

    Args:
        form: The coefficients. "shapiro-wilk": Royston's (1995) approximation, as in `scipy.stats.shapiro`;
            "shapiro-francia": normal scores, as if order statistics were uncorrelated; "rahman-govindarajulu":
            asymptotic covariance of the order statistics, inverted in closed form.
    """

    fewest = 3

    def __init__(self, form: Form = "shapiro-wilk") -> None:
        super().__init__()
        if form not in _COEFFICIENTS:
            raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
        self.form: Form = form

    def statistic(self, rows: Tensor) -> Tensor:
        a = coefficients(rows.shape[-1], self.form, rows.dtype, rows.device)
        centred = (rows - rows.mean(-1, keepdim=True)).sort(dim=-1).values
        slope = centred @ a
        # sum a_i^2 = 1 and sum a_i = 0, so 1 - W is the share of squares left over by the line: no 1 - 0.999.
        residuals = centred - slope.unsqueeze(-1) * a
        return residuals.square().sum(-1) / centred.square().sum(-1)

    def extra_repr(self) -> str:
        return f"form={self.form!r}"
