"""What the command line, and the demo, show of an evaluation: tables on a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jointembed._text import printable


def print_table(title: str, result: dict[str, Any]) -> None:
    """What `evaluate` found: accuracies in per cent, everything else as it is; what it says of classes is left out."""
    rows = []
    for name, value in result.items():
        if isinstance(value, float):
            rows.append((name, f"{value:,.0f}" if name == "seconds" else f"{100 * value:.2f} %"))
        elif isinstance(value, int):
            rows.append((name, f"{value:,}"))
    for number, found in result.get("few_shot", {}).items():
        rows.append((f"{number} per class", f"{100 * found['mean']:.2f} ± {100 * found['std']:.2f} %"))
    rows += [(name, f"{value:.4g}") for name, value in result.get("geometry", {}).items()]
    print_rows(title, ("measure", "value"), [(name.replace("_", " "), value) for name, value in rows])


def print_classes(result: dict[str, Any]) -> None:
    """The accuracy of each class, and of at most 20 classes which is taken for which."""
    accuracy, counts = result["per_class"], dict(result["confusion"])
    present = next(iter(accuracy.values()))
    rows = [(c, *(f"{100 * found[c]:.2f} %" for found in accuracy.values())) for c in present]
    print_rows("accuracy per class", ("class", *(name.replace("_", " ") for name in accuracy)), rows)
    classes = counts.pop("classes")
    if len(classes) > 20:
        return
    for name, matrix in counts.items():
        rows = [(c, *map(str, row)) for c, row in zip(classes, matrix, strict=True)]
        print_rows(f"{name.replace('_', ' ')}: true class down, predicted across", ("", *classes), rows)


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal. Names of classes and runs are shown as they are: no markup, no control characters."""
    table = Table(title=_plain(title), min_width=len(title) + 4)
    for column in columns:
        table.add_column(_plain(column))
    for row in rows:
        table.add_row(*map(_plain, row))
    Console().print(table)


def _plain(text: str) -> Text:
    return Text(printable(text))
