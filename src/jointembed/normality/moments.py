"""Tests that compare the first few moments with those of N(0, 1).

They are cheap and smooth, and blind: some distribution other than the normal shares any finite number of its moments
(LeJEPA, theorem 3). Their gradients grow with the power of the highest moment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jointembed.normality.univariate import UnivariateTest


class Moments(UnivariateTest):
    """``mean^2 + (std - 1)^2``, std with the divisor N - 1. It does not grow with N.

    Averaged over all directions, as by `SIGReg` in the limit of many slices, this is a variance–covariance penalty in
    the manner of VICReg. With mean mu and covariance C = I + E of the embeddings in D dimensions its limit is, up to
    third order in E, ``|mu|^2 / D + (|E|_F^2 / 2 + (tr E)^2 / 4) / (D (D + 2))``: off-diagonal covariances are
    penalised although no slice looks at two dimensions. A constant column has the gradient zero in std.
    """

    def statistic(self, rows: Tensor) -> Tensor:
        std, mean = torch.std_mean(rows, dim=-1)
        return mean**2 + (std - 1) ** 2


def _jarque_bera(rows: Tensor) -> Tensor:
    std, mean = torch.std_mean(rows, dim=-1, correction=0, keepdim=True)
    u = (rows - mean) / std  # first, so that fourth powers of wide data do not overflow
    square = u**2
    skewness, kurtosis = (square * u).mean(-1), (square**2).mean(-1)
    return rows.shape[-1] / 6 * (skewness**2 + (kurtosis - 3) ** 2 / 4)


class JarqueBera(UnivariateTest):
    """``N/6 (skewness^2 + (kurtosis - 3)^2 / 4)``, chi-squared with 2 degrees of freedom for many normal samples.

    It tests normality with **any mean and variance**: location and scale are estimated, and neither is seen. A constant
    column has no skewness: NaN.
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return _jarque_bera(rows)


class ExtendedJarqueBera(UnivariateTest):
    """Jarque–Bera plus ``N mean^2 / var + (N - 1) (var - 1)^2 / 2``: a test of N(0, 1) by its first four moments.

    var has the divisor N - 1, skewness and kurtosis are those of `JarqueBera`. Chi-squared with 4 degrees of freedom
    for many samples of N(0, 1). A constant column: NaN.
    """

    def statistic(self, rows: Tensor) -> Tensor:
        n = rows.shape[-1]
        var, mean = torch.var_mean(rows, dim=-1)
        return n * mean**2 / var + (n - 1) / 2 * (var - 1) ** 2 + _jarque_bera(rows)
