"""A trained model as one graph: images in; features, posterior and scores out, each under its name.

Whatever does not depend on the image is worked out beforehand, Cholesky factors above all, so that matrix products are
left: what every runtime has.
"""

import copy
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from jointembed.distributions import GaussianMixture
from jointembed.methods import Method
from jointembed.methods.gje.kernels import add_diagonal, fourier_draws, gram, kernel_variance
from jointembed.methods.gje.method import GJE
from jointembed.methods.gmje import GMJE, GMJESMC

if TYPE_CHECKING:
    from jointembed.model import Model

SAMPLED = ("sphere",)  # scores that average over random draws: no graph holds them


class Graph(nn.Module):
    """uint8 images (N, C, side, side), as they are, to a tuple of outputs called `names`.

    "features" is the method's first space; the other spaces keep their names. Then "posterior_mean",
    "posterior_variance" and, of a mixture, "posterior_weights", where the spaces do not say it ("mu" and "variance",
    "concentration"); and "score_..." for each of the method's scores but those in `SAMPLED`.
    """

    pixel_mean: Tensor  # not "mean": the exporter gives that name to a mean it finds
    pixel_std: Tensor

    def __init__(self, model: "Model") -> None:
        super().__init__()
        held = model.method.density()  # fitted, or an error
        method = copy.deepcopy(model.method).cpu().float().eval().requires_grad_(False)
        self.method = method.to(memory_format=torch.contiguous_format)
        self.register_buffer("pixel_mean", torch.tensor(model.config.mean)[:, None, None])
        self.register_buffer("pixel_std", torch.tensor(model.config.std)[:, None, None])
        self.density = Components(held)
        self.posterior = None
        if hasattr(method, "posterior") and "mu" not in method.spaces:
            self.posterior = posterior_head(method)
        self.scores = tuple(name for name in method.scores if name not in SAMPLED)
        with torch.inference_mode():
            side = model.config.image_size
            blank = torch.zeros(2, model.config.channels, side, side, dtype=torch.uint8)
            self.names = tuple(self.outputs(blank))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(images).values())

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """By name."""
        x = (images.float() / 255 - self.pixel_mean) / self.pixel_std
        encoded = {name: z.float() for name, z in self.method.encode(x).items()}
        first = self.method.spaces[0]
        found = {"features" if name == first else name: encoded[name] for name in self.method.spaces}
        components = self.density(encoded[self.method.density_space])  # (N, K)
        if self.posterior is not None:
            found |= {f"posterior_{name}": value for name, value in self.posterior(encoded).items()}
        for name in self.scores:
            value = -components.logsumexp(-1) if name == "density" else self.method.score(encoded, name, 0, 0)
            found[f"score_{name}"] = value
        return found


class Components(nn.Module):
    """Embeddings (N, D) to log w_k + log N(z; m_k, S_k), (N, K), under a Gaussian or a mixture that stays as it is."""

    centre: Tensor
    whitening: Tensor
    means: Tensor
    constant: Tensor

    def __init__(self, density: Distribution) -> None:
        super().__init__()
        if isinstance(density, MultivariateNormal):
            one = density.loc.new_ones(1)
            density = GaussianMixture(one, density.loc[None], scale_tril=density.scale_tril[None], validate_args=False)
        if not isinstance(density, GaussianMixture):
            raise ValueError(f"model: expected a Gaussian or a mixture as its density, got {type(density).__name__}")
        factors = torch.linalg.cholesky(density.covariances.detach().cpu().double())  # (K|1, D, D)
        means = density.means.detach().cpu().double()
        centre = means.mean(0)
        log_det = factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = density.log_weights.detach().cpu() - log_det - means.shape[1] / 2 * math.log(2 * math.pi)
        whitening = torch.linalg.inv(factors).mT
        self.register_buffer("centre", centre.float())
        self.register_buffer("whitening", whitening.float())
        self.register_buffer("means", ((means - centre)[:, None] @ whitening)[:, 0].float())  # (K, D), whitened
        self.register_buffer("constant", constant.float())

    def forward(self, z: Tensor) -> Tensor:
        z = z - self.centre
        if len(self.whitening) == 1:  # |a - b|^2 as products: K may be thousands
            white = z @ self.whitening[0]
            squares = white.square().sum(-1, keepdim=True) + self.means.square().sum(-1)
            distances = squares - 2 * white @ self.means.mT
        else:
            white = torch.einsum("nd,kde->nke", z, self.whitening)
            distances = (white - self.means).square().sum(-1)
        return self.constant - 0.5 * distances


@functools.singledispatch
def posterior_head(method: Method) -> nn.Module:
    """A module from what `encode` gave to what is known of the posterior, by name."""
    return Inferred(method)


