"""GJE and GMJE: five ways in which a joint density goes wrong, each beside what prevents it."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from jointembed._files import atomic
from jointembed.distributions import GaussianMixture
from jointembed.methods.gje import dual_gje_loss, primal_gje_loss
from jointembed.methods.gje.losses import whiten
from jointembed.methods.gmje import MixtureDensityNetwork, mdn_loss, prototype_loss
from jointembed.methods.gmje.components import Prototypes
from jointembed.metrics import effective_rank

from .results import command, write_results

DIM = 8
Loss = Callable[[Tensor, Tensor], Tensor]  # of the embeddings of two views, (N, D) each
# What a run is made of: modules that learn beside the encoder, the loss, and what to watch.
Setting = tuple[list[nn.Module], Loss, Callable[[Tensor, Tensor], float]]


def run(results: str = "results", steps: int = 1000, seed: int = 0) -> None:
    """Train a small encoder of paired vectors ten times: five failures and their remedies.

    Args:
        results: where the table and the figures go.
        steps: of each training.
        seed: of the data and the weights.
    """
    arguments, began = dict(locals()), time.perf_counter()
    rows = []
    for name, (watched, failure, remedy, why) in FAILURES.items():
        histories = {}
        for label, setting in (("failure", failure), ("remedy", remedy)):
            histories[label] = history = train(setting, steps, seed)
            rows.append(
                {
                    "failure mode": name,
                    "": label if label == "failure" else f"remedy: {why}",
                    "watched": watched,
                    "at the start": f"{history['watched'][0]:.3g}",
                    "at the end": f"{history['watched'][-1]:.3g}",
                    f"effective rank of {DIM}": f"{history['rank'][-1]:.1f}",
                    "loss": f"{history['loss'][-1]:.2f}",
                }
            )
        draw(name, watched, why, histories, Path(results) / f"gmje-failures-{name.replace(' ', '-')}.png")
    title = f"GJE and GMJE: five failure modes and their remedies, {steps} steps of a small encoder"
    write_results(Path(results), "gmje-failures", title, rows, command(run, arguments), time.perf_counter() - began)


def train(setting: Callable[[], Setting], steps: int, seed: int) -> dict[str, list[float]]:
    """Adam on pairs that share most of what they are; what is watched, the embeddings' rank and the loss by step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        common, own = torch.randn(512, DIM).double(), torch.randn(2, 512, DIM).double()  # collapse takes many digits
        x_context, x_target = common + 0.5 * own[0], common + 0.5 * own[1]
        encoder = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        modules, loss, watch = setting()
        optimizer = torch.optim.Adam(nn.ModuleList([encoder, *modules]).double().parameters(), 2e-3)
        history: dict[str, list[float]] = {"watched": [], "rank": [], "loss": []}
        for _ in range(steps):
            rows = torch.randint(512, (128,))
            z_context, z_target = encoder(x_context[rows]), encoder(x_target[rows])
            value = loss(z_context, z_target)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            history["watched"].append(watch(z_context.detach(), z_target.detach()))
            history["rank"].append(float(effective_rank(z_target.detach())))
            history["loss"].append(value.item())
    return history


def spread(z_context: Tensor, z_target: Tensor) -> float:
    """Standard deviation of the targets, over dimensions: 0 is collapse."""
    return float(z_target.std(0).mean())


def on_sphere(z: Tensor) -> Tensor:
    return math.sqrt(DIM) * nn.functional.normalize(z, dim=-1)


def on_sphere_spread(z_context: Tensor, z_target: Tensor) -> float:
    return spread(z_context, on_sphere(z_target))


def trace_trap() -> Setting:
    """The likelihood under the batch's own covariance: its distances are constant, its volume shrinks (Eq. 9)."""

    def loss(z_context: Tensor, z_target: Tensor) -> Tensor:
        joint = torch.cat([z_context, z_target], 1)
        covariance = joint.mT @ joint / len(joint) + 1e-9 * torch.eye(2 * DIM)
        gaussian = GaussianMixture(torch.ones(1), torch.zeros(1, 2 * DIM), covariance[None], validate_args=False)
        return -gaussian.log_prob(joint).mean()

    return [], loss, spread


def explicit_entropy() -> Setting:
    return [], lambda a, b: primal_gje_loss(a, b)["loss"] / DIM, on_sphere_spread


