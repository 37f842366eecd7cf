"""The model card: what a stranger has to know of a model, from its configuration alone."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from huggingface_hub import ModelCard, ModelCardData

from jointembed import methods
from jointembed._text import printable

if TYPE_CHECKING:
    from jointembed.model import Model

LEFT_OUT = ("data", "images", "versions", "view_options", "trainer")  # said elsewhere on the card, or no figures


def model_card(model: "Model") -> ModelCard:
    """With the method, the data, the settings, and how to use it; figures only if the model itself holds them."""
    c, cls = model.config, type(model.method)
    data = ModelCardData(library_name="jointembed", tags=["self-supervised-learning", c.method])
    parameters = sum(p.numel() for p in model.method.backbone.parameters())
    facts = {
        "method": f"{c.method}: {methods.summary(cls)}",
        "backbone": f"{c.backbone or 'a module of its own'}, {parameters:,} parameters",
        "images": f"{c.channels} x {c.image_size} x {c.image_size}, mean {_list(c.mean)}, std {_list(c.std)}",
        "trained on": f"{c.training.get('images', 'unknown')} images of {c.training.get('data', 'unknown data')}",
        "spaces": ", ".join(model.method.spaces),
        "anomaly scores": ", ".join(model.method.scores),
        "scores kept": ", ".join(f"{len(v):,} ({name})" for name, v in model.reference.items()) or "none",
    }
    settings = {**c.method_options, **{k: v for k, v in c.training.items() if k not in LEFT_OUT and v is not None}}
    versions = c.training.get("versions")
    made = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else "unknown"
    text = "\n\n".join(
        [
            f"---\n{data.to_yaml()}\n---",
            f"# {_cell(c.method)} on {_cell(c.backbone or 'a network of its own')}",
            "An image encoder trained without labels: JSON and safetensors, nothing of it is executed.",
            _table("", "", facts),
            f"```python\n{_use(model)}\n```",
            "## How it was trained",
            _table("setting", "value", settings),
            f"Made with {_cell(made)}.",
            "No figures on labelled images are known from the configuration: `jointembed evaluate` measures them.",
        ]
    )
    return ModelCard(text + "\n")


def _use(model: "Model") -> str:
    own = "" if model.config.backbone else ", backbone=yours"
    lines = ["import jointembed as je", "", f'model = je.Model.from_pretrained("this/repository"{own})']
    lines += ['features = model.embed("photos")', 'scores = model.anomaly_score("photos")  # higher = stranger']
    return "\n".join(lines)


def _table(left: str, right: str, rows: Mapping[str, object]) -> str:
    body = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join([f"| {left} | {right} |", "| --- | --- |", *body])


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _cell(value: object) -> str:
    """Text that stays in its cell, whatever a configuration from elsewhere holds."""
    text = printable(value)
    for letter in "\\`|<>[]":
        text = text.replace(letter, f"\\{letter}")
    return text
