"""Are features a sample of an isotropic Gaussian? SIGReg's value beside the values that Gaussian samples give."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from jointembed._distributed import alone
from jointembed.normality import SIGReg

from .checks import checked

QUANTILES = (0.05, 0.5, 0.95)


class Gaussianity(NamedTuple):
    """SIGReg's value, and its distribution for samples of N(0, I) of the same size: mean, QUANTILES, and all of it.

    `p_value` is the share of them, the features counted in, with a value as high: for a Gaussian uniform on its grid.
    """

    value: float
    p_value: float
    null_mean: float
    null_quantiles: tuple[float, ...]
    null: Tensor


@alone()
def gaussianity(
    z: Tensor,
    scale: Literal["raw", "standardised", "whitened"] = "standardised",
    num_slices: int = 256,
    draws: int = 99,
    seed: int = 0,
) -> Gaussianity:
    """SIGReg of features z (N, D) with its Monte-Carlo null distribution at the same N and D.

    The statistic is the mean over random directions of Epps and Pulley's T = N int |phi_hat(t) - phi(t)|^2 phi(t) dt,
    phi(t) = exp(-t^2 / 2); `draws` samples of N(0, I), treated like the features and seen from the same directions,
    give what it would be if they were Gaussian.

    Args:
        z: features, at least two.
        scale: "raw" asks whether they are N(0, I), as LeJEPA wants them. Its test is blind beyond |x| of about 5.
            "standardised" takes off the mean and divides every dimension by its deviation, unless that is 0: are they
            independent Gaussians? "whitened" takes off the correlations too, for N above D: are they Gaussian at all?
        num_slices: directions.
        draws: samples of the null distribution; the p-value cannot be below 1 / (draws + 1).
        seed: of the directions and the samples.
    """
    if scale not in ("raw", "standardised", "whitened"):
        raise ValueError(f"scale: expected 'raw', 'standardised' or 'whitened', got {scale!r}")
    if draws < 1:
        raise ValueError(f"draws: expected at least 1, got {draws}")
    x = checked("z", z)
    rounding = max(x.shape) * torch.finfo(z.dtype).eps
    if scale == "whitened" and torch.linalg.matrix_rank(x - x.mean(0), rtol=rounding) < x.shape[1]:
        raise ValueError(
            f"z: expected features that vary in all {x.shape[1]} dimensions, to whiten, got {tuple(x.shape)} without"
        )
    sigreg = SIGReg(num_slices=num_slices, seed=seed).to(x.device).eval()  # in eval mode all calls share directions
    generator = torch.Generator().manual_seed(seed)
    value = sigreg(_scaled(x, scale))
    samples = (torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) for _ in range(draws))
    null = torch.stack([sigreg(_scaled(sample, scale)) for sample in samples])
    return Gaussianity(
        value=float(value),
        p_value=(1 + int((null >= value).sum())) / (draws + 1),
        null_mean=float(null.mean()),
        null_quantiles=tuple(null.quantile(torch.tensor(QUANTILES).to(null)).tolist()),
        null=null.sort().values.cpu(),
    )


def _scaled(x: Tensor, scale: str) -> Tensor:
    if scale == "raw":
        return x
    size = x.abs().amax(0)
    x = x - x.mean(0)
    if scale == "standardised":
        std = x.std(0, correction=0)
        return x / torch.where(std > 1e-7 * size, std, 1)  # rounding errors of a constant are not to be blown up
    factor = torch.linalg.cholesky(x.mT @ x / len(x))  # covariance L L^T, so that x L^-T has covariance I
    return torch.linalg.solve_triangular(factor, x.mT, upper=False).mT
