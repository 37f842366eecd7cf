"""Methods: one file each, readable beside its paper. The pure loss first, then the method that owns the heads."""

from . import (
    barlow,
    byol,
    dino,
    gje,
    gmje,
    jepa,
    lejepa,
    lejepa_probabilistic,
    moco,
    simclr,
    simsiam,
    swav,
    vicreg,
    vje,
    vsimsiam,
    vssl,
)
from .base import Method, create, get, names

__all__ = [
    "Method",
    "barlow",
    "byol",
    "create",
    "dino",
    "get",
    "gje",
    "gmje",
    "jepa",
    "lejepa",
    "lejepa_probabilistic",
    "moco",
    "names",
    "simclr",
    "simsiam",
    "swav",
    "vicreg",
    "vje",
    "vsimsiam",
    "vssl",
]
