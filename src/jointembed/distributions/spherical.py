"""Distributions of directions: the Power Spherical (De Cao and Aziz, 2020, arXiv 2006.04437) and the uniform one."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from .polar import direction
from .student import at_least_single, broadcast_batch, check_value, vector_dim


class _UnitVector(constraints.Constraint):
    """Norm one, to what is left of it after a few roundings."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(value, dim=-1) - 1).abs() < 1e-4


unit_vector = _UnitVector()


class HypersphericalUniform(Distribution):
    """Every direction of R^D alike: the uniform distribution on the unit sphere, of density one over its area.

        >>> round(HypersphericalUniform(3).entropy().exp().item() / math.pi, 3)  # the area of the sphere is 4 pi
        4.0

    Args:
        dim: D, at least 2.
        dtype: of samples and entropy; torch's default if None.
        device: of them.
    """

    support = unit_vector
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # the dimension is no tensor
    has_rsample = True

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(dim, int) or dim < 2:
            raise ValueError(f"dim: expected an integer of at least 2, got {dim!r}")
        self.like = torch.empty(0, dtype=dtype, device=device)
        super().__init__(torch.Size(), torch.Size([dim]), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.like.new_zeros(self.event_shape)

    @property
    def variance(self) -> Tensor:
        """1/D for every coordinate."""
        return self.like.new_full(self.event_shape, 1 / self.event_shape[0])

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density (...) with respect to the surface measure of the sphere."""
        value = check_value(value, self)
        if self._validate_args:
            self._validate_sample(value)
        return value.new_full(value.shape[:-1], -log_area(self.event_shape[0]))

    def entropy(self) -> Tensor:
        return self.like.new_full((), log_area(self.event_shape[0]))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        return direction(torch.randn(shape, dtype=self.like.dtype, device=self.like.device))


class PowerSpherical(Distribution):
    """Density C (1 + loc x)^concentration on the unit sphere of R^D, round `loc` as the von Mises-Fisher's is.

    Uniform at concentration 0; the larger, the nearer to `loc`. Unlike the von Mises-Fisher it has a normaliser and a
    reparameterised sampler without Bessel functions or rejection, and no density at all at -loc.

        >>> p = PowerSpherical(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(2.0))
        >>> p.mean.tolist()  # concentration / (concentration + D - 1) along loc
        [0.0, 0.0, 0.5]

    Args:
        loc: (..., D), unit vectors, D at least 2: the mean direction.
        concentration: (...), at least 0.
    """

    support = unit_vector
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": unit_vector,
        "concentration": constraints.nonnegative,
    }
    has_rsample = True

    def __init__(self, loc: Tensor, concentration: Tensor | float, validate_args: bool | None = None) -> None:
        self.loc = at_least_single(loc)
        if vector_dim("loc", self.loc) < 2:
            raise ValueError(f"loc: expected (..., D) with D at least 2, got shape {tuple(loc.shape)}")
        self.concentration = at_least_single(torch.as_tensor(concentration, device=loc.device)).to(self.loc.dtype)
        batch = broadcast_batch(loc=self.loc.shape[:-1], concentration=self.concentration.shape)
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)

    def _beta(self) -> tuple[Tensor, float]:
        """Of the Beta distribution that (1 + loc x)/2 has. In double: differences of log-gammas lose many digits."""
        b = (self.event_shape[0] - 1) / 2
        return self.concentration.double() + b, b

    def _log_normaliser(self) -> Tensor:
        a, b = self._beta()
        return torch.lgamma(a + b) - torch.lgamma(a) - (a + b) * math.log(2) - b * math.log(math.pi)

    @property
    def mean(self) -> Tensor:
        """Shorter than one: how sure the direction is."""
        share = self.concentration / (self.concentration + self.event_shape[0] - 1)
        return (share[..., None] * self.loc).expand(self._extended_shape())

    @property
    def mode(self) -> Tensor:
        return self.loc.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """Of each coordinate."""
        a, b = self._beta()
        along = 4 * a * b / ((a + b).square() * (a + b + 1))  # of t = loc x
        across = (1 - along - ((a - b) / (a + b)).square()) / (2 * b)  # E[1 - t^2] shared by the D - 1 other directions
        squares = self.loc.square()
        along, across = along.to(squares)[..., None], across.to(squares)[..., None]
        return (squares * along + (1 - squares) * across).expand(self._extended_shape())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density (...) with respect to the surface measure of the sphere."""
        value = check_value(value, self)
        if self._validate_args:
            self._validate_sample(value)
        return self._log_normaliser().to(self.loc) + self.concentration * log_one_plus_cosine(self.loc, value)

    def entropy(self) -> Tensor:
        return -self._expected_log_prob().to(self.loc).expand(self.batch_shape)

    def _expected_log_prob(self) -> Tensor:
        a, b = self._beta()
        expected = math.log(2) + torch.digamma(a) - torch.digamma(a + b)  # of log(1 + loc x)
        return self._log_normaliser() + self.concentration.double() * expected

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        b = (shape[-1] - 1) / 2
        tiny = torch.finfo(self.loc.dtype).tiny
        # Beta(a, b) as a ratio of gammas: it gives both t and sqrt(1 - t^2) without the cancellation in 1 - t^2.
        first = torch._standard_gamma((self.concentration + b).expand(shape[:-1])).clamp_min(tiny)
        second = torch._standard_gamma(self.loc.new_full(shape[:-1], b)).clamp_min(tiny)
        t = (first - second) / (first + second)
        across = 2 * first.sqrt() * second.sqrt() / (first + second)
        tangent = direction(torch.randn((*shape[:-1], shape[-1] - 1), dtype=self.loc.dtype, device=self.loc.device))
        # Round the pole +-e_1 that is farther from loc; the reflection that takes it to loc is then never singular.
        sign = torch.where(self.loc[..., :1] > 0, -1.0, 1.0).to(self.loc)
        y = torch.cat([sign * t[..., None], across[..., None] * tangent], -1)
        pole = torch.cat([sign, torch.zeros_like(self.loc[..., 1:])], -1)
        normal = pole - self.loc
        return y - 2 * (normal * y).sum(-1, keepdim=True) / normal.square().sum(-1, keepdim=True) * normal


@register_kl(PowerSpherical, HypersphericalUniform)
def _kl_to_uniform(p: PowerSpherical, q: HypersphericalUniform) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(f"q: expected {p.event_shape[0]} dimensions as p has, got {q.event_shape[0]}")
    return (p._expected_log_prob() + log_area(p.event_shape[0])).to(p.loc).expand(p.batch_shape)


def log_area(dim: int) -> float:
    """Of the unit sphere in R^D."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def log_one_plus_cosine(u: Tensor, v: Tensor) -> Tensor:
    """log(1 + u v) of unit vectors (..., D), (...), to full precision near v = u and near v = -u.

    1 + u v = |u + v|^2 / 2 = 2 - |u - v|^2 / 2: each where its square is the smaller one.
    """
    near = (u * v).sum(-1) > 0
    square = (torch.where(near[..., None], u - v, u + v)).square().sum(-1)
    tiny = torch.finfo(square.dtype).tiny
    same = math.log(2) + torch.log1p(-torch.where(near, square, 0) / 4)
    opposite = (torch.where(near, 1, square).clamp_min(tiny) / 2).log()
    return torch.where(near, same, opposite)
