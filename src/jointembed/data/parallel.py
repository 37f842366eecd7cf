"""The same work for many items on all cores, with a progress bar for whoever is watching."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
SLICE = 16  # items per task: a million futures of one item each would outweigh small images
AHEAD = 64  # tasks under way or waiting to be collected


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(work: Callable[[int], T], count: int, label: str) -> Iterator[tuple[int, T | Exception]]:
    """(i, work(i)) for i in 0..count-1, in order; the exception instead where work raised one.

    Threads, because Pillow and zlib release the interpreter while they decode and resize.
    """

    def attempt(start: int) -> list[T | Exception]:
        results: list[T | Exception] = []
        for i in range(start, min(start + SLICE, count)):
            try:
                results.append(work(i))
            except Exception as error:  # decoders of damaged files raise anything, MemoryError included
                results.append(error)
        return results

    pool = ThreadPoolExecutor(cores())
    running: deque[tuple[int, Future[list[T | Exception]]]] = deque()
    try:
        with progress(label, count) as advance:
            for start in range(0, count + AHEAD * SLICE, SLICE):
                if start < count:
                    running.append((start, pool.submit(attempt, start)))
                # Only so many are under way: on a slow disk decoded images must not pile up in memory.
                if running and (len(running) > AHEAD or start >= count):
                    first, future = running.popleft()
                    results = future.result()
                    yield from enumerate(results, first)
                    advance(len(results))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C or a failed write must not wait for the rest of the folder


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that moves a progress bar on; there is a bar only where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)
