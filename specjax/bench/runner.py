"""Cases that are measured one after the other: each knows its key, so that a file of rows is gone on from.

Models are loaded when a case first asks for them. One that cannot be had is said once, and what needs it is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from specjax.bench.record import Record, Row, name
from specjax.checks import check_name


class Missing(Exception):
    """A model that cannot be had here, and why, in one line."""


class Case(NamedTuple):
    """One measurement.

    Attributes:
      key: all that its rows depend on; rows of the same key are not measured again.
      told: what it is, for people.
      measure: Shelf -> rows; raises Missing.
    """

    key: Row
    told: str
    measure: Callable[["Shelf"], list[Row]]


class Shelf:
    """Loaded models by name, and whatever else cases share (`keep`).

    Args:
      dtype: of all models.
      tell: hears what is being loaded.
      sizes: parameters of models whose size is known beforehand; such a one is not fetched where it cannot fit.
    """

    def __init__(self, dtype: str, tell: Callable[[str], None], *, sizes: dict[str, float] | None = None):
        self._dtype, self._tell, self._sizes = dtype, tell, sizes or {}
        self._models: dict[str, Any] = {}
        self._kept: dict[Any, Any] = {}
        self.missing: dict[str, str] = {}

    def model(self, name: str) -> Any:
        """Raises Missing where the model cannot be had: no such files, no network, or no room."""
        if name in self.missing:
            raise Missing(self.missing[name])
        if name not in self._models:
            import specjax  # `load` is looked up when it is called

            try:
                self._room(name)
                self._tell(f"loading {name}")
                self._models[name] = specjax.load(name, dtype=self._dtype)
            except (OSError, Missing) as error:
                self.missing[name] = f"{name} cannot be had here: {' '.join(str(error).split())}"
                raise Missing(self.missing[name]) from None
        return self._models[name]

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for a key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def clear(self, *, but: Sequence[str] = ()) -> None:
        """Lets go of all models but these, and of all that was kept."""
        self._models = {name: model for name, model in self._models.items() if name in but}
        self._kept.clear()

    def _room(self, name: str) -> None:
        from specjax.bench import machine

        if name not in self._sizes:
            return
        needed, there = self._sizes[name] * WIDTH[self._dtype], machine.memory()
        if there is not None and needed > there:
            raise Missing(
                f"its weights take {needed / 1e9:,.0f} GB in {self._dtype}, and {there / 1e9:,.0f} GB are free"
            )


WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
SMALLEST = {"count": 2, "max_new_tokens": 8, "batch": 1, "timed": 1, "repeats": 1}  # shows that everything runs


def check_sizes(settings: Any, names: Sequence[str]) -> None:
    """Raises ValueError where the dtype is none, or a setting of these names no whole number of at least 1."""
    check_name(settings.dtype, WIDTH, "dtype")
    for size in names:
        value = getattr(settings, size)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{size.replace('_', '-')} must be a whole number of at least 1, got {value!r}")


def run(
    cases: Sequence[Case], kept: Record, shelf: Shelf, tell: Callable[[str], None], left_out: list[str]
) -> Iterator[tuple[Case, list[Row]]]:
    """Each case with its rows, from the file where it has them; what cannot be had goes to `left_out`, in words."""
    for number, case in enumerate(cases, start=1):
        tell(f"{number} of {len(cases)}: {case.told}")
        rows = kept.rows(case.key)
        if not rows:
            try:
                rows = list(kept.add(case.key, case.measure(shelf)))
                kept.known[name(case.key)] = rows  # a later table of this run may have the same row
            except Missing as missing:
                if str(missing) not in left_out:
                    left_out.append(str(missing))
        yield case, rows
