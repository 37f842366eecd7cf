"""JEPA of whole images: predict another view's embedding by a slow copy of oneself, with squared error.

The joint-embedding predictive architecture of LeCun (2022) with the recipe of I-JEPA (Assran et al., 2023, arXiv
2301.08243), views taking the place of masked blocks. Only the teacher's slowness keeps it from collapse.

    >>> predictions, targets = torch.randn(2, 2, 128, 64)  # (V, N, D) each, of two views
    >>> terms = jepa_loss(predictions.requires_grad_(), targets)
    >>> terms["loss"].backward()
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_counts, check_targets, directed_pairs
from .teacher import Teacher, check_decay, linear


def jepa_loss(predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Mean squared error over images, dimensions, and all pairs of a view and another global one.

    Args:
        predictions: of V views, (V, N, D), the global views first.
        targets: the teacher's embeddings of the first G of these views, (G, N, D); the gradient does not pass.
    """
    check_targets(predictions, targets)
    p, z = at_least_float32(predictions), at_least_float32(targets.detach())
    pairs = directed_pairs(len(p), len(z))
    return average([{"loss": (p[i] - z[j]).square().mean()} for i, j in pairs], p.shape[1])


class JEPA(Method, name="jepa"):
    """JEPA: predict another view by a slow copy of oneself, with squared error.

    The features are the backbone's; predicted is another view in projector space.

    I-JEPA has a vision transformer, masked blocks of patches, and no projector; here any backbone, views, and a
    projector and a predictor of two layers each, with BatchNorm between them.

    Args:
        backbone: network with `num_features`, images to (N, D).
        ema: decay of the teacher at the start.
        ema_end: to which it rises linearly until the end.
        layer_norm: give every target mean 0 and variance 1 over its dimensions, as in I-JEPA's code; otherwise the
            error can be made small by making the embeddings small.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layer.
        predictor_width: width of the predictor's.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "lejepa"

    def __init__(
        self,
        backbone: nn.Module,
        ema: float = 0.996,
        ema_end: float = 1.0,
        layer_norm: bool = True,
        dim: int = 256,
        projector_width: int = 512,
        predictor_width: int = 512,
    ) -> None:
        check_decay(ema=ema, ema_end=ema_end)
        check_counts(dim=dim, projector_width=projector_width, predictor_width=predictor_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, 2)
        self.predictor = projector_mlp(dim, predictor_width, dim, 2)
        self.teacher = Teacher(nn.Sequential(backbone, self.projector))
        self.ema, self.ema_end, self.layer_norm = ema, ema_end, layer_norm

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        predictions = self.predictor(z.flatten(0, 1)).unflatten(0, z.shape[:2])  # BatchNorm takes dim 1 for channels
        with torch.no_grad():
            targets = at_least_float32(encode_views(self.teacher, views[:num_global]))
            if self.layer_norm:
                targets = F.layer_norm(targets, targets.shape[-1:])
        return jepa_loss(predictions, targets)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self.projector(h)}

    def after_step(self) -> None:
        decay = linear(self.ema, self.ema_end, self.clock.share)
        self.teacher.follow(nn.Sequential(self.backbone, self.projector), decay)
