"""What a run folder tells without its images: the course of the training, and how it was set up."""

from pathlib import Path
from typing import Any

from jointembed._text import printable
from jointembed.model import Config
from jointembed.training.logs import read_metrics
from jointembed.training.module import lr_share

GEOMETRY = {"effective_rank": "Effective rank", "knn": "Online k-NN accuracy"}
UNPLOTTED = {"epoch", "step", "feature_std", "feature_norm", "images_per_second", "minutes", "loss", *GEOMETRY}


def read_history(folder: Path, config: Config) -> dict[str, Any]:
    """The curves of metrics.csv, each {"title", "epoch", "series"}, the epochs done and the minutes they took.

    A file that is missing or broken gives no curves, and a sentence that says so.
    """
    path = folder / "metrics.csv"
    if not path.is_file():
        return _nothing("The run folder has no metrics.csv: no epoch was finished, or the file was removed.")
    try:
        rows = [{name: float(cell) for name, cell in row.items()} for row in read_metrics(path)]
    except (ValueError, TypeError, AttributeError, UnicodeDecodeError):
        return _nothing("metrics.csv is not what a training writes: it holds something else than numbers.")
    if not rows or not all({"epoch", "step", "loss"} <= set(row) for row in rows):
        return _nothing("metrics.csv is not what a training writes: it lacks epoch, step or loss.")
    terms = sorted(set().union(*rows) - UNPLOTTED)
    curves = [_curve("Loss", rows, ["loss"])]
    curves += [_curve(f"Term: {printable(name)}", rows, [name]) for name in terms]
    curves += [_curve(title, rows, [name]) for name, title in GEOMETRY.items() if any(name in row for row in rows)]
    if (rate := _learning_rate(rows, config)) is not None:
        curves.append(rate)
    return {"curves": curves, "epochs": len(rows), "minutes": rows[-1].get("minutes"), "missing": None}


def _nothing(why: str) -> dict[str, Any]:
    return {"curves": [], "epochs": None, "minutes": None, "missing": why}


def _curve(title: str, rows: list[dict[str, float]], names: list[str]) -> dict[str, Any]:
    measured = [row for row in rows if names[0] in row]
    series = {printable(name): [row[name] for row in measured] for name in names}
    return {"title": title, "epoch": [int(row["epoch"]) + 1 for row in measured], "series": series}


def _learning_rate(rows: list[dict[str, float]], config: Config) -> dict[str, Any] | None:
    """At the last step of each epoch, by the schedule: metrics.csv does not hold it."""
    training = config.training
    if not all(isinstance(training.get(name), int | float) for name in ("lr", "warmup_epochs", "epochs")):
        return None
    per_epoch = (rows[-1]["step"] + 1) / (rows[-1]["epoch"] + 1)
    steps = round(per_epoch * training["epochs"])
    shares = [lr_share(int(row["step"]), steps, training["warmup_epochs"] * per_epoch) for row in rows]
    epochs = [int(row["epoch"]) + 1 for row in rows]
    return {"title": "Learning rate", "epoch": epochs, "series": {"lr": [training["lr"] * s for s in shares]}}


def settings(config: Config) -> list[tuple[str, str]]:
    """The configuration as rows of a table, versions last."""
    training = dict(config.training)
    versions = training.pop("versions", None)
    rows: dict[str, Any] = {"method": config.method, "backbone": config.backbone or "a module of the user's own"}
    rows |= {f"{config.method}: {name}": value for name, value in config.method_options.items()}
    rows |= {"image size": config.image_size, "channels": config.channels}
    rows |= {name.replace("_", " "): value for name, value in training.items() if value not in (None, {}, "")}
    if isinstance(versions, dict):
        rows |= {f"version of {name}": value for name, value in versions.items()}
    return [(printable(name)[:200], printable(value)[:400]) for name, value in rows.items()]
