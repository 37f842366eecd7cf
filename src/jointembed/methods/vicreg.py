"""VICReg: views agree, every dimension varies, no two covary (Bardes, Ponce and LeCun, 2021, arXiv 2105.04906).

>>> z = torch.randn(2, 256, 512, requires_grad=True)  # (V, N, D), the projections of two views
>>> terms = vicreg_loss(z, num_global=2)
>>> terms["loss"].backward()
"""

import torch
from torch import Tensor, nn

from jointembed._distributed import mean_over_ranks, rows_of_all_ranks, sum_over_ranks, var_mean

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import check_counts, check_not_negative, check_stack, unordered_pairs


def vicreg_loss(
    z: Tensor,
    num_global: int,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    eps: float = 1e-4,
) -> dict[str, Tensor]:
    """The weighted sum of three terms (the paper's Eq. 6), each scaled as in the authors' code.

    "invariance" is the mean squared difference of two views, over images and dimensions (Eq. 5 sums over dimensions);
    "variance" the hinge on every standard deviation below 1, the mean over dimensions and views (Eq. 1; Eq. 6 sums over
    two views); "covariance" the squares off the diagonal, over D, summed over two views (Eq. 4).

    Args:
        z: projections of V views, (V, N, D), the global views first; not normalised.
        num_global: with more than two views, the invariance is the mean over all pairs of views of which one at least
            is global, and the other terms are their means over views, the covariance's doubled.
        invariance: weight, the paper's lambda.
        variance: weight, the paper's mu.
        covariance: weight, the paper's nu.
        eps: inside the square root of the standard deviation.
    """
    check_stack("z", z, num_global, least=2)
    check_not_negative(invariance=invariance, variance=variance, covariance=covariance, eps=eps)
    z = at_least_float32(z)
    first, second = map(list, zip(*unordered_pairs(len(z), num_global), strict=True))
    difference = mean_over_ranks((z[first] - z[second]).square().mean(), z.shape[1])
    hinge = (1 - (var_mean(z, 1)[0] + eps).sqrt()).relu().mean()
    centred = z - mean_over_ranks(z.mean(1, keepdim=True), z.shape[1])
    with torch.autocast(z.device.type, enabled=False):
        matrices = sum_over_ranks(centred.mT @ centred) / (rows_of_all_ranks(z, 1) - 1)  # (V, D, D)
    diagonal = torch.eye(z.shape[2], dtype=torch.bool, device=z.device)
    covariances = 2 * matrices.masked_fill(diagonal, 0).square().sum((1, 2)).mean() / z.shape[2]
    return {
        "loss": invariance * difference + variance * hinge + covariance * covariances,
        "invariance": difference,
        "variance": hinge,
        "covariance": covariances,
    }


class VICReg(Method, name="vicreg"):
    """VICReg: views agree, every dimension varies, no two covary.

    The features are the backbone's; the loss lives in projector space.

    The projector, the paper's expander, has three layers with BatchNorm between them.

    Args:
        backbone: network with `num_features`, images to (N, D).
        invariance: weight of the difference of two views.
        variance: weight of the hinge on the standard deviations.
        covariance: weight of the squared covariances.
        dim: dimension of the projections; the paper has 8192.
        projector_width: width of the projector's hidden layers; the paper has 8192.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "byol"

    def __init__(
        self,
        backbone: nn.Module,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        dim: int = 512,
        projector_width: int = 512,
    ) -> None:
        check_not_negative(invariance=invariance, variance=variance, covariance=covariance)
        check_counts(dim=dim, projector_width=projector_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, 3)
        self.weights = (invariance, variance, covariance)

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        return vicreg_loss(z, num_global, *self.weights)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self.projector(h)}
