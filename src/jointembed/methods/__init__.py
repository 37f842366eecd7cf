"""Methods: one file each, readable beside its paper. The pure loss first, then the method that owns the heads."""

from . import gje, gmje, lejepa, vje
from .base import Method, create, get, names

__all__ = ["Method", "create", "get", "gje", "gmje", "lejepa", "names", "vje"]
