"""Name tables: which Hugging Face tensor is which parameter, in both directions."""

import dataclasses
import functools
import re
from collections.abc import Iterator

LAYER = "{i}"  # stands for the layer's number in names and paths


@dataclasses.dataclass(frozen=True)
class NameTable:
    """One model's names. Paths are those of separate layers ("layers.3.attn.q.kernel").

    Attributes:
      entries: (Hugging Face name after the prefix, parameter path).
      prefixes: what may stand before a name in a file, longest first; the first is what is written.
      bare: names that carry no prefix.
      aliases: other names of a parameter, used where its own name is absent from the file.
      ignored: patterns of names in files that are no parameters of ours.
    """

    entries: tuple[tuple[str, str], ...]
    prefixes: tuple[str, ...] = ("",)
    bare: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    def candidates(self, name: str) -> Iterator[tuple[int, str]]:
        """(rank, path) of every parameter that the tensor `name` of a file may be; lower ranks are preferred."""
        for rank, (pattern, path) in enumerate(self._patterns):
            match = pattern.fullmatch(name)
            if match:
                yield rank, path.replace(LAYER, match["i"] if LAYER in path else "")

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def name(self, path: str) -> str:
        """The name under which the parameter at `path` is written.

        Raises:
          ValueError: no entry has this path.
        """
        numbered = re.search(r"\blayers\.(\d+)\.", path)
        template = re.sub(r"\blayers\.\d+\.", f"layers.{LAYER}.", path)
        for name, entry in self.entries:
            if entry == template:
                name = name.replace(LAYER, numbered[1] if numbered else "")
                return name if name in self.bare else self.prefixes[0] + name
        raise ValueError(f"parameter {path} has no Hugging Face name")

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        prefix = "(?:" + "|".join(map(re.escape, self.prefixes)) + ")"

        def pattern(name: str) -> re.Pattern[str]:
            return re.compile(prefix + re.escape(name).replace(re.escape(LAYER), r"(?P<i>\d+)"))

        return tuple((pattern(name), path) for name, path in (*self.entries, *self.aliases))
