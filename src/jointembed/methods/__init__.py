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
from .describe import describe_options, offers, summary

__all__ = [
    "Method",
    "barlow",
    "byol",
    "create",
    "describe_options",
    "dino",
    "get",
    "gje",
    "gmje",
    "jepa",
    "lejepa",
    "lejepa_probabilistic",
    "moco",
    "names",
    "offers",
    "simclr",
    "simsiam",
    "summary",
    "swav",
    "vicreg",
    "vje",
    "vsimsiam",
    "vssl",
]
