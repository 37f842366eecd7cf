"""The report: one HTML file with everything in it, which asks no network for anything."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jointembed._files import atomic

SCRIPTS = ("dom.js", "plots.js", "map.js", "sections.js", "main.js")
LARGEST = 20_000  # images on a map


def write_report(
    runs: str | Path | Sequence[str | Path],
    data: Any = None,
    out: str | Path = "report.html",
    images: int = 5000,
    score: str | None = None,
    false_alarm_rate: float = 0.05,
    root: str | None = None,
    seed: int = 0,
) -> Path:
    """Write an HTML page on what was learned and whether to trust it. It opens offline; its path is returned.

    Args:
        runs: the run folder, or several to compare.
        data: a folder of images, an .npz or .npy file, or the name of a data set, best what it was trained on. What
            labels it has, and its test split, are used. Without data the page shows the training only.
        out: the .html to write.
        images: at most so many images on the map, and as many to test on, drawn at random.
        score: which of the method's anomaly scores; by default its first.
        false_alarm_rate: the share of normal images that may be flagged, to begin with: the page has a slider.
        root: where torchvision data sets are, or go.
        seed: of the choice of images, the map, the probes and the draws.
    """
    target, folders = Path(out), [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if target.suffix.lower() != ".html":
        raise ValueError(f"out: expected a file name ending in .html, got {out}")
    if target.is_dir():
        raise ValueError(f"out: expected a file, got the folder {out}")
    if not folders:
        raise ValueError("runs: expected at least one run folder, got none")
    if not 4 <= images <= LARGEST:
        raise ValueError(f"images: expected 4 to {LARGEST:,}, got {images}")
    if not 0 < false_alarm_rate < 1:
        raise ValueError(f"false_alarm_rate: expected a number between 0 and 1, got {false_alarm_rate}")
    from .facts import gather

    content = render(gather(folders, data, images, score, false_alarm_rate, root, seed))
    with atomic(target) as path:
        path.write_text(content, encoding="utf-8")
    return target


def render(facts: dict[str, Any]) -> str:
    """The page that shows these facts."""
    from plotly.offline import get_plotlyjs

    folder = files("jointembed.report") / "assets"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    # The parser turns \r\n into \n before it hashes.
    plotly, script = (text.replace("\r\n", "\n").replace("\r", "\n") for text in (get_plotlyjs(), script))
    title = " and ".join(run["name"] for run in facts["runs"])
    parts = {
        "policy": _policy([plotly, script]),
        "title": html.escape(f"{title}: jointembed report"),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        # < is what could end the element, or begin another.
        "facts": json.dumps(facts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "plotly": plotly,
        "script": script,
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def _policy(scripts: list[str]) -> str:
    """Only these scripts run, and nothing is fetched. Plotly needs styles of its own."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    rules = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    return f"{rules}; base-uri 'none'; form-action 'none'"
