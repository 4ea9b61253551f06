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

from specjax import checks

SMALLEST_PROMPT, SMALLEST_CACHE = 32, 128  # see `limit_programs`

memoize = functools.lru_cache(maxsize=512)  # for functions that build closures: equal arguments, one static argument


class CompiledPrograms(NamedTuple):
    """State of the table of compiled programs.

    Attributes:
      count: programs that are compiled now; `capacity` is the largest number that is kept.
      maps: memory maps of this process, 0 where the system does not report them. Programs are dropped, oldest use
        first, until at most `max_maps` are left before another one is compiled.
      evicted: programs dropped since the process started.
      smallest_prompt, smallest_cache: smallest buckets of the prompt widths of encoders and of cache lengths.
    """

    count: int
    capacity: int
    maps: int
    max_maps: int
    evicted: int
    smallest_prompt: int
    smallest_cache: int


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
        self.smallest_prompt, self.smallest_cache = SMALLEST_PROMPT, SMALLEST_CACHE
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
    return CompiledPrograms(
        count, _table.capacity, memory_maps(), _table.max_maps, _table.evicted, _table.smallest_prompt,
        _table.smallest_cache,
    )  # fmt: skip


def prompt_bucket(width: int) -> int:
    """Width that an encoder's prompts of at most `width` tokens are padded to: a power of two times the smallest."""
    return _bucket(width, _table.smallest_prompt)


def cache_bucket(tokens: int, largest: int | None = None) -> int:
    """Cache slots for this many tokens: a power of two times the smallest bucket, at most `largest`.

    The prompts of decoder-only models are as wide as their caches, unless they are short (`request.prepare`).
    """
    size = _bucket(tokens, _table.smallest_cache)
    return size if largest is None else min(size, largest)


def _bucket(size: int, smallest: int) -> int:
    return smallest << max(-(-size // smallest) - 1, 0).bit_length()


def limit_programs(
    *,
    capacity: int | None = None,
    max_maps: int | None = None,
    smallest_prompt: int | None = None,
    smallest_cache: int | None = None,
) -> None:
    """Sets how many compiled programs are kept, and for which sizes they are compiled; None leaves a limit as it is.

    Programs that do not fit are compiled again when they are next used. Requests share programs if their prompts and
    caches have the same size; both come from buckets, each twice as large as the one before.

    Args:
      capacity: largest number of programs, at least 1; 256 by default.
      max_maps: memory maps of the process above which programs are dropped before another one is compiled; 20,000 by
        default. Linux allows a process 65,530.
      smallest_prompt, smallest_cache: smallest buckets, 32 and 128 tokens by default. Larger ones compile fewer
        programs and spend more time and memory on short requests.

    Raises:
      ValueError: a number below 1.
    """
    given = {
        "capacity": capacity, "max_maps": max_maps, "smallest_prompt": smallest_prompt,
        "smallest_cache": smallest_cache,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            setattr(_table, name, checks.integer(name, value, least=1))
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
