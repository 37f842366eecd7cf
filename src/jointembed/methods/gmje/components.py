"""Where the components of a mixture over joint embeddings come from: gradient, stepwise EM, neural gas, particles.

All are modules whose call gives the mixture as it is now, and that `follow` the embeddings of every training step: of
all ranks, in `torch.distributed`, so that all have the same mixture.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from jointembed._distributed import from_first_rank
from jointembed.distributions import GaussianMixture

from .bank import ParticleBank, mahalanobis_score
from .neural_gas import GrowingNeuralGas

COVARIANCES = ("shared", "full", "fixed")
IDLE = 0.1  # a component with less than this part of its fair share of the embeddings is not in use


class Prototypes(nn.Module):
    """The K components, learned by gradient: weights, means, and covariances held by a factor A.

    S = (1 - prior_weight) A A^T + prior_weight prior + floor I.

    Args:
        count: K.
        dim: d of the joint embedding.
        covariance: one learned for all components ("shared"), one each ("full"), or a multiple of the identity that
            stays as it is ("fixed"), as the paper's runs had it.
        temperature: the variance to begin with.
        floor: smallest variance in any direction of a learned covariance; what bounds the likelihood.
        prior: (d, d), mixed into a learned covariance; by default the identity.
        prior_weight: its share there.
        balance: share of equal weights in the learned ones (a Dirichlet prior), so that no component starves.
        exchangeable: which half of the joint embedding is which view is arbitrary: a mean is the same in both.
    """

    means: Tensor
    usage: Tensor
    prior: Tensor
    writes_parameters = True  # beside the optimiser: where means start, and components that are revived

    def __init__(
        self,
        count: int,
        dim: int,
        covariance: str = "shared",
        temperature: float = 1.0,
        floor: float = 0.05,
        prior: Tensor | None = None,
        prior_weight: float = 0.0,
        balance: float = 0.0,
        exchangeable: bool = False,
    ) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"prototypes: expected at least 1, got {count}")
        if covariance not in COVARIANCES:
            raise ValueError(f"covariance: expected one of {', '.join(COVARIANCES)}, got {covariance!r}")
        if not (temperature > 0 and floor > 0):
            raise ValueError(f"temperature, floor: expected above 0, got {temperature} and {floor}")
        self.covariance, self.temperature, self.floor, self.prior_weight = covariance, temperature, floor, prior_weight
        self.balance, self.exchangeable = balance, exchangeable
        self.register_buffer("prior", torch.eye(dim) if prior is None else prior)
        covariances = temperature * torch.eye(dim).repeat(count if covariance == "full" else 1, 1, 1)
        self._hold(torch.full((count,), 1 / count), torch.randn(count, dim), covariances)
        self.register_buffer("usage", torch.zeros(count))  # share of the embeddings; nothing before the first batch

    def _hold(self, weights: Tensor, means: Tensor, covariances: Tensor) -> None:
        self.logits, self.means = nn.Parameter(weights.log()), nn.Parameter(means)
        if self.covariance != "fixed":
            self.factors = nn.Parameter(covariances.sqrt())  # diagonal so far

    def forward(self) -> GaussianMixture:
        return self._mixture(self._balanced(self.logits.softmax(-1)), lambda: self.factors @ self.factors.mT)

    def learned(self) -> GaussianMixture:
        """What the embeddings are distributed as, in the end; factors fit them together with the prior."""
        return self()

    def _balanced(self, weights: Tensor) -> Tensor:
        return weights.lerp(torch.full_like(weights, 1 / len(weights)), self.balance)

    def _mixture(
        self, weights: Tensor, covariances: Callable[[], Tensor], prior_weight: float | None = None
    ) -> GaussianMixture:
        means = self._middle(self.means)
        if self.covariance == "fixed":
            variances = torch.full_like(weights[:1], self.temperature)
            return GaussianMixture.isotropic(weights, means, variances, validate_args=False)
        with torch.autocast(weights.device.type, enabled=False):
            return GaussianMixture(weights, means, self._held(covariances(), prior_weight), validate_args=False)

    def _middle(self, z: Tensor) -> Tensor:
        """Joint embeddings (..., d) or means, with the middle of both views in the place of each if exchangeable."""
        if not self.exchangeable:
            return z
        return z.unflatten(-1, (2, -1)).mean(-2).repeat(*[1] * (z.ndim - 1), 2)

    def _held(self, covariances: Tensor, prior_weight: float | None = None) -> Tensor:
        """Learned covariances (..., d, d), with the prior's share, by default its own, and above the floor."""
        floor = self.floor * torch.eye(covariances.shape[-1], device=covariances.device)
        return covariances.lerp(self.prior, self.prior_weight if prior_weight is None else prior_weight) + floor

    @torch.no_grad()
    def follow(self, z: Tensor, rate: float = 0.05) -> None:
        """See joint embeddings (N, d): note which components they use; the first ones are where the means start."""
        if not self.usage.any():
            chosen = torch.arange(len(self.usage), device=z.device) * len(z) // len(self.usage)
            self.means.copy_(self._middle(z[chosen]))
            self.usage.fill_(1 / len(self.usage))
        with torch.autocast(z.device.type, enabled=False):  # averages of many steps need the digits
            self._learn(z, rate)

    def _learn(self, z: Tensor, rate: float) -> None:
        self.usage.lerp_(self().responsibilities(z).mean(0), rate)

    @property
    def used(self) -> Tensor:
        """Which components are in use (K,)."""
        return self.usage > IDLE / len(self.usage)

    @torch.no_grad()
    def revive(self) -> None:
        """Let idle components share the work of the busiest ones, from a place beside each.

        Embeddings of many dimensions are all far apart, and each is nearer to the middle of a cloud than to its
        neighbours: a component moved to an image would be idle again at once.
        """
        idle, busy = (~self.used).nonzero().flatten(), self.used.nonzero().flatten()
        if not len(idle):
            return
        order = busy[self.usage[busy].argsort(descending=True)]
        donors = order[torch.arange(len(idle), device=order.device) % len(order)]
        sharing = 1 + torch.bincount(donors, minlength=len(self.usage))  # (K,), how many share each donor's work
        self.usage[idle], sharing[idle] = self.usage[donors], sharing[donors]
        self.usage /= sharing
        deviations = self().covariances.diagonal(dim1=-2, dim2=-1).sqrt().expand_as(self.means)[donors]
        beside = 0.1 * deviations * from_first_rank(torch.randn_like(deviations))
        self.means[idle] = self.means[donors] + self._middle(beside)
        self._share(idle, donors, sharing)

    def _share(self, idle: Tensor, donors: Tensor, sharing: Tensor) -> None:
        self.logits[idle] = self.logits[donors]
        self.logits.sub_(sharing.log())
        if self.covariance == "full":
            self.factors[idle] = self.factors[donors]