class Inferred(nn.Module):
    """A posterior whose parameters a network gives: the method's own way there is a graph already."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, encoded: dict[str, Tensor]) -> dict[str, Tensor]:
        posterior: Any = self.method.posterior(encoded)  # type: ignore[operator]
        found = {"mean": posterior.mean, "variance": posterior.variance}
        return found | ({"weights": posterior.weights} if isinstance(posterior, GaussianMixture) else {})


class Conditional(nn.Module):
    """A constant joint Gaussian or mixture, given one half.

    The weights are the responsibilities of the components of that half, `context`; the means are affine in what is
    given, so that their values at 0 and at the unit vectors say all; the covariances are constant.
    """

    offset: Tensor
    slope: Tensor | None
    variances: Tensor

    def __init__(self, method: Method, context: Distribution) -> None:
        super().__init__()
        self.space = method.density_space
        dim = len(method.density_mean)
        found: Any = method.posterior({self.space: torch.cat([torch.zeros(1, dim), torch.eye(dim)])})  # type: ignore[operator]
        self.weighted = isinstance(found, GaussianMixture)
        if self.weighted:
            self.components = Components(context)
            means, variances = found.means, found.covariances.diagonal(dim1=-2, dim2=-1)  # (1 + D, K, D) or (K, D)
        else:
            means, variances = found.mean[:, None], found.variance[:1]
        self.register_buffer("offset", means[0] if means.ndim == 3 else means)
        self.register_buffer("slope", means[1:] - means[0] if means.ndim == 3 else None)  # (D, K, D)
        self.register_buffer("variances", variances.clone())

    def forward(self, encoded: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.weighted:
            assert self.slope is not None
            mean = self.offset[0] + encoded[self.space] @ self.slope[:, 0]
            return {"mean": mean, "variance": self.variances[0] + torch.zeros_like(mean)}
        weights = self.components(encoded[self.space]).softmax(-1)
        if self.slope is None:
            mean = weights @ self.offset
            return {
                "mean": mean,
                "variance": weights @ (self.offset.square() + self.variances) - mean.square(),
                "weights": weights,
            }
        means = self.offset + torch.einsum("nd,dke->nke", encoded[self.space], self.slope)
        mean = (weights[:, :, None] * means).sum(1)
        squares = (means - mean[:, None]).square() + self.variances
        return {"mean": mean, "variance": (weights[:, :, None] * squares).sum(1), "weights": weights}


class Process(nn.Module):
    """The prediction of GJE's Gaussian process, exact or through random Fourier features (Eq. 5)."""

    bank: Tensor
    frequencies: Tensor
    phases: Tensor
    coefficients: Tensor
    whitening: Tensor
    share: Tensor

    def __init__(self, method: GJE) -> None:
        super().__init__()
        if method.joint_mean.isnan().any():
            raise ValueError("model: it has no density of pairs; it was not trained yet")
        process = method._process()
        self.kernel = process.pop("kernel")
        self.lengthscale, self.amplitude, self.noise = (
            float(process[k]) for k in ("lengthscale", "amplitude", "noise")
        )
        filled = method.bank_context.isfinite().all(1)
        bank, target = method.bank_context[filled].double(), method.bank_target[filled].double()
        self.register_buffer("bank", bank.float())
        self.features = method.variant == "rff"
        if self.features and self.kernel != "linear":
            frequencies, phases = fourier_draws(bank.shape[1], method.num_features, self.kernel)
            self.register_buffer("frequencies", frequencies.float())
            self.register_buffer("phases", phases.float())
        if self.features:
            known = self.map(bank.float()).double()  # (F, B)
            matrix, target = known @ known.mT, known @ target
        else:
            matrix = gram(bank, None, self.kernel, self.lengthscale, self.amplitude)
        factor = torch.linalg.cholesky(add_diagonal(matrix, self.noise))
        self.register_buffer("coefficients", torch.cholesky_solve(target, factor).float())
        self.register_buffer("whitening", torch.linalg.inv(factor).float())
        self.register_buffer("share", method.joint_moment.diagonal()[bank.shape[1] :].clone())

    def map(self, z: Tensor) -> Tensor:
        """What the prediction is linear in, a column for each z: covariances with the bank (B, N), or features."""
        if not self.features:
            return gram(self.bank, z, self.kernel, self.lengthscale, self.amplitude)
        z = z / self.lengthscale
        if self.kernel != "linear":
            phase = z @ self.frequencies + self.phases
            z = (2 / phase.shape[1]) ** 0.5 * torch.cos(phase)
        return self.amplitude**0.5 * z.mT

    def forward(self, encoded: dict[str, Tensor]) -> dict[str, Tensor]:
        z = encoded["projector"]
        mapped = self.map(z)
        explained = (self.whitening @ mapped).square().sum(0)
        if self.features:
            variance = self.noise * explained
        else:
            variance = kernel_variance(z, self.kernel, self.lengthscale, self.amplitude) - explained
        variance = variance.clamp_min(0) + self.noise
        return {"mean": mapped.mT @ self.coefficients, "variance": variance[:, None] * self.share}


@posterior_head.register
def _(method: GMJE) -> nn.Module:
    return Conditional(method, method.view_density())


@posterior_head.register
def _(method: GMJESMC) -> nn.Module:
    return Conditional(method, method.density())


@posterior_head.register
def _(method: GJE) -> nn.Module:
    return Conditional(method, method.density()) if method.average is None else Process(method)
