"""How long compiling took, apart from computing: jax reports every compilation, and overlapping reports count once."""

import time

import jax

PREFIX = "/jax/core/compile/"
_spans: list[tuple[float, float]] = []
_listening = False


def _heard(event: str, duration_secs: float, **details: str | int) -> None:
    del details
    if event.startswith(PREFIX):
        now = time.perf_counter()
        _spans.append((now - duration_secs, now))


def listen() -> None:
    """Starts to note compilations; calling it again changes nothing."""
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_heard)
        _listening = True


def compile_seconds(since: float, until: float | None = None) -> float:
    """Seconds between two times of `time.perf_counter` in which something was being traced, lowered or compiled."""
    until = time.perf_counter() if until is None else until
    total, reached = 0.0, since
    for start, end in sorted(_spans):
        start, end = max(start, reached), min(end, until)
        if end > start:
            total, reached = total + end - start, end
    return total
