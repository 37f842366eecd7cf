"""The polar Student-t likelihood of VJE: direction and norm of an embedding, each with heavy tails."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .student import (
    at_least_single,
    broadcast_batch,
    check_value,
    check_variance,
    degrees,
    kernel,
    log_normaliser,
    vector_dim,
)

EPS = 1e-6  # norms are not divided by less than this
COMPONENTS = 4  # of the proposal that samples the sphere


class PolarStudentT(Distribution):
    """Product likelihood of the direction z/|z| and the norm |z| of an embedding z, given a latent `loc`.

        log_prob(z) = log t_D(z/|z|; loc/|loc|, diag(variance), df) + log t_1(|z| - |loc|; 0, 1, df)

    Both factors carry their Student-t normalisers, so values compare across `df`, D and runs. What it is, exactly:
    the first term is the log-density of an ambient D-dimensional Student-t, taken at a point that happens to lie on
    the unit sphere; the second is the log-density of a 1-D Student-t, taken at the difference of the norms.

    What it is not: a density of z with respect to Lebesgue measure on R^D. There is no Jacobian -(D-1) log|z|, the
    radial factor leaves some mass on negative norms, and the directional factor does not integrate to one over the
    unit sphere, but to exp(`direction_log_mass()`), which may be less or more than one. Subtract that to have a density
    of the direction with respect to the surface measure of the sphere. As the observation is not a draw from this
    product, there is no `sample`.

        >>> p = PolarStudentT(torch.tensor([3.0, 4.0]), torch.tensor([0.1, 0.2]), df=3.0)
        >>> z = torch.tensor([6.0, 8.0])  # the same direction, twice the norm
        >>> torch.allclose(p.log_prob(z), p.direction_log_prob(z) + p.radius_log_prob(z))
        True

    Args:
        loc: (..., D), the latent s.
        variance: (..., D), the squared scale of each coordinate of the direction.
        df: degrees of freedom of both factors, above 0, a number or (...); infinity gives Gaussian factors.
    """

    support = constraints.real_vector
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # checked below, by name

    def __init__(
        self, loc: Tensor, variance: Tensor, df: float | Tensor = 3.0, validate_args: bool | None = None
    ) -> None:
        self.loc = at_least_single(loc)
        self.df = degrees(df, self.loc)
        dim = vector_dim("loc", self.loc)
        self.squared_scale = check_variance(variance, dim, validate_args)
        batch = broadcast_batch(loc=self.loc.shape[:-1], variance=self.squared_scale.shape[:-1], df=self.df.shape)
        super().__init__(batch, torch.Size([dim]), validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum of the two factors, (...)."""
        return self.direction_log_prob(value) + self.radius_log_prob(value)

    def direction_log_prob(self, value: Tensor) -> Tensor:
        """Log-density of value/|value| under the ambient D-dimensional Student-t around loc/|loc|."""
        return log_normaliser(self.df, self.event_shape[0]).to(self.loc) - self.direction_loss(value)

    def radius_log_prob(self, value: Tensor) -> Tensor:
        """Log-density of |value| - |loc| under the 1-D Student-t of unit scale."""
        return log_normaliser(self.df, 1).to(self.loc) - self.radius_loss(value)

    def direction_loss(self, value: Tensor) -> Tensor:
        """Minus the directional factor without the constant of `df` and D (Eq. 24)."""
        difference = direction(check_value(value, self)) - direction(self.loc)
        q = (difference.square() / self.squared_scale).sum(-1)
        return kernel(q, self.df, self.event_shape[0]) + 0.5 * self.squared_scale.log().sum(-1)

    def radius_loss(self, value: Tensor) -> Tensor:
        """Minus the radial factor without its constant; its slope in the norm is at most (df+1)/(2 sqrt(df))."""
        residual = norm(check_value(value, self)) - norm(self.loc)
        return kernel(residual.square(), self.df, 1)

    def direction_log_mass(self, samples: int = 256, seed: int = 0) -> Tensor:
        """Log of what the directional factor integrates to over the unit sphere, (...).

        A numerical integral, exact to rounding, where every variance vector is constant; else importance sampling.

        Args:
            samples: draws per distribution where the variances differ; the error falls with their square root.
            seed: of the draws.
        """
        if samples < 1:
            raise ValueError(f"samples: expected at least 1, got {samples}")
        dim, shape = self.event_shape[0], self._extended_shape()
        centre = direction(self.loc).expand(shape).detach().double().reshape(-1, dim)
        variance = self.squared_scale.expand(shape).detach().double().reshape(-1, dim)
        df = self.df.expand(shape[:-1]).detach().double().reshape(-1)
        isotropic = bool((variance == variance[:, :1]).all()) or dim == 1
        parts = [
            _isotropic_log_mass(v[:, 0], d, dim) if isotropic else _sampled_log_mass(m, v, d, samples, seed + i)
            for i, (m, v, d) in enumerate(zip(centre.split(256), variance.split(256), df.split(256), strict=True))
        ]
        return torch.cat(parts).reshape(shape[:-1]).to(self.loc)


