"""What the density of the pairs says of a target, given its context: a torch distribution for each new context."""

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from jointembed.methods.base import at_least_float32

from .kernels import (
    add_diagonal,
    check_features,
    check_kernel,
    cholesky,
    fourier_features,
    full_precision,
    gram,
    kernel_variance,
)


@full_precision
def dual_prediction(
    z_context: Tensor,
    z_target: Tensor,
    z_new: Tensor,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
    noise: float | Tensor = 0.1,
    noisy: bool = True,
) -> Independent:
    """The Gaussian process's prediction at new contexts z_new (N, d_c) from pairs (B, d_c), (B, d_t) (Eq. 5).

    Mean k_* K^-1 Z_t; variance k_** - k_* K^-1 k_*^T, the same for all d_t dimensions, and growing away from the
    pairs. `noisy` adds the noise, for a target rather than the function behind it.
    """
    check_kernel(kernel, lengthscale=lengthscale, amplitude=amplitude, noise=noise)
    z_new = _check_new(z_new, z_context)
    factor = cholesky(add_diagonal(gram(z_context, None, kernel, lengthscale, amplitude), noise), "noise", noise)
    cross = gram(z_context, z_new, kernel, lengthscale, amplitude)  # (B, N)
    whitened = torch.linalg.solve_triangular(factor, cross, upper=False)
    mean = whitened.mT @ torch.linalg.solve_triangular(factor, z_target, upper=False)
    variance = kernel_variance(z_new, kernel, lengthscale, amplitude) - whitened.square().sum(0)
    return _prediction(mean, variance, noise if noisy else 0.0)


@full_precision
def rff_prediction(
    z_context: Tensor,
    z_target: Tensor,
    z_new: Tensor,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
    noise: float | Tensor = 0.1,
    noisy: bool = True,
    num_features: int = 512,
    seed: int = 0,
) -> Independent:
    """`dual_prediction` through random Fourier features: mean phi^T A^-1 Phi^T Z_t, variance noise phi^T A^-1 phi."""
    check_kernel(kernel, lengthscale=lengthscale, amplitude=amplitude, noise=noise)
    check_features(num_features)
    z_new = _check_new(z_new, z_context)
    known, new = (fourier_features(z, num_features, kernel, lengthscale, amplitude, seed) for z in (z_context, z_new))
    factor = cholesky(add_diagonal(known.mT @ known, noise), "noise", noise)
    mean = new @ torch.cholesky_solve(known.mT @ z_target, factor)
    variance = noise * torch.linalg.solve_triangular(factor, new.mT, upper=False).square().sum(0)
    return _prediction(mean, variance, noise if noisy else 0.0)


def primal_prediction(z_context: Tensor, covariance: Tensor, mean: Tensor | None = None) -> MultivariateNormal:
    """The targets of contexts (N, d_c) under a joint Gaussian of covariance (d, d), the context first (Eq. 10).

    Mean S_tc S_cc^-1 z_c, covariance S_tt - S_tc S_cc^-1 S_ct. Both stand in the Cholesky factor of the joint S:
    with L = [[L_cc, 0], [L_tc, L_tt]] they are L_tc L_cc^-1 z_c and L_tt L_tt^T. `mean` (d,) is zero by default.
    """
    z_context, dim = at_least_float32(z_context), z_context.shape[-1]
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1] or len(covariance) <= dim:
        raise ValueError(f"covariance: expected (d, d) with d above {dim}, got shape {tuple(covariance.shape)}")
    if mean is not None and mean.shape != covariance.shape[:1]:
        raise ValueError(f"mean: expected ({len(covariance)},) as covariance has, got shape {tuple(mean.shape)}")
    factor, failed = torch.linalg.cholesky_ex(covariance.to(z_context.dtype))
    if failed:
        raise ValueError(f"covariance: expected a positive definite matrix, its minor of order {int(failed)} is not")
    mean = covariance.new_zeros(len(covariance)) if mean is None else mean
    centred = (z_context - mean[:dim]).mT
    whitened = torch.linalg.solve_triangular(factor[:dim, :dim], centred, upper=False)
    loc = mean[dim:] + (factor[dim:, :dim] @ whitened).mT
    return MultivariateNormal(loc, scale_tril=factor[dim:, dim:], validate_args=False)


def _check_new(z_new: Tensor, z_context: Tensor) -> Tensor:
    if z_new.ndim != 2 or z_new.shape[1] != z_context.shape[1]:
        raise ValueError(f"z_new: expected (N, {z_context.shape[1]}) as z_context has, got shape {tuple(z_new.shape)}")
    return at_least_float32(z_new)


def _prediction(mean: Tensor, variance: Tensor, noise: float | Tensor) -> Independent:
    # Where the pairs leave no doubt, rounding may leave less than none.
    scale = (variance.clamp_min(torch.finfo(variance.dtype).tiny) + noise).sqrt()
    return Independent(Normal(mean, scale[:, None].expand_as(mean), validate_args=False), 1)
