"""GMJE: the joint density of two views as a Gaussian mixture, one file for each way to train it."""

from .bank import ParticleBank, info_nce
from .contrastive import GMJESMC
from .guard import EntropyGuard, SIGRegGuard, gaussian_entropy
from .mdn import GMJEMDN, MixtureDensityNetwork, mdn_loss
from .neural_gas import GrowingNeuralGas
from .prototypes import GMJE, prototype_loss

__all__ = [
    "GMJE",
    "GMJEMDN",
    "GMJESMC",
    "EntropyGuard",
    "GrowingNeuralGas",
    "MixtureDensityNetwork",
    "ParticleBank",
    "SIGRegGuard",
    "gaussian_entropy",
    "info_nce",
    "mdn_loss",
    "prototype_loss",
]
