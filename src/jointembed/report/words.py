"""The summary: sentences that follow from numbers, for a reader who never saw the papers."""

import math
from typing import Any

from jointembed._text import printable

GOOD, WARN, UNKNOWN = "good", "warn", "unknown"


def summarise(facts: dict[str, Any]) -> dict[str, Any]:
    """ "sentences" on what was trained, "checks" on whether to trust it, and what to try "next"."""
    checks = [_collapse(facts), _features(facts), _alarm(facts), _uncertainty(facts)]
    return {"sentences": _trained(facts), "checks": checks, "next": _next(facts, checks)}


def per_cent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _unbroken(text: str) -> str:
    """No line ends between a number and its per cent sign."""
    return text.replace(" %", "\u00a0%")


def _trained(facts: dict[str, Any]) -> list[str]:
    training, history = facts["training"], facts["history"]
    images, epochs = training["images"], history["epochs"]
    said = f"A {facts['backbone']} network was trained with {facts['method']}"
    if isinstance(images, int):
        said += f" on {images:,} images"
        said += f" of “{printable(training['data'])}”" if isinstance(training["data"], str) else ""
    said += ", without labels"
    if epochs is not None:
        said += f", for {epochs:,} epoch{'s' if epochs > 1 else ''}"
    if history["minutes"] is not None:
        said += f" in {_duration(history['minutes'])}"
    sentences = [said + "."]
    if history["curves"]:
        loss = history["curves"][0]["series"]["loss"]
        if len(loss) > 1:
            sentences.append(f"Its loss went from {loss[0]:.4g} in the first epoch to {loss[-1]:.4g} in the last.")
    return sentences


def _duration(minutes: float) -> str:
    if minutes < 2:
        return f"{60 * minutes:.0f} seconds"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def _check(name: str, verdict: str, text: str) -> dict[str, str]:
    return {"name": name, "verdict": verdict, "text": _unbroken(text)}


def _collapse(facts: dict[str, Any]) -> dict[str, str]:
    name, shape = "Collapse", facts.get("geometry")
    if shape is None:
        return _check(name, UNKNOWN, facts["missing"]["map"])
    if shape["collapse"]:
        return _check(name, WARN, f"Collapsed: {shape['collapse']}.")
    rank = f"{shape['effective_rank']:.0f} of {shape['dim']}"
    return _check(name, GOOD, f"No collapse: the features use about {rank} dimensions (effective rank).")


def _features(facts: dict[str, Any]) -> dict[str, str]:
    name, found = "Features", facts.get("evaluation")
    if found is None:
        return _check(name, UNKNOWN, f"Not measured. {facts['missing']['evaluation']}")
    knn, pixels = found["accuracy"]["k-NN"], found["accuracy"]["k-NN of raw pixels"]["value"]
    low, high = knn["interval"]
    text = (
        f"The nearest neighbours of an image name its class in {per_cent(knn['value'])} of all cases "
        f"(95 % interval {per_cent(low)} to {per_cent(high)}); those by raw pixels in {per_cent(pixels)}, "
        f"and always saying the most frequent class in {per_cent(found['chance'])}."
    )
    return _check(name, GOOD if low > max(pixels, found["chance"]) else WARN, text)


def _alarm(facts: dict[str, Any]) -> dict[str, str]:
    name, found = "Anomaly alarm", facts.get("alarm")
    if found is None:
        return _check(name, UNKNOWN, facts["missing"]["alarm"])
    step = found["steps"][found["chosen"]]
    shown = len(facts["scores"][found["kind"]])
    text = f"{step['above']:,} of {shown:,} images ({per_cent(step['above'] / shown)}) are above the threshold for a "
    text += f"false-alarm rate of {per_cent(step['rate'])}"
    if step["low"] is None:
        return _check(name, WARN, text + ", which is set by training images: the true rate is unknown.")
    text += f", whose true value is {per_cent(step['low'])} to {per_cent(step['high'])} (95 % interval)."
    many = step["above"] / shown > step["high"]
    return _check(name, WARN if many else GOOD, text + (" More than normal images would give." if many else ""))


def _uncertainty(facts: dict[str, Any]) -> dict[str, str]:
    name = "Uncertainty"
    if facts.get("geometry") is None:
        return _check(name, UNKNOWN, facts["missing"]["map"])
    if facts["uncertainty"] is None:
        return _check(name, UNKNOWN, facts["why_no_uncertainty"])
    if facts["evaluation"] is None:
        return _check(name, UNKNOWN, f"Not judged. {facts['missing']['evaluation']}")
    found = facts["evaluation"]
    sure, unsure = found["risk_coverage"]["posterior variance"]["halves"]
    n = found["test_images"] / 2
    # Two shares of n each differ by more than chance gives in 95 % of all cases.
    noise = 1.96 * math.sqrt((sure * (1 - sure) + unsure * (1 - unsure)) / n)
    text = (
        f"Of the images with the smaller posterior variance {per_cent(sure)} are misjudged by their neighbours, "
        f"of those with the larger {per_cent(unsure)}"
    )
    if unsure - sure > noise:
        return _check(name, GOOD, text + ": a large variance is a warning.")
    return _check(name, WARN, text + ": the variance does not tell which are wrong.")


def _next(facts: dict[str, Any], checks: list[dict[str, str]]) -> list[str]:
    """What the numbers suggest."""
    words = []
    history, shape, found = facts["history"], facts.get("geometry"), facts.get("evaluation")
    planned = facts["training"]["epochs"]
    if history["epochs"] is not None and isinstance(planned, int) and history["epochs"] < planned:
        words.append(
            f"The training stopped after {history['epochs']:,} of {planned:,} epochs: go on with train --resume."
        )
    if shape is not None and shape["collapse"]:
        words.append("Undo the collapse first: nothing else in this report says much before that.")
    if (rise := _rise(history)) is not None:
        before, last = map(per_cent, rise)
        words.append(f"The online k-NN accuracy still rose at its last look, from {before} to {last}: train longer.")
    if any(check["name"] == "Features" and check["verdict"] == WARN for check in checks):
        words.append(
            "The features are not clearly better than raw pixels: train longer, or look whether the views keep what "
            "tells your classes apart (--view_options)."
        )
    alarm = facts.get("alarm")
    if alarm is not None and alarm["known"] == "train":
        words.append("Train with hold_out above 0, so that the alarm has a known false-alarm rate.")
    elif alarm is not None and alarm["steps"][alarm["chosen"]]["rate"] > alarm["asked"]:
        words.append(
            f"A false-alarm rate of {per_cent(alarm['asked'])} needs more than the {alarm['known_images']:,} images "
            "that were held out: train with a larger hold_out."
        )
    if facts.get("samples") is not None and not facts["decoder"]:
        words.append("To see what the density draws as pictures, train a decoder: jointembed decode.")
    if shape is not None and found is None:
        words.append("A few hundred labels, as sub-folders by class, would allow to measure the features.")
    return [_unbroken(text) for text in words] or ["Nothing in these numbers asks for a change."]


def _rise(history: dict[str, Any]) -> tuple[float, float] | None:
    """The last two looks of the online k-NN, if the last is the best and by a point above the one before."""
    knn = [c["series"]["knn"] for c in history["curves"] if "knn" in c["series"]]
    if not knn or len(knn[0]) < 2 or knn[0][-1] < max(knn[0]) or knn[0][-1] - knn[0][-2] < 0.01:
        return None
    return knn[0][-2], knn[0][-1]
