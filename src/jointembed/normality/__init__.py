"""Tests of normality, and SIGReg, which turns one of them into a regulariser of embeddings.

A univariate test is a module ``test(x: (..., N, M)) -> (..., M)``: N samples of each of M variables in, one statistic
per variable out, zero or small where a variable looks like N(0, 1), differentiable in x. `SIGReg` takes any of them.
"""

from jointembed.normality.epps_pulley import EppsPulley
from jointembed.normality.sigreg import SIGReg

__all__ = ["EppsPulley", "SIGReg"]
