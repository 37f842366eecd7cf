"""VSimSiam: SimSiam whose prediction is a distribution on the sphere (Nakamura, Okada and Taniguchi, ICCV 2023).

SimSiam's projector gives a direction z, its predictor the mean direction mu of the other view's, and a scalar head the
concentration kappa: how sure that is. What is minimised, over ordered pairs of views (i, j) and images,

    -log PS(sg(z_j); mu_i, kappa_i) + beta KL(PS(mu_i, kappa_i) || U),

PS the Power Spherical, U the uniform distribution on the sphere, sg SimSiam's stop-gradient. The first term is Eq. 4 of
VJE's paper, which names the KL to a hyperspherical prior as its variational interpretation; beta = 0 is Eq. 4 alone.
We had the original's abstract, summaries of it and VJE's account, not its formulas or code: whether an explicit KL was
trained with, its weight, and the input and range of the concentration head we could not establish.

What beta does: the KL depends on kappa alone. With c = mu_i z_j, and t = mu_i s for a draw s of the posterior, the loss
at beta = 1 is kappa (E[log(1 + t)] - log(1 + c)), never below -(D - 1)/2 however well views agree. At beta = 0 it falls
for ever as c and kappa grow. No beta keeps images apart: a predictor and a stop-gradient do, as far as they do in
SimSiam.

>>> import torch
>>> z, mu = F.normalize(torch.randn(2, 2, 128, 64), dim=-1)  # (V, N, D) each, of two views
>>> terms = vsimsiam_loss(PowerSpherical(mu, torch.full((2, 128), 50.0)), z)
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import kl_divergence

from jointembed.distributions import HypersphericalUniform, PowerSpherical

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_counts, check_not_negative, check_targets, directed_pairs


def vsimsiam_loss(posterior: PowerSpherical, targets: Tensor, beta: float = 1.0) -> dict[str, Tensor]:
    """The loss above, in nats, and its two terms.

    Args:
        posterior: inferred from each of V views, with batch shape (V, N), the global views first.
        targets: directions of the first G of these views, the global ones, unit vectors (G, N, D); the gradient does
            not pass.
        beta: weight of the KL divergence to the uniform distribution.
    """
    check_not_negative(beta=beta)
    if not isinstance(posterior, PowerSpherical) or len(posterior.batch_shape) != 2:
        got = tuple(posterior.batch_shape) if isinstance(posterior, PowerSpherical) else type(posterior).__name__
        raise ValueError(f"posterior: expected a PowerSpherical with batch shape (V, N), got {got}")
    loc, concentration = posterior.mode, posterior.concentration.expand(posterior.batch_shape)
    check_targets(loc, targets)
    one = [PowerSpherical(m, k, validate_args=False) for m, k in zip(loc, concentration, strict=True)]
    prior = HypersphericalUniform(loc.shape[-1])
    terms = average(
        [
            {"nll": -one[i].log_prob(targets[j].detach()).mean(), "kl": kl_divergence(one[i], prior).mean()}
            for i, j in directed_pairs(len(loc), len(targets))
        ],
        loc.shape[1],
    )
    return {"loss": terms["nll"] + beta * terms["kl"]} | terms


class VSimSiam(Method, name="vsimsiam"):
    """VSimSiam: SimSiam whose prediction is a distribution on the sphere.

    The features are the backbone's; directions live in projector space.

    Projector and predictor are SimSiam's. The concentration is the softplus of a head on the backbone's features in
    units of D - 1, so that an untrained head means the same in every dimension: a mean of length 0.4.

    Args:
        backbone: network with `num_features`, images to (N, D).
        beta: weight of the KL divergence to the uniform distribution.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layers.
        predictor_width: width of the predictor's hidden layer, a bottleneck, and of the concentration head's.
    """

    spaces = ("backbone", "projector", "mu", "concentration")
    density_space = "projector"
    preset = "moco-v2"
    scores = ("density", "likelihood", "concentration")

    def __init__(
        self,
        backbone: nn.Module,
        beta: float = 1.0,
        dim: int = 512,
        projector_width: int = 512,
        predictor_width: int = 128,
    ) -> None:
        check_not_negative(beta=beta)
        check_counts(projector_width=projector_width, predictor_width=predictor_width)
        if dim < 2:
            raise ValueError(f"dim: expected at least 2, got {dim}")
        super().__init__(backbone, density_dim=dim)
        features = feature_dim(backbone)
        self.projector = nn.Sequential(
            *projector_mlp(features, projector_width, dim, 3), nn.BatchNorm1d(dim, affine=False)
        )
        self.predictor = projector_mlp(dim, predictor_width, dim, 2)
        self.concentration = projector_mlp(features, predictor_width, 1, 2)
        self.beta, self.dim = beta, dim

    def heads(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of features (N, F): directions and predicted directions (N, D), and concentrations (N, 1)."""
        projected = self.projector(h)
        z, mu = (F.normalize(at_least_float32(x), dim=-1) for x in (projected, self.predictor(projected)))
        return z, mu, (self.dim - 1) * F.softplus(at_least_float32(self.concentration(h)))

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        h = encode_views(self.backbone, views)  # (V, N, F)
        z, mu, kappa = (x.unflatten(0, h.shape[:2]) for x in self.heads(h.flatten(0, 1)))
        posterior = PowerSpherical(mu, kappa[..., 0], validate_args=False)
        return vsimsiam_loss(posterior, z[:num_global], self.beta) | {"concentration": kappa.detach().mean()}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        z, mu, kappa = self.heads(h)
        return {"backbone": h, "projector": z, "mu": mu, "concentration": kappa}

    def posterior(self, encoded: dict[str, Tensor]) -> PowerSpherical:
        """The direction of another view of each image."""
        return PowerSpherical(encoded["mu"], encoded["concentration"][:, 0], validate_args=False)

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """The Gaussian of the training directions ("density"), or what the image's own posterior says.

        "likelihood" is minus the log-density of its own direction; "concentration" is minus kappa, the uncertainty.
        """
        if score == "likelihood":
            return -self.posterior(encoded).log_prob(encoded["projector"])
        if score == "concentration":
            return -encoded["concentration"][:, 0]
        return super().score(encoded, score, samples, seed)
