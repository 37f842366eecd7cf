"""What the command line says beside doing its work: the first page, examples, and errors as a sentence."""

import difflib
import re
from collections.abc import Iterable, Mapping

EXAMPLES = {
    "train": "jointembed train --data photos --method lejepa --epochs 99 --out runs/x",
    "embed": "jointembed embed runs/x --data photos --out embeddings.npz",
    "evaluate": "jointembed evaluate runs/x --data cifar10.npz --shots [1,10]",
    "select": "jointembed select runs/a runs/b --data photos",
    "score": "jointembed score runs/x --data new_photos --out scores.csv",
    "decode": "jointembed decode runs/x --data photos --epochs 20",
    "sample": "jointembed sample runs/x -n 64 --out samples.png",
    "patches": "jointembed patches runs/x --data photos -n 8",
    "report": "jointembed report runs/x --data photos --out report.html",
    "export": "jointembed export runs/x --format onnx --out model.onnx",
    "methods": "jointembed methods vje",
    "reproduce": "jointembed reproduce lejepa-x",
    "completion": 'eval "$(jointembed completion bash)"',
}
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list, e.g. [1,2]"}


def overview(verbs: Mapping[str, str]) -> str:
    """The first page: one screen."""
    width = max(map(len, verbs))
    lines = [f"  {name:{width}}  {text}" for name, text in verbs.items()]
    return "\n".join(
        [
            "Joint-embedding self-supervised learning: an embedding is a distribution.",
            "",
            f"example: {EXAMPLES['train']}",
            "",
            *lines,
            "",
            "jointembed VERB --help says more; --debug shows the traceback of an error.",
        ]
    )


def unknown_verb(word: str, verbs: Iterable[str]) -> str:
    return f"verb: expected one of {', '.join(verbs)}, got {word!r}{_meant(word, verbs)}"


def sentence(verb: str, message: str, flags: Iterable[str]) -> str:
    """What a parser says over several lines as one sentence, with the flag that may have been meant."""
    text = " ".join(message.split())
    if found := re.fullmatch(r"unrecognized arguments: (.*)", text):
        word = next((word for word in found[1].split() if word.startswith("-")), found[1].split()[0])
        word = word.partition("=")[0]
        what = "flag" if word.startswith("-") else "argument"
        return f"{word}: {verb} has no such {what}{_meant(word, flags)}"
    if found := re.fullmatch(r"the following arguments are required: (.*)", text):
        names = [name.removeprefix(f"{verb}.") for name in found[1].split(", ")]
        named = ", ".join(f"--{name}" if f"--{name}" in flags else name.upper() for name in names)
        return f"{verb}: expected {named}, e.g. {EXAMPLES.get(verb, f'jointembed {verb} --help')}"
    if found := re.fullmatch(r'Parser key "([^"]+)": (.*)', text):
        name, reason = found.groups()
        if kind := re.fullmatch(r"Expected an? <class '(\w+)'>\. Got value: (.*)", reason):
            return f"{name}: expected {KINDS.get(kind[1], kind[1])}, got {kind[2]}"
        if kind := re.fullmatch(r"Expected an? typing\.Literal\[(.*)\]\. Got value: (.*)", reason):
            return f"{name}: expected one of {kind[1]}, got {kind[2]}"
        if kind := re.search(r"Union subtypes.*Given value: (.*)", reason):
            return f"{name}: got {kind[1]}, which it cannot be; see jointembed {verb} --help"
        return f"{name}: {reason[:1].lower()}{reason[1:]}"
    return text.removeprefix("argument ")


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
