"""The process around a command: environment variables set before imports, the import of the library, other processes
of the same command, and Ctrl-C."""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import pkgutil
import platform
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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


# --- several processes -----------------------------------------------------------------------------------------------


class Peers(NamedTuple):
    """The other processes of a command, see `specjax.hosts`.

    Attributes:
      count: processes of the command.
      leader: whether this one prints and writes files.
    """

    count: int = 1
    leader: bool = True


_peers = Peers()
PATIENCE = 10  # seconds that a process which ends early waits for the others to end too


def peers() -> Peers:
    """What `join` found; does not import JAX."""
    return _peers


def join(name: str, args: Sequence[str], index: str = "--index") -> None:
    """Connects with the other processes of the command, if options or the environment name them, and compares command
    lines and versions.

    Call it before the options are read, so that an invalid one ends all processes.

    Args:
      index: the option for the number of this process.

    Raises:
      ValueError: the processes differ.
    """
    global _peers
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int)
    parser.add_argument(index, dest="index", type=int)
    words = list(itertools.takewhile(lambda arg: arg != "--", args))
    try:
        given, rest = parser.parse_known_args(words)
    except argparse.ArgumentError:
        return  # the command reports it
    if not any(vars(given).values()) and not in_cluster(os.environ):
        return
    import_library()
    from specjax import __version__, hosts

    hosts.join(given.coordinator, given.processes, given.index)
    if hosts.count() == 1:
        return
    _peers = Peers(hosts.count(), hosts.leader())
    quieten()
    found = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "numpy")}
    hosts.agree(
        command=name, processes=hosts.count(), specjax=__version__, python=platform.python_version(), **found,
        **by_option([*rest, *args[len(words) :]]),
    )  # fmt: skip


def by_option(words: Sequence[str]) -> dict[str, str]:
    """The words after each option, as one text; those before the first under "arguments".

    >>> by_option(["Once upon", "--seed", "3", "--stop=a", "--stop", "b"])
    {'arguments': 'Once upon', '--seed': '3', '--stop': 'a b'}
    """
    found: dict[str, list[str]] = {}
    name = "arguments"
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) for name, values in found.items()}


def check_mesh(mesh: str | None) -> None:
    """Raises ValueError where several processes have no mesh: each would do the whole work."""
    if mesh is None and _peers.count > 1:
        raise ValueError(f"--mesh is required with {_peers.count} processes: it spans the devices of all of them")


def in_cluster(environment: Mapping[str, str]) -> bool:
    """Whether `hosts.join` may find others without arguments; its answer is certain, but it imports JAX."""
    if "SLURM_PROCID" in environment:
        return True
    tpu = any(True for pattern in TPU_DEVICES for _ in Path("/dev").glob(pattern))
    return tpu and importlib.util.find_spec("libtpu") is not None


def quieten() -> None:
    """Only the leader prints. On stdout, only Python does: the libraries that connect processes write there, too."""
    kept = os.dup(1)
    os.dup2(2, 1)
    if _peers.leader:
        sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="replace")
    else:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the command


@contextlib.contextmanager
def errors_of_all() -> Iterator[None]:
    """After it, every process prints on stderr again, for errors."""
    errors = sys.stderr
    try:
        yield
    finally:
        sys.stderr = errors


def end_together(code: int, message: str = "") -> None:
    """The end of a process that fails or is interrupted: the others receive the reason if they are still preparing.

    If they are decoding, they cannot receive it: this process exits without disconnecting, so that they end, too.
    """
    if _peers.count == 1:
        return
    from specjax import hosts

    if message:
        hosts.fail(message)
    if not hosts.end_together(PATIENCE):
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                output.flush()
        os._exit(code)


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

    With several processes, SIGTERM does the same, and the first signal never raises: the others must stop, too.
    """
    requested = False
    numbers = {*signals, signal.SIGINT, signal.SIGTERM} if _peers.count > 1 else set(signals)

    def on_interrupt(*_) -> None:
        nonlocal requested
        at_once = requested or (_peers.count == 1 and not once())
        requested = True
        if at_once:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: requested
        return
    before = {number: signal.signal(number, on_interrupt) for number in numbers}
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
