"""What an experiment leaves behind: a JSON file for machines and a Markdown table for people."""

import inspect
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jointembed._files import atomic
from jointembed.training.run import versions

_PLACES = ("out", "results", "kept", "jobs", "root")  # where, not what


def command(run: Callable[..., None], arguments: dict[str, Any]) -> str:
    """The command line of an experiment's `run` with these arguments: all that are not the defaults."""
    words = ["jointembed", "reproduce", run.__module__.rpartition(".")[2].replace("_", "-")]
    for name, parameter in inspect.signature(run).parameters.items():
        value = arguments[name]
        if name == "data":
            value = Path(value).name
        if name in _PLACES or value == parameter.default:
            continue
        words += ["--" + name.replace("_", "-"), value if isinstance(value, str) else _flag(value)]
    return shlex.join(words)


def _flag(value: Any) -> str:
    """JSON but for infinity, which the command line reads as YAML has it."""
    return json.dumps(value).replace("Infinity", ".inf")


def write_results(
    folder: Path, name: str, title: str, rows: list[dict[str, Any]], command: str, seconds: float
) -> None:
    """`name.json` and `name.md`: the rows, the command that made them, when, how long it took, and with what.

    The Markdown is printed as well.
    """
    about = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "minutes": round(seconds / 60, 1),
        "versions": versions(),
    }
    with atomic(folder / f"{name}.json") as path:
        path.write_text(json.dumps({"title": title, "rows": rows, **about}, indent=2) + "\n")
    columns = list(rows[0])
    lines = [f"# {title}", "", _line(columns), "|" + " --- |" * len(columns)]
    lines += [_line([row[column] for column in columns]) for row in rows]
    made = ", ".join(f"{k} {v}" for k, v in about["versions"].items())  # type: ignore[attr-defined]
    lines += ["", f"`{command}`, {about['date']}, {about['minutes']} minutes; {made}.", ""]
    with atomic(folder / f"{name}.md") as path:
        path.write_text("\n".join(lines))
    print("\n".join(lines))


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"
