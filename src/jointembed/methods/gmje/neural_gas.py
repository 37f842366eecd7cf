"""Growing Neural Gas (Fritzke, 1995): a graph that grows over the data, and the mixture it stands for (GMJE-GNG, 4.5).

It needs no number of components in advance: nodes are inserted where the error is largest, edges that no sample renews
die out, and what is connected at the end is a cluster.

    >>> x = torch.randn(2000, 2)
    >>> gas = GrowingNeuralGas(max_nodes=50).fit(x)
    >>> gas.nodes.shape, gas.components().max() + 1
    (torch.Size([50, 2]), tensor(1))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

if TYPE_CHECKING:
    from jointembed.distributions import GaussianMixture

CHUNK = 8192  # samples whose distances to all nodes are held at once, outside of learning
Covariance = Literal["full", "shared", "diagonal", "isotropic"]


class GrowingNeuralGas:
    """Growing Neural Gas, exactly as published with `batch_size=1`, and much faster in mini-batches.

    A mini-batch finds the two nearest nodes of all its samples at once, before any of them moves a node, and measures
    its errors there. Nodes then move, along the edges there were, and edges age as with one sample after the other;
    nodes that were due are inserted at the end. While the gas grows, a batch waits for no more of them than a tenth
    of those there are. Until it has settled, for about twice as long as it grew, its quantisation error can be some
    percent (3 to 6, in the plane) above that of one sample at a time; then they are the same.

    The defaults are Fritzke's.

    Args:
        max_nodes: K grows from 2 up to this.
        eps_b: share of its distance to a sample that the nearest node moves.
        eps_n: the same for its neighbours in the graph.
        max_age: an edge lives for this many wins of its ends without being renewed.
        insert_every: lambda, samples between two insertions.
        alpha: factor on the errors of the two nodes between which one is inserted.
        beta: share of all errors that is forgotten with each sample.
        batch_size: samples that look for their nearest nodes at once.
        seed: of the first two nodes, and of the order of the samples in `fit`.

    Attributes:
        nodes: (K, D).
        edges: (E, 2), pairs of nodes, the smaller index first.
        ages: (E,), wins of their ends since they were last renewed.
        errors: (K,), accumulated squared distances.
        steps: samples seen.
    """

    nodes: Tensor
    edges: Tensor
    ages: Tensor
    errors: Tensor

    def __init__(
        self,
        max_nodes: int = 100,
        eps_b: float = 0.2,
        eps_n: float = 0.006,
        max_age: int = 50,
        insert_every: int = 100,
        alpha: float = 0.5,
        beta: float = 0.005,
        batch_size: int = 2048,
        seed: int = 0,
    ) -> None:
        if max_nodes < 2:
            raise ValueError(f"max_nodes: expected at least 2, got {max_nodes}")
        for name, share in (("eps_b", eps_b), ("eps_n", eps_n), ("alpha", alpha), ("beta", beta)):
            if not 0 <= share < 1:
                raise ValueError(f"{name}: expected a share from 0 to below 1, got {share}")
        for name, count in (("max_age", max_age), ("insert_every", insert_every), ("batch_size", batch_size)):
            if count < 1:
                raise ValueError(f"{name}: expected at least 1, got {count}")
        self.max_nodes, self.eps_b, self.eps_n, self.max_age = max_nodes, eps_b, eps_n, max_age
        self.insert_every, self.alpha, self.beta = insert_every, alpha, beta
        self.batch_size, self.seed = batch_size, seed
        self._forget()

    def fit(self, x: Tensor, steps: int | None = None) -> GrowingNeuralGas:
        """Start anew and learn from x (N, D), shuffled, pass after pass.

        `steps` counts samples; by default 3 max_nodes insert_every: a third of it to grow, the rest to settle.
        """
        x = _check_data(x)
        steps = 3 * self.max_nodes * self.insert_every if steps is None else steps
        if self.max_nodes > len(x):
            raise ValueError(f"max_nodes: expected at most the {len(x)} samples of x, got {self.max_nodes}")
        if steps < 1:
            raise ValueError(f"steps: expected at least 1, got {steps}")
        self._forget()
        while self.steps < steps:
            order = torch.randperm(len(x), generator=self._generator)[: steps - self.steps]
            self._learn(x, order.to(x.device))
        return self

    def partial_fit(self, x: Tensor) -> GrowingNeuralGas:
        """Learn from x (N, D) in its order, once. The first call places the first two nodes on two of its samples."""
        x = self._check_new(x) if self.started else _check_data(x)
        self._learn(x, torch.arange(len(x), device=x.device))
        return self

    @property
    def started(self) -> bool:
        """Whether there are nodes."""
        return hasattr(self, "nodes")

    def components(self) -> Tensor:
        """(K,) labels from 0: nodes with the same one are connected."""
        nodes, ends = len(self.nodes), self.edges.cpu().numpy()
        graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
        return torch.from_numpy(connected_components(graph, directed=False)[1]).long()

    def quantisation_error(self, x: Tensor) -> float:
        """Mean squared distance of samples (N, D) to their nearest nodes."""
        x = self._check_new(x)
        total = 0.0
        for chunk in x.split(CHUNK):
            total += float((chunk - self.nodes[self._nearest(chunk, 1)[:, 0]]).square().sum(dtype=torch.float64))
        return total / len(x)

    def mixture(self, x: Tensor, covariance: Covariance = "full", prior: float | None = None) -> GaussianMixture:
        """The mixture of `mixture_parameters` as a distribution."""
        from jointembed.distributions import GaussianMixture

        weights, means, covariances = self.mixture_parameters(x, covariance, prior)
        makers = {"diagonal": GaussianMixture.diagonal, "isotropic": GaussianMixture.isotropic}
        return makers.get(covariance, GaussianMixture)(weights, means, covariances)

    def mixture_parameters(
        self, x: Tensor, covariance: Covariance = "full", prior: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (K,), means (the nodes, K, D) and covariances around them, one M-step on the data x (N, D).

        The responsibilities are those of equal spheres around the nodes, of variance `quantisation_error(x)` / D. So
        that nodes with few samples have positive definite covariances, each node also counts `prior` samples that
        are spread like such a sphere, by default D of them.

        Returns covariances of shape (K, D, D) if "full", (1, D, D) if "shared", variances (K, D) if "diagonal", (K,) if
        "isotropic".
        """
        shapes = ("full", "shared", "diagonal", "isotropic")
        if covariance not in shapes:
            raise ValueError(f"covariance: expected one of {', '.join(shapes)}, got {covariance!r}")
        x = self._check_new(x)
        dim = x.shape[1]
        prior = float(dim) if prior is None else prior
        if not prior > 0:
            raise ValueError(f"prior: expected a number of samples above 0, got {prior}")
        # Where every sample has its own node, still a sphere of some size: a millionth of the nodes' own spread.
        floor = 1e-6 * float(self.nodes.var(0).mean()) + torch.finfo(x.dtype).tiny
        sphere = max(self.quantisation_error(x) / dim, floor)
        r = torch.cat([(-self._distances(chunk) / sphere).softmax(1) for chunk in x.split(CHUNK)])  # (N, K)
        counts = r.sum(0)  # (K,)
        weights = (counts / len(x)).clamp_min(torch.finfo(x.dtype).tiny)  # a node without samples keeps a finite log
        scatters = [self._scatter(x, r[:, k], k, full=covariance in ("full", "shared")) for k in range(len(self.nodes))]
        scatter = torch.stack(scatters)  # (K, D, D) or (K, D), sums and not yet means
        if covariance == "shared":
            scatter, counts = scatter.sum(0, keepdim=True), counts.sum(0, keepdim=True)
        elif covariance == "isotropic":
            scatter = scatter.mean(1)
        unit = torch.eye(dim).to(x) if scatter.ndim == 3 else x.new_ones(())
        counts = counts.view(-1, *[1] * (scatter.ndim - 1))
        return weights / weights.sum(), self.nodes.clone(), (scatter + prior * sphere * unit) / (counts + prior)

    def _scatter(self, x: Tensor, r: Tensor, k: int, full: bool) -> Tensor:
        """Sum of squares of x (N, D) around node k, weighted by r (N,): (D, D), or its diagonal."""
        difference = x - self.nodes[k]
        return difference.T @ (r[:, None] * difference) if full else r @ difference.square()

    def _forget(self) -> None:
        for name in ("nodes", "edges", "ages", "errors"):
            vars(self).pop(name, None)
        self.steps = 0
        self._generator = torch.Generator().manual_seed(self.seed)

    def _learn(self, x: Tensor, order: Tensor) -> None:
        if not self.started:
            self.nodes = x[torch.randperm(len(order), generator=self._generator)[:2].to(order)]
            self.edges, self.ages = order.new_empty(0, 2), order.new_empty(0)
            self.errors = x.new_zeros(2)
        while len(order):
            size = min(self.batch_size, self._room())
            batch, order = x.index_select(0, order[:size]), order[size:]
            self._adapt(batch)
            due = (self.steps + len(batch)) // self.insert_every - self.steps // self.insert_every
            self.steps += len(batch)
            if count := min(due, self.max_nodes - len(self.nodes)):
                self._insert(count)

    def _room(self) -> int:
        """Samples until as many insertions are due as a batch may contain while the gas grows: a tenth of its nodes."""
        if len(self.nodes) >= self.max_nodes:
            return self.batch_size
        return max(1, len(self.nodes) // 10) * self.insert_every - self.steps % self.insert_every

    def _nearest(self, x: Tensor, count: int) -> Tensor:
        """(B, count) indices of the nodes nearest to x (B, D), the nearest first."""
        return self._distances(x).topk(count, largest=False).indices

    def _distances(self, x: Tensor) -> Tensor:
        """(B, K), |x - w|^2 / 2 up to what all nodes have in common, |x|^2 / 2: one matrix product."""
        centre = self.nodes.mean(0)  # products of centred vectors keep their digits
        nodes = self.nodes - centre
        with torch.autocast(x.device.type, enabled=False):
            return torch.addmm(nodes.square().sum(1) / 2, x - centre, nodes.T, alpha=-1)

    def _adapt(self, x: Tensor) -> None:
        """What the samples x (B, D) do one after the other, given the winners that they find now."""
        first, second = self._nearest(x, 2).unbind(1)  # (B,)
        time = torch.arange(len(x), device=x.device)
        wins = first.bincount(minlength=len(self.nodes))  # (K,)
        by_winner, ends = (first * len(x) + time).sort().values, wins.cumsum(0)
        both = torch.stack([first, second])  # (2, B)
        later_wins = ends[both] - torch.searchsorted(by_winner, both * len(x) + time, right=True)
        # Forgetting comes after accumulating, so the last sample has already faded once.
        fading = (1 - self.beta) ** (len(x) - time).to(x)
        self.errors = self.errors * (1 - self.beta) ** len(x)
        self.errors.index_add_(0, first, fading * (x - self.nodes.index_select(0, first)).square().sum(1))
        self._move(x, first)
        self._age(both, wins, later_wins.sum(0))

    def _move(self, x: Tensor, first: Tensor) -> None:
        # A node that samples pull with rates e_1, e_2, ... keeps prod_i(1 - e_i) of where it was, and takes
        # e_j prod_{i>j}(1 - e_i) of the sample j. A sample pulls its winner and the few neighbours of that one.
        count = len(self.nodes)
        node, sample, rate = self._pulls(first)  # (E,), by node, the last sample first
        pulls = node.bincount(minlength=count)
        ends = pulls.cumsum(0)
        # Sums of logarithms over all nodes' pulls, one after the other, have few digits left to tell them apart.
        precise = x.dtype if x.device.type == "mps" else torch.float64
        kept = nn.functional.pad(torch.log1p(-rate.to(precise)).cumsum(0), (1, 0))  # before each pull, and after all
        before = kept[ends - pulls]  # (K,), the other nodes' part
        taken = rate * (kept[:-1] - before.index_select(0, node)).exp().to(x)
        moved = nn.functional.embedding_bag(sample, x, ends - pulls, mode="sum", per_sample_weights=taken)
        self.nodes = (kept[ends] - before).exp().to(x)[:, None] * self.nodes + moved

    def _pulls(self, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which node is pulled by which sample, and how hard: by node, and for each the last sample first."""
        count, batch, (a, b) = len(self.nodes), len(first), self.edges.T
        own = torch.arange(count, device=first.device)
        winner, order = torch.cat([own, a, b]).sort()  # who moves when a node wins: itself, and its neighbours
        moving, degree = torch.cat([own, b, a])[order], winner.bincount(minlength=count)
        size = degree[first]  # (B,), nodes that a sample pulls
        place = torch.repeat_interleave(degree.cumsum(0)[first] - size.cumsum(0), size)
        place += torch.arange(len(place), device=place.device)
        ahead = torch.repeat_interleave(torch.arange(batch - 1, -1, -1, device=first.device), size)
        # One number says both, and its order is the one wanted.
        pull = _sorted(moving.index_select(0, place) * batch + ahead)
        node = pull // batch
        sample = batch - 1 - (pull - node * batch)
        wins = first.index_select(0, sample) == node
        return node, sample, torch.where(wins, self.nodes.new_tensor(self.eps_b), self.nodes.new_tensor(self.eps_n))

    def _age(self, winners: Tensor, wins: Tensor, later: Tensor) -> None:
        # Every win ages the winner's edges. An edge that is renewed has the wins of both ends since then for its age;
        # the last renewal counts, which is the one with the fewest.
        nodes = len(self.nodes)
        edges = torch.cat([self.edges, winners.sort(0).values.T])
        ages = torch.cat([self.ages + wins[self.edges].sum(1), later])
        code, place = (edges[:, 0] * nodes + edges[:, 1]).unique(return_inverse=True)
        ages = torch.zeros_like(code).scatter_reduce_(0, place, ages, "amin", include_self=False)
        alive = ages <= self.max_age
        code, self.ages = code[alive], ages[alive]
        self.edges = torch.stack([code // nodes, code % nodes], 1)
        connected = self.edges.flatten().bincount(minlength=nodes) > 0
        if not connected.all():
            self.nodes, self.errors = self.nodes[connected], self.errors[connected]
            self.edges = (connected.cumsum(0) - 1)[self.edges]  # the remaining nodes, numbered anew

    def _insert(self, count: int) -> None:
        """Nodes halfway between the one with the largest error and its neighbour with the largest error."""
        errors, ages = self.errors.tolist(), dict(zip(map(tuple, self.edges.tolist()), self.ages.tolist(), strict=True))
        nodes = torch.cat([self.nodes, self.nodes.new_empty(count, self.nodes.shape[1])])
        for new in range(len(self.nodes), len(nodes)):
            q = max(range(new), key=errors.__getitem__)
            f = max((a + b - q for a, b in ages if q in (a, b)), key=errors.__getitem__)
            nodes[new] = (nodes[q] + nodes[f]) / 2
            del ages[min(q, f), max(q, f)]
            ages[q, new] = ages[f, new] = 0
            errors[q] *= self.alpha
            errors[f] *= self.alpha
            errors.append(errors[q])
        self.nodes, self.errors = nodes, self.errors.new_tensor(errors)
        self.edges, self.ages = self.edges.new_tensor(list(ages)), self.ages.new_tensor(list(ages.values()))

    def _check_new(self, x: Tensor) -> Tensor:
        """Data for nodes that are there."""
        if not self.started:
            raise ValueError("nodes: expected a gas that has learned, got one without nodes; call fit first")
        x = _check_data(x, at_least=1)
        if x.shape[1] != self.nodes.shape[1]:
            raise ValueError(f"x: expected (N, {self.nodes.shape[1]}) as the nodes are, got shape {tuple(x.shape)}")
        return x.to(self.nodes)


def _sorted(x: Tensor) -> Tensor:
    """On a CPU numpy sorts thousands of integers some ten times faster than torch."""
    return torch.from_numpy(np.sort(x.numpy())) if x.device.type == "cpu" else x.sort().values


def _check_data(x: Tensor, at_least: int = 2) -> Tensor:
    x = torch.as_tensor(x).detach()
    if x.ndim != 2 or len(x) < at_least or not x.shape[1]:
        raise ValueError(f"x: expected (N, D) with N at least {at_least}, got shape {tuple(x.shape)}")
    x = x if x.dtype == torch.float64 else x.float()
    # The sum is finite only if all values are, and much faster to look at.
    if not x.sum().isfinite() and not x.isfinite().all():
        raise ValueError(f"x: expected finite values, got {int((~x.isfinite()).sum())} that are not")
    return x