def norm(x: Tensor) -> Tensor:
    """|x| over the last dimension; its gradient at 0 is 0."""
    return torch.linalg.vector_norm(x, dim=-1)


def direction(x: Tensor) -> Tensor:
    """x/|x|, and 0 at 0."""
    return x / norm(x).clamp_min(EPS)[..., None]


def _isotropic_log_mass(variance: Tensor, df: Tensor, dim: int) -> Tensor:
    """The integral over the angle to the centre, (B,); all that matters where the scale is the same everywhere."""
    log_constant = log_normaliser(df, dim) - dim / 2 * variance.log()
    if dim == 1:  # the sphere is two points
        there, opposite = torch.zeros_like(variance), 4 / variance
        return log_constant + torch.logaddexp(-kernel(there, df, 1), -kernel(opposite, df, 1))
    # With sin^2(angle/2) = sigmoid(y) the integrand is smooth and dies off at both ends: the trapezoid rule is exact
    # to rounding with a step well below its width, about 2/sqrt(D).
    y = torch.linspace(-100, 100, 8001, dtype=torch.float64, device=variance.device)
    near, far = torch.nn.functional.logsigmoid(y), torch.nn.functional.logsigmoid(-y)
    q = 4 * near.exp() / variance[:, None]
    log_integrand = (dim - 1) / 2 * (near + far) - kernel(q, df[:, None], dim)
    log_circle = math.log(2) + (dim - 1) / 2 * math.log(math.pi) - math.lgamma((dim - 1) / 2)  # area of S^(D-2)
    log_step = math.log(200 / 8000)
    return log_constant + log_circle + (dim - 2) * math.log(2) + log_step + log_integrand.logsumexp(-1)


def _sampled_log_mass(centre: Tensor, variance: Tensor, df: Tensor, samples: int, seed: int) -> Tensor:
    """Importance sampling of the sphere, (B,).

    The Student-t is a mixture of Gaussians with precisions tau / variance. The proposal is the direction of a draw from
    a few of them, from the tau that counts most down to that of the far side of the sphere, each tilted by a multiple
    of |x|^2 so that |x| is about one: its directions are then spread as the likelihood spreads them on the sphere.
    """
    dim = centre.shape[-1]
    heavy = torch.where(df.isinf(), 1.0, df)
    tau = torch.ones_like(df)
    for _ in range(20):
        precision, mean = _tilted(centre, variance, tau)
        q = ((1 / precision + (mean - centre).square()) / variance).sum(-1)
        tau = torch.where(df.isinf(), 1.0, (heavy + dim) / (heavy + q))
    least = torch.where(df.isinf(), 1.0, (heavy + dim) / (heavy + 4 / variance.amin(-1)))
    taus = [tau * (least / tau).clamp_max(1) ** (k / (COMPONENTS - 1)) for k in range(COMPONENTS)]
    proposals = [_tilted(centre, variance, one) for one in taus]
    each = -(-samples // COMPONENTS)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(COMPONENTS, each, *centre.shape, dtype=torch.float64, generator=generator).to(centre)
    u = torch.cat([direction(m + e * p.rsqrt()) for (p, m), e in zip(proposals, noise, strict=True)])  # (S, B, D)
    q = ((u - centre).square() / variance).sum(-1)
    log_target = log_normaliser(df, dim) - kernel(q, df, dim) - 0.5 * variance.log().sum(-1)
    log_proposal = torch.stack([_log_direction_density(u, m, p) for p, m in proposals]).logsumexp(0)
    return (log_target - log_proposal).logsumexp(0) - math.log(each)


def _log_direction_density(u: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Log-density on the sphere of the direction of a Gaussian draw: the Gaussian along the ray r u, with r^(D-1)."""
    dim = u.shape[-1]
    a, b, c = (precision * u.square()).sum(-1), (precision * mean * u).sum(-1), (precision * mean.square()).sum(-1)
    peak = (b + (b.square() + 4 * a * dim).sqrt()) / (2 * a)
    width = (2 * a * peak.square() - b * peak).rsqrt()  # of the integrand over log r
    y = peak.log()[..., None] + width[..., None] * torch.linspace(-16, 16, 65, dtype=u.dtype, device=u.device)
    along = (dim * y - 0.5 * a[..., None] * (2 * y).exp() + b[..., None] * y.exp()).logsumexp(-1) + (0.5 * width).log()
    return along - 0.5 * c + 0.5 * precision.log().sum(-1) - dim / 2 * math.log(2 * math.pi)


def _tilted(centre: Tensor, variance: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Precision and mean of exp(-tau/2 Q(x) - tilt/2 |x|^2) with the tilt that makes E|x|^2 = 1, by bisection."""
    base = tau[:, None] / variance
    low = -base.amin(-1)  # E|x|^2 is infinite here,
    high = low + centre.shape[-1] + norm(base * centre)  # and at most one here
    for _ in range(80):
        middle = (low + high) / 2
        precision = base + middle[:, None]
        large = ((1 / precision) + (base * centre / precision).square()).sum(-1) > 1
        low, high = torch.where(large, middle, low), torch.where(large, high, middle)
    precision = base + high[:, None]
    return precision, base * centre / precision
