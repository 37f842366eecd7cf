"""What the spectrum of a cloud of features says about it: how many directions it uses, and how evenly."""

import math

import torch
from torch import Tensor

from .checks import checked


def rank_me(z: Tensor, eps: float = 1e-7) -> float:
    """RankMe of features z (N, D): from 1 up to about min(N, D), higher is better (Garrido et al. 2023, 2210.02885).

    exp(-sum_k p_k log p_k) with p_k = sigma_k / sum_j sigma_j + eps, over the singular values sigma of z as it is. The
    mean counts as a direction here; `effective_rank` takes it off first, and has no eps.
    """
    if not eps >= 0:
        raise ValueError(f"eps: expected a number of at least 0, got {eps}")
    return _exp_entropy(torch.linalg.svdvals(checked("z", z)), eps)


def lidar(views: Tensor, delta: float = 1e-4, eps: float = 1e-7) -> float:
    """LiDAR of V views of N images, (N, V, D): from 1 up, higher is better (Thilak et al. 2024, 2312.04000).

    The effective rank of linear discriminant analysis with every image as a class: exp(-sum_k p_k log p_k) with
    p_k = lambda_k / sum_j lambda_j + eps, over the eigenvalues lambda of S_w^(-1/2) S_b S_w^(-1/2). S_b is the
    covariance of the images' means, S_w that of the views about their image's mean, plus delta I; the sums of squares
    are divided by N - 1 and N (V - 1).

    Directions that tell no images apart still have lambda of about 1 / V: compare at the same V. The paper has N above
    D, V of 10 to 50, and does not print delta; an absolute one makes the value depend on the features' scale where
    views differ by little more than sqrt(delta).
    """
    if not delta > 0:
        raise ValueError(f"delta: expected a number above 0, got {delta}")
    if not eps >= 0:
        raise ValueError(f"eps: expected a number of at least 0, got {eps}")
    return _exp_entropy(_discriminant(checked("views", views, "(N, V, D)", (2, 2, 1)), delta), eps)


def information(views: Tensor, shrinkage: float = 1e-4) -> float:
    """How many nats the embedding of one view tells of which image it shows, were all Gaussian; views (N, V, D).

    1/2 log|I + S_w^-1 S_b| with S_b the covariance of images and S_w that of the views of one: the mutual information
    of z = b + w and b, independent Gaussians with these covariances, so 0 where views of one image differ as much as
    those of two. It counts every direction by how well images can be told apart along it, where LiDAR counts how evenly
    that is spread. No linear map of z changes it, but for the shrinkage.

    The means of V views vary by S_b + S_w / V, of which the second part is taken off, and what is left below 0 is 0:
    what is estimated from few images is too high, so compare at the same N and V.

    Args:
        views: embeddings of V views of N images.
        shrinkage: added to the diagonal of S_w, as a share of the mean variance of z.
    """
    if not shrinkage > 0:
        raise ValueError(f"shrinkage: expected a number above 0, got {shrinkage}")
    z = checked("views", views, "(N, V, D)", (2, 2, 1))
    variance = float(z.flatten(0, 1).var(0).mean())
    if variance == 0:
        return 0.0
    eigenvalues = _discriminant(z, shrinkage * variance)
    return 0.5 * float((eigenvalues - 1 / z.shape[1]).clamp_min(0).log1p().sum())


def _discriminant(z: Tensor, delta: float) -> Tensor:
    """Eigenvalues of S_w^-1 S_m for the covariance S_m of the means of images and S_w of their views, plus delta I."""
    n, v, d = z.shape
    means = z.mean(1, keepdim=True)
    within = (z - means).reshape(-1, d)
    scatter = within.mT @ within / (n * (v - 1)) + delta * torch.eye(d, dtype=z.dtype, device=z.device)
    # S_w = L L^T: L^-1 S_m L^-T has the eigenvalues of S_w^(-1/2) S_m S_w^(-1/2), without the square root.
    between = torch.linalg.solve_triangular(
        torch.linalg.cholesky(scatter), (means - means.mean(0)).squeeze(1).mT / (n - 1) ** 0.5, upper=False
    )  # (D, N)
    return torch.linalg.svdvals(between).square()


def alpha_req(z: Tensor, first: int = 4, last: int = 100) -> float:
    """alpha of features z (N, D) whose covariance has eigenvalues lambda_j ~ j^-alpha (Agrawal et al. 2022, alpha-ReQ).

    Near 1 is best: below, the spectrum is flat and the noise in it as strong as the signal; above, few directions are
    used. The paper fits a line to log lambda_j over log j and says no more; the ranks `first` to `last`, as far as
    there are eigenvalues above rounding errors, and the weights 1 / j are those of the authors' code. Infinity where
    fewer than two such eigenvalues are left: the spectrum falls at once.
    """
    if not 1 <= first < last:
        raise ValueError(f"first, last: expected ranks with 1 <= first < last, got {first} and {last}")
    x = checked("z", z, least=(first + 2, first + 1))  # after centring, N samples have N - 1 eigenvalues
    singular = torch.linalg.svdvals(x - x.mean(0))
    rounding = max(x.shape) * torch.finfo(z.dtype).eps * singular[0]
    log_eigenvalue = 2 * singular[singular > rounding][first - 1 : last].log()
    if len(log_eigenvalue) < 2:
        return math.inf
    rank = torch.arange(first, first + len(log_eigenvalue), dtype=torch.float64, device=x.device)
    weight, log_rank = (1 / rank) / (1 / rank).sum(), rank.log()
    centred = log_rank - weight @ log_rank
    return -float((weight * centred) @ log_eigenvalue / ((weight * centred) @ centred))


def isotropy(z: Tensor) -> float:
    """IsoScore of features z (N, D): 0 on a line, 1 where all directions have the same variance (Rudman et al. 2022).

    ((sum lambda)^2 / sum lambda^2 - 1) / (D - 1), over the eigenvalues lambda of the covariance. That is the paper's
    score in closed form: its defect, the distance between sqrt(D) lambda / |lambda| and (1, ..., 1), depends on lambda
    through this participation ratio only. A sample of N(0, I) stays below 1, at about 1 / (1 + D / N).
    """
    x = checked("z", z, least=(2, 2))
    x = x - x.mean(0)
    scatter = x.mT @ x
    squares = scatter.square().sum()  # = sum lambda^2
    if squares == 0:
        return 0.0
    return float((scatter.trace() ** 2 / squares - 1) / (x.shape[1] - 1))


def _exp_entropy(values: Tensor, eps: float) -> float:
    """exp of the entropy of non-negative values over their sum; 1 where all are zero."""
    total = values.sum()
    if total == 0:
        return 1.0
    return float(torch.special.entr(values / total + eps).sum().exp())
