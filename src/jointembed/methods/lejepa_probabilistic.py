"""Probabilistic LeJEPA: the likelihood of another view in place of the squared error, SIGReg against collapse.

    loss = (1 - weight) * nll / D + weight * SIGReg

"lejepa-vje"  nll: VJE's polar Student-t of the other view's embedding under this view's posterior; no KL.
"lejepa-mdn"  nll: the mixture density of the other view's embedding given this one's, as in GMJE-MDN; no entropy guard.

Both are of our own making, from three papers. What each term can cheat on, and what stops it:

A likelihood rewards a smaller scale. The mixture's nll falls by log c per dimension when embeddings, means and sigma
shrink by c; only SIGReg minds. With N images per batch Epps-Pulley costs 0.409 N when all are one point and 1.06 when
they are Gaussian; the likelihood wins at most log(1 / floor) + 1/2 over views that say nothing of each other. So
collapse does not pay where

    weight (0.409 N - 1.06) > (1 - weight) (log(1 / floor) + 1/2),

from N = 29 at the mixture's weight and floor, 0.1 and 0.5; at floor 0.1 from N = 65, and at LeJEPA's weight, 0.02,
from N = 339. Against dimensions that die one by one SIGReg is weaker: with half of 64 at zero and the others grown by
sqrt(2) it costs 0.004 N, a hundredth. Only the floor helps there, and so it is large. The polar likelihood has no scale
in its directions and a fixed one in its norms, but one direction for all is its best answer, which SIGReg forbids.
Without a floor neither is bounded below, for sigma -> 0 where views agree, which VJE's KL forbids.

VJE compares unit vectors, while embeddings here have norm about sqrt(D): directions are compared on the sphere of that
radius, or the posterior's variance could not also be the likelihood's. As in GMJE-MDN, and for its reason, views are
taken to agree until shown otherwise: means are the context plus a departure, which in the mixture has a price, and
sigma is below 1, that of all embeddings. In the mixture targets get gradients, as in LeJEPA: SIGReg, not a
stop-gradient, keeps images apart. Under the polar likelihood they are held fixed, as in VJE, which gave better features
(docs/measured.md). The networks never see the target.

    >>> z = torch.randn(2, 128, 16)  # (V, N, D), the projections of two views
    >>> network = MixtureDensityNetwork(16, 16, components=4)
    >>> terms = lejepa_mdn_loss(z, network(z), num_global=2, sigreg=SIGReg(num_slices=64))
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from jointembed._distributed import mean_over_ranks
from jointembed.distributions import GaussianMixture, PolarStudentT
from jointembed.normality import EppsPulley, SIGReg

from .base import Method, at_least_float32, encode_views, feature_dim
from .gmje.mdn import MixtureDensityNetwork, departure_from
from .lejepa import projector_mlp
from .stacks import check_above_zero, check_counts, check_stack
from .vje import InferenceNetwork


def lejepa_vje_loss(
    z: Tensor,
    posterior: Normal,
    num_global: int,
    sigreg: nn.Module,
    weight: float = 0.05,
    df: float = 3.0,
    samples: int = 1,
    detach: bool = True,
) -> dict[str, Tensor]:
    """VJE's likelihood without constants, per dimension, and SIGReg of each view's embeddings.

    Args:
        z: projections of V views, (V, N, D), the global views first.
        posterior: of the latent given each of them, (V, N, D); its variance is the directional likelihood's too.
        num_global: how many are global: every view explains every other global one.
        sigreg: maps (V, N, D) to the statistic averaged over views.
        weight: lambda, the share of SIGReg.
        df: degrees of freedom of the likelihood.
        samples: of the posterior, per embedding.
        detach: hold what is explained fixed, as VJE does; False lets the gradient through it.
    """
    _check(z, num_global, weight)
    if posterior.loc.shape != z.shape:
        raise ValueError(f"posterior: expected shape {tuple(z.shape)} as z has, got {tuple(posterior.loc.shape)}")
    z = at_least_float32(z)
    width = z.shape[-1]
    polar = polar_likelihood(posterior.rsample(torch.Size([samples])), posterior.variance, df)
    direction = over_pairs(lambda target: polar.direction_loss(target).mean(0), z, num_global, detach) / width
    radius = over_pairs(lambda target: polar.radius_loss(target).mean(0), z, num_global, detach) / width
    return _total(direction + radius, sigreg(z), weight) | {"direction": direction, "radius": radius}


def lejepa_mdn_loss(
    z: Tensor,
    conditional: GaussianMixture,
    num_global: int,
    sigreg: nn.Module,
    weight: float = 0.1,
    departure: float = 0.0,
    detach: bool = False,
) -> dict[str, Tensor]:
    """Negative conditional log-likelihood per dimension, and SIGReg of each view's embeddings.

    Args:
        z: projections of V views, (V, N, D), the global views first.
        conditional: of another view's embedding given each of them, with batch shape (V, N).
        num_global: how many are global: every view explains every other global one.
        sigreg: maps (V, N, D) to the statistic averaged over views.
        weight: lambda, the share of SIGReg.
        departure: price of the components' mean squared distance from what they were made from.
        detach: hold what is explained fixed.
    """
    _check(z, num_global, weight)
    if conditional.batch_shape + conditional.event_shape != z.shape:
        raise ValueError(
            f"conditional: expected batch {tuple(z.shape[:2])} and {z.shape[2]} dimensions as z has, "
            f"got batch {tuple(conditional.batch_shape)} and {conditional.event_shape[0]} dimensions"
        )
    z = at_least_float32(z)
    nll = -over_pairs(conditional.log_prob, z, num_global, detach) / z.shape[-1]
    terms = _total(nll, sigreg(z), weight)
    if departure:
        distance = departure_from(z, conditional)
        terms |= {"loss": terms["loss"] + (1 - weight) * departure * distance, "departure": distance}
    return terms


def polar_likelihood(s: Tensor, variance: Tensor, df: float) -> PolarStudentT:
    """VJE's, with directions on the sphere of radius sqrt(D): a variance there is 1/D of it on the unit sphere."""
    return PolarStudentT(s, variance / s.shape[-1], df, validate_args=False)


