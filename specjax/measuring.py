"""Measuring: calls timed apart from compilation, and interleaved runs with medians, spread and the load of the machine.

All timing of benchmarks, sweeps, advice, traces and comparisons goes through this module.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

K = TypeVar("K", bound=Hashable)

LEAST_TURNS = 3
PAUSE = 0.3  # seconds; idle OpenMP threads of a torch program spin for up to 0.2 s and occupy a core
COMPILE_EVENTS = "/jax/core/compile/"

_listening = False


# --- one call --------------------------------------------------------------------------------------------------------


class _LastCompile(threading.local):
    """Time of the last compile event of each thread: jax compiles a program in the thread that calls it."""

    at: float = float("-inf")


_last_compile = _LastCompile()


class Timed(NamedTuple):
    """The result of a call, computed to the end, with its seconds of running and of compiling."""

    value: Any
    run: float
    compile: float


def _on_duration(event: str, duration_secs: float, **details: str | int) -> None:
    del duration_secs, details
    if event.startswith(COMPILE_EVENTS):
        _last_compile.at = time.perf_counter()


def timed(call: Callable[[], Any]) -> Timed:
    """Calls, waits for the result, and separates compiling from running.

    A jitted function runs once all of it is compiled, so the time until the last event of tracing, lowering or
    compiling counts as compiling. Without such an event, `compile` is exactly 0.

    Args:
      call: dispatches one jitted function on arrays that are ready.
    """
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_on_duration)
        _listening = True
    started = time.perf_counter()
    value = call()
    compiled = max(started, _last_compile.at)
    jax.block_until_ready(value)
    return Timed(value, time.perf_counter() - compiled, compiled - started)


# --- load of other programs ------------------------------------------------------------------------------------------


class Ticks(NamedTuple):
    """Processor seconds since boot of all processes (0 without /proc/stat) and of this one, and a wall clock."""

    busy: float
    own: float
    wall: float


def ticks() -> Ticks:
    """Reads the processor time used so far."""
    own = time.process_time()
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [float(x) for x in stat.readline().split()[1:9]]
    except OSError:
        return Ticks(0.0, own, time.perf_counter())
    idle = fields[3] + fields[4]
    return Ticks((sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), own, time.perf_counter())


def load_between(start: Ticks, end: Ticks) -> float:
    """Share of all processors that other programs used between two readings; 0 on a quiet machine."""
    wall = (end.wall - start.wall) * (os.cpu_count() or 1)
    busy = max((end.busy - start.busy) - (end.own - start.own), 0.0)
    return busy / wall if wall else 0.0


# --- interleaved runs ------------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Smallest value, median and largest value."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(min(values), statistics.median(values), max(values))


def ratio(own: Sequence[float], base: Sequence[float]) -> float:
    """Median of the ratios within a turn: a machine that slows down for a while does so on both sides of a ratio."""
    return statistics.median(a / b for a, b in zip(own, base, strict=True))


class Runs(NamedTuple):
    """Runs of one program, one for each turn.

    Attributes:
      warm_up: result of the run before the first turn, which compiles; None without warm-up.
      values: results.
      seconds: wall time of each run.
      load: share of the processors that other programs used from the first turn to the last. One run can be shorter
        than a tick of the system's clock.
    """

    warm_up: Any
    values: tuple[Any, ...]
    seconds: tuple[float, ...]
    load: float

    @property
    def median(self) -> float:
        """Median of `seconds`."""
        return statistics.median(self.seconds)

    def each(self, of: Callable[[Any], float]) -> tuple[float, ...]:
        """A number of each result, such as the seconds that a program measured itself."""
        return tuple(map(of, self.values))


def interleave(
    programs: Mapping[K, Callable[[], Any]],
    turns: int,
    *,
    warm_up: bool = True,
    pause: float = 0.0,
    within: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[K, Runs]:
    """Runs programs interleaved, so that other load on the machine affects all of them alike.

    Args:
      programs: name -> program. A turn runs each once, in this order. A program returns arrays or any other value;
        arrays are waited for.
      turns: number of timed runs of each program, 1 or more.
      warm_up: run each program once before the first turn, untimed, to compile it.
      pause: seconds before each timed run; `PAUSE` where torch runs beside.
      within: seconds; the first turn tells how many fit, of which there are at least `LEAST_TURNS` and at most `turns`.
      progress: called after each run with the number of runs done and of all runs.
      stop: called before each run; True ends measuring, and a turn that is not complete is discarded.

    Returns:
      The runs by name, equally many for every program; no runs if stopped within the first turn.
    """
    first: dict[K, Any] = {}
    found: list[dict[K, tuple[Any, float]]] = []
    start = end = ticks()
    warming, runs_done = warm_up, 0
    while len(found) < turns:
        turn: dict[K, tuple[Any, float]] = {}
        for name, program in programs.items():
            if stop():
                return _collect(programs, first, found, load_between(start, end))
            if not warming:
                time.sleep(pause)
            before = time.perf_counter()
            value = jax.block_until_ready(program())
            seconds = time.perf_counter() - before
            if warming:
                first[name] = value
            else:
                turn[name] = (value, seconds)
            runs_done += 1
            progress(runs_done, len(programs) * (turns + warm_up))
        end = ticks()
        if warming:
            warming, start = False, end
            continue
        found.append(turn)
        if within is not None and len(found) == 1:
            turns = min(turns, max(LEAST_TURNS, round(within / (end.wall - start.wall))))
    return _collect(programs, first, found, load_between(start, end))


def _collect(
    programs: Mapping[K, Callable[[], Any]],
    first: Mapping[K, Any],
    found: Sequence[Mapping[K, tuple[Any, float]]],
    load: float,
) -> dict[K, Runs]:
    runs = {}
    for name in programs:
        values, seconds = zip(*(turn[name] for turn in found), strict=True) if found else ((), ())
        runs[name] = Runs(first.get(name), tuple(values), tuple(seconds), load)
    return runs
