"""A bank of past keys as a mixture of particles: SMC-GMJE (4.7), its general form (appendix N), and MoCo's queue.

InfoNCE against a bank is a mixture density with one mode per key. A queue replaces the oldest keys; Sequential Monte
Carlo replaces those that explain the current queries least, and clones those that explain them best: hard negatives.

    >>> bank = ParticleBank(size=4096, dim=128, policy="smc")
    >>> queries, keys = torch.nn.functional.normalize(torch.randn(2, 256, 128), dim=-1)
    >>> terms = info_nce(queries, keys, bank.contents, bank.temperature)  # 0 against an empty bank
    >>> bank.update(queries, keys)
    >>> bank.statistics()["distinct"]
    tensor(1.)
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from jointembed._distributed import from_first_rank, gather_rows, means_over_ranks

from ..base import at_least_float32

LogScore = Callable[[Tensor, Tensor], Tensor]  # queries (B, D) and particles (M, D) to log-likelihoods (B, M)


def info_nce(
    queries: Tensor, keys: Tensor, bank: Tensor, temperature: float, log_weights: Tensor | None = None
) -> dict[str, Tensor]:
    """InfoNCE of queries (B, D) with their keys (B, D) against the particles of a bank (M, D), Eq. 33.

    -log( exp(q.k / tau) / (exp(q.k / tau) + sum_m w_m exp(q.z_m / tau)) ), the mean over the batch: "alignment", minus
    the logarithm of the numerator, plus "uniformity", that of the denominator.

    Args:
        queries: of unit norm, as all the others.
        keys: the positives, row by row; each counts once in the denominator.
        bank: the negatives; it may be empty.
        temperature: tau.
        log_weights: (M,), the logarithm of how many negatives a particle stands for; by default of one each. For
            normalised weights, from which M particles would be drawn, log(M w).
    """
    _check_temperature(temperature)
    _check_shape("queries", queries)
    rows, dim = queries.shape
    _check_shape("keys", keys, rows, dim)
    if bank.ndim != 2 or bank.shape[1] != dim:
        raise ValueError(f"bank: expected (M, {dim}) as queries have, got shape {tuple(bank.shape)}")
    if log_weights is not None and log_weights.shape != bank.shape[:1]:
        raise ValueError(f"log_weights: expected shape ({len(bank)},) as bank has, got {tuple(log_weights.shape)}")
    queries = at_least_float32(queries)
    positive = (queries * keys.to(queries)).sum(1) / temperature  # (B,)
    negative = _dot_score(queries, bank.to(queries), temperature)  # (B, M)
    if log_weights is not None:
        negative = negative + log_weights.to(negative)
    alignment = -positive.mean()
    uniformity = torch.cat([positive[:, None], negative], 1).logsumexp(1).mean()
    terms = {"loss": alignment + uniformity, "alignment": alignment, "uniformity": uniformity}
    return means_over_ranks(terms, rows)


def _dot_score(queries: Tensor, particles: Tensor, temperature: float) -> Tensor:
    # bf16 has three digits, and a small temperature magnifies the error.
    with torch.autocast(queries.device.type, enabled=False):
        return (queries / temperature) @ particles.T


def mahalanobis_score(queries: Tensor, particles: Tensor, scale_tril: Tensor) -> Tensor:
    """(B, M), -1/2 |L^-1 (q - z)|^2: what general SMC scores joint embeddings with, under S = L L^T (Eq. 118)."""
    centre = particles.mean(0)  # the distances come from products: centred, they keep their digits
    both = torch.cat([queries - centre, particles - centre]).to(scale_tril)
    white = torch.linalg.solve_triangular(scale_tril, both.T, upper=False).T
    q, z = white.split([len(queries), len(particles)])
    return q @ z.T - q.square().sum(1)[:, None] / 2 - z.square().sum(1) / 2


def systematic(weights: Tensor, count: int, u: float) -> Tensor:
    """(count,) indices: one u from [0, 1) places a comb, and an index comes floor(count w) or ceil(count w) times."""
    return _invert_cdf(weights, (torch.arange(count, dtype=torch.float64) + u) / count)


def multinomial(weights: Tensor, u: Tensor) -> Tensor:
    """Indices drawn independently, one for each u from [0, 1)."""
    return _invert_cdf(weights, u.double())


def _invert_cdf(weights: Tensor, points: Tensor) -> Tensor:
    cdf = weights.double().cumsum(0)
    # right: an index of weight 0 is never found. Over its last value, and below 1: rounding leads nobody outside.
    return torch.searchsorted(cdf / cdf[-1], points.to(cdf.device).clamp_max(1 - 2**-53), right=True)


class ParticleBank(nn.Module):
    """M past keys that stand for the distribution of all, renewed with each batch.

    "fifo" replaces the oldest. "smc" takes bank and batch together, weighs every particle by how well it explains the
    batch's queries (Eq. 34) and draws M of them with replacement. New particles start with the weight of any other,
    and a key is not scored against its own query: else the newest batch would take the bank. Until the bank is
    full, both keep everything.

    Random numbers are functions of (seed, step): a bank restored from its `state_dict` goes on as if uninterrupted.
    In `torch.distributed` it is one bank: each rank gives its own batch, and all hold the same particles afterwards.

    Args:
        size: M.
        dim: D, of the keys; of the joint embeddings in general SMC.
        policy: "smc" or "fifo".
        resampling: "systematic", with the least noise, or "multinomial", as the paper's runs had it.
        temperature: tau of exp(q.z / tau), what weighs a particle unless `update` is told otherwise.
        seed: selects the sequence of random numbers.
    """

    particles: Tensor
    ids: Tensor
    born: Tensor
    count: Tensor
    step: Tensor
    ess: Tensor

    def __init__(
        self,
        size: int,
        dim: int,
        policy: Literal["smc", "fifo"] = "smc",
        resampling: Literal["systematic", "multinomial"] = "systematic",
        temperature: float = 0.1,
        seed: int = 0,
    ) -> None:
        for name, value in (("size", size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if policy not in ("smc", "fifo"):
            raise ValueError(f"policy: expected 'smc' or 'fifo', got {policy!r}")
        if resampling not in ("systematic", "multinomial"):
            raise ValueError(f"resampling: expected 'systematic' or 'multinomial', got {resampling!r}")
        _check_temperature(temperature)
        if seed < 0:
            raise ValueError(f"seed: expected at least 0, got {seed}")
        super().__init__()
        self.size, self.dim, self.policy, self.resampling = size, dim, policy, resampling
        self.temperature, self.seed = temperature, seed
        self.register_buffer("particles", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))  # which key a particle is: clones share it
        self.register_buffer("born", torch.zeros(size, dtype=torch.int64))  # the step it came in
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))  # keys ever offered
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ess", torch.zeros(()))  # of the last update, before resampling

    @property
    def filled(self) -> int:
        """How many of the M places are taken."""
        return min(int(self.count), self.size)

    @property
    def contents(self) -> Tensor:
        """(filled, D), the particles there are, all of the same weight."""
        return self.particles[: self.filled]

    def weigh(self, queries: Tensor, keys: Tensor, log_score: LogScore | None = None) -> tuple[Tensor, Tensor]:
        """The pool, (filled + B, D), bank then batch, and its normalised log-weights: Eq. 34. Changes nothing."""
        return self._weigh(*self._check(*self._of_all_ranks(queries, keys)), log_score)

    @torch.no_grad()
    def update(self, queries: Tensor, keys: Tensor, log_score: LogScore | None = None) -> None:
        """Take in the keys (B, D) of a batch; `queries` (B, D), row by row their own, weigh the particles under SMC.

        Several views of the same images may come stacked, (V, B, D): first all of the first view, then the next.
        `log_score` replaces q.z / tau: for general SMC, where both are the batch's joint embeddings,
        `functools.partial(mahalanobis_score, scale_tril=L)`.
        """
        self.take_in(*self._of_all_ranks(queries, keys), log_score)

    @torch.no_grad()
    def take_in(self, queries: Tensor, keys: Tensor, log_score: LogScore | None = None) -> None:
        """`update` with what all ranks have alike: the rows of the whole batch."""
        queries, keys = self._check(queries, keys)
        old, batch = self.filled, len(keys)
        # Buffers are replaced and not written into: a loss over the old contents still has its backward pass.
        ids = self.count + torch.arange(batch, device=self.count.device)
        born = self.step.expand(batch)
        if self.policy == "fifo" or old + batch <= self.size:
            kept = slice(max(0, batch - self.size), None)  # of a batch larger than the bank, the newest
            places = ids[kept] % self.size
            self.particles = self.particles.index_copy(0, places, keys[kept])
            self.ids = self.ids.index_copy(0, places, ids[kept])
            self.born = self.born.index_copy(0, places, born[kept])
            self.ess.fill_(min(old + batch, self.size))
        else:
            pool, log_weights = self._weigh(queries, keys, log_score)
            chosen = self._resample(log_weights.exp())
            self.particles = pool[chosen]
            self.ids = torch.cat([self.ids[:old], ids])[chosen]
            self.born = torch.cat([self.born[:old], born])[chosen]
            self.ess.copy_((-(2 * log_weights).logsumexp(0)).exp())
        self.count += batch
        self.step += 1

    @torch.no_grad()
    def _weigh(self, queries: Tensor, keys: Tensor, log_score: LogScore | None) -> tuple[Tensor, Tensor]:
        old, batch = self.filled, len(keys)
        pool = torch.cat([self.contents, keys])
        queries, particles = at_least_float32(queries), at_least_float32(pool)
        if log_score is None:
            scores = _dot_score(queries, particles, self.temperature)  # (B, M + B)
        else:
            scores = log_score(queries, particles).clone()
        scores[:, old:].fill_diagonal_(-torch.inf)
        # Before the update all weights are equal, those of the new ones too: the mean likelihoods remain. logsumexp in
        # place, half the time on a CPU, where fresh memory is what costs.
        largest = scores.amax(0)
        log_weights = scores.sub_(largest).exp_().sum(0).log_().add_(largest)
        log_weights[:old] -= math.log(batch)
        if batch > 1:
            log_weights[old:] -= math.log(batch - 1)
        else:  # a single new key has no other query to be judged by: it keeps its equal share
            log_weights[old:] = log_weights[:old].logsumexp(0) - math.log(old) if old else 0.0
        log_weights = log_weights.log_softmax(0)
        if log_weights.isnan().any():
            name = "temperature" if log_score is None else "log_score"
            raise ValueError(f"{name}: expected finite scores of all particles, got some that are not")
        return pool, log_weights

    def _resample(self, weights: Tensor) -> Tensor:
        # On the CPU, so that all devices draw alike; numpy mixes (seed, step) into streams that are independent.
        random, weights = np.random.default_rng((self.seed, int(self.step))), weights.cpu()
        if self.resampling == "systematic":
            chosen = systematic(weights, self.size, random.random())
        else:
            chosen = multinomial(weights, torch.from_numpy(random.random(self.size)))
        # A rounding error more or less chooses another particle: one rank decides.
        return from_first_rank(chosen.to(self.particles.device))

    def statistics(self) -> dict[str, Tensor]:
        """For the log.

        "ess", the effective number of particles in bank and batch before the last resampling; "age_mean" and "age_max",
        steps since a key came in, 0 for the last batch; "distinct", different keys as a share of the bank.
        """
        filled = self.filled
        if not filled:
            return {"ess": self.ess.clone()} | dict.fromkeys(("age_mean", "age_max", "distinct"), self.ess.clone())
        age = (self.step - 1 - self.born[:filled]).float()
        distinct = self.ess.new_tensor(len(self.ids[:filled].unique()) / filled)
        return {"ess": self.ess.clone(), "age_mean": age.mean(), "age_max": age.max(), "distinct": distinct}

    def _of_all_ranks(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        def rows(x: Tensor) -> Tensor:
            return gather_rows(x.detach(), -2)[0].flatten(0, -2) if x.ndim in (2, 3) else x  # others are refused later

        everyone = rows(keys)
        return everyone if queries is keys else rows(queries), everyone

    def _check(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        _check_shape("keys", keys, dim=self.dim)
        _check_shape("queries", queries, len(keys), self.dim)
        for name, x in (("queries", queries), ("keys", keys)):
            if not x.isfinite().all():
                raise ValueError(f"{name}: expected finite values, got {int((~x.isfinite()).sum())} that are not")
        return queries.detach().to(self.particles), keys.detach().to(self.particles)

    def extra_repr(self) -> str:
        return f"size={self.size}, dim={self.dim}, policy={self.policy!r}, resampling={self.resampling!r}"


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature: expected a number above 0, got {temperature}")


def _check_shape(name: str, x: Tensor, rows: int | None = None, dim: int | None = None) -> None:
    if x.ndim != 2 or 0 in x.shape or rows not in (None, len(x)) or dim not in (None, x.shape[1]):
        raise ValueError(f"{name}: expected shape ({rows or 'B'}, {dim or 'D'}), got {tuple(x.shape)}")
