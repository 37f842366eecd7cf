"""What a method is and offers, read off its class."""

import inspect

from .base import Method


def summary(cls: type[Method]) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def offers(cls: type[Method]) -> dict[str, str]:
    """In words: what it is, whether it has a posterior per image and a density to sample, and its anomaly scores."""
    return {
        "summary": summary(cls),
        "posterior": "yes" if hasattr(cls, "posterior") else "",
        "samples": "yes" if cls.generative else "",
        "scores": ", ".join(cls.scores),
    }


def describe_options(cls: type[Method]) -> dict[str, tuple[str, str]]:
    """The default and the meaning of each option."""
    from docstring_parser import parse

    texts = {p.arg_name: " ".join((p.description or "").split()) for p in parse(inspect.getdoc(cls) or "").params}
    return {name: (str(p.default), texts.get(name, "")) for name, p in cls.options().items()}
