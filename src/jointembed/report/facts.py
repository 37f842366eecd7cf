"""Everything a report says, gathered as plain data: no page is needed to look at it, or to test it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from jointembed import __version__
from jointembed._text import printable
from jointembed.data import Source, open_source, splits
from jointembed.decoding import NAMES, load_decoder
from jointembed.metrics import geometry
from jointembed.model import Model, load
from jointembed.training.callbacks import diagnosis

from .alarm import alarm
from .encoded import Encoded, affordable_scores, encode, has_density, nearest
from .history import read_history, settings
from .judged import judge, spoilt
from .maps import flatten
from .patches import patch_features, patch_rgb
from .sprites import picture_sheet, sprites
from .words import summarise

NEIGHBOURS, GALLERY, DRAWS, PATCHED = 8, 12, 12, 8
LEAST = 5  # images of a class to learn it from
NO_IMAGES = "No images were given (--data)."


@dataclass(frozen=True)
class Images:
    """The images of a report: those on its map, and others to test on where the data have them."""

    shown: Source
    rows: Tensor  # which of the source
    total: int
    test: Source | None


def choose(data: Any, channels: int | None, limit: int, root: Any, seed: int) -> Images:
    """At most `limit` images of the data, at random, and as many of its test split."""
    source = open_source(data, root=root, channels=channels, minimum=4)
    rows = _some(len(source), limit, seed)
    test = None
    if not isinstance(data, Source) and "test" in splits(data, root=root):
        whole = open_source(data, split="test", root=root, channels=channels)
        test = whole.subset(_some(len(whole), limit, seed))
    return Images(source.subset(rows), rows, len(source), test)


def _some(length: int, limit: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:limit].sort().values


def gather(
    runs: list[Path],
    data: Any = None,
    images: int = 5000,
    score: str | None = None,
    false_alarm_rate: float = 0.05,
    root: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The facts of a report, ready for JSON: "images" with their thumbnails, and for each of "runs" what was found.

    Args are those of `write_report`.
    """
    models = [load(run) for run in runs]
    for run, model in zip(runs, models, strict=True):
        if score is not None and score not in model.method.scores:
            raise ValueError(f"score: expected one of {', '.join(model.method.scores)} for {run}, got {score!r}")
    chosen = [None if data is None else choose(data, _channels(m), images, root, seed) for m in models]
    found = [
        _run(name, run, model, some, score, false_alarm_rate, seed)
        for name, run, model, some in zip(_names(runs), runs, models, chosen, strict=True)
    ]
    facts: dict[str, Any] = {"version": __version__, "runs": found, "images": None}
    if chosen[0] is not None:
        facts["images"] = _images(chosen[0])
    return finite(facts)


def _channels(model: Model) -> int | None:
    return model.config.channels if model.config.channels in (1, 3) else None


def _names(runs: list[Path]) -> list[str]:
    """The last part of each path, or all of it where that is not unique."""
    last = [run.resolve().name for run in runs]
    return [printable(name if last.count(name) == 1 else run) for name, run in zip(last, runs, strict=True)]


def _images(chosen: Images) -> dict[str, Any]:
    source = chosen.shown
    names = source.names or [f"image {row:,}" for row in chosen.rows.tolist()]
    labels = None if source.labels is None else source.labels.tolist()
    return {
        "source": printable(source.name),
        "count": len(source),
        "total": chosen.total,
        "names": [printable(name) for name in names],
        "labels": labels,
        "classes": None if labels is None else _classes(source),
        **sprites(source),
    }


def _classes(source: Source) -> list[str]:
    assert source.labels is not None
    count = int(source.labels.max()) + 1
    return [printable(name) for name in (source.class_names or map(str, range(count)))]


def _run(
    name: str, folder: Path, model: Model, chosen: Images | None, score: str | None, rate: float, seed: int
) -> dict[str, Any]:
    config = model.config
    facts: dict[str, Any] = {
        "name": name,
        "method": config.method,
        "backbone": printable(config.backbone or type(model.method.backbone).__name__),
        "settings": settings(config),
        "training": {key: config.training.get(key) for key in ("images", "epochs", "data", "hold_out")},
        "history": read_history(folder, config),
        "decoder": all((folder / part).is_file() for part in NAMES),
        "missing": {},
    }
    if chosen is None:
        facts["missing"] = dict.fromkeys(("map", "extremes", "alarm", "samples", "patches", "evaluation"), NO_IMAGES)
    else:
        names = affordable_scores(model, score)
        encoded = encode(model, chosen.shown, names)
        kind = next(iter(names), None)
        facts |= _cloud(encoded, seed) | {"kind": kind} | _extremes(encoded, kind, chosen.shown)
        _add(facts, "alarm", _alarm(model, kind, encoded, rate))
        _add(facts, "samples", _samples(model, folder, encoded, seed))
        _add(facts, "patches", _patches(model, chosen, seed))
        _add(facts, "evaluation", _evaluation(model, chosen, encoded, kind, seed))
        if kind is not None:
            _add(facts, "spoilt", spoilt(model, chosen.test or chosen.shown, kind))
    return facts | {"summary": summarise(facts)}


def _add(facts: dict[str, Any], section: str, found: dict[str, Any]) -> None:
    """A section, or the sentence that says why there is none."""
    facts[section] = None if "missing" in found else found
    if "missing" in found:
        facts["missing"][section] = found["missing"]


