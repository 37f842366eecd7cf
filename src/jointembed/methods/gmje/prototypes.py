"""GMJE with prototypes: the joint density of two views as a Gaussian mixture with learned components (section 4.3).

The likelihood of the joint embedding Z = [z_c; z_t] alone is minimised by shrinking everything to a point. Taking away
the entropy of each view's own embeddings leaves, for one component, minus the mutual information of the views:

    -log p(z_c, z_t) - H(z_c) - H(z_t),    of a Gaussian  -1/2 log(|S_cc| |S_tt| / |S|)

which rewards agreement and spread, and which a floor on the covariance bounds. But where views do not agree yet it
stands still: of two uncorrelated numbers a learned density expects no correlation, and pulls neither to the other. Such
directions keep their entropy as noise, and the features tell little. And where views agree it pulls ever harder, by one
over what is left between them: given time, few directions take everything. A prior in which views agree, mixed into the
covariance (the mode of an inverse-Wishart posterior is such a mixture), gives every direction a pull from the start,
and with most of the weight nearly the same one. What is asked of the model afterwards is the learned density alone.
Entropy asks for D directions, noise or not; SIGReg in its place does not insist (see `guard.py`).

A component that may be at one place for the context and at another for the target comes to stand for a difference
between views, and what it explains is no longer pulled together. Which of two views is which is arbitrary, and so
components are kept at the same place in both: they stand for kinds of images.

The mixture itself is learned by the gradient of the loss, as in the paper, or by stepwise EM, which needs no learning
rate of its own and follows a moving cloud of embeddings faster.

    >>> mixture = GaussianMixture(torch.ones(5) / 5, torch.randn(5, 16), torch.eye(16)[None])
    >>> z_context, z_target = torch.randn(2, 128, 8)
    >>> terms = prototype_loss(z_context, z_target, mixture)
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from jointembed._distributed import gather_rows, mean_over_ranks
from jointembed.distributions import GaussianMixture

from .components import GrowingPrototypes, OnlinePrototypes, ParticlePrototypes, Prototypes
from .guard import gaussian_entropy, guard_for
from .refit import refitted
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
        entropy: of embeddings (N, D), up to a constant, or another measure of their spread.
    """
    z = torch.cat([z_context, z_target], dim=-1)
    if mixture.event_shape != z.shape[-1:]:
        raise ValueError(f"mixture: expected {z.shape[-1]} dimensions as the two views have, got {mixture.event_shape}")
    nll = -mean_over_ranks(mixture.log_prob(z).mean(), len(z)) / z.shape[-1]
    spread = (entropy(z_context) + entropy(z_target)) / z.shape[-1]
    return {"loss": nll - weight * spread, "nll": nll, "spread": spread}


LEARNING = {"em": OnlinePrototypes, "gradient": Prototypes, "gng": GrowingPrototypes, "smc": ParticlePrototypes}


