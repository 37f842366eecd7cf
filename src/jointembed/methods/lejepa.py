"""LeJEPA: prediction between views plus SIGReg (Balestriero and LeCun, 2025, arXiv 2511.08544).

Views of an image should agree, and the cloud of embeddings should be an isotropic Gaussian. Nothing else is needed:
no teacher, no predictor, no stop-gradient, no schedule on the weight.

    >>> sigreg = SIGReg(num_slices=256)
    >>> z = torch.randn(2, 128, 64, requires_grad=True)  # (V, N, D), the projections of two views
    >>> terms = lejepa_loss(z, num_global=2, sigreg=sigreg, weight=0.02)
    >>> terms["loss"].backward()
"""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from jointembed._distributed import mean_over_ranks
from jointembed.normality import SIGReg
from jointembed.normality import create as create_test

from .base import Method, at_least_float32, encode_views, feature_dim
from .teacher import moving_average


def lejepa_loss(
    z: Tensor,
    num_global: int,
    sigreg: nn.Module,
    weight: float = 0.05,
    centres: Tensor | None = None,
    predictions: Tensor | None = None,
) -> dict[str, Tensor]:
    """(1 - weight) * prediction + weight * SIGReg, the paper's Algorithm 2 (Eq. 7).

    Args:
        z: projections of V views, (V, N, D), the global views first.
        num_global: how many of them are global; their mean is what every view predicts.
        sigreg: maps (V, N, D) to the statistic averaged over views.
        weight: the paper's lambda; best 0.01 for two views, 0.02 for four, 0.05 for eight.
        centres: (N, D) to predict instead of the global views' own mean, e.g. from a weight-averaged encoder.
        predictions: (V, N, D) of the centres, what a predictor makes of z; by default z itself.
    """
    if z.ndim != 3:
        raise ValueError(f"z: expected (V, N, D), got shape {tuple(z.shape)}")
    if not 1 <= num_global <= len(z):
        raise ValueError(f"num_global: expected 1 to {len(z)}, the number of views in z, got {num_global}")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight: expected a number from 0 to 1, got {weight}")
    z = at_least_float32(z)
    if centres is None:
        centres = z[:num_global].mean(0)
    predictions = z if predictions is None else at_least_float32(predictions)
    prediction = mean_over_ranks((centres - predictions).square().mean(), z.shape[1])
    regularity = sigreg(z)
    return {
        "loss": (1 - weight) * prediction + weight * regularity,
        "prediction": prediction,
        "sigreg": regularity,
    }


def projector_mlp(features: int, width: int, dim: int, layers: int) -> nn.Sequential:
    """`layers` linear layers, BatchNorm and ReLU between them."""
    widths = [features, *[width] * (layers - 1), dim]
    hidden: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        hidden += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*hidden, nn.Linear(widths[-2], dim))


class LeJEPA(Method, name="lejepa"):
    """LeJEPA: views agree, and SIGReg makes the cloud of embeddings an isotropic Gaussian.

    The features are the backbone's; the Gaussian lives in projector space.

    Args:
        backbone: network with `num_features`, images to (N, D).
        weight: lambda, the share of SIGReg in the loss.
        dim: dimension of the projections, where SIGReg acts.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        num_slices: random directions per step.
        test: of normality along each direction, one of `jointembed.normality.names()`. `weight` is meant for the scale
            of Epps and Pulley's, the paper's choice. Shapiro and Wilk's with its two forms and Jarque and Bera's see
            neither mean nor variance: they do not keep embeddings from shrinking.
        directions: "gaussian", or "sobol", which covers the sphere more evenly where they are many.
        t_max: Epps and Pulley's: the characteristic function is compared on [-t_max, t_max].
        num_points: at this many points, odd.
        centre: which views make the centre: "global", "all", or "auto": the global ones for vision transformers and
            all of them for other networks, as in the paper.
        swa: decay of a weight-averaged encoder that gives the centres (the paper: a small gain for vision
            transformers); 0 for none.
        predictor_width: width of the hidden layer of a predictor from each projection to the centre; 0 for none. The
            paper tried one and found no use for it.
        compiled: run SIGReg on the CPU in C++ kernels, built on first use in about a second where there is a compiler.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    generative = True
    preset = "lejepa"

    def __init__(
        self,
        backbone: nn.Module,
        weight: float = 0.02,
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        num_slices: int = 1024,
        test: str = "epps-pulley",
        directions: Literal["gaussian", "sobol"] = "gaussian",
        t_max: float = 5.0,
        num_points: int = 17,
        centre: Literal["auto", "global", "all"] = "auto",
        swa: float = 0.0,
        predictor_width: int = 0,
        compiled: bool = False,
    ) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight: expected a number from 0 to 1, got {weight}")
        if projector_layers not in (1, 2, 3):
            raise ValueError(f"projector_layers: expected 1, 2 or 3, got {projector_layers}")
        if dim < 1 or projector_width < 1:
            raise ValueError(f"dim, projector_width: expected at least 1, got {dim} and {projector_width}")
        if centre not in ("auto", "global", "all"):
            raise ValueError(f"centre: expected 'auto', 'global' or 'all', got {centre!r}")
        if not 0 <= swa < 1:
            raise ValueError(f"swa: expected a decay from 0 to below 1, got {swa}")
        if predictor_width < 0:
            raise ValueError(f"predictor_width: expected at least 0, got {predictor_width}")
        its = {"t_max": t_max, "num_points": num_points, "compiled": compiled} if test == "epps-pulley" else {}
        sigreg = SIGReg(create_test(test, **its), num_slices, compiled=compiled, directions=directions)
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, projector_layers)
        self.sigreg = sigreg
        self.weight = weight
        if centre == "auto":  # patch_embed marks a vision transformer in timm; class_token one in torchvision
            centre = "global" if hasattr(backbone, "patch_embed") or hasattr(backbone, "class_token") else "all"
        self.global_centres = centre == "global"
        self.average: AveragedModel | None = None
        if swa:
            network = nn.Sequential(backbone, self.projector)
            self.average = AveragedModel(network, multi_avg_fn=moving_average(swa), use_buffers=True)
            self.average.requires_grad_(False)
        self.predictor = projector_mlp(dim, predictor_width, dim, 2) if predictor_width else None

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        num_centres = num_global if self.global_centres else len(views)
        centres = None
        if self.average is not None:
            with torch.no_grad():
                centres = encode_views(self.average, views[:num_centres]).mean(0)
        predictions = None
        if self.predictor is not None:  # BatchNorm takes dim 1 for channels
            predictions = self.predictor(z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return lejepa_loss(z, num_centres, self.sigreg, self.weight, centres, predictions)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self.projector(h)}

    def after_step(self) -> None:
        if self.average is not None:
            self.average.update_parameters(nn.Sequential(self.backbone, self.projector))
