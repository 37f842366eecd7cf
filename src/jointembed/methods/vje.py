"""VJE: Joint Embedding Variational Bayes. Every image gets a posterior, and a likelihood scores it.

An encoder gives z; an inference network turns z into a diagonal Gaussian posterior over a latent s. A sample of the
posterior of one view has to explain the direction and the norm of the other view's z, both with heavy tails, and the
posterior is held near N(0, I). The variance of the posterior is also the scale of the directional likelihood: that tie
is the method.

    >>> network = InferenceNetwork(64)
    >>> z1, z2 = torch.randn(2, 128, 64)
    >>> terms = vje_loss(z1, z2, network(z1), network(z2))
    >>> terms["loss"].backward()
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.optim.swa_utils import AveragedModel

from jointembed.distributions import MultivariateStudentT, PolarStudentT

from .base import Method, at_least_float32, encode_views, feature_dim
from .stacks import average, directed_pairs
from .teacher import moving_average

TERMS = ("direction", "radius", "kl")
LIKELIHOODS = ("polar", "student", "gaussian")


def vje_loss(
    z1: Tensor,
    z2: Tensor,
    posterior1: Normal,
    posterior2: Normal,
    df: float = 3.0,
    beta: float = 1.0,
    terms: Collection[str] = TERMS,
    likelihood: str = "polar",
    samples: int = 1,
    detach: bool = True,
) -> dict[str, Tensor]:
    """The negative symmetric conditional ELBO, the paper's Algorithm 4 (Eq. 38).

    Constants are dropped, as in the paper; `PolarStudentT.log_prob` has them.

    Args:
        z1: embeddings of the first view, (N, D): what the second view's posterior has to explain.
        z2: embeddings of the second view.
        posterior1: of the latent, inferred from the first view; its variance is the likelihood's scale as well.
        posterior2: inferred from the second view.
        df: degrees of freedom of the likelihood; infinity is the Gaussian.
        beta: weight of the KL divergence to N(0, I).
        terms: which of "direction", "radius" and "kl" count; all are returned.
        likelihood: "polar"; or on z itself, unfactored: "student" with the tied variance (Eq. 13) or "gaussian" with
            unit variance (Eq. 11).
        samples: of the posterior, per image.
        detach: hold the embeddings fixed as observations; False lets the gradient through them.
    """
    _check_objective(df, beta, terms, likelihood, samples)
    for name, z, posterior in (("z1", z1, posterior1), ("z2", z2, posterior2)):
        if z.ndim != 2 or z.shape != z1.shape:
            raise ValueError(
                f"{name}: expected (N, D), both of the same shape, got {tuple(z1.shape)}, {tuple(z2.shape)}"
            )
        if _normal(posterior).loc.shape != z.shape:
            shape = tuple(_normal(posterior).loc.shape)
            raise ValueError(f"posterior{name[1]}: expected shape {tuple(z.shape)} as z has, got {shape}")
    if detach:
        z1, z2 = z1.detach(), z2.detach()
    options = (df, likelihood, samples)
    directions = [directed_terms(z2, posterior1, *options), directed_terms(z1, posterior2, *options)]
    return _total(directions, len(z1), beta, terms)


def directed_terms(target: Tensor, posterior: Normal, df: float, likelihood: str, samples: int) -> dict[str, Tensor]:
    """How well samples of posteriors (..., D) explain other views' embeddings (..., D), and their KL to the prior."""
    posterior = _normal(posterior)
    variance = posterior.variance
    s = posterior.rsample(torch.Size([samples]))  # (S, ..., D)
    kl = 0.5 * (variance + posterior.mean.square() - 1 - variance.log()).sum(-1).mean()
    if likelihood == "polar":
        polar = PolarStudentT(s, variance, df, validate_args=False)
        terms = {"direction": polar.direction_loss(target).mean(), "radius": polar.radius_loss(target).mean()}
    elif likelihood == "student":
        terms = {"likelihood": MultivariateStudentT(s, variance, df, validate_args=False).loss(target).mean()}
    else:
        terms = {"likelihood": 0.5 * (target.to(s.dtype) - s).square().sum(-1).mean()}
    return terms | {"kl": kl}


