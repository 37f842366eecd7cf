"""What the GMJE methods share: projections of fixed norm, and pairs of them."""

import math

import torch
from torch import Tensor, nn

from ..base import Method, at_least_float32, encode_views, feature_dim
from ..lejepa import projector_mlp


class SphereMethod(Method):
    """A backbone with a projector onto a sphere, by default of radius sqrt(D): the mean square of an embedding is one.

    A fixed norm takes from the encoder the cheapest way to please a likelihood, a change of scale; this radius makes
    variances mean the same for every D.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    generative = True
    preset = "lejepa"

    def __init__(
        self, backbone: nn.Module, dim: int, projector_width: int, projector_layers: int, radius: float | None = None
    ) -> None:
        if dim < 2 or projector_width < 1 or projector_layers not in (1, 2, 3):
            raise ValueError(
                "dim, projector_width, projector_layers: expected at least 2, at least 1 and 1 to 3, "
                f"got {dim}, {projector_width} and {projector_layers}"
            )
        super().__init__(backbone, density_dim=dim)
        self.dim, self.radius = dim, math.sqrt(dim) if radius is None else radius
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, projector_layers)

    def on_sphere(self, projected: Tensor) -> Tensor:
        """Projections scaled to the radius, in float32."""
        return self.radius * nn.functional.normalize(at_least_float32(projected), dim=-1)

    def embed_views(self, views: list[Tensor]) -> Tensor:
        """Embeddings (V, N, D) of V views."""
        if len(views) < 2:
            raise ValueError(f"views: expected at least two, got {len(views)}")
        return self.on_sphere(encode_views(nn.Sequential(self.backbone, self.projector), views))

    @staticmethod
    def pairs(z: Tensor, num_global: int) -> tuple[Tensor, Tensor]:
        """Contexts and targets (P N, D): all pairs of views with a global one, in both orders.

        Which of two views is the context is arbitrary, and so the density learns to be symmetric.
        """
        chosen = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j and min(i, j) < num_global]
        first, second = torch.tensor(chosen, device=z.device).T
        return z[first].flatten(0, 1), z[second].flatten(0, 1)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self.on_sphere(self.projector(h))}