def over_pairs(log_prob: Callable[[Tensor], Tensor], z: Tensor, num_global: int, detach: bool) -> Tensor:
    """The mean over images and pairs of views, the second one global, of `log_prob`, which maps targets to (V, N)."""
    targets = z.detach() if detach else z
    parts = []
    for shift in range(1, len(z)):
        other = (torch.arange(len(z), device=z.device) + shift) % len(z)
        parts.append(log_prob(targets[other])[other < num_global])
    return mean_over_ranks(torch.cat(parts).mean(), z.shape[1])


def _total(nll: Tensor, regularity: Tensor, weight: float) -> dict[str, Tensor]:
    return {"loss": (1 - weight) * nll + weight * regularity, "nll": nll, "sigreg": regularity}


def _check(z: Tensor, num_global: int, weight: float) -> None:
    check_stack("z", z, num_global)
    _check_weight(weight)


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise ValueError(f"weight: expected a number from 0 to 1, got {weight}")


class ProbabilisticLeJEPA(Method):
    """What the two share: LeJEPA's projector, SIGReg on its output, and a floor."""

    spaces: tuple[str, ...] = ("backbone", "projector")
    density_space = "projector"
    generative = True
    preset = "lejepa"

    def __init__(
        self,
        backbone: nn.Module,
        weight: float,
        dim: int,
        projector_width: int,
        projector_layers: int,
        num_slices: int,
        floor: float,
        compiled: bool,
    ) -> None:
        _check_weight(weight)
        check_counts(dim=dim, projector_width=projector_width)
        if not 0 < floor < 1:
            raise ValueError(f"floor: expected a standard deviation above 0 and below 1, the embeddings', got {floor}")
        if projector_layers not in (1, 2, 3):
            raise ValueError(f"projector_layers: expected 1, 2 or 3, got {projector_layers}")
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, projector_layers)
        self.sigreg = SIGReg(EppsPulley(compiled=compiled), num_slices, compiled=compiled)
        self.weight, self.floor = weight, floor

    def project(self, views: list[Tensor]) -> Tensor:
        """(V, N, D)."""
        return at_least_float32(encode_views(nn.Sequential(self.backbone, self.projector), views))


