"""What a run writes down: metrics.csv, log.txt."""

import csv
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jointembed._files import atomic


def write_metrics(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A row per epoch; a cell is empty where nothing was measured."""
    columns = sorted(set().union(*rows) - {"epoch", "step"})
    with atomic(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "step", *columns])
        writer.writeheader()
        writer.writerows(rows)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk stops the run at its next checkpoint, which says so; a traceback per line would bury that."""


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Everything the package logs goes to this file as well."""
    logger = logging.getLogger("jointembed")
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        with suppress(OSError):
            handler.close()


@contextmanager
def only_errors() -> Iterator[None]:
    """The package logs nothing less: for ranks whose first has said it already."""
    logger = logging.getLogger("jointembed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
