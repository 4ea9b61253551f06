"""Compiled programs in one table of bounded size, least recently used first out.

Every executable of XLA's CPU backend holds memory maps, some tens for each layer of a model, and Linux allows a process
65,530 of them; with none left, the compiler crashes. `jax.jit` keeps an executable until its function is collected, so
a process that tries hundreds of combinations of drafters, verifiers and sampling settings would reach that limit.
`jit` below gives every combination a jitted function of its own. Dropping that function frees its executable, and the
next call compiles it again.
"""

import collections
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

memoize = functools.lru_cache(maxsize=512)  # for functions that build closures: equal arguments, one static argument


class CompiledPrograms(NamedTuple):
    """State of the table of compiled programs.

    Attributes:
      count: programs that are compiled now; `capacity` is the largest number that is kept.
      maps: memory maps of this process, 0 where the system does not report them. Programs are dropped, oldest use
        first, until at most `max_maps` are left before another one is compiled.
      evicted: programs dropped since the process started.
    """

    count: int
    capacity: int
    maps: int
    max_maps: int
    evicted: int


def memory_maps() -> int:
    """Memory maps of this process; 0 where the system does not report them."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


class _Table:
    """Jitted functions by what they were compiled for."""

    def __init__(self, capacity: int, max_maps: int):
        self.capacity, self.max_maps, self.evicted = capacity, max_maps, 0
        self.entries: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key in self.entries:
                self.entries.move_to_end(key)
            else:
                self.shrink(self.capacity - 1)
                self.entries[key] = make()
            return self.entries[key]

    def shrink(self, count: int) -> None:
        """Drops programs until at most `count` of them and `max_maps` memory maps are left."""
        with self._lock:
            while self.entries and (len(self.entries) > count or memory_maps() > self.max_maps):
                self.entries.popitem(last=False)
                self.evicted += 1


_table = _Table(capacity=256, max_maps=20_000)


def compiled_programs() -> CompiledPrograms:
    """Counts the compiled programs of this process, and reports the limits set by `limit_programs`."""
    count = sum(jitted._cache_size() for jitted in tuple(_table.entries.values()))
    return CompiledPrograms(count, _table.capacity, memory_maps(), _table.max_maps, _table.evicted)


def limit_programs(capacity: int | None = None, max_maps: int | None = None) -> None:
    """Sets how many compiled programs are kept. Programs that do not fit are compiled again when they are next used.

    Args:
      capacity: largest number of programs, at least 1; 256 by default.
      max_maps: memory maps of the process above which programs are dropped before another one is compiled; 20,000 by
        default. Linux allows a process 65,530.

    Raises:
      ValueError: a number below 1.
    """
    for name, value in (("capacity", capacity), ("max_maps", max_maps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    _table.capacity = _table.capacity if capacity is None else capacity
    _table.max_maps = _table.max_maps if max_maps is None else max_maps
    _table.shrink(_table.capacity)


def jit(function: Callable, *, static: Sequence[str], donate: Sequence[str] = ()) -> Callable:
    """`jax.jit` whose executables are kept in the bounded table of this module.

    Args:
      function: a pure function.
      static: names of its static arguments; they are hashable and always passed by keyword.
      donate: names of the arguments whose buffers the program may reuse.

    Returns:
      A function of the same arguments, with `lower` as that of a jitted function.
    """
    return _Jitted(function, frozenset(static), tuple(donate))


class _Jitted:
    """What `jit` returns. A program is found by its function, its static arguments, and the types of the others."""

    def __init__(self, function: Callable, static: frozenset[str], donate: tuple[str, ...]):
        functools.update_wrapper(self, function)
        self._function, self._static, self._donate = function, static, donate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        static, arrays = self._split(kwargs)
        leaves, structure = jax.tree.flatten((args, arrays))
        types = tuple(leaf.aval if isinstance(leaf, jax.Array) else jax.typeof(leaf) for leaf in leaves)
        key = (self, frozenset(static.items()), structure, types)
        return _table.get(key, lambda: self._make(static))(*args, **arrays)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Traces and lowers for the given arguments, as `lower` of a jitted function; nothing is kept."""
        static, arrays = self._split(kwargs)
        return self._make(static).lower(*args, **arrays)

    def _split(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        static = {name: value for name, value in kwargs.items() if name in self._static}
        return static, {name: value for name, value in kwargs.items() if name not in self._static}

    def _make(self, static: dict[str, Any]) -> Any:
        return jax.jit(functools.partial(self._function, **static), donate_argnames=self._donate)
