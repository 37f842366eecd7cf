"""Tests of normality, and SIGReg, which turns one of them into a regulariser of embeddings.

A univariate test is a module ``test(x: (..., N, M)) -> (..., M)``: N samples of each of M variables in, one statistic
per variable out, zero or small where a variable looks like N(0, 1), differentiable in x. `SIGReg` takes any of them;
``names()`` lists them, and ``create(name)`` builds one.

A multivariate test is a module ``test(x: (..., N, D)) -> (...)``, for reference: its cost is quadratic in N.
"""

from jointembed.normality.distribution_functions import AndersonDarling, CramerVonMises, Watson
from jointembed.normality.entropy import Entropy
from jointembed.normality.epps_pulley import EppsPulley
from jointembed.normality.moments import ExtendedJarqueBera, JarqueBera, Moments
from jointembed.normality.multivariate import BHEP, BHEPM, COMB, HV, HenzeZirkler
from jointembed.normality.names import create, names
from jointembed.normality.shapiro_wilk import ShapiroWilk
from jointembed.normality.sigreg import SIGReg

__all__ = [
    "BHEP",
    "BHEPM",
    "COMB",
    "HV",
    "AndersonDarling",
    "CramerVonMises",
    "Entropy",
    "EppsPulley",
    "ExtendedJarqueBera",
    "HenzeZirkler",
    "JarqueBera",
    "Moments",
    "SIGReg",
    "ShapiroWilk",
    "Watson",
    "create",
    "names",
]
