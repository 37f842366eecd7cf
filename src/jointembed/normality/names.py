"""The univariate tests by name, for command lines and files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from jointembed._text import closest_first
from jointembed.normality.distribution_functions import AndersonDarling, CramerVonMises, Watson
from jointembed.normality.entropy import Entropy
from jointembed.normality.epps_pulley import EppsPulley
from jointembed.normality.moments import ExtendedJarqueBera, JarqueBera, Moments
from jointembed.normality.shapiro_wilk import ShapiroWilk

_TESTS: dict[str, Callable[..., nn.Module]] = {
    "epps-pulley": EppsPulley,
    "cramer-von-mises": CramerVonMises,
    "anderson-darling": AndersonDarling,
    "watson": Watson,
    "shapiro-wilk": ShapiroWilk,
    "shapiro-francia": partial(ShapiroWilk, "shapiro-francia"),
    "rahman-govindarajulu": partial(ShapiroWilk, "rahman-govindarajulu"),
    "jarque-bera": JarqueBera,
    "extended-jarque-bera": ExtendedJarqueBera,
    "moments": Moments,
    "entropy": Entropy,
}


def names() -> tuple[str, ...]:
    """Every univariate test."""
    return tuple(_TESTS)


def create(name: str, **options: Any) -> nn.Module:
    """The univariate test of that name, with its own options.

    >>> create("epps-pulley", num_points=33).num_points
    33
    """
    if name not in _TESTS:
        raise ValueError(f"test: expected one of {', '.join(closest_first(name, _TESTS))}, got {name!r}")
    return _TESTS[name](**options)
