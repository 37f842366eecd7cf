"""What may happen to a view and how often: the settings, and the papers' values of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from jointembed._text import closest_first

Range = tuple[float, float]
Chance = float | tuple[float, ...]  # of every view, or of the first, the second, ...; the last stands for the rest


@dataclass(frozen=True)
class Settings:
    """A bare operation name (`flip`, `grey`, ...) is its probability; everything else is a range or a strength.

    Views may differ in a probability: `blur=(1.0, 0.1)` is for the first view and for all others, global before local.

    The papers drop the blur on CIFAR-sized images, so it is applied to views of at least `blur_min_size` pixels only.
    Overriding `blur` by keyword (`Views(32, "simclr", blur=0.5)`) is taken at its word and blurs views of any size.
    """

    crop_scale: Range = (0.08, 1.0)  # area of a global view's crop, as a fraction of the image
    local_scale: Range = (0.05, 0.3)
    ratio: Range = (3 / 4, 4 / 3)  # width / height of the crop, log-uniform
    flip: Chance = 0.5
    vertical_flip: Chance = 0.0
    rotation: float = 0.0  # degrees, uniform in [-rotation, rotation]; zeros come in at the corners
    jitter: Chance = 0.8
    jitter_strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    grey: Chance = 0.2
    blur: Chance = 0.5
    blur_sigma: Range = (0.1, 2.0)  # pixels; the kernel spans a tenth of the view, at least 3 pixels
    blur_min_size: int = 64
    solarise: Chance = 0.0
    solarise_threshold: float = 128 / 255

    def __post_init__(self) -> None:
        for name in CHANCES:
            _check(name, getattr(self, name), "a number in [0, 1], or one for each view", _are_chances)
        _check("solarise_threshold", self.solarise_threshold, "a number in [0, 1]", _are_chances, _is_number)
        for name in ("crop_scale", "local_scale"):
            _check(name, getattr(self, name), "(low, high) with 0 < low <= high <= 1", _are_numbers(2), _is_scale)
        for name in ("ratio", "blur_sigma"):
            _check(name, getattr(self, name), "(low, high) with 0 < low <= high", _are_numbers(2), _is_range)
        _check("rotation", self.rotation, "degrees in [0, 180]", _is_number, lambda angle: 0 <= angle <= 180)
        expected = "(brightness, contrast, saturation, hue), none negative and hue <= 0.5"
        _check(
            "jitter_strength", self.jitter_strength, expected, _are_numbers(4), lambda s: min(s) >= 0 and s[3] <= 0.5
        )
        _check("blur_min_size", self.blur_min_size, "an integer >= 1", lambda n: isinstance(n, int), lambda n: n >= 1)


def _check(name: str, value: Any, expected: str, *conditions: Any) -> None:
    if not all(condition(value) for condition in conditions):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


CHANCES = ("flip", "vertical_flip", "jitter", "grey", "blur", "solarise")


def _are_chances(value: Any) -> bool:
    values = value if isinstance(value, tuple | list) else [value]
    return len(values) > 0 and all(_is_number(p) and 0 <= p <= 1 for p in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _are_numbers(count: int) -> Any:
    return lambda value: isinstance(value, tuple | list) and len(value) == count and all(map(_is_number, value))


def _is_range(value: Range) -> bool:
    return 0 < value[0] <= value[1]


def _is_scale(value: Range) -> bool:
    return _is_range(value) and value[1] <= 1


PRESETS: dict[str, Settings] = {
    # Chen et al. 2020, appendix A, colour distortion of strength 1.
    "simclr": Settings(crop_scale=(0.08, 1.0), jitter_strength=(0.8, 0.8, 0.8, 0.2)),
    # Chen, Fan, Girshick, He 2020.
    "moco-v2": Settings(crop_scale=(0.2, 1.0), jitter_strength=(0.4, 0.4, 0.4, 0.1)),
    # Grill et al. 2020, appendix B; VICReg's and Barlow Twins' views are these.
    "byol": Settings(jitter_strength=(0.4, 0.4, 0.2, 0.1), blur=(1.0, 0.1), solarise=(0.0, 0.2)),
    # Caron et al. 2020, with two global views and six local ones.
    "swav": Settings(crop_scale=(0.14, 1.0), local_scale=(0.05, 0.14), jitter_strength=(0.8, 0.8, 0.8, 0.2)),
    # Caron et al. 2021, with two global views and eight local ones.
    "dino": Settings(
        crop_scale=(0.4, 1.0),
        local_scale=(0.05, 0.4),
        jitter_strength=(0.4, 0.4, 0.2, 0.1),
        blur=(1.0, 0.1, 0.5),
        solarise=(0.0, 0.2, 0.0),
    ),
    # Balestriero and LeCun 2025, with the values of the authors' code.
    "lejepa": Settings(crop_scale=(0.3, 1.0), jitter_strength=(0.4, 0.4, 0.2, 0.1), solarise=0.2),
    # Grey digits: a mirrored digit is another character, and there is no colour.
    "mnist": Settings(
        crop_scale=(0.5, 1.0), flip=0.0, rotation=15.0, jitter_strength=(0.4, 0.4, 0.0, 0.0), grey=0.0, blur=0.0
    ),
}


def presets() -> tuple[str, ...]:
    """The names `Views(preset=...)` knows."""
    return tuple(PRESETS)


def resolve(preset: str | Settings, overrides: dict[str, Any]) -> Settings:
    """The preset's settings with the overrides laid over them."""
    if isinstance(preset, str) and preset not in PRESETS:
        raise ValueError(f"preset: expected one of {_quoted(preset, PRESETS)}, got {preset!r}")
    if not isinstance(preset, str | Settings):
        raise ValueError(f"preset: expected a name or Settings, got {type(preset).__name__}")
    known = [field.name for field in fields(Settings)]
    for name in overrides:
        if name not in known:
            raise ValueError(f"{name}: not a setting of Views; expected one of {_quoted(name, known)}")
    if "blur" in overrides:
        overrides = {"blur_min_size": 1} | overrides
    return replace(PRESETS[preset] if isinstance(preset, str) else preset, **overrides)


def _quoted(word: str, known: Iterable[str]) -> str:
    return ", ".join(map(repr, closest_first(word, known)))
