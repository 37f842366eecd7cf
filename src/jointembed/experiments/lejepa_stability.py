"""LeJEPA, Tables 1, 4 and 7: how much each setting matters, one table at a time around the usual one."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jointembed._files import atomic
from jointembed.methods.lejepa import LeJEPA
from jointembed.training import Diverged

from .cells import run_cells
from .results import command, write_results
from .small import accuracies, parts, rounded, trained

# Written out in every cell, so that the usual setting is trained once and stands in all tables.
USUAL = {name: option.default for name, option in LeJEPA.options().items()}
USUAL |= {"num_global": 2, "batch_size": 128, "seed": 0}
PREDICTOR, SWA = 256, 0.99  # the paper names neither; trainings here have some 200 steps


class Entry(NamedTuple):
    """One training: its line in the figure, its place on that line, what it changes, and the paper's accuracy."""

    series: str
    tick: str
    change: dict[str, Any]
    paper: float | None = None


class Table(NamedTuple):
    """Trainings that belong together."""

    title: str
    axis: str
    paper: str  # where its figures come from
    entries: list[Entry]


def _lambdas() -> list[Entry]:
    paper = {  # Table 7; the missing ones were not tried
        2: {0.001: 81.41, 0.01: 83.49, 0.02: 82.99},
        4: {0.001: 79.88, 0.01: 84.36, 0.02: 84.68, 0.05: 83.00, 0.1: 82.91, 0.2: 78.58},
        8: {0.001: 76.67, 0.01: 83.59, 0.02: 83.49, 0.05: 84.32, 0.1: 83.66, 0.2: 82.16, 0.5: 77.72},
    }
    return [
        Entry(f"{views} views", f"{weight:g}", {"num_global": views, "weight": weight}, figures.get(weight))
        for views, figures in paper.items()
        for weight in (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    ]


def _statistic() -> list[Entry]:
    points, ranges = (5, 17, 41), (1.0, 3.0, 5.0)
    paper: dict[int, tuple[float, ...]] = {  # Table 1a
        512: (71.82, 72.13, 72.04, 73.95, 74.16, 74.04, 73.71, 74.21, 74.15),
        2048: (72.88, 72.30, 72.69, 75.02, 74.68, 74.77, 74.50, 74.80, 74.77),
    }
    places = [(t_max, number) for t_max in ranges for number in points]
    return [
        Entry(
            f"{slices} slices",
            f"±{t_max:g}\n{number}",
            {"num_slices": slices, "t_max": t_max, "num_points": number},
            paper[slices][place] if slices in paper else None,
        )
        for slices in (16, 512, 2048)
        for place, (t_max, number) in enumerate(places)
    ]


def _one(name: str, label: str, figures: Mapping[int, float | None]) -> list[Entry]:
    return [Entry(label, str(value), {name: value}, paper) for value, paper in figures.items()]


def _heads() -> list[Entry]:
    paper = {  # Table 4, by layers of the projector
        (0, 0.0): (79.71, 82.44, 83.93),
        (0, SWA): (79.79, 82.69, 83.50),
        (PREDICTOR, 0.0): (79.41, 82.44, 83.57),
        (PREDICTOR, SWA): (78.87, 82.04, 82.82),
    }
    names = ("neither", "SWA centres", "predictor", "both")
    return [
        Entry(
            name, str(layers), {"projector_layers": layers, "predictor_width": width, "swa": swa}, figures[layers - 1]
        )
        for name, ((width, swa), figures) in zip(names, paper.items(), strict=True)
        for layers in (1, 2, 3)
    ]


VIT, RESNET = "ViT-L/14, ImageNet-1K", "ResNet-50, ImageNet-100"
TABLES = {
    "seeds": Table("seeds", "seed", "-", _one("seed", "usual setting", dict.fromkeys(range(5)))),
    "lambda": Table("lambda and views", "lambda", f"Table 7, {RESNET}", _lambdas()),
    "statistic": Table("Epps-Pulley and slices", "range and points", f"Table 1a, {VIT}", _statistic()),
    "batch": Table(
        "batch size",
        "images per step",
        f"Table 1c, {VIT}",
        _one("batch_size", "", {32: None, 64: None, 128: 72.20, 256: 74.15, 512: 74.72, 1024: 74.07}),
    ),
    "dim": Table(
        "dimension of the projections",
        "dimension",
        f"Table 1d, {VIT}",
        _one("dim", "", {16: None, 64: 75.29, 128: 74.77, 256: 74.56, 512: 73.94, 1024: 73.65}),
    ),
    "width": Table(
        "width of the projector",
        "hidden units",
        "-",
        _one("projector_width", "", dict.fromkeys((64, 128, 256, 512, 1024, 2048))),
    ),
    "heads": Table("projector, predictor, SWA", "layers of the projector", f"Table 4, {RESNET}", _heads()),
}


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 5_000,
    epochs: int = 6,
    only: str | None = None,
    kept: str = "runs/lejepa-stability.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Short trainings of the tiny ResNet-10 on a part of CIFAR-10, which differ in one or two settings each.

    Every training sees the same number of images, at the same learning rate: larger batches take fewer steps, more
    views more time. Five seeds of the usual setting tell which differences mean something.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        only: a single table: seeds, lambda, statistic, batch, dim, width or heads.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change, in all trainings that do not set them themselves.
    """
    arguments, began = dict(locals()), time.perf_counter()
    if only is not None and only not in TABLES:
        raise ValueError(f"only: expected one of {', '.join(TABLES)}, got {only!r}")
    tables = TABLES if only is None else {only: TABLES[only]}
    shared = {"data": data, "images": images, "epochs": epochs, **USUAL, **(changes or {})}
    cells = [shared | entry.change for table in tables.values() for entry in table.entries]
    outcomes = iter(run_cells(stability_cell, cells, Path(kept), jobs))
    found = {name: [next(outcomes) for _ in table.entries] for name, table in tables.items()}
    rows = [summary(tables[name], ours) for name, ours in found.items()]
    for name, ours in found.items():
        rows += [row(tables[name], entry, one) for entry, one in zip(tables[name].entries, ours, strict=True)]
    target = "lejepa-stability" + (f"-{only}" if only else "")
    title = (
        f"LeJEPA's settings: {images:,} images of CIFAR-10, {epochs} epochs, tiny ResNet-10, 16 px views, test images"
    )
    write_results(Path(results), target, title, rows, command(run, arguments), time.perf_counter() - began)
    draw(tables, found, Path(results) / f"{target}.png")


def stability_cell(data: str, images: int, **training: Any) -> dict[str, Any]:
    """Accuracy of the features, and how long and in how many steps they were trained."""
    source, test = parts(data, images, held_out=False)
    began = time.perf_counter()
    try:
        model, _ = trained(source, "lejepa", **({"backbone": "resnet10-tiny"} | training))
    except Diverged as error:
        return {"diverged": str(error)}
    minutes = (time.perf_counter() - began) / 60
    steps = training["epochs"] * max(1, len(source) // training["batch_size"])
    return {"minutes": minutes, "steps": steps, **accuracies(model, source, test)}


def summary(table: Table, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The first lines of the table: from where to where accuracies go."""

    def told(values: Sequence[float]) -> str:
        return f"{min(values):.1f} to {max(values):.1f}" if values else "-"

    finite = [one for one in found if "linear" in one]
    return {
        "table": table.title,
        "setting": f"all {len(found)}" + (f", {len(found) - len(finite)} not finite" if finite != found else ""),
        "steps": "",
        "k-NN %": told([one["knn"] for one in finite]),
        "linear %": told([one["linear"] for one in finite]),
        "paper, linear %": told([entry.paper for entry in table.entries if entry.paper is not None]),
        "paper": table.paper,
        "minutes": rounded(sum(one["minutes"] for one in finite), 1),
    }


def row(table: Table, entry: Entry, found: dict[str, Any]) -> dict[str, Any]:
    """One training; the summary has the same columns."""
    place = f"{table.axis} " + entry.tick.replace("\n", ", ")
    return {
        "table": table.title,
        "setting": ", ".join(filter(None, (entry.series, place))),
        "steps": found.get("steps", "not finite"),
        "k-NN %": rounded(found.get("knn"), 1),
        "linear %": rounded(found.get("linear"), 1),
        "paper, linear %": rounded(entry.paper, 2),
        "paper": "",
        "minutes": rounded(found.get("minutes"), 1),
    }


def draw(tables: dict[str, Table], found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A panel per table: linear accuracy below the table's best, here and in the paper, whose accuracies differ."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = [name for name in tables if name != "seeds"] or ["seeds"]
    seeds = [one["linear"] for one in found.get("seeds", []) if "linear" in one]
    columns = min(3, len(shown))
    figure = Figure(figsize=(4.6 * columns + 0.4, 3.5 * -(-len(shown) // columns) + 0.4), layout="constrained")
    axes = figure.subplots(-(-len(shown) // columns), columns, squeeze=False)
    for axis, name in zip(axes.flat, shown, strict=False):
        if seeds:
            axis.axhspan(min(seeds) - max(seeds), 0, color="grey", alpha=0.15, linewidth=0)
        _panel(axis, tables[name], found[name])
    for axis in axes[:, 0]:
        axis.set_ylabel("linear accuracy below the best, points")
    handles: list[Any] = [Line2D([], [], color="black", marker="o", markersize=4, label="here")]
    handles.append(Line2D([], [], color="black", linestyle=":", marker="o", markerfacecolor="white", label="paper"))
    if seeds:
        handles.append(Patch(color="grey", alpha=0.15, label=f"how far {len(seeds)} seeds are apart"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)


def _panel(axis: Any, table: Table, found: list[dict[str, Any]]) -> None:
    ticks = list(dict.fromkeys(entry.tick for entry in table.entries))
    lines = list(dict.fromkeys(entry.series for entry in table.entries))
    pairs = list(zip(table.entries, (one.get("linear") for one in found), strict=True))
    best = max((ours for _, ours in pairs if ours is not None), default=0.0)
    theirs = max((entry.paper for entry in table.entries if entry.paper is not None), default=0.0)
    for number, line in enumerate(lines):
        chosen = [(ticks.index(entry.tick), ours, entry.paper) for entry, ours in pairs if entry.series == line]
        seen = [(x, ours - best) for x, ours, _ in chosen if ours is not None]
        axis.plot([x for x, _ in seen], [y for _, y in seen], color=f"C{number}", marker="o", markersize=4, label=line)
        paper = [(x, figure - theirs) for x, _, figure in chosen if figure is not None]
        style = {"color": f"C{number}", "linestyle": ":", "marker": "o", "markerfacecolor": "white", "markersize": 4}
        axis.plot([x for x, _ in paper], [y for _, y in paper], **style)
    axis.set_xticks(range(len(ticks)), ticks, fontsize=8)
    axis.set(title=table.title, xlabel=table.axis)
    axis.grid(alpha=0.3)
    if len(lines) > 1:
        axis.legend(frameon=False, fontsize=8)
