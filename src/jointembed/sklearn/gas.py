"""Growing Neural Gas as a clusterer that finds the number of clusters, and as a quantiser."""

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from jointembed.methods.gmje import GrowingNeuralGas as Gas


class GrowingNeuralGas(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """A graph that grows over the data; what is connected at the end is a cluster.

    `predict` gives the cluster of the nearest node, `transform` the distances to all nodes.

    Args:
        max_nodes: how far it grows; a third of the samples at most, or every one would have its own.
        eps_b: share of its distance to a sample that the nearest node moves.
        eps_n: the same for its neighbours in the graph.
        max_age: an edge lives for this many wins of its ends without being renewed.
        insert_every: samples between two insertions.
        steps: samples seen, over several passes; by default 3 max_nodes insert_every.
        random_state: of the first two nodes and of the order.

    Attributes:
        cluster_centers_: the nodes (K, D).
        edges_: pairs of nodes (E, 2).
        node_labels_: the cluster of each node (K,).
        labels_: the cluster of each sample (N,).
        n_clusters_: how many there are.
        inertia_: sum of squared distances of the samples to their nearest nodes.
    """

    def __init__(
        self,
        max_nodes: int = 100,
        eps_b: float = 0.2,
        eps_n: float = 0.006,
        max_age: int = 50,
        insert_every: int = 100,
        steps: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.max_nodes, self.eps_b, self.eps_n, self.max_age = max_nodes, eps_b, eps_n, max_age
        self.insert_every, self.steps, self.random_state = insert_every, steps, random_state

    def fit(self, X: Any, y: Any = None) -> "GrowingNeuralGas":
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2, order="C")
        seed = int(check_random_state(self.random_state).randint(2**31))
        nodes = max(2, min(self.max_nodes, len(X) // 3))
        gas = Gas(nodes, self.eps_b, self.eps_n, self.max_age, self.insert_every, seed=seed)
        gas.fit(torch.tensor(X), self.steps)
        nearest = pairwise_distances_argmin(X, gas.nodes.numpy())
        alive, nearest = np.unique(nearest, return_inverse=True)  # a node that is nobody's stands for nothing
        self.cluster_centers_ = gas.nodes.numpy()[alive]
        _, self.node_labels_ = np.unique(gas.components().numpy()[alive], return_inverse=True)
        place = np.full(len(gas.nodes), -1)
        place[alive] = np.arange(len(alive))
        edges = place[gas.edges.numpy()]
        self.edges_ = edges[(edges >= 0).all(1)]
        self.labels_ = self.node_labels_[nearest]
        self.n_clusters_ = int(self.node_labels_.max()) + 1
        self.inertia_ = float(np.square(X - self.cluster_centers_[nearest]).sum())
        self._n_features_out = len(self.cluster_centers_)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The cluster (N,) of each row's nearest node."""
        X = self._checked(X)
        return self.node_labels_[pairwise_distances_argmin(X, self.cluster_centers_)]

    def transform(self, X: Any) -> np.ndarray:
        """Distances (N, K) to the nodes."""
        X = self._checked(X)
        return pairwise_distances(X, self.cluster_centers_)

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)
