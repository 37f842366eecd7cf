"""What benchmarks, and tests of memory, measure with."""

import time
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def best_seconds(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Minimum time of each, rounds repeated until each has had `seconds` (at least two rounds after the warm-up)."""
    best = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    for call in calls.values():
        call()
    for round_number in range(1000):
        for name, call in calls.items():
            if round_number >= 2 and spent[name] > seconds:
                continue
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            spent[name] += elapsed
            best[name] = min(best[name], elapsed)
        if round_number >= 2 and min(spent.values()) > seconds:
            break
    return best


def peak_extra_bytes(call: Callable[[], object]) -> int:
    """The largest number of bytes of new tensors alive at once, after one call to warm up."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recording:
        call()
    memory = [event for event in recording.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(memory, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
