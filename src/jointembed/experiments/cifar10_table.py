"""Every method on CIFAR-10, with the same backbone, views and minutes: what each makes of an ordinary computer."""

import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

from jointembed import methods
from jointembed._files import atomic
from jointembed.evaluation import feature_geometry, few_shot, knn_accuracy, linear_accuracy, one_class
from jointembed.training import Diverged

from .cells import run_some, spent
from .results import command, write_results
from .small import SMALL, parts, rounded, trained

# The same for all: AdamW, batches of 128, 16 px views; what differs was chosen on held-out images or by the paper.
# Learning rates are the better of 2e-3 and 5e-3 on held-out images (`cifar10-rates`).
SHARED: dict[str, Any] = {
    "batch_size": 128,
    "lr": 2e-3,
    "preset": "lejepa",
    "view_options": {"crop_scale": [0.2, 1.0], "blur": 0.0, "solarise": 0.0},
}
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"lr": 5e-3} for name in ("barlow-twins", "byol", "gje", "gmje", "gmje-mdn", "jepa", "vicreg")},
    "lejepa": {"lr": 5e-3, "weight": 0.03, "num_slices": 256},
    "lejepa-mdn": {"num_slices": 256},
    "lejepa-vje": {"num_slices": 256},
    "vje": {"batch_size": 32},
    "simclr": {"lr": 5e-3, "temperature": 0.5},
}
ONE_CLASS = (0, 5)  # aeroplane and dog
TIMED = 2_560  # images of an epoch that says how fast a method is
FEWEST = 8  # rows that a rank correlation over methods is worth showing of
# What `jointembed select` can rank runs by, turned so that more is better, and alignment for comparison.
PROXIES: dict[str, Callable[[dict[str, float]], float]] = {
    "RankMe": lambda ours: ours["rank_me"],
    "LiDAR": lambda ours: ours["lidar"],
    "alpha-ReQ, |alpha - 1|": lambda ours: -abs(ours["alpha_req"] - 1),
    "isotropy": lambda ours: ours["isotropy"],
    "uniformity": lambda ours: -ours["uniformity"],
    "alignment": lambda ours: -ours["alignment"],
}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    minutes: float = 10.0,
    only: tuple[str, ...] = (),
    held_out: bool = False,
    images: int = 50_000,
    one_class_epochs: int = 5,
    kept: str = "results/cifar10-table-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train each method for as many epochs as the minutes buy on all cores, and fill its row of the table.

    How many these are is timed first, one method after the other with nothing beside it. The trainings themselves then
    run side by side on one thread each, which takes less time than one after the other on all cores. Timings and rows
    that are there already are kept, so that the table can grow over days, and over machines that are not equally fast.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        minutes: of training for each method, on all cores.
        only: the methods to run now, in this order; by default all.
        held_out: to tune by: score training images held out instead of the test images.
        images: training images.
        one_class_epochs: of the two one-class models.
        kept: where timings and finished rows are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    names = methods.names()
    for name in only:
        methods.get(name)  # an error by name, before any work
    wanted, file = only or names, Path(kept)
    settings = {name: SHARED | SETTINGS.get(name, {}) | (changes or {}) | {"method": name} for name in names}

    clocked = {name: {"data": data, "timed": min(TIMED, images), **ours} for name, ours in settings.items()}
    times = run_some(timing_cell, clocked, wanted, file, jobs=1, threads=torch.get_num_threads())
    speeds = {name: ours["images_per_second"] for name, ours in times.items()}

    count = len(parts(data, images, held_out)[0])
    epochs = {name: max(1, round(60 * minutes * speed / count)) for name, speed in speeds.items()}
    shared = {"data": data, "images": images, "held_out": held_out, "one_class_epochs": one_class_epochs}
    cells = {name: shared | settings[name] | {"epochs": bought} for name, bought in epochs.items()}
    found = run_some(table_cell, cells, wanted, file, jobs=jobs, fresh=True)  # its peak of memory is its own

    title = (
        f"Every method on CIFAR-10, narrow ResNet-10, 16 px views, the epochs that {minutes:g} minutes on "
        f"{torch.get_num_threads()} cores buy, one seed, " + ("held-out training images" if held_out else "test images")
    )
    ranked = sorted(names, key=lambda name: -found.get(name, {}).get("linear", 0.0))  # best first, what is missing last
    rows = [row(name, found.get(name), epochs.get(name), speeds.get(name)) for name in ranked]
    seconds = spent(began, found.values(), jobs)
    write_results(Path(results), "cifar10-table", title, rows, command(run, arguments), seconds)
    finite = {name: ours for name, ours in found.items() if "diverged" not in ours}
    draw(finite, Path(results) / "cifar10-table.png")
    if len(finite) >= FEWEST:
        title = f"Do measures without labels tell which of {len(finite)} methods on CIFAR-10 has the best features?"
        rows = proxies(list(finite.values()))
        write_results(Path(results), "cifar10-table-proxies", title, rows, command(run, arguments), seconds)


