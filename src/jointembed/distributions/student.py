"""The multivariate Student-t distribution, and the pieces its relatives share."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints


class MultivariateStudentT(Distribution):
    """Student-t on R^D with a diagonal or full scale matrix (VJE, Eq. 13); the Gaussian at `df=float("inf")`.

        >>> t = MultivariateStudentT(torch.zeros(3), torch.ones(3), df=3.0)
        >>> t.log_prob(torch.zeros(3)).item()
        -2.5510...

    The scale matrix is the covariance only at infinite `df`; for df > 2 the covariance is df / (df - 2) times it.

    Args:
        loc: (..., D), the centre.
        variance: (..., D), the diagonal of the scale matrix; or give `scale_tril`.
        df: degrees of freedom, above 0, a number or (...); infinity is allowed.
        scale_tril: (..., D, D), the lower Cholesky factor of a full scale matrix.
    """

    support = constraints.real_vector
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # checked below, by name
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        variance: Tensor | None = None,
        df: float | Tensor = 3.0,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (variance is None) == (scale_tril is None):
            raise ValueError("variance, scale_tril: expected one of the two")
        self.loc = at_least_single(loc)
        self.df = degrees(df, self.loc)
        dim = vector_dim("loc", self.loc)
        if scale_tril is None:
            assert variance is not None
            self.squared_scale: Tensor | None = check_variance(variance, dim, validate_args)
            self.scale_tril: Tensor | None = None
            shape = self.squared_scale.shape[:-1]
        else:
            self.squared_scale = None
            self.scale_tril = at_least_single(scale_tril)
            if self.scale_tril.shape[-2:] != (dim, dim):
                raise ValueError(f"scale_tril: expected (..., {dim}, {dim}), got shape {tuple(scale_tril.shape)}")
            shape = self.scale_tril.shape[:-2]
        batch = broadcast_batch(loc=self.loc.shape[:-1], scale=shape, df=self.df.shape)
        super().__init__(batch, torch.Size([dim]), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The centre where there is a mean, df > 1; NaN elsewhere."""
        return torch.where(self.df[..., None] > 1, self.loc, torch.nan).expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """Of each coordinate: df/(df - 2) times the squared scale where that is finite, df > 2; infinity elsewhere."""
        if self.scale_tril is None:
            assert self.squared_scale is not None
            squared = self.squared_scale
        else:
            squared = self.scale_tril.square().sum(-1)
        df = self.df[..., None]
        factor = torch.where(df > 2, 1 / (1 - 2 / df), torch.inf)
        return (factor * squared).expand(self._extended_shape())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density (...) with respect to Lebesgue measure on R^D."""
        return log_normaliser(self.df, self.event_shape[0]).to(self.loc) - self.loss(value)

    def loss(self, value: Tensor) -> Tensor:
        """Minus the log-density without the constant of `df` and D: Eq. 14."""
        difference = check_value(value, self) - self.loc
        if self.scale_tril is None:
            assert self.squared_scale is not None
            q, log_det = (difference.square() / self.squared_scale).sum(-1), self.squared_scale.log().sum(-1)
        else:
            white = torch.linalg.solve_triangular(self.scale_tril, difference[..., None], upper=False)[..., 0]
            q, log_det = white.square().sum(-1), 2 * self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return kernel(q, self.df, self.event_shape[0]) + 0.5 * log_det

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        df = self.df.expand(shape[:-1])
        # A Gaussian over the root of a chi-square over its degrees of freedom.
        finite = torch.where(df.isinf(), 1.0, df)
        chi2 = 2 * torch._standard_gamma(finite / 2) / finite
        noise = noise * torch.where(df.isinf(), 1.0, chi2.clamp_min(torch.finfo(chi2.dtype).tiny).rsqrt())[..., None]
        if self.scale_tril is None:
            assert self.squared_scale is not None
            return self.loc + self.squared_scale.sqrt() * noise
        return self.loc + (self.scale_tril @ noise[..., None])[..., 0]


def kernel(q: Tensor, df: Tensor, dim: int) -> Tensor:
    """(df + D)/2 log(1 + q/df), and its limit q/2 at infinite df."""
    limit = df.isinf()
    if not bool(limit.any()):
        return (df + dim) / 2 * torch.log1p(q / df)
    heavy = torch.where(limit, 1.0, df)
    return torch.where(limit, q / 2, (heavy + dim) / 2 * torch.log1p(q / heavy))


def log_normaliser(df: Tensor, dim: int) -> Tensor:
    """log C of a Student-t with unit scale in D dimensions. In double: the difference of two large log-gammas."""
    df = df.double()
    heavy = torch.where(df.isinf(), 1.0, df)
    student = torch.lgamma((heavy + dim) / 2) - torch.lgamma(heavy / 2) - dim / 2 * (heavy.log() + math.log(math.pi))
    return torch.where(df.isinf(), -dim / 2 * math.log(2 * math.pi), student)


def at_least_single(x: Tensor) -> Tensor:
    """bf16 and half precision as float32: squares over small variances need the digits."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def degrees(df: float | Tensor, like: Tensor) -> Tensor:
    """Degrees of freedom as a tensor, checked. A number stays on the CPU: looking at it stalls no GPU."""
    tensor = torch.as_tensor(df, dtype=like.dtype)
    if not bool((tensor > 0).all()):
        raise ValueError(f"df: expected degrees of freedom above 0, got {tensor.min().item():g}")
    return tensor


def vector_dim(name: str, x: Tensor) -> int:
    if x.ndim < 1 or x.shape[-1] < 1:
        raise ValueError(f"{name}: expected (..., D) with D at least 1, got shape {tuple(x.shape)}")
    return x.shape[-1]


def check_variance(variance: Tensor, dim: int, values: bool | None = None) -> Tensor:
    """The variance as it is used; `values=False` does not look at the numbers, as in torch's own distributions."""
    if variance.ndim < 1 or variance.shape[-1] != dim:
        raise ValueError(f"variance: expected (..., {dim}) as loc has, got shape {tuple(variance.shape)}")
    if values is not False and not bool((variance > 0).all()):
        raise ValueError(f"variance: expected values above 0, got {variance.min().item():g}")
    return at_least_single(variance)


def check_value(value: Tensor, distribution: Distribution) -> Tensor:
    dim = distribution.event_shape[0]
    if value.ndim < 1 or value.shape[-1] != dim:
        raise ValueError(f"value: expected (..., {dim}), got shape {tuple(value.shape)}")
    return at_least_single(value)


def broadcast_batch(**shapes: torch.Size) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"expected batch shapes that broadcast, got {listed}") from error
