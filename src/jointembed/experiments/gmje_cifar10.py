"""GMJE and GMJE-MDN from scratch on CIFAR-10, which the paper found too unstable to report: healthy beside failed."""

import time
from pathlib import Path
from typing import Any

import torch

from jointembed._files import atomic
from jointembed.metrics import effective_rank
from jointembed.model import Model
from jointembed.training import Diverged

from .cells import run_cells, spent
from .results import command, write_results
from .small import accuracies, over_seeds, parts, rounded, trained

HEALTHY: dict[str, dict[str, Any]] = {
    "GMJE": {"method": "gmje"},
    "GMJE-MDN": {"method": "gmje-mdn"},
    "LeJEPA": {"method": "lejepa", "weight": 0.03, "num_slices": 256},
}
# The same likelihoods without a guard of the marginals; GMJE's covariance learned by gradient, as in the paper.
FAILED: dict[str, dict[str, Any]] = {
    "GMJE, likelihood alone": {
        "method": "gmje",
        "learning": "gradient",
        "exchangeable": False,
        "prior_weight": 0.0,
        "weight": 0.0,
    },
    "GMJE-MDN, likelihood alone": {"method": "gmje-mdn", "departure": 0.0, "balance": 0.0, "weight": 0.0},
}
# The rest of the family, once each.
OTHERS: dict[str, dict[str, Any]] = {
    "GMJE, by gradient": {"method": "gmje", "learning": "gradient"},
    "GMJE, neural gas": {"method": "gmje", "learning": "gng"},
    "GMJE, particles": {"method": "gmje", "learning": "smc"},
    "GMJE-SMC": {"method": "gmje-smc"},
    "GJE, primal": {"method": "gje", "variant": "primal"},
    "GJE, HSIC": {"method": "gje", "variant": "hsic"},
    "GJE, dual": {"method": "gje", "variant": "dual"},
    "GJE, random features": {"method": "gje", "variant": "rff"},
}
TRAINING = {"batch_size": 128, "view_options": {"crop_scale": [0.2, 1.0], "blur": 0.0, "solarise": 0.0}}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 10_000,
    epochs: int = 6,
    seeds: int = 3,
    full_epochs: int = 15,
    held_out: bool = False,
    kept: str = "runs/gmje-cifar10.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train both on a part of CIFAR-10 with several seeds, then on all of it, with LeJEPA at the same budget beside.

    The other members of the family are trained on the part once each.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images of the runs with several seeds, and of those that fail.
        epochs: passes over them.
        seeds: runs of each method.
        full_epochs: passes over all images; 0 leaves these runs out.
        held_out: to tune by: score training images held out instead of the test images.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared = {"data": data, "held_out": held_out, "watch_every": 1, **TRAINING, **(changes or {})}
    few = shared | {"images": images, "epochs": epochs}
    groups = {(name, images): [few | one | {"seed": seed} for seed in range(seeds)] for name, one in HEALTHY.items()}
    groups |= {(name, images): [few | one | {"seed": 0}] for name, one in (FAILED | OTHERS).items()}
    if full_epochs:
        whole = shared | {"images": 50_000, "epochs": full_epochs, "seed": 0}
        groups |= {(name, 50_000): [whole | one] for name, one in HEALTHY.items()}
    cells = sorted((cell for group in groups.values() for cell in group), key=lambda c: -c["images"] * c["epochs"])
    found = dict(zip(map(repr, cells), run_cells(health, cells, Path(kept), jobs), strict=True))
    outcome = {key: [found[repr(cell)] for cell in group] for key, group in groups.items()}
    rows = [row(name, size, groups[name, size], ours) for (name, size), ours in outcome.items()]
    title = "GMJE and GMJE-MDN on CIFAR-10 from scratch, narrow ResNet-10, 16 px views" + (
        ", held-out training images" if held_out else ""
    )
    seconds = spent(began, found.values(), jobs)
    write_results(Path(results), "gmje-cifar10", title, rows, command(run, arguments), seconds)
    draw({name: ours for (name, size), ours in outcome.items() if size == images}, Path(results) / "gmje-cifar10.png")


