"""GMJE-MDN: a network that sees only the context gives the mixture of the target (section 4.4).

    log p(z_c, z_t) = log p(z_c) + log sum_k alpha_k(z_c) N(z_t; mu_k(z_c), sigma_k(z_c)^2)          (Eq. 23)

As written nothing holds z_t: with mu and sigma it shrinks to a point, at a loss of minus infinity. Taking away H(z_t)
makes the conditional term minus a bound of the views' mutual information, H(z_t) - H(z_t | z_c) (Barber and Agakov);
taking away H(z_c) too holds the context; a floor on sigma bounds the whole. The network must never see the target: with
it, mu_k = z_t and sigma = 0 explain everything and say nothing (the identity collapse, appendix M).

Nor does the likelihood make views agree that do not yet: of a direction in which z_c says nothing of z_t, the network
says mu = 0 with a wide sigma, and neither view is pulled to the other; it keeps its entropy as noise. So the method
takes views to agree until shown otherwise: the means are the context plus a departure that has a price, and sigma is
below 1, the target's deviation when nothing is known, and much the same for all directions: the pull is one over its
square, and a sigma that is free lets few directions take everything. Entropy asks for D directions, noise or not;
SIGReg in its place does not insist (see `guard.py`).

    >>> network = MixtureDensityNetwork(8, 8, components=3)
    >>> z_context, z_target = torch.randn(2, 128, 8)
    >>> terms = mdn_loss(z_context, z_target, network(z_context))
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from jointembed._distributed import mean_over_ranks
from jointembed.distributions import GaussianMixture

from ..base import at_least_float32
from .components import IDLE
from .guard import gaussian_entropy, guard_for
from .sphere import SphereMethod


def mdn_loss(
    z_context: Tensor,
    z_target: Tensor,
    conditional: GaussianMixture,
    weight: float = 1.0,
    entropy: Callable[[Tensor], Tensor] = gaussian_entropy,
    departure: float = 0.0,
    balance: float = 0.0,
) -> dict[str, Tensor]:
    """Negative conditional log-likelihood of the target, less the entropy of both marginals, per dimension.

    Args:
        z_context: what the conditional was made from, (N, D).
        z_target: (N, D').
        conditional: of the target given each context, with batch shape (N,).
        weight: of the entropies; 0 for targets that are data and cannot shrink.
        entropy: of embeddings (N, D), up to a constant, or another measure of their spread.
        departure: price of the components' mean squared distance from the context, where both views have one space.
        balance: price of using components unequally: of what the entropy of their mean weights lacks of log K.
    """
    if conditional.batch_shape != z_target.shape[:1] or conditional.event_shape != z_target.shape[1:]:
        raise ValueError(
            f"conditional: expected one of {z_target.shape[-1]} dimensions for each of {len(z_target)} targets, "
            f"got batch {tuple(conditional.batch_shape)} and dimensions {tuple(conditional.event_shape)}"
        )
    width = z_target.shape[-1]
    rows = len(z_target)
    nll = -mean_over_ranks(conditional.log_prob(z_target).mean(), rows) / width
    terms = {"loss": nll, "nll": nll}
    if weight:
        spread = (entropy(z_context) + entropy(z_target)) / width
        terms |= {"loss": nll - weight * spread, "spread": spread}
    if departure:
        distance = departure_from(z_context, conditional)
        terms |= {"loss": terms["loss"] + departure * distance, "departure": distance}
    if balance:
        shares = mean_over_ranks(conditional.weights.mean(0), rows)  # (K,)
        uneven = math.log(len(shares)) + torch.special.xlogy(shares, shares).sum()
        terms |= {"loss": terms["loss"] + balance * uneven, "uneven": uneven}
    return terms


def departure_from(z_context: Tensor, conditional: GaussianMixture) -> Tensor:
    """The components' mean squared distance per dimension from the contexts (..., D) they were made from."""
    squares = (conditional.means - z_context.unsqueeze(-2)).square().mean(-1)  # (..., K)
    return mean_over_ranks((conditional.weights * squares).sum(-1).mean(), z_context.shape[-2])


class MixtureDensityNetwork(nn.Module):
    """Contexts (N, D) to a mixture of K diagonal Gaussians over the target for each.

    Args:
        dim: D of the context.
        target_dim: D' of the target.
        components: K.
        width: of the two hidden layers.
        floor: smallest standard deviation.
        ceiling: largest standard deviation.
        residual: means are the context plus what the network says; for D = D'.
    """

    def __init__(
        self,
        dim: int,
        target_dim: int,
        components: int = 8,
        width: int = 256,
        floor: float = 0.1,
        ceiling: float = math.inf,
        residual: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("target_dim", target_dim), ("components", components), ("width", width)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 < floor < ceiling:
            raise ValueError(f"floor: expected a standard deviation above 0 and below {ceiling}, got {floor}")
        if residual and dim != target_dim:
            raise ValueError(
                f"residual: expected as many dimensions of the target as of the context, {dim}, got {target_dim}"
            )
        self.shape, self.floor, self.ceiling, self.residual = (components, target_dim), floor, ceiling, residual
        layers: list[nn.Module] = []
        for a, b in pairwise((dim, width, width)):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
        self.hidden = nn.Sequential(*layers)
        self.logits = nn.Linear(width, components)
        self.means = nn.Linear(width, components * target_dim)
        self.scales = nn.Linear(width, components * target_dim)
        # Apart from the start: components that begin as one may stay one. But where departures from the context have a
        # price, all weight goes to the least departure at once, and stays there, if they begin far apart.
        nn.init.normal_(self.means.bias, std=0.1 if residual else 1.0)

    def parts(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (N, K), means and standard deviations (N, K, D')."""
        h = self.hidden(context)
        weights = at_least_float32(self.logits(h)).softmax(-1)
        means = at_least_float32(self.means(h)).unflatten(-1, self.shape)
        if self.residual:
            means = means + at_least_float32(context).unsqueeze(-2)
        spread = at_least_float32(self.scales(h)).unflatten(-1, self.shape)
        if self.ceiling < math.inf:
            return weights, means, self.floor + (self.ceiling - self.floor) * spread.sigmoid()
        return weights, means, self.floor + nn.functional.softplus(spread)

    def forward(self, context: Tensor) -> GaussianMixture:
        weights, means, scales = self.parts(context)
        return GaussianMixture.diagonal(weights, means, scales.square(), validate_args=False)


class GMJEMDN(SphereMethod, name="gmje-mdn"):
    """GMJE-MDN: a network gives the Gaussian mixture of another view, given this one.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        components: of the mixture over the target.
        width: of the network's hidden layers.
        floor: smallest standard deviation of a component, where that of all embeddings is 1.
        ceiling: largest standard deviation of a component.
        departure: price of the components' mean squared distance from the context.
        balance: price of using components unequally.
        guard: what keeps the marginals from shrinking: "sigreg" or "entropy".
        weight: of the guard; about 1 for "entropy".
        num_slices: random directions of "sigreg", per step.
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
        floor: float = 0.5,
        ceiling: float = 0.8,
        departure: float = 30.0,
        balance: float = 0.3,
        guard: Literal["sigreg", "entropy"] = "sigreg",
        weight: float = 0.05,
        num_slices: int = 256,
    ) -> None:
        if not min(weight, departure, balance) >= 0:
            raise ValueError(
                f"weight, departure, balance: expected at least 0, got {weight}, {departure} and {balance}"
            )
        super().__init__(backbone, dim, projector_width, projector_layers)
        self.network = MixtureDensityNetwork(dim, dim, components, width, floor, ceiling, residual=True)
        self.guard = guard_for(guard, dim, num_slices)
        self.weight, self.departure, self.balance = weight, departure, balance

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = self.embed_views(views)
        context, target = self.pairs(z, num_global)
        weights, means, scales = self.network.parts(context)
        conditional = GaussianMixture.diagonal(weights, means, scales.square(), validate_args=False)
        spread = self.guard(z)  # for contexts and targets alike: they are the same embeddings, paired
        terms = mdn_loss(context, target, conditional, self.weight, lambda _: spread, self.departure, self.balance)
        with torch.no_grad():
            usage = mean_over_ranks(conditional.responsibilities(target).mean(0), len(target))  # (K,)
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
