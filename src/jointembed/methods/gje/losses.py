"""The four objectives of GJE, each for a batch of context and target embeddings, each with "loss" and its terms."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from jointembed._distributed import gather_rows, mean_over_ranks, rows_of_all_ranks, sum_over_ranks

from .kernels import (
    add_diagonal,
    check_features,
    check_kernel,
    cholesky,
    fourier_features,
    full_precision,
    gram,
    median_distance,
)

Entropy = Literal["marginal", "joint"]
ENTROPIES: tuple[str, ...] = get_args(Entropy)


@full_precision
def dual_gje_loss(
    z_context: Tensor,
    z_target: Tensor,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
    noise: float | Tensor = 0.1,
) -> dict[str, Tensor]:
    """1/2 Tr(Z_t^T K^-1 Z_t) + d_t/2 log|K| with K = k(Z_c, Z_c) + noise I (Eq. 4): a Gaussian process to the target.

    Minus its log marginal likelihood, without the constant B d_t/2 log(2 pi). The best K is Z_t Z_t^T / d_t, so
    amplitude + noise belong near the targets' variance per dimension: 1/d_t for unit vectors, 1 for standardised ones.
    As a conditional density it says nothing of the targets' volume: give it targets without a gradient, or all of
    them go to zero.

    Args:
        z_context: (B, d_c), where the kernel acts.
        z_target: (B, d_t), the values of the process.
        kernel: "rbf", "linear", "matern12", "matern32" or "matern52".
        lengthscale: contexts are divided by it, one number or (d_c,).
        amplitude: k(z, z), a variance.
        noise: sigma^2, a variance; it is the jitter as well.
    """
    check_kernel(kernel, lengthscale=lengthscale, amplitude=amplitude, noise=noise)
    z_context, z_target = gather_rows(z_context)[0], gather_rows(z_target)[0]
    covariance = add_diagonal(gram(z_context, None, kernel, lengthscale, amplitude), noise)  # (B, B)
    factor = cholesky(covariance, "noise", noise)
    whitened = torch.linalg.solve_triangular(factor, z_target, upper=False)
    fit = 0.5 * whitened.square().sum()
    volume = z_target.shape[1] * factor.diagonal().log().sum()
    return {"loss": fit + volume, "fit": fit, "volume": volume}


@full_precision
def rff_gje_loss(
    z_context: Tensor,
    z_target: Tensor,
    kernel: str = "rbf",
    lengthscale: float | Tensor = 1.0,
    amplitude: float | Tensor = 1.0,
    noise: float | Tensor = 0.1,
    num_features: int = 512,
    seed: int = 0,
) -> dict[str, Tensor]:
    """`dual_gje_loss` with k(Z_c, Z_c) = Phi Phi^T, D random Fourier features: O(B D^2), never a (B, B) matrix.

    Args:
        z_context: (B, d_c).
        z_target: (B, d_t).
        kernel: as for the exact loss; the linear kernel is exact here too, and takes d_c features.
        lengthscale: as for the exact loss.
        amplitude: as for the exact loss.
        noise: as for the exact loss.
        num_features: D; the kernel's error falls like 1 / sqrt(D).
        seed: of the features. The same seed draws the same.
    """
    check_kernel(kernel, lengthscale=lengthscale, amplitude=amplitude, noise=noise)
    check_features(num_features)
    features = fourier_features(z_context, num_features, kernel, lengthscale, amplitude, seed)  # (B, D)
    factor = cholesky(add_diagonal(sum_over_ranks(features.mT @ features), noise), "noise", noise)  # of A, (D, D)
    weights = torch.cholesky_solve(sum_over_ranks(features.mT @ z_target), factor)  # A^-1 Phi^T Z_t, (D, d_t)
    # Eq. 68 is |Z_t|^2 - Tr(Z_t^T Phi A^-1 Phi^T Z_t), over noise: a difference of nearly equal numbers. It is the
    # minimum over W of |Z_t - Phi W|^2 + noise |W|^2, over noise, at these weights: a sum of squares.
    residual = z_target - features @ weights
    fit = 0.5 * (sum_over_ranks(residual.square().sum()) / noise + weights.square().sum())
    # log|K| = log|A| + (B - D) log noise (Eq. 69)
    spare = rows_of_all_ranks(features) - features.shape[1]
    log_noise = torch.as_tensor(noise, dtype=fit.dtype, device=fit.device).log()
    volume = z_target.shape[1] * (factor.diagonal().log().sum() + 0.5 * spare * log_noise)
    return {"loss": fit + volume, "fit": fit, "volume": volume}


@full_precision
def primal_gje_loss(
    z_context: Tensor,
    z_target: Tensor,
    alignment_weight: float | None = None,
    entropy: str = "marginal",
    jitter: float = 0.05,
) -> dict[str, Tensor]:
    """alignment_weight * E|z_c - z_t|^2 - entropy, of the L2-normalised views (Algorithm 5): one joint Gaussian.

    The likelihood itself (Eq. 9) cannot be trained: with S from the same batch its first term is the constant d/2
    (appendix O). So the entropy 1/2 log|S| is raised instead, on the unit sphere, where scaling up gains nothing.
    For isotropic views the entropy of the joint S holds their correlation rho at rho / (1 - rho^2) =
    2 alignment_weight / d; the two marginals' lets them agree.

    Args:
        z_context: (B, d).
        z_target: (B, d).
        alignment_weight: by default d, for the entropy is a sum over d directions.
        entropy: "marginal", 1/2 log|S_cc| + 1/2 log|S_tt|; or "joint", 1/2 log|S| of both views side by side.
        jitter: added to the diagonal of S, as a share of its mean there, 1/d.
    """
    check_entropy(entropy)
    check_weights(alignment_weight=alignment_weight, jitter=jitter)
    if z_context.shape != z_target.shape:
        raise ValueError(f"z_target: expected {tuple(z_context.shape)} as z_context has, got {tuple(z_target.shape)}")
    return primal_terms(F.normalize(z_context, dim=1), F.normalize(z_target, dim=1), alignment_weight, entropy, jitter)


def primal_terms(
    context: Tensor, target: Tensor, alignment_weight: float | None, entropy: str, jitter: float
) -> dict[str, Tensor]:
    """What `primal_gje_loss` is of unit vectors (B, d); of stacks (P, B, d), the mean over the P pairs of views.

    All pairs at once: between processes, collectives for each pair took nearly a third of a step of four views.
    """
    weight = context.shape[-1] if alignment_weight is None else alignment_weight
    alignment = mean_over_ranks((context - target).square().sum(-1).mean(), context.shape[-2])
    if entropy == "joint":
        volume = half_log_det(torch.cat([context, target], -1), jitter).mean()
    else:
        volume = half_log_det(torch.stack([context, target]), jitter).sum(0).mean()
    return {"loss": weight * alignment - volume, "alignment": alignment, "entropy": volume}


@full_precision
def hsic_loss(
    z_context: Tensor,
    z_target: Tensor,
    lengthscale: float | None = None,
    normalised: bool = False,
    entropy_weight: float = 0.0,
    jitter: float = 0.05,
) -> dict[str, Tensor]:
    """- Tr(K_c H K_t H) / (B - 1)^2 (Eq. 83), the dependence of the views, to be maximised; RBF kernels.

    Alone it is largest when the batch falls into two clusters, and next to nothing for isotropic views of many
    dimensions. The first is what the marginals' entropies are for, of the L2-normalised views as in
    `primal_gje_loss`; the second, `normalised`.

    Args:
        z_context: (B, d_c).
        z_target: (B, d_t).
        lengthscale: of both kernels; by default each view's median distance.
        normalised: divide by the root of the views' own HSIC, so that equal views have 1.
        entropy_weight: of 1/2 log|S_cc| + 1/2 log|S_tt|.
        jitter: added to the diagonals of these, as a share of their mean there.
    """
    check_weights(entropy_weight=entropy_weight, jitter=jitter)
    if lengthscale is not None:
        check_kernel("rbf", lengthscale=lengthscale)
    context, target = (
        gram(z, None, "rbf", median_distance(z) if lengthscale is None else lengthscale)
        for z in (gather_rows(z_context)[0], gather_rows(z_target)[0])
    )
    dependence = _hsic(context, target)
    if normalised:
        dependence = dependence / (_hsic(context, context) * _hsic(target, target)).sqrt()
    if not entropy_weight:
        return {"loss": -dependence, "hsic": dependence}
    volume = half_log_det(F.normalize(z_context, dim=1), jitter) + half_log_det(F.normalize(z_target, dim=1), jitter)
    return {"loss": -dependence - entropy_weight * volume, "hsic": dependence, "entropy": volume}


def half_log_det(z: Tensor, jitter: float) -> Tensor:
    """1/2 log|S| (...) of Z (..., B, D), S = Z^T Z / B about the origin (Eq. 7) with jitter.

    It is the entropy of N(0, S) but for a constant.
    """
    return _moment_factor(z, jitter).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def whiten(z: Tensor, jitter: float) -> Tensor:
    """z (B, D) with second moment I about the origin."""
    with torch.autocast(z.device.type, enabled=False):
        return torch.linalg.solve_triangular(_moment_factor(z, jitter), z.mT, upper=False).mT


def _moment_factor(z: Tensor, jitter: float) -> Tensor:
    moment = sum_over_ranks(z.mT @ z) / rows_of_all_ranks(z, -2)
    scale = moment.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return cholesky(add_diagonal(moment, jitter * scale), "jitter", jitter)


def _hsic(context: Tensor, target: Tensor) -> Tensor:
    # Tr(K_c H K_t H) is the sum of (H K_c H) * K_t, and H K H takes the means of rows and columns away.
    centred = context - context.mean(0) - context.mean(1, keepdim=True) + context.mean()
    return (centred * target).sum() / (len(context) - 1) ** 2


def check_entropy(entropy: str) -> None:
    if entropy not in ENTROPIES:
        raise ValueError(f"entropy: expected one of {', '.join(ENTROPIES)}, got {entropy!r}")


def check_weights(**weights: float | None) -> None:
    for name, value in weights.items():
        if value is not None and not value >= 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
