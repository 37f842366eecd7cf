"""Gaussian mixtures: GMJE's joint density of two views, and with one component GJE's joint Gaussian."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from .roots import Diagonal, Root, Triangular, flat_index, product, squared_distances
from .student import broadcast_batch


class GaussianMixture(Distribution):
    """sum_k weights_k N(means_k, covariances_k) on R^D, with exact marginals and conditionals.

        >>> joint = GaussianMixture(
        ...     weights=torch.tensor([0.5, 0.5]),
        ...     means=torch.tensor([[0.0, -1.0], [0.0, 1.0]]),
        ...     covariances=torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]),  # one, shared by both components
        ... )
        >>> second = joint.condition([0], torch.tensor([[0.0], [2.0]]))  # the second coordinate, given two firsts
        >>> second.batch_shape, second.mean.tolist()
        (torch.Size([2]), [[0.0], [1.0]])

    The numbers are computed with in the widest precision of the three, at least float32. Weights are normalised and
    kept as logarithms; zero is allowed. Covariances are kept as roots; `diagonal` and `isotropic` build no matrices.

    Args:
        weights: (..., K), at least 0 and summing to one.
        means: (..., K, D).
        covariances: (..., K, D, D), or (..., 1, D, D) for one that the components share; or give `scale_tril`.
        scale_tril: their lower Cholesky factors, in the same shape, taken as they are.
        validate_args: False does not look at the numbers, as suits a training loop; shapes are always checked.
    """

    support = constraints.real_vector
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # checked below, by name
    has_rsample = True

    log_weights: Tensor  # (..., K)
    means: Tensor  # (..., K, D)

    def __init__(
        self,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor | None = None,
        *,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (covariances is None) == (scale_tril is None):
            raise ValueError("covariances, scale_tril: expected one of the two")
        validate = self._validate_args if validate_args is None else validate_args
        tail = means.shape[-1:] + means.shape[-1:]
        if covariances is not None:
            log_weights, means, matrices = _prepare(weights, means, "covariances", covariances, tail, validate)
            root = Triangular.from_covariances(matrices, _tolerance(covariances), validate)
        else:
            assert scale_tril is not None
            log_weights, means, factor = _prepare(weights, means, "scale_tril", scale_tril, tail, validate)
            root = Triangular.from_factor(factor, validate)
        self._assemble(log_weights, means, root, validate)

    @classmethod
    def diagonal(
        cls, weights: Tensor, means: Tensor, variances: Tensor, *, validate_args: bool | None = None
    ) -> GaussianMixture:
        """With diagonal covariances, their diagonals (..., K, D), or (..., 1, D) for a shared one."""
        validate = cls._validate_args if validate_args is None else validate_args
        log_weights, means, variances = _prepare(weights, means, "variances", variances, means.shape[-1:], validate)
        return cls._of(log_weights, means, Diagonal.from_variances(variances, means.shape[-1], validate), validate)

    @classmethod
    def isotropic(
        cls, weights: Tensor, means: Tensor, variances: Tensor, *, validate_args: bool | None = None
    ) -> GaussianMixture:
        """With multiples (..., K) of the identity as covariances, or (..., 1) for a shared one."""
        validate = cls._validate_args if validate_args is None else validate_args
        log_weights, means, variances = _prepare(weights, means, "variances", variances, torch.Size(), validate)
        root = Diagonal.from_variances(variances[..., None], means.shape[-1], validate)
        return cls._of(log_weights, means, root, validate)

    @classmethod
    def _of(cls, log_weights: Tensor, means: Tensor, root: Root, validate: bool) -> GaussianMixture:
        mixture = cls.__new__(cls)
        mixture._assemble(log_weights, means, root, validate)
        return mixture

    def _assemble(self, log_weights: Tensor, means: Tensor, root: Root, validate: bool) -> None:
        # Parameters keep their own batch shapes and are not expanded: a shared covariance serves any batch of means.
        shapes = {"weights": log_weights.shape[:-1], "means": means.shape[:-2], "covariances": root.batch[:-1]}
        batch = broadcast_batch(**shapes)
        self.log_weights, self.means, self._root = log_weights, means, root
        super().__init__(batch, means.shape[-1:], validate_args=validate)

    @property
    def weights(self) -> Tensor:
        return self.log_weights.exp()

    @property
    def covariances(self) -> Tensor:
        """(..., K, D, D), or (..., 1, D, D) where the components share one; without batch dimensions it lacks."""
        return self._root.matrices()

    @property
    def mean(self) -> Tensor:
        return product("...k,...kd->...d", self.weights, self.means).expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """Of each coordinate: the diagonal of `covariance`."""
        squares = self._root.variances() + (self.means - self.mean[..., None, :]).square()
        return product("...k,...kd->...d", self.weights, squares).expand(self._extended_shape())

    @property
    def aleatoric(self) -> Tensor:
        """The mean of the components' covariances, (..., D, D): what is left when the component is known."""
        return self._root.average(self.weights).expand(*self.batch_shape, *self.event_shape, *self.event_shape)

    @property
    def epistemic(self) -> Tensor:
        """The covariance of the components' means, (..., D, D): the ambiguity between modes."""
        centred = self.means - self.mean[..., None, :]
        return product("...ki,...kj->...ij", self.weights[..., None] * centred, centred)

    @property
    def covariance(self) -> Tensor:
        """(..., D, D), by the law of total variance."""
        return self.aleatoric + self.epistemic

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Log-density of each component, (..., K), without its weight."""
        value = _vectors("value", value, self.event_shape[0], self._validate_args).to(self.means.dtype)
        shape = broadcast_batch(value=value.shape[:-1], mixture=self.batch_shape)
        distances = squared_distances(self._root, value, self.means)
        constant = self.event_shape[0] / 2 * math.log(2 * math.pi)
        return (-0.5 * distances - (self._root.half_log_det() + constant)).expand(*shape, self.means.shape[-2])

    def log_prob(self, value: Tensor) -> Tensor:
        return (self.log_weights + self.component_log_prob(value)).logsumexp(-1)

    def responsibilities(self, value: Tensor) -> Tensor:
        """The probability (..., K) that a value came from each component."""
        return (self.log_weights + self.component_log_prob(value)).softmax(-1)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw (*sample_shape, ..., D) with `generator`, or as all of torch.distributions with torch's global one."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def rsample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """As `sample`, differentiable in means and covariances given the component drawn, but not in the weights."""
        shape = self._extended_shape(torch.Size(sample_shape))
        weights = self.weights.detach().expand(*self.batch_shape, -1)
        count = math.prod(torch.Size(sample_shape))
        draws = torch.multinomial(weights.reshape(-1, weights.shape[-1]), count, replacement=True, generator=generator)
        component = draws.T.reshape(shape[:-1])
        noise = torch.randn(shape, dtype=self.means.dtype, device=self.means.device, generator=generator)
        means = self.means.flatten(0, -2)[flat_index(self.means.shape[:-1], component)]
        return means + self._root.spread(noise, component)

    def marginal(self, indices: Sequence[int] | Tensor) -> GaussianMixture:
        """The mixture of these coordinates, in the order given."""
        kept, _ = self._partition(indices)
        return self._of(self.log_weights, self.means[..., kept], self._root.marginal(kept), self._validate_args)

    def condition(self, indices: Sequence[int] | Tensor, values: Tensor) -> GaussianMixture:
        """The mixture of the other coordinates, in their order, given that these have `values` (..., len(indices)).

        Its batch shape is that of `values` and this mixture broadcast together. Covariances do not depend on the
        values and have no copy for each; a shared one stays shared. The values route themselves: the new weights are
        the responsibilities they have in the marginal.
        """
        given, rest = self._partition(indices, proper=True)
        values = _vectors("values", values, len(given), self._validate_args).to(self.means.dtype)
        broadcast_batch(values=values.shape[:-1], mixture=self.batch_shape)
        root, cross, rest_root = self._root.split(given, rest)
        marginal = self._of(self.log_weights, self.means[..., given], root, self._validate_args)
        log_weights = (self.log_weights + marginal.component_log_prob(values)).log_softmax(-1)
        means = self.means[..., rest]
        if isinstance(root, Triangular) and cross is not None:
            means = means + root.regress(cross, values, marginal.means)
        return self._of(log_weights, means, rest_root, self._validate_args)

    def affine(self, shift: Tensor, scale: Tensor) -> GaussianMixture:
        """The mixture of shift + scale z, coordinate by coordinate: `shift` and `scale` are (D,), scales above 0."""
        shift, scale = (
            _vectors(n, x, self.event_shape[0], True).to(self.means) for n, x in (("shift", shift), ("scale", scale))
        )
        if not bool((scale > 0).all()):
            raise ValueError(f"scale: expected values above 0, got {scale.min().item():g}")
        return self._of(self.log_weights, shift + scale * self.means, self._root.scaled(scale), self._validate_args)

    def entropy(self) -> Tensor:
        """In nats, (...), for a single component."""
        self._require_one("entropy")
        constant = self.event_shape[0] / 2 * (1 + math.log(2 * math.pi))
        return (constant + self._root.half_log_det()[..., 0]).expand(self.batch_shape)

    def mutual_information(self, indices: Sequence[int] | Tensor) -> Tensor:
        """1/2 log(|S_aa| |S_bb| / |S|) in nats, (...), of these coordinates and the others, for a single component."""
        self._require_one("mutual_information")
        given, rest = self._partition(indices, proper=True)
        parts = self._root.marginal(given).half_log_det() + self._root.marginal(rest).half_log_det()
        return (parts - self._root.half_log_det())[..., 0].expand(self.batch_shape)

    def _require_one(self, what: str) -> None:
        if (count := self.means.shape[-2]) != 1:
            raise NotImplementedError(f"{what}: expected one component, as mixtures have no closed form, got {count}")

    def _partition(self, indices: Sequence[int] | Tensor, proper: bool = False) -> tuple[list[int], list[int]]:
        """The indices, checked, and the others; `proper` requires that there are others."""
        dim = self.event_shape[0]
        some = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        if not some or len(set(some)) < len(some) or not set(some) <= set(range(dim)):
            raise ValueError(f"indices: expected one or more different coordinates from 0 to {dim - 1}, got {some}")
        others = [i for i in range(dim) if i not in some]
        if proper and not others:
            raise ValueError(f"indices: expected fewer than all {dim} coordinates, got {some}")
        return some, others


@register_kl(GaussianMixture, GaussianMixture)
def _kl_of_single_components(p: GaussianMixture, q: GaussianMixture) -> Tensor:
    for mixture in (p, q):
        mixture._require_one("kl_divergence")
    if p.event_shape != q.event_shape:
        raise ValueError(f"q: expected {p.event_shape[0]} dimensions as p has, got {q.event_shape[0]}")
    shape = broadcast_batch(p=p.batch_shape, q=q.batch_shape)
    distance = squared_distances(q._root, p.means[..., 0, :], q.means)[..., 0]
    log_ratio = (q._root.half_log_det() - p._root.half_log_det())[..., 0]
    return (0.5 * (q._root.trace_ratio(p._root) + distance - p.event_shape[0]) + log_ratio).expand(shape)


def _prepare(
    weights: Tensor, means: Tensor, name: str, scales: Tensor, tail: torch.Size, validate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-weights, means and scales (..., K|1, *tail) in one precision, checked as far as all forms are alike."""
    if means.ndim < 2 or 0 in means.shape[-2:]:
        raise ValueError(f"means: expected (..., K, D) with both at least 1, got shape {tuple(means.shape)}")
    count = means.shape[-2]
    if weights.shape[-1:] != (count,):
        raise ValueError(f"weights: expected (..., {count}) as there are means, got shape {tuple(weights.shape)}")
    if scales.shape[-1 - len(tail) :] not in ((count, *tail), (1, *tail)):
        expected = ", ".join(["...", f"{count} or 1" if count > 1 else "1", *map(str, tail)])
        raise ValueError(f"{name}: expected ({expected}) as the means have, got shape {tuple(scales.shape)}")
    tolerance = _tolerance(weights)
    dtype = functools.reduce(torch.promote_types, (weights.dtype, means.dtype, scales.dtype), torch.float32)
    weights, means, scales = weights.to(dtype), means.to(dtype), scales.to(dtype)
    if validate:
        for each, x in (("weights", weights), ("means", means), (name, scales)):
            if not bool(x.isfinite().all()):
                raise ValueError(f"{each}: expected finite values, got {x[~x.isfinite()][0].item()}")
        if bool((weights < 0).any()):
            raise ValueError(f"weights: expected values of at least 0, got {weights.min().item():g}")
        total = weights.sum(-1).flatten()
        if bool(((total - 1).abs() > tolerance).any()):
            raise ValueError(f"weights: expected a sum of 1, got {total[(total - 1).abs().argmax()].item():g}")
    positive = weights > 0
    # Masked before and after, as the gradient of log(0) is not finite even where nothing depends on it.
    log_weights = torch.where(positive, torch.where(positive, weights, 1).log(), -torch.inf)
    return log_weights.log_softmax(-1), means, scales


def _tolerance(x: Tensor) -> float:
    """How far rounding may have taken numbers of about one: a few units in the last place, or what people write."""
    return max(1e-5, 2 * torch.finfo(x.dtype).eps) if x.is_floating_point() else 1e-5


def _vectors(name: str, x: Tensor, width: int, validate: bool) -> Tensor:
    if x.ndim < 1 or x.shape[-1] != width:
        raise ValueError(f"{name}: expected (..., {width}), got shape {tuple(x.shape)}")
    if validate and bool(x.isnan().any()):
        raise ValueError(f"{name}: expected numbers, got nan")
    return x
