"""`select`: which run is best, without labels?"""

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jointembed import methods
from jointembed.data import Source, open_source
from jointembed.metrics import alpha_req, effective_rank, information, isotropy, lidar, rank_me, uniformity
from jointembed.model import Config, Model, load

from .geometry import IMAGES, NUM_VIEWS, VIEWED_IMAGES, spread
from .views import embed_views

LEJEPA_POWER = 0.4  # the exponent at which the paper's Fig. 11 has the best correlation with downstream accuracy
# Settings that change what a run's loss, or its views, are: across them the figures do not measure the same.
LOSS_SETTINGS = (
    "data",
    "images",
    "batch_size",
    "num_global",
    "num_local",
    "view_size",
    "local_size",
    "preset",
    "view_options",
    "test",
    "t_max",
    "num_points",
)
VIEW_SETTINGS = ("view_size", "preset", "view_options")


class Proxy(NamedTuple):
    """A label-free measure of the features of one image each (N, D), or of several views (N, V, D)."""

    measure: Callable[[Any], float]
    higher_is_better: bool
    of_views: bool = False


PROXIES = {
    "information": Proxy(information, True, of_views=True),
    "rank_me": Proxy(rank_me, True),
    "effective_rank": Proxy(effective_rank, True),
    "lidar": Proxy(lidar, True, of_views=True),
    "alpha_req": Proxy(lambda z: abs(alpha_req(z) - 1), False),
    "isotropy": Proxy(isotropy, True),
    "uniformity": Proxy(uniformity, False),
}
CRITERIA = ("auto", "lejepa", *PROXIES)
OTHERS = "information"  # by far the best of these over short trainings of LeJEPA (docs/measured.md)


@dataclass(frozen=True)
class Selection:
    """One row per run, best first: {"run", "method", "criterion", "value", "rank"}; ranks count within a criterion.

    `notes` say what to keep in mind about them, such as runs that cannot be compared.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


def select(
    runs: Sequence[str | Path],
    criterion: str = "auto",
    data: Any = None,
    images: int = IMAGES,
    space: str | None = None,
    root: str | Path | None = None,
    seed: int = 0,
) -> Selection:
    """Rank runs without labels.

    "lejepa" is the paper's criterion for LeJEPA runs, the training loss of the last epoch / lambda^0.4, lower is
    better; it needs no images. The others measure the features of `data`: "information", "rank_me", "effective_rank",
    "lidar" and "isotropy", higher is better, "uniformity" and "alpha_req", here |alpha - 1|, lower is better.

    Where there are images, prefer "information", what one view tells of which image it shows, for LeJEPA too: over
    its short trainings it ordered runs far better than anything else here; for other methods that was not tried. It
    asks for views alike in all runs. A high rank is necessary for good features rather than enough, and highest of all
    before a network has learned; between methods trained as long "rank_me" has been compared with accuracy, and
    "information" has not.

    Runs are ranked among those with the same criterion only.

    Args:
        runs: run folders, each once.
        criterion: one of these names, for all runs; "auto" takes "lejepa" for LeJEPA and "information" for other
            methods, which gives two rankings where there are both.
        data: images, labels unused; not needed for "lejepa".
        images: at most so many of them; "information" and "lidar" take at most 1,000 with ten views each.
        space: which embedding is measured; by default the methods' features.
        root: where torchvision data sets are, or go.
        seed: of the views.
    """
    if criterion not in CRITERIA:
        raise ValueError(f"criterion: expected one of {', '.join(CRITERIA)}, got {criterion!r}")
    if images < 2:
        raise ValueError(f"images: expected at least 2, got {images}")
    configs = _configs(runs)
    chosen = {run: _criterion_of(config, criterion) for run, config in configs.items()}
    _check_runs(configs, chosen, data)
    value = {run: _lejepa(run, configs[run]) for run in chosen if chosen[run] == "lejepa"}
    for run in chosen:
        if run not in value:
            value[run] = _measure(run, chosen[run], data, images, space, root, seed)
    rows = []
    for name in dict.fromkeys(chosen.values()):
        sign = -1 if name in PROXIES and PROXIES[name].higher_is_better else 1
        group = sorted((run for run in chosen if chosen[run] == name), key=lambda run: sign * value[run])
        for run in group:
            rank = 1 + sum(sign * value[other] < sign * value[run] for other in group)
            method = configs[run].method
            rows.append({"run": str(run), "method": method, "criterion": name, "value": value[run], "rank": rank})
    return Selection(rows, _notes(configs, chosen))


def _configs(runs: Sequence[str | Path]) -> dict[Path, Config]:
    if isinstance(runs, str | Path) or not runs:
        raise ValueError(f"runs: expected a list of run folders, got {runs!r}")
    folders = [Path(run) for run in runs]
    if bad := [str(run) for run in folders if not (run / "config.json").is_file()]:
        raise ValueError(f"runs: expected run folders with a config.json, not so: {', '.join(bad)}")
    if twice := [str(run) for run in folders if [other.resolve() for other in folders].count(run.resolve()) > 1]:
        raise ValueError(f"runs: expected each run once, got {', '.join(twice)}")
    return {run: Config.read(run / "config.json") for run in folders}


def _criterion_of(config: Config, criterion: str) -> str:
    if criterion != "auto":
        return criterion
    return "lejepa" if config.method == "lejepa" else OTHERS


def _check_runs(configs: dict[Path, Config], chosen: dict[Path, str], data: Any) -> None:
    """Everything that can be known to fail before any image is read."""
    by_loss = [run for run, name in chosen.items() if name == "lejepa"]
    by_features = [run for run, name in chosen.items() if name != "lejepa"]
    if others := [f"{run} ({configs[run].method})" for run in by_loss if configs[run].method != "lejepa"]:
        raise ValueError(f"criterion: 'lejepa' compares losses of LeJEPA runs, not so: {', '.join(others)}")
    if by_features and data is None:
        names = ", ".join(f"{run} ({configs[run].method})" for run in by_features)
        raise ValueError(f"data: expected images to measure features of, for {names}, got None")
    for run in by_features:
        if not (run / "model.safetensors").is_file():
            raise ValueError(f"runs: expected a trained model, {run} has no model.safetensors")
        if configs[run].backbone is None:
            raise ValueError(f"runs: expected backbones known by name, that of {run} is a module of its user's own")


def _lejepa(run: Path, config: Config) -> float:
    """Training loss / lambda^0.4 (the paper's Eq. 8)."""
    weight = config.method_options.get("weight", methods.get("lejepa").options()["weight"].default)
    if not isinstance(weight, int | float) or not weight > 0:
        raise ValueError(f"runs: expected a weight (lambda) above 0, to divide the loss by, {run} has {weight}")
    return _final(run)[1] / weight**LEJEPA_POWER


def _final(run: Path) -> tuple[int, float]:
    """Epoch, from 1, and loss of the last row of metrics.csv that has a loss."""
    path = run / "metrics.csv"
    if not path.is_file():
        raise ValueError(f"runs: expected a metrics.csv with the training loss, {run} has none")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("loss")]
    try:
        epoch, loss = int(rows[-1]["epoch"]) + 1, float(rows[-1]["loss"])
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"runs: expected epochs and losses in {path}, found none in its last row") from None
    if not math.isfinite(loss):
        raise ValueError(f"runs: expected a finite training loss, {run} ended with {loss}")
    return epoch, loss


