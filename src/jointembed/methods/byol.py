"""BYOL: predict what a slow copy of oneself sees in another view (Grill et al., 2020, arXiv 2006.07733).

>>> predictions, targets = torch.randn(2, 2, 128, 64)  # (V, N, D) each, of two views
>>> terms = byol_loss(predictions.requires_grad_(), targets)
>>> terms["loss"].backward()
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_counts, check_targets, directed_pairs
from .teacher import Teacher, check_decay, cosine


def byol_loss(predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Squared distance of normalised predictions and targets, 2 - 2 cos (the paper's Eq. 2), both ways summed.

    With more than two views, twice the mean over all pairs of a view and another global one. "cosine" is the mean one.

    Args:
        predictions: of V views, (V, N, D), the global views first.
        targets: the teacher's projections of the first G of these views, (G, N, D); the gradient does not pass.
    """
    check_targets(predictions, targets)
    p, z = (F.normalize(at_least_float32(x), dim=-1) for x in (predictions, targets.detach()))
    pairs = directed_pairs(len(p), len(z))
    found = average([{"cosine": (p[i] * z[j]).sum(-1).mean()} for i, j in pairs], p.shape[1])
    return {"loss": 4 - 4 * found["cosine"]} | found


class BYOL(Method, name="byol"):
    """BYOL: predict what a slow copy of oneself sees in another view.

    The features are the backbone's; targets are directions in projector space.

    Projector and predictor have two layers each, with BatchNorm between them only.

    Args:
        backbone: network with `num_features`, images to (N, D).
        ema: decay of the teacher at the start.
        ema_end: to which it rises along a cosine until the end.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layer; the paper has 4096.
        predictor_width: width of the predictor's; the paper has 4096.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "byol"

    def __init__(
        self,
        backbone: nn.Module,
        ema: float = 0.996,
        ema_end: float = 1.0,
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
        self.ema, self.ema_end = ema, ema_end

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        predictions = self.predictor(z.flatten(0, 1)).unflatten(0, z.shape[:2])  # BatchNorm takes dim 1 for channels
        with torch.no_grad():
            targets = encode_views(self.teacher, views[:num_global])
        return byol_loss(predictions, targets)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(at_least_float32(self.projector(h)), dim=-1)}

    def after_step(self) -> None:
        decay = cosine(self.ema, self.ema_end, self.clock.share)
        self.teacher.follow(nn.Sequential(self.backbone, self.projector), decay)
