"""GMJE-MDN: a network that sees only the context gives the mixture of the target (section 4.4).

    log p(z_c, z_t) = log p(z_c) + log sum_k alpha_k(z_c) N(z_t; mu_k(z_c), sigma_k(z_c)^2)          (Eq. 23)

As written nothing holds z_t: with mu and sigma it shrinks to a point, at a loss of minus infinity. Taking away H(z_t)
makes the conditional term minus a bound of the views' mutual information, H(z_t) - H(z_t | z_c) (Barber and Agakov);
taking away H(z_c) too holds the context; a floor on sigma bounds the whole. The network must never see the target: with
it, mu_k = z_t and sigma = 0 explain everything and say nothing (the identity collapse, appendix M).

    >>> network = MixtureDensityNetwork(8, 8, components=3)
    >>> z_context, z_target = torch.randn(2, 128, 8)
    >>> terms = mdn_loss(z_context, z_target, network(z_context))
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from jointembed.distributions import GaussianMixture

from ..base import at_least_float32
from .components import IDLE
from .guard import EntropyGuard, gaussian_entropy
from .sphere import SphereMethod


def mdn_loss(
    z_context: Tensor,
    z_target: Tensor,
    conditional: GaussianMixture,
    weight: float = 1.0,
    entropy: Callable[[Tensor], Tensor] = gaussian_entropy,
) -> dict[str, Tensor]:
    """Negative conditional log-likelihood of the target, less the entropy of both marginals, per dimension.

    Args:
        z_context: what the conditional was made from, (N, D).
        z_target: (N, D').
        conditional: of the target given each context, with batch shape (N,).
        weight: of the entropies; 0 for targets that are data and cannot shrink.
        entropy: of embeddings (N, D), up to a constant.
    """
    if conditional.batch_shape != z_target.shape[:1] or conditional.event_shape != z_target.shape[1:]:
        raise ValueError(
            f"conditional: expected one of {z_target.shape[-1]} dimensions for each of {len(z_target)} targets, "
            f"got batch {tuple(conditional.batch_shape)} and dimensions {tuple(conditional.event_shape)}"
        )
    width = z_target.shape[-1]
    nll = -conditional.log_prob(z_target).mean() / width
    terms = {"loss": nll, "nll": nll}
    if weight:
        spread = (entropy(z_context) + entropy(z_target)) / width
        terms |= {"loss": nll - weight * spread, "entropy": spread}
    return terms


class MixtureDensityNetwork(nn.Module):
    """Contexts (N, D) to a mixture of K diagonal Gaussians over the target for each.

    Args:
        dim: D of the context.
        target_dim: D' of the target.
        components: K.
        width: of the two hidden layers.
        floor: smallest standard deviation.
    """

    def __init__(self, dim: int, target_dim: int, components: int = 8, width: int = 256, floor: float = 0.1) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("target_dim", target_dim), ("components", components), ("width", width)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not floor > 0:
            raise ValueError(f"floor: expected a standard deviation above 0, got {floor}")
        self.shape, self.floor = (components, target_dim), floor
        layers: list[nn.Module] = []
        for a, b in pairwise((dim, width, width)):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
        self.hidden = nn.Sequential(*layers)
        self.logits = nn.Linear(width, components)
        self.means = nn.Linear(width, components * target_dim)
        self.scales = nn.Linear(width, components * target_dim)
        nn.init.normal_(self.means.bias)  # apart from the start: components that begin as one may stay one

    def parts(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (N, K), means and standard deviations (N, K, D')."""
        h = self.hidden(context)
        weights = at_least_float32(self.logits(h)).softmax(-1)
        means = at_least_float32(self.means(h)).unflatten(-1, self.shape)
        scales = nn.functional.softplus(at_least_float32(self.scales(h))).unflatten(-1, self.shape) + self.floor
        return weights, means, scales

    def forward(self, context: Tensor) -> GaussianMixture:
        weights, means, scales = self.parts(context)
        return GaussianMixture.diagonal(weights, means, scales.square(), validate_args=False)


class GMJEMDN(SphereMethod, name="gmje-mdn"):
    """GMJE-MDN on a backbone.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        components: of the mixture over the target.
        width: of the network's hidden layers.
        floor: smallest standard deviation of a component.
        weight: of the entropy of the marginals.
    """

    scores = ("density", "conditional")

    def __init__(
        self,
        backbone: nn.Module,
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        components: int = 8,
        width: int = 256,
        floor: float = 0.1,
        weight: float = 1.0,
    ) -> None:
        if not weight >= 0:
            raise ValueError(f"weight: expected at least 0, got {weight}")
        super().__init__(backbone, dim, projector_width, projector_layers)
        self.network = MixtureDensityNetwork(dim, dim, components, width, floor)
        self.guard = EntropyGuard(dim)
        self.weight = weight

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        context, target = self.pairs(views, num_global)
        weights, means, scales = self.network.parts(context)
        conditional = GaussianMixture.diagonal(weights, means, scales.square(), validate_args=False)
        terms = mdn_loss(context, target, conditional, self.weight, self.guard)
        with torch.no_grad():
            usage = conditional.responsibilities(target).mean(0)  # (K,)
        return terms | {"sigma": scales.detach().mean(), "used": (usage > IDLE / len(usage)).float().mean()}

    def posterior(self, encoded: dict[str, Tensor]) -> GaussianMixture:
        """The embedding of another view of each image, given this one."""
        with torch.no_grad():
            return self.network(encoded["projector"])

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """The Gaussian of the training embeddings, or how badly an image explains its own embedding.

        "density" is the p(z_c) of Eq. 23; "conditional" is minus the log-density of z given itself as the context.
        """
        if score == "conditional":
            return -self.posterior(encoded).log_prob(encoded["projector"])
        return super().score(encoded, score, samples, seed)
