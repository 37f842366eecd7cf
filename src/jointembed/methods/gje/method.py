"""GJE as a method: projections on the unit sphere, one of the four objectives, and the density of the pairs."""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.optim.swa_utils import AveragedModel

from jointembed._distributed import everywhere, gather_rows, mean_over_ranks, rows_of_all_ranks, sum_over_ranks
from jointembed.methods.base import Method, at_least_float32, encode_views, feature_dim
from jointembed.methods.lejepa import projector_mlp
from jointembed.methods.stacks import average, directed_pairs
from jointembed.methods.teacher import moving_average

from .kernels import Kernel, add_diagonal, check_features, check_kernel
from .losses import (
    Entropy,
    check_entropy,
    check_weights,
    dual_gje_loss,
    hsic_loss,
    primal_terms,
    rff_gje_loss,
    whiten,
)
from .prediction import dual_prediction, primal_prediction, rff_prediction

Variant = Literal["primal", "hsic", "dual", "rff"]
VARIANTS: tuple[str, ...] = get_args(Variant)
MOMENT_DECAY = 0.99  # of the pairs' joint moments: they are those of about the last hundred batches
MOMENT_FLOOR = 1e-3  # of the joint covariance, as a share of the mean variance: it must have a Cholesky factor


class GJE(Method, name="gje"):
    """GJE: the joint density of two views as one Gaussian, or a Gaussian process between them.

    The features are the backbone's; the density of pairs lives in projector space.

    Args:
        backbone: network with `num_features`, images to (N, D).
        variant: "primal", alignment and entropy; "hsic", dependence and entropy; "dual", a Gaussian process from
            context to target; "rff", the same through random Fourier features.
        dim: dimension of the projections, which have unit norm.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        entropy: of "primal": "marginal", each view's own, or "joint".
        alignment_weight: of "primal", against the entropy; by default `dim`.
        entropy_weight: of "hsic", against the dependence; by default 0.3 / dim.
        jitter: on the diagonal of the views' second moments, as a share of its mean; the least noise of "dual" and
            "rff", as a share of the targets' variance.
        kernel: of "dual" and "rff": "rbf", "linear", "matern12", "matern32" or "matern52". Its lengthscale and
            amplitude and the noise are learned.
        num_features: random Fourier features of "rff".
        ema: decay of the encoder that gives "dual" and "rff" their targets. With a gradient these would collapse.
        bank: as many of the last pairs are kept by "dual" and "rff", for the posterior.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    generative = True
    preset = "moco-v2"

    joint_mean: Tensor
    joint_moment: Tensor
    bank_context: Tensor
    bank_target: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        variant: Variant = "primal",
        dim: int = 64,
        projector_width: int = 512,
        projector_layers: int = 3,
        entropy: Entropy = "marginal",
        alignment_weight: float | None = None,
        entropy_weight: float | None = None,
        jitter: float = 0.05,
        kernel: Kernel = "rbf",
        num_features: int = 512,
        ema: float = 0.99,
        bank: int = 512,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {variant!r}")
        if projector_layers not in (1, 2, 3):
            raise ValueError(f"projector_layers: expected 1, 2 or 3, got {projector_layers}")
        if dim < 2 or projector_width < 1:
            raise ValueError(
                f"dim, projector_width: expected at least 2 and at least 1, got {dim} and {projector_width}"
            )
        check_entropy(entropy)
        check_weights(alignment_weight=alignment_weight, entropy_weight=entropy_weight)
        check_kernel(kernel, jitter=jitter)
        check_features(num_features)
        if not 0 <= ema < 1:
            raise ValueError(f"ema: expected a decay from 0 to below 1, got {ema}")
        if bank < 2:
            raise ValueError(f"bank: expected at least 2 pairs, got {bank}")
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, projector_layers)
        self.variant, self.entropy, self.kernel, self.num_features = variant, entropy, kernel, num_features
        self.alignment_weight, self.jitter = alignment_weight, jitter
        self.entropy_weight = 0.3 / dim if entropy_weight is None else entropy_weight
        # NaN until the first batch, as the fitted density.
        self.register_buffer("joint_mean", torch.full((2 * dim,), torch.nan))
        self.register_buffer("joint_moment", torch.full((2 * dim, 2 * dim), torch.nan))
        self.average: AveragedModel | None = None
        if variant in ("dual", "rff"):
            # Of the targets' variance, 1 when whitened, half is the kernel's to begin with and half noise: with more
            # noise the contexts gave up most of their dimensions, with less they told less apart.
            # One parameter, for what is shared out over processes must have a dimension.
            self.log_process = nn.Parameter(torch.tensor([1.0, 0.5, 0.5]).log())  # lengthscale, amplitude, noise
            self.register_buffer("bank_context", torch.full((bank, dim), torch.nan))
            self.register_buffer("bank_target", torch.full((bank, dim), torch.nan))
            network = nn.Sequential(backbone, self.projector)
            self.average = AveragedModel(network, multi_avg_fn=moving_average(ema), use_buffers=True)
            self.average.requires_grad_(False)

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        """Every view is a context, for every other global view as its target."""
        if len(views) < 2:
            raise ValueError(f"views: expected at least two, got {len(views)}")
        z = self._project(nn.Sequential(self.backbone, self.projector), views)  # (V, N, D)
        targets = z[:num_global]
        if self.average is not None:
            with torch.no_grad():
                targets = self._project(self.average, views[:num_global])
        if not everywhere(z.isfinite().all() & targets.isfinite().all()):
            return {"loss": sum_over_ranks(z.sum() + targets.sum())}  # the trainer knows what to say
        first, second = map(list, zip(*directed_pairs(len(views), num_global), strict=True))
        pairs = z[first], targets[second]  # (P, N, D) each
        if self.training:
            self._remember(*(side.detach() for side in pairs))
        terms = self._terms(*pairs)
        if self.average is None:
            return terms
        process = {name: value.detach() for name, value in self._process().items() if name != "kernel"}
        numbers = rows_of_all_ranks(z, 1) * z.shape[2]
        return {name: value / numbers for name, value in terms.items()} | process  # per number, as a mean is

    def _project(self, network: nn.Module, views: list[Tensor]) -> Tensor:
        return F.normalize(at_least_float32(encode_views(network, views)), dim=-1)

    def _process(self) -> dict[str, Any]:
        """The Gaussian process's kernel, and its parameters as they are now."""
        lengthscale, amplitude, noise = self.log_process.exp()
        return {
            "kernel": self.kernel,
            "lengthscale": lengthscale,
            "amplitude": amplitude,
            "noise": noise + self.jitter,
        }

    def _terms(self, context: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The means over pairs of views, (P, N, D) each."""
        if self.variant == "primal":
            with torch.autocast(context.device.type, enabled=False):
                return primal_terms(context, target, self.alignment_weight, self.entropy, self.jitter)
        return average([self._pair_terms(*pair) for pair in zip(context, target, strict=True)])

    def _pair_terms(self, context: Tensor, target: Tensor) -> dict[str, Tensor]:
        if self.variant == "hsic":
            return hsic_loss(context, target, None, True, self.entropy_weight, self.jitter)
        # Whitened, the targets' d_t channels are independent, as the process takes them to be. It is what keeps their
        # dimensions: an averaged encoder alone only follows, slowly, as the contexts lose theirs.
        target = whiten(target, self.jitter)
        if self.variant == "rff":
            return rff_gje_loss(context, target, **self._process(), num_features=self.num_features)
        return dual_gje_loss(context, target, **self._process())

    @torch.no_grad()
    def _remember(self, context: Tensor, target: Tensor) -> None:
        """Move the joint moments towards those of these pairs, (P, N, D) each, and put the pairs into the bank."""
        joint = torch.cat([context, target], -1).flatten(0, 1)
        with torch.autocast(joint.device.type, enabled=False):
            moment = joint.mT @ joint / len(joint)
        for kept, now in ((self.joint_mean, joint.mean(0)), (self.joint_moment, moment)):
            now = mean_over_ranks(now, len(joint))
            kept.copy_(torch.where(kept.isnan(), now, kept.lerp(now, 1 - MOMENT_DECAY)))
        if self.average is not None:
            for bank, new in ((self.bank_context, context), (self.bank_target, target)):
                bank.copy_(torch.cat([bank, gather_rows(new, 1)[0].flatten(0, 1)])[-len(bank) :])

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(self.projector(h), dim=1)}

    @torch.no_grad()
    def posterior(self, encoded: dict[str, Tensor]) -> MultivariateNormal | Independent:
        """What another view of each image would be projected to: the conditional density, given this view's own.

        For "dual" and "rff" the Gaussian process's prediction from the bank (Eq. 5), less sure far from it; else the
        conditional of the joint Gaussian of all pairs (Eq. 10), equally sure everywhere.
        """
        z = encoded["projector"].float()
        if self.joint_mean.isnan().any():
            raise ValueError("model: it has no density of pairs; it was not trained yet")
        mean = self.joint_mean.to(z)
        moment = self.joint_moment.to(z)
        if self.average is None:
            covariance = moment - mean.outer(mean)
            return primal_prediction(z, add_diagonal(covariance, MOMENT_FLOOR * covariance.diagonal().mean()), mean)
        filled = self.bank_context.isfinite().all(1)
        bank = self.bank_context[filled].to(z), self.bank_target[filled].to(z)
        process = {name: value if name == "kernel" else value.to(z) for name, value in self._process().items()}
        if self.variant == "rff":
            whitened = rff_prediction(*bank, z, **process, num_features=self.num_features)
        else:
            whitened = dual_prediction(*bank, z, **process)
        # The mean is linear in the targets, so it may be taken of them as they are. The variance is that of whitened
        # ones, equal in all dimensions; each dimension of the targets has its second moment's share of it.
        share = moment.diagonal()[z.shape[1] :].sqrt()
        return Independent(Normal(whitened.mean, whitened.stddev * share, validate_args=False), 1)

    def after_step(self) -> None:
        if self.average is not None:
            self.average.update_parameters(nn.Sequential(self.backbone, self.projector))