def _cloud(encoded: Encoded, seed: int) -> dict[str, Any]:
    z = encoded.features
    shape = geometry(z)
    return {
        "geometry": {**shape._asdict(), "dim": z.shape[1], "collapse": diagnosis(shape, z.shape[1])},
        "maps": {name: {"x": short(xy[:, 0]), "y": short(xy[:, 1])} for name, xy in flatten(z, seed).items()},
        "neighbours": nearest(F.normalize(z, dim=1), F.normalize(z, dim=1), NEIGHBOURS, same=True)[1].tolist(),
        "scores": {name: short(values) for name, values in encoded.scores.items()},
        "uncertainty": None if encoded.uncertainty is None else short(encoded.uncertainty),
    }


def _extremes(encoded: Encoded, kind: str | None, source: Source) -> dict[str, Any]:
    """The strangest and the most typical images, the least and the most certain ones, and the classes' variance."""
    found: dict[str, Any] = {"extremes": {}, "class_variance": None, "why_no_uncertainty": encoded.why_not}
    each = min(GALLERY, len(source) // 2)
    if kind is not None:
        order = encoded.scores[kind].nan_to_num(torch.inf).argsort(descending=True, stable=True)
        found["extremes"] |= {"strangest": order[:each].tolist(), "typical": order.flip(0)[:each].tolist()}
    if encoded.uncertainty is not None:
        order = encoded.uncertainty.argsort(descending=True, stable=True)
        found["extremes"] |= {"least_certain": order[:each].tolist(), "most_certain": order.flip(0)[:each].tolist()}
        if source.labels is not None and (source.labels >= 0).any():
            found["class_variance"] = [
                {"label": c, "mean": float(part.mean()), "std": float(part.std(correction=0)), "count": len(part)}
                for c in source.labels.unique().tolist()
                if c >= 0 and len(part := encoded.uncertainty[source.labels == c])
            ]
    return found


def _alarm(model: Model, kind: str | None, encoded: Encoded, rate: float) -> dict[str, Any]:
    if kind is None:
        return {"missing": "The run has no density: its training ended before the last step (see its log.txt)."}
    return alarm(model, kind, encoded.scores[kind], rate)


def _samples(model: Model, folder: Path, encoded: Encoded, seed: int) -> dict[str, Any]:
    """Draws from the latent density, the images nearest to each, and how near these are."""
    if not has_density(model) or not encoded.latents.isfinite().all():
        return {"missing": "The run has no density to draw from: its training ended before the last step."}
    if not model.method.generative:
        return {"missing": f"{model.method.name} brings its embeddings to follow no density that could be drawn from."}
    drawn = model.sample(DRAWS, seed)
    distance, index = nearest(encoded.latents, drawn, 5)
    between, _ = nearest(encoded.latents, encoded.latents, 1, same=True)
    ratio = float(distance[:, 0].median() / between.median().clamp_min(1e-12))
    found: dict[str, Any] = {"nearest": index.tolist(), "distance": short(distance[:, 0]), "ratio": ratio}
    decoded = all((folder / part).is_file() for part in NAMES)
    return found | {"pictures": picture_sheet(load_decoder(folder).decode(drawn)) if decoded else None}


def _patches(model: Model, chosen: Images, seed: int) -> dict[str, Any]:
    """A few images and the first three principal components of their patches' features, as colours."""
    some = _some(len(chosen.shown), PATCHED, seed)
    try:
        colours = patch_rgb(patch_features(model, chosen.shown.subset(some)), together=True)  # (N, H, W, 3)
    except ValueError:
        return {"missing": "The backbone gives no map of patches, or one of a single patch."}
    pixels = (255 * colours).round().byte().permute(0, 3, 1, 2)
    return {"rows": some.tolist(), "grid": list(colours.shape[1:3]), "pictures": picture_sheet(pixels)}


def _evaluation(model: Model, chosen: Images, encoded: Encoded, kind: str | None, seed: int) -> dict[str, Any]:
    """`judge` on the test split, or on a fifth of the images shown."""
    labels = chosen.shown.labels
    if labels is None or not (labels >= 0).any():
        return {"missing": "The data have no labels."}
    known = torch.nonzero(labels >= 0).flatten()
    if chosen.test is not None and chosen.test.labels is not None and (chosen.test.labels >= 0).any():
        test = chosen.test.subset(torch.nonzero(chosen.test.labels >= 0).flatten())
        split, train = "the test split", known
        pair = test, encode(model, test, [kind] if kind else [])
    else:
        order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
        held = max(len(order) // 5, 1)
        split, train = "a fifth of the images, held out at random", order[held:]
        pair = chosen.shown.subset(order[:held]), _rows(encoded, order[:held])
    if int((torch.bincount(labels[train]) >= LEAST).sum()) < 2:
        return {"missing": f"Fewer than two classes have {LEAST} images with labels."}
    return judge(model, (chosen.shown.subset(train), _rows(encoded, train)), pair, kind, seed) | {"split": split}


def _rows(encoded: Encoded, rows: Tensor) -> Encoded:
    uncertainty = None if encoded.uncertainty is None else encoded.uncertainty[rows]
    scores = {name: values[rows] for name, values in encoded.scores.items()}
    return Encoded(encoded.features[rows], encoded.latents[rows], scores, uncertainty, encoded.why_not)


def finite(value: Any) -> Any:
    """The same with None for numbers that are none, at any depth: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short(values: Tensor | np.ndarray, digits: int = 5) -> list[float]:
    """Numbers with so many digits: thousands of them are to be read and stored."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, np.float64).tolist()]