def timing_cell(data: str, timed: int, method: str, **training: Any) -> dict[str, float]:
    """How fast a method trains: the fastest of three short epochs, without what begins and ends a training."""
    source, _ = parts(data, timed, held_out=False)
    try:
        _, history = trained(source, method, epochs=5, watch_every=5, **training)
    except Diverged:
        return {"images_per_second": 0.0}  # its row, one epoch, can say so
    clock = [epoch["minutes"] for epoch in history[:4]]
    return {"images_per_second": len(source) / (60 * min(b - a for a, b in itertools.pairwise(clock)))}


def table_cell(
    data: str, images: int, held_out: bool, one_class_epochs: int, method: str, epochs: int, **training: Any
) -> dict[str, Any]:
    """One row."""
    source, test = parts(data, images, held_out)
    assert source.labels is not None and test.labels is not None
    try:
        model, history = trained(source, method, epochs=epochs, **training)
        best = model.method.scores[0]
        alone = SMALL | training | {"method": method, "epochs": one_class_epochs}
        detected = one_class(source, test, ONE_CLASS, [best], **alone)
    except Diverged as error:
        return {"diverged": str(error)}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux
    z, z_test = model.embed(source), model.embed(test)
    shots = few_shot(z, source.labels, z_test, test.labels, shots=(10,))[10]
    return {
        "minutes": history[-1]["minutes"],
        "knn": 100 * knn_accuracy(z, source.labels, z_test, test.labels),
        "linear": 100 * linear_accuracy(z, source.labels, z_test, test.labels),
        "ten_shot": 100 * shots.mean,
        "ten_shot_std": 100 * shots.std,
        "auroc": detected.summary()[best]["auroc"],
        "score": best,
        "gigabytes": memory,
        **feature_geometry(model, test),
    }


def row(name: str, found: dict[str, Any] | None, epochs: int | None, speed: float | None) -> dict[str, Any]:
    """A line of the table; one that says so, if it was not run yet."""
    ours = found or {}
    state = "not run yet" if found is None else "not finite" if "diverged" in ours else epochs
    return {
        "method": name,
        "epochs": state,
        "k-NN %": rounded(ours.get("knn"), 1),
        "linear %": rounded(ours.get("linear"), 1),
        "10-shot %": f"{ours['ten_shot']:.1f} ± {ours['ten_shot_std']:.1f}" if "ten_shot" in ours else "-",
        "one-class AUROC": f"{ours['auroc']:.3f} ({ours['score']})" if "auroc" in ours else "-",
        "RankMe": rounded(ours.get("rank_me"), 0),
        "images/s": rounded(speed, 0),
        "peak GB": rounded(ours.get("gigabytes"), 1),
    }


def proxies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank correlation of each measure with linear and k-NN accuracy over the methods, and the method it picks."""
    linear, knn = ([ours[name] for ours in rows] for name in ("linear", "knn"))
    values = {name: [measure(ours) for ours in rows] for name, measure in PROXIES.items()}
    return [
        {
            "measure": name,
            "Spearman with linear accuracy": f"{spearmanr(ours, linear).statistic:+.2f}",
            "with k-NN accuracy": f"{spearmanr(ours, knn).statistic:+.2f}",
            "linear % of the method it picks": rounded(linear[ours.index(max(ours))], 1),
            "best there is": rounded(max(linear), 1),
        }
        for name, ours in values.items()
    ]


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Linear and k-NN accuracy, best first."""
    from matplotlib.figure import Figure

    ranked = sorted(found, key=lambda name: found[name]["linear"])
    figure = Figure(figsize=(8, 1 + 0.3 * len(ranked)), layout="constrained")
    axis = figure.subplots()
    for column, label, shift in (("linear", "linear", 0.2), ("knn", "k-NN", -0.2)):
        axis.barh([i + shift for i in range(len(ranked))], [found[name][column] for name in ranked], 0.4, label=label)
    axis.set_yticks(range(len(ranked)), ranked)
    axis.set(xlabel="accuracy, %")
    axis.legend(frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
