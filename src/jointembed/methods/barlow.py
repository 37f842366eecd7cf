"""Barlow Twins: the cross-correlation of two views should be the identity (Zbontar et al., 2021, arXiv 2103.03230).

>>> z = torch.randn(2, 256, 512, requires_grad=True)  # (V, N, D), the projections of two views
>>> terms = barlow_twins_loss(z, num_global=2)
>>> terms["loss"].backward()
"""

import torch
from torch import Tensor, nn

from jointembed._distributed import rows_of_all_ranks, sum_over_ranks, var_mean

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_counts, check_not_negative, check_stack, unordered_pairs


def barlow_twins_loss(z: Tensor, num_global: int, weight: float = 5e-3, eps: float = 1e-5) -> dict[str, Tensor]:
    """The paper's Eq. 1: "invariance", sum_i (1 - C_ii)^2, plus weight times "redundancy", sum_i sum_j!=i C_ij^2.

    Args:
        z: projections of V views, (V, N, D), the global views first. Each dimension is normalised over the images of
            each view, as BatchNorm without scale and shift does.
        num_global: with more than two views, the mean over all pairs of views of which one at least is global.
        weight: the paper's lambda.
        eps: added to the variances.
    """
    check_stack("z", z, num_global, least=2)
    check_not_negative(weight=weight, eps=eps)
    z = at_least_float32(z)
    variance, mean = var_mean(z, 1, correction=0)
    z = (z - mean) / (variance + eps).sqrt()
    images = rows_of_all_ranks(z, 1)
    return average([_barlow_twins(z[i], z[j], weight, images) for i, j in unordered_pairs(len(z), num_global)])


def _barlow_twins(z1: Tensor, z2: Tensor, weight: float, images: int | Tensor) -> dict[str, Tensor]:
    with torch.autocast(z1.device.type, enabled=False):
        correlation = sum_over_ranks(z1.mT @ z2) / images  # (D, D)
    invariance = (1 - correlation.diagonal()).square().sum()
    diagonal = torch.eye(len(correlation), dtype=torch.bool, device=z1.device)
    redundancy = correlation.masked_fill(diagonal, 0).square().sum()
    return {"loss": invariance + weight * redundancy, "invariance": invariance, "redundancy": redundancy}


class BarlowTwins(Method, name="barlow-twins"):
    """Barlow Twins: the cross-correlation of two views should be the identity.

    The features are the backbone's; the loss lives in projector space.

    The projector has three layers with BatchNorm between them.

    Args:
        backbone: network with `num_features`, images to (N, D).
        weight: lambda, of the redundancy.
        dim: dimension of the projections; the paper has 8192.
        projector_width: width of the projector's hidden layers; the paper has 8192.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "byol"

    def __init__(self, backbone: nn.Module, weight: float = 5e-3, dim: int = 512, projector_width: int = 512) -> None:
        check_not_negative(weight=weight)
        check_counts(dim=dim, projector_width=projector_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, 3)
        self.weight = weight

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        return barlow_twins_loss(z, num_global, self.weight)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self.projector(h)}