class OnlinePrototypes(Prototypes):
    """The same components, learned by stepwise EM: moving averages of what each is responsible for."""

    weights: Tensor
    covariances: Tensor
    writes_parameters = False  # all are buffers

    def _hold(self, weights: Tensor, means: Tensor, covariances: Tensor) -> None:
        self.register_buffer("weights", weights)
        self.register_buffer("means", means)
        if self.covariance != "fixed":
            self.register_buffer("covariances", covariances)

    def forward(self) -> GaussianMixture:
        return self._mixture(self.weights, lambda: self.covariances)

    def learned(self) -> GaussianMixture:
        """The averages alone: the prior is there to pull on an encoder, and of what it has learned it says nothing."""
        return self._mixture(self.weights, lambda: self.covariances, prior_weight=0.0)

    def _learn(self, z: Tensor, rate: float) -> None:
        share = self().responsibilities(z) / len(z)  # (N, K), all of it sums to one
        self.usage.lerp_(share.sum(0), rate)
        self._place(self._middle(z), share, rate)
        if self.covariance != "fixed":
            self._widen(z, share, rate)

    def _place(self, z: Tensor, share: Tensor, rate: float) -> None:
        total = share.sum(0)  # (K,)
        self.weights.lerp_(self._balanced(total), rate)
        # A component moves by its share of the batch against its weight: little, if this batch has little of it.
        step = (rate / self.weights).clamp_max(1 / total.clamp_min(1e-12))
        self.means += step[:, None] * (share.mT @ z - total[:, None] * self.means)

    def _widen(self, z: Tensor, share: Tensor, rate: float) -> None:
        second = self._scatter(z, share)
        if self.covariance == "full":
            total = share.sum(0).clamp_min(1e-12)
            gain = (rate * total / self.weights).clamp_max(1)
            self.covariances.lerp_(second / total[:, None, None], gain[:, None, None])
        else:
            self.covariances.lerp_(second, rate)

    def _scatter(self, z: Tensor, share: Tensor) -> Tensor:
        """Weighted sums of squares around the means, (K, d, d), or over all components (1, d, d)."""
        if self.covariance == "full":
            return torch.stack([(s[:, None] * (z - m)).mT @ (z - m) for s, m in zip(share.mT, self.means, strict=True)])
        # sum_nk s_nk (z_n - m_k)(z_n - m_k)^T, without N K differences
        centre = z.mean(0)
        z, means = z - centre, self.means - centre
        cross = (share.mT @ z).mT @ means
        of_z, of_means = (share.sum(1)[:, None] * z).mT @ z, (share.sum(0)[:, None] * means).mT @ means
        return (of_z + of_means - cross - cross.mT)[None]

    def _share(self, idle: Tensor, donors: Tensor, sharing: Tensor) -> None:
        self.weights[idle] = self.weights[donors]
        self.weights /= sharing
        self.weights /= self.weights.sum()
        if self.covariance == "full":
            self.covariances[idle] = self.covariances[donors]