class LeJEPAVJE(ProbabilisticLeJEPA, name="lejepa-vje"):
    """LeJEPA with VJE's heavy-tailed likelihood in place of the squared error.

    The features are the backbone's.

    Args:
        backbone: network with `num_features`, images to (N, D).
        weight: lambda, the share of SIGReg in the loss.
        df: degrees of freedom of the likelihood.
        dim: dimension of the projections, where SIGReg acts.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        num_slices: random directions per step.
        floor: smallest standard deviation of the posterior, where the embeddings' is one, the largest.
        samples: of the posterior, per view and step.
        detach: hold what is explained fixed, as VJE does; False lets the gradient through it.
        compiled: run SIGReg on the CPU in C++ kernels.
    """

    spaces = ("backbone", "projector", "mu", "variance")
    scores = ("density", "joint", "variance", "entropy")

    def __init__(
        self,
        backbone: nn.Module,
        weight: float = 0.05,
        df: float = 3.0,
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        num_slices: int = 1024,
        floor: float = 0.5,
        samples: int = 1,
        detach: bool = True,
        compiled: bool = False,
    ) -> None:
        check_above_zero(df=df)
        check_counts(samples=samples)
        super().__init__(backbone, weight, dim, projector_width, projector_layers, num_slices, floor, compiled)
        self.inference = InferenceNetwork(dim)
        self.df, self.samples, self.detach = df, samples, detach

    def infer(self, z: Tensor) -> Normal:
        """Wider than the cloud of all embeddings, whose variance is 1, no posterior needs to be."""
        posterior = self.inference(z)
        least, free = self.floor**2, posterior.variance / (1 + posterior.variance)
        return Normal(z + posterior.loc, (least + (1 - least) * free).sqrt(), validate_args=False)

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = self.project(views)
        posterior = self.infer(z)
        terms = lejepa_vje_loss(z, posterior, num_global, self.sigreg, self.weight, self.df, self.samples, self.detach)
        return terms | {"variance": posterior.variance.detach().mean()}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        z = at_least_float32(self.projector(h))
        posterior = self.infer(z)
        return {"backbone": h, "projector": z, "mu": posterior.mean, "variance": posterior.variance}

    def posterior(self, encoded: dict[str, Tensor]) -> Independent:
        """The posterior of each image: the latent that explains another view's embedding."""
        return Independent(Normal(encoded["mu"], encoded["variance"].sqrt(), validate_args=False), 1)

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """ "density" is the Gaussian of the training embeddings; the others look at the image's own posterior.

        "joint" is minus the log-likelihood of its embedding, at the posterior mean or averaged over samples; "variance"
        (the sum) and "entropy" are the posterior's own.
        """
        mu, variance = encoded["mu"], encoded["variance"]
        if score == "variance":
            return variance.sum(-1)
        if score == "entropy":
            return self.posterior(encoded).entropy()
        if score == "density":
            return super().score(encoded, score, samples, seed)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(samples, *mu.shape, generator=generator).to(mu) if samples else torch.zeros_like(mu)[None]
        return -polar_likelihood(mu + variance.sqrt() * noise, variance, self.df).log_prob(encoded["projector"]).mean(0)


class LeJEPAMDN(ProbabilisticLeJEPA, name="lejepa-mdn"):
    """LeJEPA with a mixture density network in place of the squared error.

    The features are the backbone's.

    Args:
        backbone: network with `num_features`, images to (N, D).
        weight: lambda, the share of SIGReg in the loss.
        dim: dimension of the projections, where SIGReg acts.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        num_slices: random directions per step.
        components: of the mixture over the other view's embedding.
        width: of the network's hidden layers.
        floor: smallest standard deviation of a component, where the embeddings' is one, the largest.
        departure: price of the components' mean squared distance from the context.
        detach: hold what is explained fixed.
        compiled: run SIGReg on the CPU in C++ kernels.
    """

    scores = ("density", "conditional")

    def __init__(
        self,
        backbone: nn.Module,
        weight: float = 0.1,
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        num_slices: int = 1024,
        components: int = 8,
        width: int = 256,
        floor: float = 0.5,
        departure: float = 1.0,
        detach: bool = False,
        compiled: bool = False,
    ) -> None:
        if not departure >= 0:
            raise ValueError(f"departure: expected at least 0, got {departure}")
        super().__init__(backbone, weight, dim, projector_width, projector_layers, num_slices, floor, compiled)
        self.network = MixtureDensityNetwork(dim, dim, components, width, floor, 1.0, residual=True)
        self.departure, self.detach = departure, detach

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = self.project(views)
        conditional = self.network(z)
        terms = lejepa_mdn_loss(z, conditional, num_global, self.sigreg, self.weight, self.departure, self.detach)
        return terms | {"variance": conditional.variance.detach().mean()}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": at_least_float32(self.projector(h))}

    def posterior(self, encoded: dict[str, Tensor]) -> GaussianMixture:
        """The embedding of another view of each image, given this one."""
        with torch.no_grad():
            return self.network(encoded["projector"])

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """ "density" is the Gaussian of the training embeddings; "conditional" how badly an image explains its own."""
        if score == "conditional":
            return -self.posterior(encoded).log_prob(encoded["projector"])
        return super().score(encoded, score, samples, seed)