def health(data: str, images: int, held_out: bool, method: str, **training: Any) -> dict[str, Any]:
    """Accuracy of a training's features, and whether the embeddings and the mixture in it are alive."""
    source, test = parts(data, images, held_out)
    began = time.perf_counter()
    try:
        model, history = trained(source, method, **training)
    except Diverged as error:
        return {"diverged": str(error)}
    found: dict[str, Any] = {"minutes": (time.perf_counter() - began) / 60, "history": history}
    z = model.embed(test, "projector")
    found |= {"rank": effective_rank(z), "dim": z.shape[1], **accuracies(model, source, test)}
    if method in ("gmje", "gmje-mdn"):
        found |= {"sigma": smallest_sigma(model, z), "floor": floor(model), "used": history[-1]["used"]}
    return found


@torch.no_grad()
def smallest_sigma(model: Model, z: torch.Tensor) -> float:
    """The smallest standard deviation of any component, in any direction; of a network, at any embedding z (N, D)."""
    method: Any = model.method
    if model.config.method == "gmje-mdn":
        return float(method.network.parts(z)[2].min())
    return float(torch.linalg.eigvalsh(method.prototypes.learned().covariances).min().sqrt())


def floor(model: Model) -> float:
    """The standard deviation no component can go below."""
    method: Any = model.method
    return method.network.floor if model.config.method == "gmje-mdn" else method.prototypes.floor**0.5


def row(name: str, images: int, cells: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table: the mean over the seeds, and how far they are apart."""

    def told(key: str, digits: int) -> str:
        return over_seeds([ours[key] for ours in found if key in ours], digits)

    sigmas = [ours["sigma"] / ours["floor"] for ours in found if "sigma" in ours]
    usual = [ours["history"][-1]["sigma"] / ours["floor"] for ours in found if "sigma" in ours]
    used = [100 * ours["used"] for ours in found if "used" in ours]
    return {
        "run": name,
        "images": f"{images:,}",
        "epochs": cells[0]["epochs"],
        "seeds": len(cells),
        "not finite": sum("diverged" in ours for ours in found),
        "k-NN %": told("knn", 1),
        "linear %": told("linear", 2),
        "effective rank": told("rank", 1) + (f" of {found[0]['dim']}" if "dim" in found[0] else ""),
        "mean sigma / floor": rounded(min(usual, default=None), 2),
        "smallest sigma / floor": rounded(min(sigmas, default=None), 2),
        "components in use %": rounded(min(used, default=None), 0),
        "minutes each": told("minutes", 1).split(" ±")[0],
    }


def draw(outcome: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Each method, with its guard and without: features, loss, sigma and components by epoch."""
    from matplotlib.figure import Figure

    panels = {
        "knn": "online k-NN accuracy",
        "effective_rank": "effective rank of the features",
        "nll": "negative log-likelihood, per dimension",
        "sigma": "sigma",
    }
    figure = Figure(figsize=(13, 5.4), layout="constrained")
    for line, (healthy, failed) in zip(
        figure.subplots(2, len(panels)), zip(HEALTHY, FAILED, strict=False), strict=True
    ):
        for axis, (column, title) in zip(line, panels.items(), strict=True):
            for name, colour in ((healthy, "C0"), (failed, "C3")):
                for number, ours in enumerate(outcome[name]):
                    seen = [(e["epoch"] + 1, e[column]) for e in ours.get("history", ()) if column in e]
                    axis.plot(
                        [e for e, _ in seen],
                        [v for _, v in seen],
                        color=colour,
                        alpha=0.7,
                        label="" if number else name,
                    )
            axis.set(title=title, xlabel="epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(alpha=0.3)
        line[0].set_ylim(bottom=0.1)
        line[0].legend(frameon=False, fontsize=8, loc="lower left")
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