class GMJE(SphereMethod, name="gmje"):
    """GMJE: the joint density of two views as a Gaussian mixture, learned with the encoder.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections of one view.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        prototypes: components of the mixture.
        learning: of the mixture: "em", stepwise; "gradient", as in the paper; "gng", as many components, up to
            `prototypes`, as a Growing Neural Gas finds; "smc", past embeddings resampled by their likelihood.
        covariance: "shared", one learned for all; "full", one each ("em" and "gradient"); "fixed", the temperature.
        temperature: variance of every component: a fixed one, or that of a learned one's prior and beginning.
        floor: smallest variance in any direction of a learned covariance.
        agreement: correlation of the two views in the covariance's prior.
        prior_weight: share of this prior in a learned covariance; 0 for none.
        balance: share of equal weights in the components' learned ones, so that none starves.
        exchangeable: a component is at the same place in both views. Else components come to stand for differences
            between views, and what they explain is no longer pulled together.
        guard: what keeps the marginals from shrinking: "sigreg" or "entropy".
        weight: of the guard; about 1 for "entropy".
        num_slices: random directions of "sigreg", per step.
        revive_every: steps between looks for components without images: they share the work of the busiest.
    """

    steps: Tensor
    image_weights: Tensor
    image_means: Tensor
    image_covariances: Tensor

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
        floor: float = 0.02,
        agreement: float = 0.8,
        prior_weight: float = 0.9,
        balance: float = 0.5,
        exchangeable: bool = True,
        guard: Literal["sigreg", "entropy"] = "sigreg",
        weight: float = 0.04,
        num_slices: int = 256,
        revive_every: int = 100,
    ) -> None:
        if learning not in LEARNING:
            raise ValueError(f"learning: expected one of {', '.join(LEARNING)}, got {learning!r}")
        if not weight >= 0:
            raise ValueError(f"weight: expected at least 0, got {weight}")
        if not all(0 <= value < 1 for value in (agreement, prior_weight, balance)):
            raise ValueError(
                "agreement, prior_weight, balance: expected from 0 to below 1, "
                f"got {agreement}, {prior_weight} and {balance}"
            )
        if revive_every < 1:
            raise ValueError(f"revive_every: expected at least 1, got {revive_every}")
        super().__init__(backbone, dim, projector_width, projector_layers)
        prior = temperature * torch.kron(torch.tensor([[1.0, agreement], [agreement, 1.0]]), torch.eye(dim))
        self.prototypes = LEARNING[learning](
            prototypes, 2 * dim, covariance, temperature, floor, prior, prior_weight, balance, exchangeable
        )
        self.guard = guard_for(guard, dim, num_slices)
        self.weight, self.revive_every = weight, revive_every
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # The density of the images themselves, fitted when training has ended.
        self.register_buffer("image_weights", torch.full((prototypes,), torch.nan))
        self.register_buffer("image_means", torch.full((prototypes, dim), torch.nan))
        self.register_buffer("image_covariances", torch.full((prototypes, dim, dim), torch.nan))
        self.joint: Tensor | None = None  # this step's joint embeddings of all ranks, for what follows the step

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = self.embed_views(views)
        context, target = self.pairs(z, num_global)
        joint = torch.cat([context, target], -1).detach().unflatten(0, (-1, len(views[0])))  # (P, N, 2 D)
        self.joint = gather_rows(joint, 1)[0].flatten(0, 1)
        if not self.prototypes.usage.any():
            self.prototypes.follow(self.joint)
        mixture = self.prototypes()
        spread = self.guard(z)  # for contexts and targets alike: they are the same embeddings, paired
        terms = prototype_loss(context, target, mixture, self.weight, lambda _: spread)
        with torch.no_grad():
            sigma = mixture.covariances.diagonal(dim1=-2, dim2=-1).mean().sqrt()
        return terms | {"sigma": sigma, "used": self.prototypes.used.float().mean()}

    def after_step(self) -> None:
        if self.joint is None:
            return
        self.steps += 1
        self.prototypes.follow(self.joint)
        if self.steps % self.revive_every == 0:
            self.prototypes.revive()

    def view_density(self) -> GaussianMixture:
        """The mixture's own marginal of one view (Eq. 97)."""
        with torch.no_grad():
            return self.prototypes.learned().marginal(range(self.dim))

    def fit_density(self, z: Tensor) -> None:
        """From the density of views, which vary more than images, to that of the training images' embeddings (N, D)."""
        super().fit_density(z)
        fitted = refitted(self.view_density(), z.to(self.image_means))
        self.image_weights.copy_(fitted.weights)
        self.image_means.copy_(fitted.means)
        self.image_covariances.copy_(fitted.covariances)

    def density(self) -> GaussianMixture:
        """Of images: the mixture of views, fitted on to the embeddings of the training images themselves."""
        super().density()  # refuses a model whose training has not ended
        return GaussianMixture(self.image_weights, self.image_means, self.image_covariances, validate_args=False)

    def posterior(self, encoded: dict[str, Tensor]) -> GaussianMixture:
        """The embedding of another view of each image, given this one (Eqs. 102-104)."""
        with torch.no_grad():
            return self.prototypes.learned().condition(range(self.dim), encoded["projector"])
