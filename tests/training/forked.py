"""Work in forked processes, which may be killed, and need not import torch again."""

import functools
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from tiny import TINY, tiny_network

import jointembed as je

LIMIT = 600  # seconds, after which a process counts as hanging


@functools.cache
def warm_up() -> None:
    """Import, here and not in every child, all that a training needs."""
    with tempfile.TemporaryDirectory() as folder:
        je.train("digits", backbone=tiny_network(), epochs=1, batch_size=512, out=f"{folder}/x", progress=False, **TINY)


def in_child(work: Callable[[], object], after: Callable[[int], object] | None = None) -> int:
    """The exit code of `work` in a process of its own, minus the signal if one ended it; `after` gets its id."""
    child = start(work)
    if after is not None:
        after(child)
    return exit_code(child)


def in_ranks(work: Callable[[], object], ranks: int) -> list[int]:
    """The exit codes of processes that find each other as those of a launcher do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}

    def work_as(rank: int) -> None:
        os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank))
        work()

    return [exit_code(child) for child in [start(functools.partial(work_as, rank)) for rank in range(ranks)]]


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def start(work: Callable[[], object]) -> int:
    """The id of a process that does the work."""
    warm_up()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(LIMIT)
            torch.set_num_threads(1)  # a pool of threads does not survive the fork
            util._run_after_forkers()  # nor what shares tensors with workers: a plain fork does not tell it
            work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            print(error, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def call_at(owner: Any, name: str, count: int, then: Callable[[], object], late: bool = False) -> None:
    """Call `then` with the `count`-th call of `owner.name`: before it, or `late`, after it."""
    original, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and not late:
            then()
        result = original(*args, **kwargs)
        if calls == count and late:
            then()
        return result

    setattr(owner, name, counted)


def die_at(owner: Any, name: str, count: int, late: bool = False) -> None:
    call_at(owner, name, count, die, late)


def die_writing(count: int) -> None:
    """Die when the `count`-th file of bytes is half written."""
    original, calls = Path.write_bytes, 0

    def half(path: Path, content: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == count:
            original(path, bytes(content)[: len(content) // 2])
            die()
        return original(path, content)

    Path.write_bytes = half  # type: ignore[method-assign]


def kill_within(seconds: float, seed: int) -> Callable[[int], None]:
    """Kill a child at a random moment of its first `seconds`."""

    def kill(child: int) -> None:
        time.sleep(random.Random(seed).uniform(0, seconds))
        os.kill(child, signal.SIGKILL)

    return kill
