"""What keeps the embeddings from shrinking: their entropy, under a covariance that has a memory, or SIGReg.

Entropy is what the mutual information of two views asks for, and asks it of every direction: its pull on a variance is
one over it, so that embeddings of D dimensions must vary in all D, be it with noise. SIGReg looks at the cloud from
random sides, where one direction is little among D, and leaves it to the likelihood which of them are worth having.
"""

import torch
from torch import Tensor, nn

from jointembed._distributed import covariance, world_size
from jointembed.normality import SIGReg

from ..base import at_least_float32


def gaussian_entropy(z: Tensor, memory: Tensor | None = None, jitter: float = 1e-4) -> Tensor:
    """1/2 log|S| of embeddings z (N, D), the entropy of a Gaussian with their covariance, constants dropped.

    With a `memory`, a covariance (D, D) from the batches before, the value is that of the memory and the gradient the
    batch's, taken there: d(1/2 log|S|) = 1/2 Tr(S^-1 dS_batch). It stays well-behaved where a batch alone, with fewer
    images than dimensions, would have a singular covariance.
    """
    if z.ndim != 2 or len(z) < (2 if world_size() == 1 else 1):
        raise ValueError(f"z: expected (N, D) with at least two rows, got shape {tuple(z.shape)}")
    z = at_least_float32(z)
    with torch.autocast(z.device.type, enabled=False):
        spread = covariance(z)
        if memory is not None:
            spread = memory.to(z.dtype) + spread - spread.detach()
        factor = torch.linalg.cholesky(spread + jitter * torch.eye(z.shape[1], dtype=z.dtype, device=z.device))
        return factor.diagonal().log().sum()


class EntropyGuard(nn.Module):
    """`gaussian_entropy` of embeddings (V, N, D) with the memory kept here, a moving average over training batches.

    Args:
        dim: D.
        decay: of the moving average.
    """

    memory: Tensor
    steps: Tensor

    def __init__(self, dim: int, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("memory", torch.eye(dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, z: Tensor) -> Tensor:
        z = z.flatten(0, 1)
        if self.training:
            self.steps += 1
            # The plain mean at first: nothing of the identity it starts from is left after one batch.
            share = max(1 - self.decay, 1 / int(self.steps))
            self.memory.lerp_(covariance(at_least_float32(z.detach())), share)
        return gaussian_entropy(z, self.memory)


class SIGRegGuard(nn.Module):
    """Minus SIGReg of the embeddings (V, N, D) of all views, D times: per dimension it is the statistic itself.

    The statistic grows with the number of its samples, and is given as that of two views: a weight means the same
    whatever V.

    Args:
        num_slices: random directions per step.
    """

    def __init__(self, num_slices: int) -> None:
        super().__init__()
        self.sigreg = SIGReg(num_slices=num_slices)

    def forward(self, z: Tensor) -> Tensor:
        return -z.shape[-1] * 2 / len(z) * self.sigreg(z.flatten(0, 1))


GUARDS = ("sigreg", "entropy")


def guard_for(name: str, dim: int, num_slices: int) -> nn.Module:
    """The guard of this name, for embeddings of `dim` dimensions."""
    if name not in GUARDS:
        raise ValueError(f"guard: expected one of {', '.join(GUARDS)}, got {name!r}")
    return SIGRegGuard(num_slices) if name == "sigreg" else EntropyGuard(dim)
