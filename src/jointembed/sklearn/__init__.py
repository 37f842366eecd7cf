"""scikit-learn estimators: they clone, pickle, and work in `Pipeline` and `GridSearchCV`."""

from .gas import GrowingNeuralGas
from .joint_embedding import JointEmbedding
from .mixture_regressor import MixtureRegressor
from .normality import SIGRegTest

__all__ = ["GrowingNeuralGas", "JointEmbedding", "MixtureRegressor", "SIGRegTest"]