def _measure(
    run: Path, name: str, data: Any, images: int, space: str | None, root: str | Path | None, seed: int
) -> float:
    proxy, model = PROXIES[name], load(run)
    source = _open(model, data, root)
    try:
        if proxy.of_views:
            return proxy.measure(embed_views(model, spread(source, min(images, VIEWED_IMAGES)), NUM_VIEWS, space, seed))
        return proxy.measure(model.embed(spread(source, images), space, progress=False))
    except ValueError as error:
        raise ValueError(f"{name} of {run}: {error}") from error


def _open(model: Model, data: Any, root: str | Path | None) -> Source:
    return open_source(data, root=root, channels=model.config.channels if model.config.channels in (1, 3) else None)


def _notes(configs: dict[Path, Config], chosen: dict[Path, str]) -> list[str]:
    notes = []
    criteria = list(dict.fromkeys(chosen.values()))
    if len(criteria) > 1:
        notes.append(
            f"ranked apart, by {' and by '.join(criteria)}: their values cannot be compared; "
            f"give one criterion, such as {OTHERS}, to rank all runs by it"
        )
    for name in criteria:
        group = {run: configs[run] for run, its in chosen.items() if its == name}
        settings = LOSS_SETTINGS if name == "lejepa" else VIEW_SETTINGS if PROXIES[name].of_views else ()
        if different := _different(list(group.values()), settings):
            what = "losses" if name == "lejepa" else "views"
            notes.append(f"{name}: the runs differ in {', '.join(different)}, so that their {what} are not alike")
        if name != "lejepa" and len({(config.method, config.backbone) for config in group.values()}) > 1:
            known = "; across methods rank_me is tested, it is not" if name == OTHERS else ""
            notes.append(f"{name}: the runs differ in method or backbone, across which it says less{known}")
    for run, name in chosen.items():
        epochs = configs[run].training.get("epochs")
        if name == "lejepa" and isinstance(epochs, int) and _final(run)[0] < epochs:
            notes.append(f"{run}: stopped after {_final(run)[0]} of {epochs} epochs")
    return notes


def _different(configs: list[Config], names: Sequence[str]) -> list[str]:
    """Which of these settings are not the same in all configurations."""

    def value(config: Config, name: str) -> str:
        # A run from before an option was there is one with its default.
        options = {option: p.default for option, p in methods.get(config.method).options().items()}
        views = {"preset": methods.get(config.method).preset, "view_size": config.image_size}
        given = options | config.method_options | views | {k: v for k, v in config.training.items() if v is not None}
        return json.dumps(given.get(name), sort_keys=True)

    return [name for name in names if len({value(config, name) for config in configs}) > 1]
