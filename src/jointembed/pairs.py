"""`fit_pairs`: the density of y given x for any two aligned arrays, without encoders; y may have many values for one x.

>>> x = 2 * torch.rand(3000, 1) - 1
>>> y = torch.where(torch.rand(3000, 1) < 0.5, x, -x) + 0.05 * torch.randn(3000, 1)
>>> pairs = fit_pairs(x, y, "gmje-mdn", components=2)
>>> pairs.predict(x[:5])  # the mean: near 0, where there is nothing
>>> pairs.modes(x[:5])  # near x and -x
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jointembed.distributions import GaussianMixture, modes
from jointembed.methods.gje import dual_gje_loss, dual_prediction
from jointembed.methods.gmje import GrowingNeuralGas, MixtureDensityNetwork, mdn_loss

Conditional = Callable[[Tensor], GaussianMixture]  # standardised x (N, D) to a mixture over standardised y, batch (N,)
# Those below are modules and dataclasses, not closures, so that a fit can be pickled; they work in double precision, so
# that a row's answer does not depend on the rows beside it.


@dataclass(frozen=True)
class Scale:
    """The units of an array: how to come to mean 0 and variance 1, and back."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "Scale":
        std, mean = torch.std_mean(x, 0)
        return cls(mean, torch.where(std > 1e-12 * (1 + mean.abs()), std, 1.0))  # a constant column stays as it is

    def standardise(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Pairs:
    """What `fit_pairs` found. Everything is in the units of the arrays it was given, in double precision."""

    def __init__(self, method: str, context: Scale, target: Scale, conditional: Conditional) -> None:
        self.method, self._context, self._target, self._conditional = method, context, target, conditional

    def __repr__(self) -> str:
        return f"Pairs({self.method}, {len(self._context.mean)} -> {len(self._target.mean)} dimensions)"

    @torch.no_grad()
    def condition(self, x: Any) -> GaussianMixture:
        """The density of y given each row of x (N, D): a mixture with batch shape (N,)."""
        x = self._context.standardise(_array("x", x, len(self._context.mean)))
        return self._conditional(x).affine(self._target.mean, self._target.std)

    def predict(self, x: Any) -> Tensor:
        """The mean (N, D') of y given x. Where y has several values it lies between them: see `modes`."""
        return self.condition(x).mean

    def modes(self, x: Any, least: float = 0.01) -> list[Tensor]:
        """The values of y that stand out for each x, the likeliest first: a list of N tensors (modes, D').

        They are the local maxima of the conditional density, but for those below `least` of the highest.
        """
        return modes(self.condition(x), least)

    def sample(self, x: Any, n: int = 1, seed: int = 0) -> Tensor:
        """n values of y for each x, (n, N, D')."""
        if n < 1:
            raise ValueError(f"n: expected at least 1, got {n}")
        return self.condition(x).sample((n,), torch.Generator().manual_seed(seed))

    def log_prob(self, x: Any, y: Any) -> Tensor:
        """Log-density (N,) of y given x, row by row."""
        y = _array("y", y, len(self._target.mean))
        mixture = self.condition(x)
        if len(y) != len(mixture.means) and len(mixture.means) > 1:
            raise ValueError(f"y: expected {len(mixture.means)} rows as x has, got {len(y)}")
        return mixture.log_prob(y)


def fit_pairs(x_context: Any, x_target: Any, method: str = "gmje-mdn", seed: int = 0, **options: Any) -> Pairs:
    """Learn the density of a target given a context from aligned rows.

    Args:
        x_context: (N, D), or (N,) for one column; an array or a tensor.
        x_target: (N, D') or (N,).
        method: "gmje-mdn" (a network gives the mixture), "gmje-em" or "gmje-gng" (a mixture over both, by EM or a
            Growing Neural Gas, conditioned), "gje" (one Gaussian over both), "gje-rbf", "gje-matern12", "gje-matern32",
            "gje-matern52" or "gje-linear" (a Gaussian process), "jepa" (a point predictor with a Gaussian residual).
        seed: of everything random.
        **options: of the method, see the functions below.
    """
    if method not in FITS:
        raise ValueError(f"method: expected one of {', '.join(FITS)}, got {method!r}")
    x, y = _array("x_context", x_context), _array("x_target", x_target)
    if len(x) != len(y):
        raise ValueError(f"x_target: expected {len(x)} rows as x_context has, got {len(y)}")
    if len(x) < 3:
        raise ValueError(f"x_context: expected at least 3 rows, got {len(x)}")
    context, target = Scale.of(x), Scale.of(y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        conditional = FITS[method](context.standardise(x), target.standardise(y), seed, **options)
    return Pairs(method, context, target, conditional)


def fit_mdn(
    x: Tensor,
    y: Tensor,
    seed: int,
    components: int = 3,
    width: int = 64,
    steps: int = 1200,
    lr: float = 1e-2,
    floor: float = 1e-3,
    batch_size: int = 4096,
) -> Conditional:
    """GMJE-MDN on data: nothing here can shrink, so the likelihood alone will do. Adam with a cosine to zero."""
    network = MixtureDensityNetwork(x.shape[1], y.shape[1], components, width, floor)
    _minimise(network, lambda a, b: mdn_loss(a, b, network(a), weight=0.0)["loss"], x, y, steps, lr, batch_size, seed)
    return network.double()


def fit_em(x: Tensor, y: Tensor, seed: int, components: int = 3, restarts: int = 4, floor: float = 1e-6) -> Conditional:
    """A mixture over [x, y] by scikit-learn's EM, conditioned on x; with one component, GJE's joint Gaussian."""
    from sklearn.mixture import GaussianMixture as EM

    if not 1 <= components <= len(x):
        raise ValueError(f"components: expected 1 to {len(x)}, the number of pairs, got {components}")
    em = EM(components, n_init=restarts, reg_covar=floor, random_state=seed, max_iter=500)
    em.fit(torch.cat([x, y], 1).numpy())
    parts = [torch.from_numpy(part) for part in (em.weights_, em.means_, em.covariances_)]
    return Conditioned(GaussianMixture(*parts), x.shape[1])


def fit_gng(
    x: Tensor, y: Tensor, seed: int, nodes: int = 60, passes: int = 20, covariance: str = "full"
) -> Conditional:
    """The nodes of a Growing Neural Gas over [x, y] as the means of a mixture, conditioned on x."""
    joint = torch.cat([x, y], 1)
    gas = GrowingNeuralGas(max_nodes=nodes, seed=seed)
    gas.fit(joint, steps=max(passes * len(joint), 2 * nodes * gas.insert_every))
    return Conditioned(gas.mixture(joint, covariance), x.shape[1])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Conditioned:
    """A mixture over [x, y], conditioned on x, its first coordinates."""

    joint: GaussianMixture
    given: int

    def __call__(self, new: Tensor) -> GaussianMixture:
        return self.joint.condition(range(self.given), new)


def fit_process(kernel: str) -> Callable[..., Conditional]:
    """GJE's dual: a Gaussian process from context to target."""

    def fit(
        x: Tensor,
        y: Tensor,
        seed: int,
        learn: bool = True,
        lengthscale: float = 1.0,
        amplitude: float = 1.0,
        noise: float = 0.1,
        steps: int = 100,
        learn_from: int = 1000,
    ) -> Conditional:
        """Length scale, amplitude and noise by marginal likelihood on at most `learn_from` pairs, or as given."""
        values = torch.tensor([lengthscale, amplitude, noise], dtype=torch.float64)
        if not bool((values > 0).all()):
            raise ValueError(f"lengthscale, amplitude, noise: expected above 0, got {values.tolist()}")
        if learn:
            few = torch.randperm(len(x))[:learn_from]
            a, b, log = x[few], y[few], values.log().requires_grad_()
            optimizer = torch.optim.LBFGS([log], max_iter=steps, line_search_fn="strong_wolfe")

            def closure() -> Tensor:
                optimizer.zero_grad()
                # Far from the data's own scale the kernel matrix has no digits left: stay within e^±10.
                length, height, sigma = log.clamp(-10, 10).exp()
                loss = dual_gje_loss(a, b, kernel, length, height, sigma)["loss"] / a.shape[0]
                loss.backward()
                return loss

            optimizer.step(closure)
            values = log.detach().clamp(-10, 10).exp()
        return Process(x, y, kernel, *values.tolist())

    return fit


@dataclass(frozen=True)
class Process:
    """What a Gaussian process says after having seen x and y."""

    x: Tensor
    y: Tensor
    kernel: str
    lengthscale: float
    amplitude: float
    noise: float

    def __call__(self, new: Tensor) -> GaussianMixture:
        parts = (self.x, self.y, new, self.kernel, self.lengthscale, self.amplitude, self.noise)
        found = dual_prediction(*parts).base_dist
        weight = torch.ones(1, dtype=new.dtype)
        return GaussianMixture.diagonal(weight, found.loc[:, None], found.variance[:, None], validate_args=False)


def fit_point(
    x: Tensor, y: Tensor, seed: int, width: int = 64, steps: int = 1200, lr: float = 1e-2, batch_size: int = 4096
) -> Conditional:
    """A network trained on the squared error, as JEPA is: one value for each x, with the Gaussian of its residuals."""
    network = nn.Sequential(
        nn.Linear(x.shape[1], width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, y.shape[1])
    )
    _minimise(network, lambda a, b: (network(a) - b).square().mean(), x, y, steps, lr, batch_size, seed)
    network.double()
    with torch.no_grad():
        residual = (y - network(x)).mT.cov(correction=0).reshape(y.shape[1], y.shape[1])
    return Point(network, (residual + 1e-9 * torch.eye(y.shape[1]))[None])


@dataclass(frozen=True)
class Point:
    """One value for each x, and the covariance (1, D', D') of what is left."""

    network: nn.Module
    covariance: Tensor

    def __call__(self, new: Tensor) -> GaussianMixture:
        weight = torch.ones(1, dtype=new.dtype)
        return GaussianMixture(weight, self.network(new)[:, None], self.covariance, validate_args=False)


def _minimise(
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> None:
    if steps < 1 or not lr > 0 or batch_size < 1:
        raise ValueError(f"steps, lr, batch_size: expected above 0, got {steps}, {lr} and {batch_size}")
    optimizer = torch.optim.Adam(network.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    x, y = x.float(), y.float()  # twice as fast, and a stochastic gradient has no use for more digits
    for _ in range(steps):
        rows = slice(None)
        if len(x) > batch_size:
            rows = torch.randint(len(x), (batch_size,), generator=generator)  # type: ignore[assignment]
        optimizer.zero_grad()
        value = loss(x[rows], y[rows])
        if not math.isfinite(value.item()):
            raise FloatingPointError(f"the loss became {value.item()}; try a smaller lr or a larger floor")
        value.backward()
        optimizer.step()
        schedule.step()
    network.requires_grad_(False)


def _array(name: str, x: Any, width: int | None = None) -> Tensor:
    """Float64 (N, D) of an array or tensor; (N,) is one column."""
    try:
        tensor = x.detach().cpu().double() if isinstance(x, Tensor) else torch.tensor(np.asarray(x, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array of numbers, got {type(x).__name__}: {error}") from error
    if tensor.ndim == 1:
        tensor = tensor[:, None]
    if tensor.ndim != 2 or 0 in tensor.shape or width not in (None, tensor.shape[1]):
        raise ValueError(f"{name}: expected shape (N, {width or 'D'}), got {tuple(np.shape(x))}")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name}: expected finite values, got {int((~tensor.isfinite()).sum())} that are not")
    return tensor


FITS: dict[str, Callable[..., Conditional]] = {
    "gmje-mdn": fit_mdn,
    "gmje-em": fit_em,
    "gmje-gng": fit_gng,
    "gje": lambda x, y, seed, **options: fit_em(x, y, seed, components=1, **options),
    "gje-rbf": fit_process("rbf"),
    "gje-matern12": fit_process("matern12"),
    "gje-matern32": fit_process("matern32"),
    "gje-matern52": fit_process("matern52"),
    "gje-linear": fit_process("linear"),
    "jepa": fit_point,
}
