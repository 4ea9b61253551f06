"""How long compiling took, apart from computing: jax reports every compilation to whoever listens."""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

PREFIX = "/jax/core/compile/"
_listening = False


class _Heard(threading.local):
    """When the last report came, for each thread: programs are compiled in the thread that calls them."""

    at: float = float("-inf")


_heard = _Heard()


class Timed(NamedTuple):
    """A call's value, ready, with its seconds in two parts that add up to all of them."""

    value: Any
    run: float
    compile: float


def _on_duration(event: str, duration_secs: float, **details: str | int) -> None:
    del duration_secs, details
    if event.startswith(PREFIX):
        _heard.at = time.perf_counter()


def timed(call: Callable[[], Any]) -> Timed:
    """Calls, waits for the value, and tells compiling from running.

    A jitted function runs when all of it is compiled. So what passed until the last report of tracing, lowering or
    compiling was compiling; without a report, a warm call, `compile` is exactly 0.

    Args:
      call: dispatches one jitted function on arrays that are ready.
    """
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_on_duration)
        _listening = True
    started = time.perf_counter()
    value = call()
    compiled = max(started, _heard.at)
    jax.block_until_ready(value)
    return Timed(value, time.perf_counter() - compiled, compiled - started)
