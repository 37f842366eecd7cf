"""Cells that say which process they are in and with how many threads; one that never ends, for a test to kill."""

import os
import sys
import time
from pathlib import Path

import torch
from threadpoolctl import threadpool_info

from jointembed.experiments.cells import run_cells


def where(cell: int) -> dict[str, int]:
    threads = {"torch": torch.get_num_threads()}
    return {"process": os.getpid()} | threads | {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def wait(told: str) -> dict[str, int]:
    Path(told).write_text(f"{os.getpid()}\n")
    time.sleep(3600)
    return {}


if __name__ == "__main__":
    run_cells(wait, [{"told": sys.argv[1]}], Path(sys.argv[2]), jobs=1)
