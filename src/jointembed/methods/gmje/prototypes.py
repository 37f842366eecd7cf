"""GMJE with prototypes: the joint density of two views as a Gaussian mixture with learned components (section 4.3).

The likelihood of the joint embedding Z = [z_c; z_t] alone is minimised by shrinking everything to a point. Taking away
the entropy of each view's own embeddings leaves, for one component, minus the mutual information of the views:

    -log p(z_c, z_t) - H(z_c) - H(z_t),    of a Gaussian  -1/2 log(|S_cc| |S_tt| / |S|)

which rewards agreement and spread, and which a floor on the covariance bounds. The mixture itself is learned by the
gradient of the loss, as in the paper, or by stepwise EM, which needs no learning rate of its own and follows a moving
cloud of embeddings faster.

    >>> mixture = GaussianMixture(torch.ones(5) / 5, torch.randn(5, 16), torch.eye(16)[None])
    >>> z_context, z_target = torch.randn(2, 128, 8)
    >>> terms = prototype_loss(z_context, z_target, mixture)
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from jointembed.distributions import GaussianMixture

from .components import GrowingPrototypes, OnlinePrototypes, ParticlePrototypes, Prototypes
from .guard import EntropyGuard, gaussian_entropy
from .sphere import SphereMethod


def prototype_loss(
    z_context: Tensor,
    z_target: Tensor,
    mixture: GaussianMixture,
    weight: float = 1.0,
    entropy: Callable[[Tensor], Tensor] = gaussian_entropy,
) -> dict[str, Tensor]:
    """Negative log-likelihood of joint embeddings under a mixture, less the entropy of both marginals.

    Per dimension, so that a weight or a learning rate carries over from one D to another.

    Args:
        z_context: embeddings of one view, (N, D).
        z_target: of the other view, (N, D').
        mixture: over [z_context, z_target], D + D' wide (Eq. 15, or 16 with a covariance each).
        weight: of the entropies; 0 is the paper's loss, which collapses where the encoder and the covariance learn.
        entropy: of embeddings (N, D), up to a constant.
    """
    z = torch.cat([z_context, z_target], dim=-1)
    if mixture.event_shape != z.shape[-1:]:
        raise ValueError(f"mixture: expected {z.shape[-1]} dimensions as the two views have, got {mixture.event_shape}")
    nll = -mixture.log_prob(z).mean() / z.shape[-1]
    spread = (entropy(z_context) + entropy(z_target)) / z.shape[-1]
    return {"loss": nll - weight * spread, "nll": nll, "entropy": spread}


LEARNING = {"em": OnlinePrototypes, "gradient": Prototypes, "gng": GrowingPrototypes, "smc": ParticlePrototypes}


class GMJE(SphereMethod, name="gmje"):
    """Parametric GMJE on a backbone: the mixture is learned with the encoder.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections of one view.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        prototypes: components of the mixture.
        learning: of the mixture: "em", stepwise; "gradient", as in the paper; "gng", as many components, up to
            `prototypes`, as a Growing Neural Gas finds; "smc", past embeddings resampled by their likelihood.
        covariance: "shared", one learned for all; "full", one each ("em" and "gradient"); "fixed", the temperature.
        temperature: variance of every component, for a fixed covariance, or to begin with.
        floor: smallest variance in any direction of a learned covariance.
        weight: of the entropy of the marginals.
        revive_every: steps between looks for components without images: they move to the images explained worst.
    """

    steps: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        prototypes: int = 64,
        learning: Literal["em", "gradient", "gng", "smc"] = "em",
        covariance: Literal["shared", "full", "fixed"] = "shared",
        temperature: float = 1.0,
        floor: float = 0.05,
        weight: float = 1.0,
        revive_every: int = 100,
    ) -> None:
        if learning not in LEARNING:
            raise ValueError(f"learning: expected one of {', '.join(LEARNING)}, got {learning!r}")
        if not weight >= 0:
            raise ValueError(f"weight: expected at least 0, got {weight}")
        if revive_every < 1:
            raise ValueError(f"revive_every: expected at least 1, got {revive_every}")
        super().__init__(backbone, dim, projector_width, projector_layers)
        self.prototypes = LEARNING[learning](prototypes, 2 * dim, covariance, temperature, floor)
        self.guard = EntropyGuard(dim)
        self.weight, self.revive_every = weight, revive_every
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.joint: Tensor | None = None  # this step's joint embeddings, for what follows the step

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        context, target = self.pairs(views, num_global)
        self.joint = torch.cat([context, target], -1).detach()
        if not self.prototypes.usage.any():
            self.prototypes.follow(self.joint)
        terms = prototype_loss(context, target, self.prototypes(), self.weight, self.guard)
        return terms | {"used": self.prototypes.used.float().mean()}

    def after_step(self) -> None:
        if self.joint is None:
            return
        self.steps += 1
        self.prototypes.follow(self.joint)
        if self.steps % self.revive_every == 0:
            self.prototypes.revive(self.joint)

    def density(self) -> GaussianMixture:
        """The mixture's own marginal of one view (Eq. 97)."""
        super().density()  # refuses a model whose training has not ended
        with torch.no_grad():
            return self.prototypes().marginal(range(self.dim))

    def posterior(self, encoded: dict[str, Tensor]) -> GaussianMixture:
        """The embedding of another view of each image, given this one (Eqs. 102-104)."""
        with torch.no_grad():
            return self.prototypes().condition(range(self.dim), encoded["projector"])