def _total(directions: list[dict[str, Tensor]], images: int, beta: float, chosen: Collection[str]) -> dict[str, Tensor]:
    """The mean over the directions, and the weighted sum of the chosen terms."""
    terms = average(directions, images)
    weights = {"kl": beta if "kl" in chosen else 0.0} | {
        name: float(name == "likelihood" or name in chosen) for name in terms if name != "kl"
    }
    return {
        "loss": sum((weights[name] * value for name, value in terms.items() if weights[name]), torch.zeros(()))
    } | terms


def _normal(posterior: Normal) -> Normal:
    """The Normal itself, in float32 at least, also where it comes as an event of D dimensions."""
    if isinstance(posterior, Independent):
        posterior = posterior.base_dist
    if not isinstance(posterior, Normal):
        raise ValueError(f"posterior: expected a torch Normal, got {type(posterior).__name__}")
    if posterior.loc.dtype in (torch.bfloat16, torch.float16):
        posterior = Normal(posterior.loc.float(), posterior.scale.float(), validate_args=False)
    return posterior


def _check_objective(df: float, beta: float, terms: Collection[str], likelihood: str, samples: int) -> None:
    if not df > 0:
        raise ValueError(f"df: expected degrees of freedom above 0, got {df}")
    if not beta >= 0:
        raise ValueError(f"beta: expected a weight of at least 0, got {beta}")
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"likelihood: expected one of {', '.join(LIKELIHOODS)}, got {likelihood!r}")
    if not set(terms) <= set(TERMS) or not set(terms) & {"direction", "radius"}:
        raise ValueError(f"terms: expected some of {', '.join(TERMS)}, one of the first two at least, got {terms}")
    if likelihood != "polar" and not {"direction", "radius"} <= set(terms):
        raise ValueError(f"terms: the {likelihood} likelihood has no direction or radius to leave out, got {terms}")
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")


class InferenceNetwork(nn.Module):
    """Embeddings (N, D) to a diagonal Gaussian posterior: three layers with a bottleneck, then mean and variance.

    LayerNorm, not BatchNorm: the posterior of an image must not depend on its neighbours in the batch.

    Args:
        dim: D.
        bottleneck: width of the middle layer; by default D. The paper has D/4.
        width: width of the two layers around it; by default 4 D, with which a small network learns faster.
    """

    def __init__(self, dim: int, bottleneck: int | None = None, width: int | None = None) -> None:
        super().__init__()
        width, bottleneck = width or 4 * dim, bottleneck or dim
        layers: list[nn.Module] = []
        for a, b in pairwise((dim, width, bottleneck, width)):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.mean = nn.Linear(width, dim)
        self.variance = nn.Linear(width, dim)

    def forward(self, z: Tensor) -> Normal:
        h = self.layers(z)
        variance = nn.functional.softplus(at_least_float32(self.variance(h))) + 1e-6
        return Normal(at_least_float32(self.mean(h)), variance.sqrt(), validate_args=False)