class GrowingPrototypes(OnlinePrototypes):
    """At most K components, whose means are the nodes of a Growing Neural Gas over the embeddings (section 4.5)."""

    errors: Tensor
    ages: Tensor
    steps: Tensor

    def __init__(self, count: int, dim: int, covariance: str = "shared", *options: Any, **named: Any) -> None:
        if covariance == "full":
            raise ValueError("covariance: expected 'shared' or 'fixed' for nodes that come and go, got 'full'")
        if count < 2:
            raise ValueError(f"prototypes: expected at least 2 for a neural gas, got {count}")
        super().__init__(count, dim, covariance, *options, **named)
        self.gas = GrowingNeuralGas(max_nodes=count, insert_every=512)
        # The gas as buffers, so that a checkpoint has it: edges as a matrix of their ages, -1 where there is none.
        self.register_buffer("errors", torch.zeros(count))
        self.register_buffer("ages", torch.full((count, count), -1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def _place(self, z: Tensor, share: Tensor, rate: float) -> None:
        if not self.gas.started and self.steps > 0:
            self._restore()
        self.gas.partial_fit(z)
        count = len(self.gas.nodes)
        self.means.zero_()[:count] = self.gas.nodes
        self.errors.zero_()[:count] = self.gas.errors
        a, b = self.gas.edges.T
        self.ages.fill_(-1)[a, b] = self.gas.ages
        self.steps.fill_(self.gas.steps)
        # Nodes may have been numbered anew: their weights are what this batch gives them, and a little for each.
        nearest = torch.cdist(z, self.gas.nodes).argmin(1).bincount(minlength=count)
        self.weights.zero_()[:count] = (nearest + 1) / (len(z) + count)
        self.usage.copy_(self.weights)

    def _restore(self) -> None:
        count = int((self.weights > 0).sum())
        edges = (self.ages >= 0).nonzero()
        self.gas.nodes, self.gas.errors = self.means[:count].clone(), self.errors[:count].clone()
        self.gas.edges, self.gas.ages = edges, self.ages[edges[:, 0], edges[:, 1]]
        self.gas.steps = int(self.steps)

    def revive(self) -> None:
        """Nothing to do: the gas grows where it is needed, and drops nodes that are not."""


class ParticlePrototypes(OnlinePrototypes):
    """K joint embeddings of the past, resampled by how well they explain those of now: general SMC (appendix N)."""

    def __init__(self, count: int, dim: int, covariance: str = "shared", *options: Any, **named: Any) -> None:
        if covariance == "full":
            raise ValueError("covariance: expected 'shared' or 'fixed' for particles, got 'full'")
        super().__init__(count, dim, covariance, *options, **named)
        self.bank = ParticleBank(count, dim, policy="smc")

    def _place(self, z: Tensor, share: Tensor, rate: float) -> None:
        if self.covariance == "fixed":
            factor = math.sqrt(self.temperature) * torch.eye(z.shape[1], device=z.device)
        else:
            factor = torch.linalg.cholesky(self._held(self.covariances[0]))
        self.bank.take_in(z, z, functools.partial(mahalanobis_score, scale_tril=factor))
        filled = self.bank.filled
        self.means[:filled] = self.bank.contents
        self.weights.zero_()[:filled] = 1 / filled

    def revive(self) -> None:
        """Nothing to do: resampling drops what explains nothing."""
