"""SimSiam: prediction with a stop-gradient, and nothing else (Chen and He, 2020, arXiv 2011.10566).

>>> import torch
>>> projector, predictor = nn.Linear(32, 64), nn.Linear(64, 64)
>>> z = projector(torch.randn(2, 128, 32))  # (V, N, D), the projections of two views
>>> terms = simsiam_loss(predictor(z), z)
>>> terms["loss"].backward()
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_counts, check_targets, directed_pairs


def simsiam_loss(predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Minus the cosine of predictions and other views' projections, from 1 down to -1 (the paper's Eq. 4).

    Args:
        predictions: of V views, (V, N, D), the global views first.
        targets: projections of the first G of these views, the global ones, (G, N, D); the gradient does not pass.
    """
    check_targets(predictions, targets)
    p, z = (F.normalize(at_least_float32(x), dim=-1) for x in (predictions, targets.detach()))
    pairs = directed_pairs(len(p), len(z))
    return average([{"loss": -(p[i] * z[j]).sum(-1).mean()} for i, j in pairs], p.shape[1])


class SimSiam(Method, name="simsiam"):
    """SimSiam: prediction between views with a stop-gradient, and nothing else.

    The features are the backbone's; targets are directions in projector space.

    The projector has three layers with BatchNorm after each, the last without scale and shift; the predictor two, with
    BatchNorm between them only. The predictor's learning rate follows that of the rest; in the paper it stays constant.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections; the paper has 2048.
        projector_width: width of the projector's hidden layers; the paper has that of the features, 2048.
        predictor_width: of the predictor's hidden layer, a bottleneck; the paper has 512, a quarter of its `dim`.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "moco-v2"

    def __init__(
        self, backbone: nn.Module, dim: int = 512, projector_width: int = 512, predictor_width: int = 128
    ) -> None:
        check_counts(dim=dim, projector_width=projector_width, predictor_width=predictor_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = nn.Sequential(
            *projector_mlp(feature_dim(backbone), projector_width, dim, 3), nn.BatchNorm1d(dim, affine=False)
        )
        self.predictor = projector_mlp(dim, predictor_width, dim, 2)

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        predictions = self.predictor(z.flatten(0, 1)).unflatten(0, z.shape[:2])  # BatchNorm takes dim 1 for channels
        return simsiam_loss(predictions, z[:num_global])

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(at_least_float32(self.projector(h)), dim=-1)}