class VJE(Method, name="vje"):
    """VJE: every image gets a posterior, and a heavy-tailed likelihood scores it.

    The features are the backbone's own, z; each has a posterior with a mean and a variance.

    Args:
        backbone: network with `num_features`, images to (N, D).
        df: degrees of freedom of the likelihood, the paper's nu; below 1 for anomaly detection, 3 for features.
        beta: weight of the KL divergence.
        bottleneck: width of the inference network's middle layer; by default D. The paper has D/4.
        width: width of the layers around it; by default 4 D.
        samples: of the posterior, per image and step.
        projector: width of a two-layer projector with LayerNorm between backbone and likelihood; 0 for none.
        terms: which terms count: direction, radius, kl.
        likelihood: "polar", or unfactored on z: "student" or "gaussian".
        target: what the posterior has to explain: the other view's embedding as a fixed observation ("detached"), with
            the gradient through it ("attached"), or that of a weight-averaged encoder ("ema").
        ema: decay of that encoder.
    """

    spaces: tuple[str, ...] = ("z", "mu", "variance")
    density_space = "z"
    generative = True
    preset = "moco-v2"
    scores = ("joint", "sphere", "variance", "entropy", "density")

    def __init__(
        self,
        backbone: nn.Module,
        df: float = 3.0,
        beta: float = 1.0,
        bottleneck: int | None = None,
        width: int | None = None,
        samples: int = 1,
        projector: int = 0,
        terms: tuple[str, ...] = TERMS,
        likelihood: Literal["polar", "student", "gaussian"] = "polar",
        target: Literal["detached", "attached", "ema"] = "detached",
        ema: float = 0.99,
    ) -> None:
        _check_objective(df, beta, terms, likelihood, samples)
        if projector < 0 or not all(w is None or w > 0 for w in (bottleneck, width)):
            raise ValueError(f"projector, bottleneck, width: expected widths, got {projector}, {bottleneck}, {width}")
        if target not in ("detached", "attached", "ema"):
            raise ValueError(f"target: expected 'detached', 'attached' or 'ema', got {target!r}")
        if not 0 <= ema < 1:
            raise ValueError(f"ema: expected a decay from 0 to below 1, got {ema}")
        features = feature_dim(backbone)
        super().__init__(backbone, density_dim=features)
        dim = projector or features
        self.projector = (
            nn.Sequential(
                nn.Linear(features, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim), nn.LayerNorm(dim)
            )
            if projector
            else nn.Identity()
        )
        if projector:
            self.spaces = ("z", "projector", "mu", "variance")
        self.inference = InferenceNetwork(dim, bottleneck, width)
        self.df, self.beta, self.samples = df, beta, samples
        self.terms, self.likelihood, self.target = tuple(terms), likelihood, target
        self.average: AveragedModel | None = None
        if target == "ema":
            network = nn.Sequential(backbone, self.projector)
            self.average = AveragedModel(network, multi_avg_fn=moving_average(ema), use_buffers=True)
            self.average.requires_grad_(False)

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        """Every view explains every other global view; with two views, Algorithm 4."""
        if len(views) < 2:
            raise ValueError(f"views: expected at least two, got {len(views)}")
        z = encode_views(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        posterior = self.inference(z)
        targets = z[:num_global] if self.target == "attached" else z[:num_global].detach()
        if self.average is not None:
            with torch.no_grad():
                targets = encode_views(self.average, views[:num_global])
        first, second = torch.tensor(directed_pairs(len(views), num_global), device=z.device).T
        inferred = Normal(posterior.loc[first], posterior.scale[first], validate_args=False)  # (P, N, D)
        directions = directed_terms(targets[second], inferred, self.df, self.likelihood, self.samples)
        loss = _total([directions], z.shape[1], self.beta, self.terms)
        return loss | {"variance": posterior.variance.detach().mean()}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        z = self.backbone(images)
        observed = self.projector(z)
        posterior = self.inference(observed)
        spaces = {"z": z, "projector": observed, "mu": posterior.mean, "variance": posterior.variance}
        return {name: spaces[name] for name in self.spaces}

    def posterior(self, encoded: dict[str, Tensor]) -> Independent:
        """The posterior of each image, from what `encode` gave."""
        return Independent(Normal(encoded["mu"], encoded["variance"].sqrt(), validate_args=False), 1)

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """Each image against its own posterior.

        "joint" is minus the log-likelihood of its embedding (the paper's S_joint with the constants), at the posterior
        mean or averaged over samples; "sphere" the same with the directional factor normalised on the unit sphere;
        "variance" and "entropy" are the posterior's own; "density" the Gaussian of the training embeddings.
        """
        observed, mu, variance = encoded.get("projector", encoded["z"]).float(), encoded["mu"], encoded["variance"]
        if score == "variance":
            return variance.sum(-1)
        if score == "entropy":
            return self.posterior(encoded).entropy()
        if score == "density":
            return super().score(encoded, score, samples, seed)
        s = mu
        if samples:
            noise = torch.randn(samples, *mu.shape, generator=torch.Generator().manual_seed(seed)).to(mu)
            s = mu + variance.sqrt() * noise
        polar = PolarStudentT(s, variance, self.df, validate_args=False)
        value = -polar.log_prob(observed)
        if score == "sphere":
            value = value + polar.direction_log_mass(samples=32, seed=seed)
        return value.mean(0) if samples else value

    def after_step(self) -> None:
        if self.average is not None:
            self.average.update_parameters(nn.Sequential(self.backbone, self.projector))
