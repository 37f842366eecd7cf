"""Cells that say which process they are in; run by a test that kills it, one that then never ends."""

import os
import sys
import time
from pathlib import Path

from jointembed.experiments.cells import run_cells


def where(cell: int) -> dict[str, int]:
    return {"process": os.getpid()}


def wait(told: str) -> dict[str, int]:
    Path(told).write_text(f"{os.getpid()}\n")
    time.sleep(3600)
    return {}


if __name__ == "__main__":
    run_cells(wait, [{"told": sys.argv[1]}], Path(sys.argv[2]), jobs=1)
