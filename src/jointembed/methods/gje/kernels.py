"""Kernels of the Gaussian process, their random Fourier features, and what all of `gje` checks and casts."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from jointembed._distributed import world_size
from jointembed.methods.base import at_least_float32

Kernel = Literal["rbf", "linear", "matern12", "matern32", "matern52"]
KERNELS: tuple[str, ...] = get_args(Kernel)

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(
    function: Callable[Concatenate[Tensor, Tensor, P], R],
) -> Callable[Concatenate[Tensor, Tensor, P], R]:
    """Check a pair of embeddings (B, d_c), (B, d_t), and compute in float32 at least, whatever autocast would do."""

    @wraps(function)
    def checked(z_context: Tensor, z_target: Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        for name, z in (("z_context", z_context), ("z_target", z_target)):
            if z.ndim != 2 or len(z) < (2 if world_size() == 1 else 1):
                raise ValueError(f"{name}: expected (B, D) with at least two rows, got shape {tuple(z.shape)}")
            if not z.isfinite().all():
                raise ValueError(f"{name}: expected finite numbers, got {int((~z.isfinite()).sum())} that are not")
        if len(z_context) != len(z_target):
            raise ValueError(f"z_target: expected {len(z_context)} rows as z_context has, got {len(z_target)}")
        with torch.autocast(z_context.device.type, enabled=False):
            return function(at_least_float32(z_context), at_least_float32(z_target), *args, **kwargs)

    return checked


def check_kernel(kernel: str, **positive: float | Tensor) -> None:
    """Refuse an unknown kernel, and lengthscales, amplitudes and noises that are not above 0."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}, got {kernel!r}")
    for name, value in positive.items():
        if not torch.as_tensor(value > 0).all():  # NaN is not
            raise ValueError(f"{name}: expected above 0, got {value}")


def check_features(num_features: int) -> None:
    if num_features < 1:
        raise ValueError(f"num_features: expected at least 1, got {num_features}")


def add_diagonal(matrix: Tensor, value: float | Tensor) -> Tensor:
    return matrix + value * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def cholesky(matrix: Tensor, name: str, value: float | Tensor) -> Tensor:
    """The factor; where there is none, the argument `name`, which stands on the diagonal, is too small."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        raise ValueError(
            f"{name}: expected enough for a matrix that is positive definite in {matrix.dtype}, got {float(value):g}"
        )
    return factor


def squared_distances(x: Tensor, y: Tensor | None = None) -> Tensor:
    """|x_i - y_j|^2 of rows x (N, D) and y (M, D), (N, M); y is x by default, and the diagonal then exactly 0."""
    centre = x.detach().mean(0)  # distances do not change, and rounding errors shrink
    x = x - centre
    other = x if y is None else y - centre
    squared = x.square().sum(1, keepdim=True) + other.square().sum(1) - 2 * x @ other.mT
    squared = squared.clamp_min(0)
    return squared.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), 0) if y is None else squared


def gram(
    x: Tensor,
    y: Tensor | None = None,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
) -> Tensor:
    """amplitude * k(x_i / lengthscale, y_j / lengthscale), (N, M), for rows x (N, D) and y (M, D); y is x by default.

    k(z, z) = 1 for all kernels but the linear one, which is the inner product. One lengthscale, or one per dimension.
    """
    x, y = x / lengthscale, None if y is None else y / lengthscale
    if kernel == "linear":
        return amplitude * x @ (x if y is None else y).mT
    squared = squared_distances(x, y)
    if kernel == "rbf":
        return amplitude * (-squared / 2).exp()
    apart = squared > 0  # the root has no gradient at 0; these kernels' own is 0 there, as torch's cdist has it
    r = squared.where(apart, 1).sqrt() * apart
    if kernel == "matern12":
        return amplitude * (-r).exp()
    if kernel == "matern32":
        return amplitude * (1 + 3**0.5 * r) * (-(3**0.5) * r).exp()
    return amplitude * (1 + 5**0.5 * r + 5 / 3 * squared) * (-(5**0.5) * r).exp()


def kernel_variance(
    z: Tensor, kernel: str, lengthscale: float | Tensor = 1.0, amplitude: float | Tensor = 1.0
) -> Tensor:
    """k(z_i, z_i), (N,): the diagonal of `gram`."""
    if kernel == "linear":
        return amplitude * (z / lengthscale).square().sum(1)
    return amplitude * torch.ones_like(z[:, 0])


def fourier_features(
    z: Tensor,
    num_features: int,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
    seed: int = 0,
) -> Tensor:
    """Phi (N, D) with E[Phi Phi^T] = `gram(z)`, D = num_features: sqrt(2/D) cos(W^T z + b) (Eq. 67).

    By Bochner's theorem W is drawn from the kernel's Fourier transform: normal for the RBF, Student's t with 2 nu
    degrees of freedom for Matérn nu. The linear kernel is its own feature map, and exact.
    """
    z = z / lengthscale
    scale = torch.as_tensor(amplitude, dtype=z.dtype, device=z.device).sqrt()
    if kernel == "linear":
        return scale * z
    frequencies, phases = fourier_draws(z.shape[1], num_features, kernel, seed)
    return scale * (2 / num_features) ** 0.5 * torch.cos(z @ frequencies.to(z) + phases.to(z))


def fourier_draws(dim: int, num_features: int, kernel: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """W (d, D) and b (D,) of `fourier_features`."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(dim, num_features, generator=generator, dtype=torch.float64)
    phases = 2 * torch.pi * torch.rand(num_features, generator=generator, dtype=torch.float64)
    if kernel != "rbf":
        df = int(kernel[-2])  # "matern32": 2 nu = 3
        chi_squared = torch.randn(df, num_features, generator=generator, dtype=torch.float64).square().sum(0)
        frequencies *= (df / chi_squared).sqrt()
    return frequencies, phases


def median_distance(z: Tensor) -> Tensor:
    """The median distance between two rows of z (N, D), without a gradient: the usual bandwidth of HSIC."""
    return F.pdist(z.detach()).median().clamp_min(torch.finfo(z.dtype).tiny ** 0.5)