def log_det_cheat() -> Setting:
    """A covariance that learns with the encoder: both shrink together (appendix O.4)."""
    prototypes = Prototypes(8, 2 * DIM, floor=1e-6)
    return [prototypes], lambda a, b: prototype_loss(a, b, prototypes(), weight=0.0)["loss"], spread


def guarded_prototypes() -> Setting:
    prototypes = Prototypes(8, 2 * DIM)
    loss = lambda a, b: prototype_loss(on_sphere(a), on_sphere(b), prototypes())["loss"]  # noqa: E731
    return [prototypes], loss, on_sphere_spread


def identity_collapse() -> Setting:
    """A network that sees the target explains it by itself: sigma falls to its floor (appendix M)."""
    network = MixtureDensityNetwork(2 * DIM, DIM, 4, 64, floor=1e-3)

    def loss(z_context: Tensor, z_target: Tensor) -> Tensor:
        a, b = on_sphere(z_context), on_sphere(z_target)
        return mdn_loss(a, b, network(torch.cat([a, b], 1)))["loss"]

    return [network], loss, lambda a, b: sigma(network, torch.cat([on_sphere(a), on_sphere(b)], 1), on_sphere(b))


def strict_bottleneck() -> Setting:
    network = MixtureDensityNetwork(DIM, DIM, 4, 64, floor=1e-3)
    loss = lambda a, b: mdn_loss(on_sphere(a), on_sphere(b), network(on_sphere(a)))["loss"]  # noqa: E731
    return [network], loss, lambda a, b: sigma(network, on_sphere(a), on_sphere(b))


@torch.no_grad()
def sigma(network: MixtureDensityNetwork, context: Tensor, target: Tensor) -> float:
    """Standard deviation of the components that explain the targets."""
    share = network(context).responsibilities(target)  # (N, K)
    return float((share * network.parts(context)[2].mean(-1)).sum(-1).mean())


def symmetric_dual() -> Setting:
    """A Gaussian process whose targets learn: they go to 0 (appendix E)."""
    return [], lambda a, b: dual_gje_loss(a, b)["loss"] / a.numel(), spread


def fixed_target() -> Setting:
    """Targets without a gradient, and whitened: without one alone they follow the contexts down, only later."""

    def loss(z_context: Tensor, z_target: Tensor) -> Tensor:
        return dual_gje_loss(z_context, whiten(z_target.detach(), 0.05), noise=0.5)["loss"] / z_context.numel()

    return [], loss, spread


def unguarded_mdn() -> Setting:
    """Eq. 23 as written: target, means and sigma shrink together."""
    network = MixtureDensityNetwork(DIM, DIM, 4, 64, floor=1e-6)
    return [network], lambda a, b: mdn_loss(a, b, network(a), weight=0.0)["loss"], spread


def guarded_mdn() -> Setting:
    network = MixtureDensityNetwork(DIM, DIM, 4, 64)
    loss = lambda a, b: mdn_loss(on_sphere(a), on_sphere(b), network(on_sphere(a)))["loss"]  # noqa: E731
    return [network], loss, on_sphere_spread


SPREAD = "spread of the targets"
FAILURES: dict[str, tuple[str, Callable[[], Setting], Callable[[], Setting], str]] = {
    "trace trap": (SPREAD, trace_trap, explicit_entropy, "alignment and explicit entropy"),
    "log-determinant cheat": (
        SPREAD,
        log_det_cheat,
        guarded_prototypes,
        "entropy of both marginals, fixed norm, floor",
    ),
    "identity collapse": ("sigma", identity_collapse, strict_bottleneck, "a network that sees the context only"),
    "symmetric dual": (SPREAD, symmetric_dual, fixed_target, "targets without a gradient, whitened"),
    "unguarded MDN": (SPREAD, unguarded_mdn, guarded_mdn, "entropy of both marginals, fixed norm, floor"),
}


def draw(name: str, watched: str, why: str, histories: dict[str, dict[str, list[float]]], path: Path) -> None:
    """What is watched, the effective rank and the loss by step, the failure beside the remedy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = zip(figure.subplots(1, 3), ("watched", "rank", "loss"), (watched, "effective rank", "loss"), strict=True)
    for axis, key, title in panels:
        for (label, history), colour in zip(histories.items(), ("C3", "C0"), strict=True):
            axis.plot(history[key], color=colour, label=name if label == "failure" else why)
        axis.set(title=title, xlabel="step", yscale="log" if key == "watched" else "linear")
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
