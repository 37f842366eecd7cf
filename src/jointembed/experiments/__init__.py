"""The papers' tables and figures, one file each, at sizes an ordinary computer finishes (`jointembed reproduce`)."""

import importlib
from collections.abc import Callable
from typing import Any

from jointembed._text import closest_first

EXPERIMENTS = {
    "cifar10-table": "every method on CIFAR-10, the same minutes each: the table grows row by row",
    "cifar10-rates": "the learning rate that each method of this table was given",
    "cifar10-flagship": "recipes for CIFAR-10 on two cores: GJE, LeJEPA, GMJE and VJE beside a paper's GPU runs",
    "cifar10-search": "the short trials that these recipes were chosen by",
    "lejepa-cifar10": "LeJEPA with the narrow ResNet-10 on CIFAR-10, 15 epochs",
    "lejepa-selection": "LeJEPA, Figures 10 and 11: which run is best, without labels",
    "lejepa-stability": "LeJEPA, Tables 1, 4 and 7: how much each setting matters",
    "lejepa-architectures": "LeJEPA, Figure 9: many architectures, nothing changed between them",
    "lejepa-in-domain": "LeJEPA, Figure 12: pretraining on a small set against training from scratch",
    "lejepa-x": "LeJEPA, Figure 6: which statistics dissolve an X hidden in 1,024 dimensions",
    "lejepa-x-sizes": "LeJEPA, Figure 16: the same over dimensions and slices",
    "lejepa-slices": "LeJEPA, Figure 7: few directions drawn anew against many fixed ones",
    "lejepa-quadrature": "LeJEPA, Figure 20: error of the statistic's integral",
    "lejepa-gradients": "LeJEPA, Theorem 4: how steep each statistic can be",
    "lejepa-moments": "LeJEPA, Theorem 3: distributions that no test of few moments tells from a Gaussian",
    "lejepa-isotropy": "LeJEPA, Lemmas 1 and 2, Theorem 1: why isotropic embeddings",
    "vje-ablation": "VJE, Tables 6 and 7: which terms are needed",
    "vje-tails": "VJE, Table 5: how heavy the tails should be",
    "vje-settings": "VJE: settings for small data, beside LeJEPA",
    "vje-uncertainty": "VJE: do its scores warn of errors, and rise with corruption",
    "vje-influence": "VJE, Figure 2: loss and influence of a residual",
    "vje-one-class": "VJE, Tables 3 and 4: ten one-class models",
    "vje-one-class-epochs": "VJE: one-class AUROC against the length of training",
    "vje-one-class-grid": "VJE, Figure 4: one-class AUROC over beta and df",
    "gmje-failures": "GJE and GMJE: five failure modes, each beside its remedy",
    "gmje-bank": "GMJE, section 5.2.1: resampled particles against a queue on CIFAR-10",
    "gmje-cifar10": "GMJE and GMJE-MDN from scratch on CIFAR-10, three seeds, beside LeJEPA and runs that fail",
    "gmje-mnist": "GMJE, section 5.3: digits drawn from the density of an embedding, three families",
    "gmje-synthetic": "GMJE, Figures 4 to 7: three targets for one context, six models",
}


def get(name: str) -> Callable[..., Any]:
    """The function that runs the experiment of that name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"name: expected one of {', '.join(closest_first(name, EXPERIMENTS))}, got {name!r}")
    return importlib.import_module(f"jointembed.experiments.{name.replace('-', '_')}").run
