"""VSSL: a student's Gaussian against that of its own moving average (Yavuz and Yanikoglu, 2025, arXiv 2504.04318).

Both networks turn a view into a diagonal Gaussian of a latent s. The teacher, the moving average of the student, gives
the prior p(s | x_j) = N(mu_t, var_t); the student, from another view, the posterior q(s | x_i) = N(mu_s, var_s). In
place of a reconstruction the teacher scores the posterior's samples. Over ordered pairs of views (i, j) and images,

    "analytic"   -E_q[log p(s | x_j)] + beta KL(q || p), both exact: sums over dimensions, in nats
    "cosine"     (1 - cos(mu_s, mu_t)) + beta [(1 - cos(mu_s, mu_t)) + (1 - cos(var_s, var_t))]

The first is the paper's abstract read with Eq. 5 of VJE's paper, its expectation taken exactly. Of the second we know,
from VJE's paper, only that it depends on the directions of the mean and variance vectors alone. We had no formulas or
code: how the cosines are put together, the weights, the heads and the student's predictor are our choice.

What the analytic form does: its derivative by var_s is zero at var_s = beta/(1 + beta) var_t, however far the means
are from each other. The student is always surer than its teacher, which follows: the variances sink to their floor and
tell nothing of the image. In both forms a constant is a best answer, as in BYOL. Means are batch-normalised without
scale and shift, so that not all of them can be one, and a variance is a share of the spread between images.

>>> student = Normal(torch.randn(2, 128, 64), 0.5)  # of two views, (V, N, D)
>>> teacher = Normal(torch.randn(2, 128, 64), 1.0)
>>> terms = vssl_loss(student, teacher)
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from .base import Method, at_least_float32, encode_views, feature_dim
from .lejepa import projector_mlp
from .stacks import average, check_above_zero, check_counts, check_not_negative, check_targets, directed_pairs
from .teacher import Teacher, check_decay

FORMS = ("analytic", "cosine")


def vssl_loss(student: Normal, teacher: Normal, form: str = "analytic", beta: float = 1.0) -> dict[str, Tensor]:
    """The loss above and its two terms: each view's posterior under the priors the teacher made of the others.

    Args:
        student: posteriors from V views, (V, N, D), the global views first.
        teacher: priors from the first G of these views, the global ones, (G, N, D); the gradient does not pass.
        form: "analytic" or "cosine".
        beta: weight of the divergence between posterior and prior.
    """
    _check_objective(form, beta)
    for name, gaussian in (("student", student), ("teacher", teacher)):
        if not isinstance(gaussian, Normal):
            raise ValueError(f"{name}: expected a torch Normal, got {type(gaussian).__name__}")
    check_targets(student.loc, teacher.loc)
    q = [Normal(m, s, validate_args=False) for m, s in zip(student.loc, student.scale, strict=True)]
    p = [Normal(m.detach(), s.detach(), validate_args=False) for m, s in zip(teacher.loc, teacher.scale, strict=True)]
    terms = _analytic_terms if form == "analytic" else _cosine_terms
    found = average([terms(q[i], p[j]) for i, j in directed_pairs(len(q), len(p))], student.loc.shape[1])
    return {"loss": found["nll"] + beta * found["kl"]} | found


def _analytic_terms(q: Normal, p: Normal) -> dict[str, Tensor]:
    kl = kl_divergence(q, p).sum(-1).mean()
    return {"nll": kl + q.entropy().sum(-1).mean(), "kl": kl}  # -E_q log p = KL(q || p) + H(q)


def _cosine_terms(q: Normal, p: Normal) -> dict[str, Tensor]:
    means = 1 - F.cosine_similarity(q.mean, p.mean, dim=-1).mean()
    variances = 1 - F.cosine_similarity(q.variance, p.variance, dim=-1).mean()
    return {"nll": means, "kl": means + variances}


def _check_objective(form: str, beta: float) -> None:
    if form not in FORMS:
        raise ValueError(f"form: expected one of {', '.join(FORMS)}, got {form!r}")
    check_not_negative(beta=beta)


class GaussianHead(nn.Module):
    """Features (N, F) to a batch-normalised mean and a variance, side by side (N, 2 D).

    Args:
        features: F.
        width: of the two hidden layers.
        dim: D.
        floor: smallest standard deviation.
    """

    def __init__(self, features: int, width: int, dim: int, floor: float) -> None:
        super().__init__()
        hidden = projector_mlp(features, width, width, 2)
        self.hidden = nn.Sequential(*hidden, nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.mean = nn.Sequential(nn.Linear(width, dim, bias=False), nn.BatchNorm1d(dim, affine=False))
        self.variance = nn.Linear(width, dim)
        self.floor = floor

    def forward(self, h: Tensor) -> Tensor:
        hidden = self.hidden(h)
        variance = F.softplus(at_least_float32(self.variance(hidden))) + self.floor**2
        return torch.cat([at_least_float32(self.mean(hidden)), variance], -1)


class VSSL(Method, name="vssl"):
    """VSSL: a student's Gaussian against that of its own moving average.

    The features are the backbone's; each image has a Gaussian with a mean and a variance.

    Args:
        backbone: network with `num_features`, images to (N, D).
        form: "analytic" or "cosine".
        beta: weight of the divergence between posterior and prior.
        dim: dimension of the latent.
        projector_width: width of the hidden layers before the mean and the variance.
        predictor_width: of the student's predictor of the teacher's mean, as BYOL has; 0 for none.
        floor: smallest standard deviation, where the spread of the means is one.
        ema: decay of the teacher.
    """

    spaces = ("backbone", "mu", "variance")
    density_space = "mu"
    preset = "moco-v2"
    scores = ("density", "variance", "entropy")

    def __init__(
        self,
        backbone: nn.Module,
        form: Literal["analytic", "cosine"] = "analytic",
        beta: float = 1.0,
        dim: int = 128,
        projector_width: int = 512,
        predictor_width: int = 256,
        floor: float = 0.1,
        ema: float = 0.99,
    ) -> None:
        _check_objective(form, beta)
        check_counts(dim=dim, projector_width=projector_width)
        check_not_negative(predictor_width=predictor_width)
        check_above_zero(floor=floor)
        check_decay(ema=ema)
        super().__init__(backbone, density_dim=dim)
        self.head = GaussianHead(feature_dim(backbone), projector_width, dim, floor)
        self.predictor = projector_mlp(dim, predictor_width, dim, 2) if predictor_width else nn.Identity()
        self.teacher = Teacher(nn.Sequential(backbone, self.head))
        self.form, self.beta, self.ema = form, beta, ema

    def infer(self, parts: Tensor) -> tuple[Tensor, Tensor]:
        """The student's means and variances (N, D), from what the head gave."""
        mean, variance = parts.chunk(2, -1)
        return at_least_float32(self.predictor(mean)), variance

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        parts = encode_views(nn.Sequential(self.backbone, self.head), views)  # (V, N, 2 D)
        mean, variance = (x.unflatten(0, parts.shape[:2]) for x in self.infer(parts.flatten(0, 1)))
        with torch.no_grad():
            prior_mean, prior_variance = encode_views(self.teacher, views[:num_global]).chunk(2, -1)
        student = Normal(mean, variance.sqrt(), validate_args=False)
        teacher = Normal(prior_mean, prior_variance.sqrt(), validate_args=False)
        return vssl_loss(student, teacher, self.form, self.beta) | {"variance": variance.detach().mean()}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        mean, variance = self.infer(self.head(h))
        return {"backbone": h, "mu": mean, "variance": variance}

    def posterior(self, encoded: dict[str, Tensor]) -> Independent:
        """The student's Gaussian of each image: what the teacher should make of another view of it."""
        return Independent(Normal(encoded["mu"], encoded["variance"].sqrt(), validate_args=False), 1)

    def score(self, encoded: dict[str, Tensor], score: str, samples: int, seed: int) -> Tensor:
        """The Gaussian of the training means ("density"), or the posterior's own "variance" (the sum) or "entropy"."""
        if score == "variance":
            return encoded["variance"].sum(-1)
        if score == "entropy":
            return self.posterior(encoded).entropy()
        return super().score(encoded, score, samples, seed)

    def after_step(self) -> None:
        self.teacher.follow(nn.Sequential(self.backbone, self.head), self.ema)
