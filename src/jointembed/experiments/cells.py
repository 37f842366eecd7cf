"""Many small trainings: one process per core, each result kept as soon as it is there."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from jointembed._files import atomic

log = logging.getLogger("jointembed")


def run_cells(
    function: Callable[..., dict[str, Any]],
    cells: Sequence[dict[str, Any]],
    kept: Path,
    jobs: int | None = None,
    threads: int = 1,
    fresh: bool = False,
) -> list[dict[str, Any]]:
    """function(**cell) for every cell, in their order.

    Small networks gain little from a second thread, so that cells run beside each other, by default on one thread
    each. Results are kept in a JSON file under all their arguments: after an interruption, only what is missing is
    computed.

    Args:
        function: importable by name; JSON in, JSON out.
        cells: its arguments.
        kept: the JSON file.
        jobs: processes; by default one per core.
        threads: of each process.
        fresh: a process for every cell, whose peak of memory is then its own.
    """
    done = remembered(kept)
    keys = [key_of(cell) for cell in cells]
    missing = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in done}
    if missing:
        count = min(jobs or os.cpu_count() or 1, len(missing))
        each = 1 if fresh else None
        # An interpreter of their own: forking after torch has started its threads may hang.
        with ProcessPoolExecutor(count, get_context("spawn"), begin, (threads,), max_tasks_per_child=each) as pool:
            futures = {pool.submit(function, **cell): key for key, cell in missing.items()}
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                with atomic(kept) as path:
                    path.write_text(json.dumps(done, indent=2) + "\n")
                short = {name: value for name, value in future.result().items() if not isinstance(value, list)}
                log.info("%d of %d cells: %s", len(set(keys) & set(done)), len(cells), short)
    return [done[key] for key in keys]


def run_some(
    function: Callable[..., dict[str, Any]],
    cells: dict[str, dict[str, Any]],
    some: Sequence[str],
    kept: Path,
    **how: Any,
) -> dict[str, dict[str, Any]]:
    """`run_cells` for some of the cells by name, and of the others what is remembered of them."""
    done = remembered(kept)
    found = {name: done[key_of(cell)] for name, cell in cells.items() if key_of(cell) in done}
    return found | dict(zip(some, run_cells(function, [cells[name] for name in some], kept, **how), strict=True))


def begin(threads: int) -> None:
    """In each process: its threads, and its end with that of the process that started it, even if that is killed."""

    def end() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    torch.set_num_threads(threads)
    # NumPy's and SciPy's as well: with threads of every process on every core, each waiting busily for its others,
    # linear probes took many times as long. Only libraries that are loaded can be limited.
    import_module("jointembed.evaluation")
    threadpool_limits(threads)
    Thread(target=end, daemon=True).start()


def spent(began: float, found: Iterable[dict[str, Any]], jobs: int | None, alone: float = 0.0) -> float:
    """Seconds since `began`, or all trainings' `minutes` if these are more: some are remembered from earlier starts.

    `alone` are the minutes of what ran with nothing beside it.
    """
    beside = sum(one.get("minutes", 0.0) for one in found) / (jobs or os.cpu_count() or 1)
    return max(time.perf_counter() - began, 60 * (alone + beside))


def remembered(kept: Path) -> dict[str, dict[str, Any]]:
    """The results in the JSON file, under the keys of their cells."""
    return json.loads(kept.read_text()) if kept.is_file() else {}


def key_of(cell: dict[str, Any]) -> str:
    """What a cell's result is kept under."""
    return json.dumps(cell, sort_keys=True)
