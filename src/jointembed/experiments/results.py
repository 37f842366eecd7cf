"""What an experiment leaves behind: a JSON file for machines and a Markdown table for people."""

import json
import time
from pathlib import Path
from typing import Any

from jointembed._files import atomic
from jointembed.training.run import versions


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
    lines = [f"# {title}", "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    made = ", ".join(f"{k} {v}" for k, v in about["versions"].items())  # type: ignore[attr-defined]
    lines += ["", f"`{command}`, {about['date']}, {about['minutes']} minutes; {made}.", ""]
    with atomic(folder / f"{name}.md") as path:
        path.write_text("\n".join(lines))
    print("\n".join(lines))
