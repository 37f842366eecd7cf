"""SimCLR: two views of an image among all the others (Chen, Kornblith, Norouzi and Hinton, 2020, arXiv 2002.05709).

NT-Xent: each of the 2N views of a batch has to find its other view among the 2N - 1 that are not itself.

    >>> z = torch.randn(2, 256, 128, requires_grad=True)  # (V, N, D), the projections of two views
    >>> terms = nt_xent_loss(z, num_global=2, temperature=0.1)
    >>> terms["loss"].backward()
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointembed._distributed import gather_rows

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_above_zero, check_counts, check_stack, unordered_pairs


def nt_xent_loss(z: Tensor, num_global: int, temperature: float = 0.1) -> dict[str, Tensor]:
    """NT-Xent (the paper's Eq. 1): "alignment", minus the similarity to the other view, plus "uniformity".

    Args:
        z: projections of V views, (V, N, D), the global views first; of any norm, only their directions count.
        num_global: with more than two views, the mean over all pairs of views of which one at least is global.
        temperature: tau.
    """
    check_stack("z", z, num_global)
    check_above_zero(temperature=temperature)
    z = F.normalize(at_least_float32(z), dim=-1)
    pairs = unordered_pairs(len(z), num_global)
    return average([_nt_xent(z[i], z[j], temperature) for i, j in pairs], z.shape[1])


def _nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> dict[str, Tensor]:
    z = torch.cat([z1, z2])  # (2N, D)
    others, first = gather_rows(z)  # of all ranks, z among them
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ others.mT / temperature
    # No view is its own negative. The positive is in the denominator, once: 2N - 1 terms.
    itself = torch.arange(first, first + len(z), device=z.device)[:, None]
    similarity = similarity.scatter(1, itself, -torch.inf)
    alignment = -(z1 * z2).sum(-1).mean() / temperature
    uniformity = similarity.logsumexp(1).mean()
    return {"loss": alignment + uniformity, "alignment": alignment, "uniformity": uniformity}


class SimCLR(Method, name="simclr"):
    """SimCLR: tell the other view of an image from all other images in the batch.

    The features are the backbone's; the loss lives in projector space, on the unit sphere.

    The projector has two layers, with BatchNorm after both, as in the authors' code.

    Args:
        backbone: network with `num_features`, images to (N, D).
        temperature: tau; the paper has 0.5 for CIFAR-10.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layer; the paper has that of the features, 2048.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "simclr"

    def __init__(
        self, backbone: nn.Module, temperature: float = 0.1, dim: int = 128, projector_width: int = 512
    ) -> None:
        check_above_zero(temperature=temperature)
        check_counts(dim=dim, projector_width=projector_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = nn.Sequential(
            *projector_mlp(feature_dim(backbone), projector_width, dim, 2), nn.BatchNorm1d(dim)
        )
        self.temperature = temperature

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        return nt_xent_loss(z, num_global, self.temperature)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(at_least_float32(self.projector(h)), dim=-1)}
