"""What every measure asks of its features, and the words it refuses others with."""

import torch
from torch import Tensor


def checked(name: str, z: Tensor, shape: str = "(N, D)", least: tuple[int, ...] = (2, 1)) -> Tensor:
    """The features in float64, without a gradient; `least` is the smallest size of each dimension of `shape`."""
    wanted = f"{shape} of at least {' x '.join(map(str, least))}"
    if not isinstance(z, Tensor):
        raise ValueError(f"{name}: expected a tensor {wanted}, got {type(z).__name__}")
    if z.ndim != len(least) or any(size < smallest for size, smallest in zip(z.shape, least, strict=True)):
        raise ValueError(f"{name}: expected {wanted}, got {tuple(z.shape)}")
    if not z.is_floating_point():
        raise ValueError(f"{name}: expected real numbers in floating point, got {z.dtype}")
    if not z.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {int((~z.isfinite()).sum())} that are not")
    return z.detach().to(torch.float64)
