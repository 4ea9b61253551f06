"""The process around a command: environment variables set before imports, Ctrl-C, and the import of the library."""

import contextlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

TPU_DEVICES = ("accel*", "vfio/*")  # under /dev


# --- environment -----------------------------------------------------------------------------------------------------


def platform_for_jax(
    environment: Mapping[str, str], *, libtpu: bool, tpu_devices: Collection[str], plugins: Collection[str]
) -> str | None:
    """The value for JAX_PLATFORMS; None leaves the choice to JAX.

    "cpu" if libtpu is installed, the machine has no TPU, and nothing else could be an accelerator: JAX would print
    pages of warnings. A choice of the user is kept.

    Args:
      libtpu: whether it is installed.
      tpu_devices: device files of TPUs.
      plugins: JAX plugins for other accelerators.
    """
    chosen = any(name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME") or name.startswith("TPU_") for name in environment)
    return "cpu" if libtpu and not (chosen or tpu_devices or plugins) else None


def set_environment() -> None:
    """Sets environment variables of this process unless the user has set them. Call it before JAX is imported."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # they become many lines in a file
    if importlib.util.find_spec("libtpu") is None:
        return
    devices = [str(path) for pattern in TPU_DEVICES for path in Path("/dev").glob(pattern)]
    platform = platform_for_jax(os.environ, libtpu=True, tpu_devices=devices, plugins=jax_plugins())
    if platform is not None:
        os.environ["JAX_PLATFORMS"] = platform


def jax_plugins() -> list[str]:
    """Names of JAX plugins: entry points, and modules of the package jax_plugins."""
    found = [entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")]
    spec = importlib.util.find_spec("jax_plugins")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return found + [module.name for module in pkgutil.iter_modules(places)]


def disable_compile_cache() -> None:
    """Turns the persistent compilation cache off, that of JAX included. Call it before JAX is imported."""
    os.environ["SPECJAX_COMPILE_CACHE"] = "off"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def import_library() -> None:
    """Imports JAX and the library, and enables the persistent compilation cache.

    Ctrl-C is deferred: an interrupted import of JAX crashes the process.
    """
    with interrupts_wait(lambda: True):
        from specjax import api  # noqa: F401
        from specjax.compilation_cache import enable_compilation_cache

        enable_compilation_cache()


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupts_wait(busy: Callable[[], bool]) -> Iterator[None]:
    """Within it, a Ctrl-C that arrives while `busy()` is true is deferred to the end of the block.

    Others act at once. An exception raised in a callback of the garbage collector is swallowed by Python: it is raised
    again at the end. The previous handler decides what an interrupt does, and is restored. Outside the main thread this
    does nothing, since only the main thread receives signals.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting = raised = swallowed = False

    def on_interrupt(number, frame) -> None:
        nonlocal waiting, raised
        if busy():
            waiting = True
            return
        raised = True
        before(number, frame)
        raised = False  # the previous handler only took note

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
        swallowed = raised
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting or swallowed:
            before(signal.SIGINT, None)


@contextlib.contextmanager
def deferred_interrupt(
    once: Callable[[], bool] = lambda: True, signals: Collection[signal.Signals] = (signal.SIGINT,)
) -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C makes the yielded function return True; a second one raises KeyboardInterrupt. So do
    other `signals`.

    Until `once()` is true there is nothing to lose, and every Ctrl-C raises. If the exception is swallowed, as in
    callbacks of the garbage collector, the function returns True from then on.
    """
    requested = False

    def on_interrupt(*_) -> None:
        nonlocal requested
        at_once = requested or not once()
        requested = True
        if at_once:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: requested
        return
    before = {number: signal.signal(number, on_interrupt) for number in signals}
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
