"""What a step of each method puts into collectives, and the largest tensor it makes, in closed form.

`benchmarks.communication` counts the same; `tests/distributed/test_communication.py` holds the one against the other.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from jointembed import methods

# Options beside the default ones.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in methods.names()} | {
    "gje, hsic": ("gje", {"variant": "hsic"}),
    "gje, dual": ("gje", {"variant": "dual"}),
    "gje, rff": ("gje", {"variant": "rff"}),
    "gmje, entropy": ("gmje", {"guard": "entropy"}),
    "gmje-mdn, entropy": ("gmje-mdn", {"guard": "entropy"}),
    "gmje-smc, batch": ("gmje-smc", {"policy": "batch"}),
}
NUMBER, INTEGER = 4, 8  # bytes
TERMS = {"byol": 1, "dino": 3, "jepa": 1, "moco-v2": 3, "simclr": 3, "simsiam": 1, "swav": 3, "vje": 3, "vsimsiam": 2}
TERMS |= {"vssl": 2, "gmje-smc": 3, "gmje-smc, batch": 1}  # logged ones, averaged over ranks together


@dataclass(frozen=True)
class Sizes:
    """Of one step: two global views of each image, on every rank as many."""

    batch: int = 64  # B, images of one rank
    dim: int = 64  # D, of what the loss sees
    slices: int = 1024  # of SIGReg
    ranks: int = 2  # R
    bank: int = 128  # particles, keys in a queue
    prototypes: int = 300  # of SwAV and DINO
    features: int = 256  # random Fourier features of GJE

    def options(self, method: str) -> dict[str, Any]:
        """Those of these that the method has."""
        names = {"dim": "dim", "slices": "num_slices", "bank": "bank", "features": "num_features"}
        if method != "gmje":  # its prototypes are shared, not sent
            names["prototypes"] = "prototypes"
        known = methods.get(method).options()
        return {names[f.name]: getattr(self, f.name) for f in fields(self) if names.get(f.name) in known}


@dataclass(frozen=True)
class Payload:
    """Bytes that one rank puts into collectives, by what they do with them."""

    reduced: float = 0
    gathered: float = 0
    broadcast: float = 0

    def sent(self, ranks: int) -> float:
        """What one rank sends where rings do the work: reduce and scatter, gather, pass on."""
        ring = (ranks - 1) / ranks
        return 2 * ring * self.reduced + (ranks - 1) * self.gathered + (ranks > 1) * self.broadcast

    def __add__(self, other: "Payload") -> "Payload":
        return Payload(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> "Payload":
        return Payload(*(times * getattr(self, f.name) for f in fields(self)))


def payload(variant: str, n: Sizes, block: int = 2**18) -> Payload:
    """What the third step of a method takes part in; `block` is SIGReg's, in elements: 2**26 on GPUs."""
    name, _ = VARIANTS[variant]
    views, pairs = 2, 2
    matrix = n.dim**2
    if variant == "simclr":
        found = _gather(2 * n.batch * n.dim) + _reduce(n.ranks * 2 * n.batch * n.dim)
    elif variant == "moco-v2":
        found = _gather(n.batch * n.dim)
    elif name == "gmje-smc":
        found = _gather(n.batch * n.dim) * 2  # queries and keys, for the bank
        if variant == "gmje-smc":
            found += _reduce(2 * (TERMS[variant] + 1)) + Payload(broadcast=INTEGER * n.bank)
        else:
            found += _gather(n.batch * n.dim) * pairs + _reduce(2 * (TERMS[variant] + 1))
    elif variant == "swav":
        found = Payload(gathered=NUMBER * n.prototypes) * (3 * views)  # three of Sinkhorn's iterations
    elif variant == "dino":
        found = _reduce(n.prototypes + 1)  # the centre
    elif variant == "barlow-twins":
        found = _reduce(4 * views * n.dim + 2 + 2 + 2 * matrix)
    elif variant == "vicreg":
        found = _reduce(2 * 2 + 6 * views * n.dim + 4 + 2 + 2 * views * matrix)
    elif name in ("gmje", "gmje-mdn"):
        if variant == name:
            found = _sigreg(1, views * n.batch, n.slices, block)
        else:
            found = _reduce(3 * (n.dim + 1) + 3 * matrix + 2)  # for the memory, forward, backward
        if name == "gmje":
            found += _gather(pairs * n.batch * 2 * n.dim) + _reduce(2 * 2)
        else:
            found += _reduce(4 * 2 + 3 * (8 + 1))  # likelihood and departure; weights of eight components, their use
    elif name == "gje":
        found = _gje(variant, n, pairs)
    elif name.startswith("lejepa"):
        found = _sigreg(views, n.batch, n.slices, block)
        found += _reduce(2 * 2 * (1 if variant == "lejepa" else 2))
    else:
        found = Payload()
    return found + _reduce(2 * (TERMS[variant] + 1)) if variant in TERMS else found


def _sigreg(views: int, rows: int, slices: int, block: int) -> Payload:
    sums = 2 * 8 * views * slices  # real and imaginary, at eight points
    return _reduce(sums + math.ceil(slices / max(256, block // (views * rows)))) + Payload(gathered=INTEGER)


def _gje(variant: str, n: Sizes, pairs: int) -> Payload:
    matrix, rows = n.dim**2, n.batch * n.dim
    found = _reduce(1 + (2 * n.dim + 1) + (4 * matrix + 1))  # whether all is finite; the pairs' moments
    if variant == "gje":
        return found + _reduce(4 * matrix * pairs + 1 + 2 * 2)  # both views' entropies, of all pairs; the alignment
    if variant == "gje, hsic":
        entropies, both = _reduce(4 * matrix + 2), _gather(rows) + _reduce(n.ranks * rows)
        return found + (entropies + both * 2) * pairs
    found += _gather(pairs * rows) * 2 + _reduce(1)  # the bank
    found += _reduce(matrix + 1) * pairs  # whitening, of targets without a gradient
    if variant == "gje, dual":
        return found + (_gather(rows) * 2 + _reduce(n.ranks * rows)) * pairs
    return found + _reduce(2 * n.features**2 + 2 * n.features * n.dim + 2 + 1) * pairs


def _reduce(numbers: float) -> Payload:
    return Payload(reduced=NUMBER * numbers)


def _gather(numbers: float) -> Payload:
    """Rows, and before them how many there are."""
    return Payload(gathered=NUMBER * numbers + INTEGER)


def largest(variant: str, n: Sizes, block: int = 2**18) -> float | None:
    """Bytes of the largest tensor that a loss or a bank makes on each rank, where the batch or the bank decides it."""
    everyone = n.batch * n.ranks
    numbers = {
        "simclr": 2 * n.batch * 2 * everyone,
        "moco-v2": n.batch * (n.bank + 1),
        "gmje-smc": everyone * (n.bank + everyone),
        "gmje-smc, batch": n.batch * everyone,
        "gje, hsic": everyone**2,
        "gje, dual": everyone**2,
        "gje, rff": max(n.features**2, n.batch * n.features),
        "barlow-twins": n.dim**2,
        "vicreg": 2 * n.dim**2,
        "swav": 2 * n.batch * n.prototypes,
        "dino": 2 * n.batch * n.prototypes,
    }.get(variant)
    if variant.startswith("lejepa"):
        numbers = 2 * 2 * n.batch * min(n.slices, max(256, block // (2 * n.batch)))  # complex
    return None if numbers is None else NUMBER * numbers
