"""Registry of drafters, draft-length policies, small caches and tree shapes by name; and `Strategy`, a drafter as data.

An entry names a public constructor. Its settings, their types, defaults and help are read from the signature and
docstring of that constructor, so that a new drafter takes its own module, one line in `DRAFTERS` and a test. The
grammar of the command line, presets and sweeps:

    model                    ngram:gamma=4,longest=3          cascade:gamma=6,inner=(model:gamma=3)
    tree:3x2                 layer-skip:layers=0-2+5          small-kv:budget=256,cache=(snapkv:window=16)

The key of the first setting may be omitted. A value with settings of its own is enclosed in parentheses. Importing this
module does not import jax; parsing a text with settings does.
"""

import dataclasses
import enum
import functools
import importlib
import inspect
import math
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specjax.checks import hint, lookup
from specjax.defaults import LARGEST_TREE

if TYPE_CHECKING:
    from specjax.drafters import LoadedDrafter
    from specjax.model import Model


class Entry(NamedTuple):
    """A constructor that can be named.

    Attributes:
      constructor: path below `specjax`, such as "drafters.model".
      made: parameter -> function that makes its argument from further settings, which become settings of this entry:
        the draft model over a bounded cache, a corpus from a file.
      defaults: setting -> text, where the constructor requires an argument and a user should not have to give one.
    """

    constructor: str
    made: Mapping[str, str] = {}
    defaults: Mapping[str, str] = {}


DRAFTERS = {
    "model": Entry("drafters.model", made={"draft": "drafters.bounded"}),
    "tree": Entry("drafters.tree", defaults={"shape": "3x2"}),
    "dynamic-tree": Entry("drafters.dynamic_tree"),
    "ngram": Entry("drafters.ngram"),
    "suffix": Entry("drafters.suffix", made={"past": "drafters.read_corpus"}),
    "suffix-tree": Entry("drafters.suffix_tree", made={"past": "drafters.read_corpus"}),
    "lookahead": Entry("drafters.lookahead"),
    "table": Entry("drafters.table", made={"fitted": "drafters.fitting.fit_file"}),
    "cascade": Entry("drafters.cascade", made={"draft": "drafters.bounded"}, defaults={"inner": "model"}),
    "small-kv": Entry("drafters.small_kv"),
    "layer-skip": Entry("drafters.layer_skip"),
    "quantized": Entry("drafters.quantized"),
    "bridge": Entry("drafters.bridge"),
    "reencode": Entry("drafters.reencode"),
    "plain": Entry("drafters.plain"),
}
POLICIES = {
    "fixed": Entry("policies.fixed"),
    "best": Entry("policies.best"),
    "heuristic": Entry("policies.heuristic"),
    "threshold": Entry("policies.threshold"),
    "disco": Entry("policies.disco", made={"params": "training.disco.load"}),
    "goodput": Entry("policies.goodput"),
}
CACHES = {
    "sinks": Entry("drafters.Sinks"),
    "snapkv": Entry("drafters.SnapKV"),
    "retrieval": Entry("drafters.Retrieval"),
}
SHAPES = {
    "chain": Entry("trees.chain"),
    "sequoia": Entry("trees.sequoia", defaults={"size": "16"}),
}
TABLES = {"drafter": DRAFTERS, "policy": POLICIES, "cache": CACHES, "shape": SHAPES}

# Names of settings where they differ from the constructor's parameter.
KEYS = {"drafter": "inner", "selection": "cache", "fitted": "file", "path": "corpus", "acceptance": "accept"}
SIBLINGS = {"without": "WITHOUT_REPLACEMENT", "with": "WITH_REPLACEMENT", "points": "POINTS"}
NESTED = ("policy", "cache", "inner")  # settings whose value is a name with settings of its own
FILES = ("file", "text", "corpus")
MIDDLE = ("draft", "target")  # which model a cascade drafts with: a draft model, or the target with a bounded cache
NO_DEFAULT = inspect.Parameter.empty


# --- settings, read from signatures and docstrings -------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting of an entry: its name, the function and parameter it is passed to, type, default and help text."""

    name: str
    function: str
    parameter: str
    annotation: Any
    default: Any
    about: str


def resolve(path: str) -> Any:
    """The object at a path below `specjax`, such as "drafters.model"."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"specjax.{module}"), name)


@functools.cache
def settings(kind: str, name: str) -> dict[str, Setting]:
    """The settings of an entry by name, in the order of the constructor's parameters; those of a bounded draft last."""
    entry = lookup(name, TABLES[kind], kind)
    found: dict[str, Setting] = {}
    for parameter in _parameters(entry.constructor):
        if not _is_model(kind, parameter):
            if parameter not in entry.made or parameter in KEYS:
                _add(found, entry, entry.constructor, parameter)
            for one in _parameters(entry.made[parameter]) if parameter in entry.made else ():
                if not _is_model("drafter", one) and one not in _parameters(entry.constructor):
                    _add(found, entry, entry.made[parameter], one)
    for one in _parameters(entry.made["draft"]) if "draft" in entry.made else ():
        if not _is_model(kind, one):
            _add(found, entry, entry.made["draft"], one)
    if name == "cascade":
        about = "model that drafts: a draft model, or the target with a bounded cache"
        found["middle"] = Setting("middle", "", "middle", str, "draft", about)
    return found


def _parameters(path: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(resolve(path)).parameters


def _is_model(kind: str, parameter: str) -> bool:
    return kind == "drafter" and parameter in ("draft", "target")


def _add(found: dict[str, Setting], entry: Entry, path: str, parameter: str) -> None:
    name, signature = KEYS.get(parameter, parameter), _parameters(path)[parameter]
    if name not in found:
        about = arguments_of(inspect.getdoc(resolve(path)) or "").get(parameter, "")
        default = entry.defaults.get(name, signature.default)
        found[name] = Setting(name, path, parameter, signature.annotation, default, about)


def arguments_of(docstring: str) -> dict[str, str]:
    """Argument -> text of the Args (or Attributes) section of a docstring."""
    section = re.search(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", docstring, re.M | re.S)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else ():
        start = re.match(r"  (\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def summary(kind: str, name: str) -> str:
    """The first sentence of the constructor's docstring."""
    first = (inspect.getdoc(resolve(lookup(name, TABLES[kind], kind).constructor)) or "").partition("\n\n")[0]
    return " ".join(first.split())


# --- values ----------------------------------------------------------------------------------------------------------


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"must be an integer, got {text!r}") from None
    if not least <= value < 2**31:
        raise ValueError(f"must be in {least}..{2**31 - 1}, got {value}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"must be a number, got {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"must be finite, got {text}")
    return value


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(_number, text.split("/")))


def _integers(text: str) -> tuple[int, ...]:
    """Ascending integers and ranges joined by +: 0-2+5 is (0, 1, 2, 5)."""
    found: list[int] = []
    for part in text.split("+"):
        ends = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if ends is None:
            raise ValueError(f"must be integers and ranges such as 0-2+5, got {text!r}")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
        if int(ends[2] or ends[1]) < int(ends[1]) or found != sorted(set(found)):
            raise ValueError(f"must be ascending without repetition, such as 0-2+5, got {text!r}")
    return tuple(found)


def _shape(text: str) -> Any:
    from specjax import trees

    plain = text.replace(" ", "")
    if re.fullmatch(r"\d{1,5}(x\d{1,5})*", plain):
        return trees.regular(tuple(map(int, plain.split("x"))))
    if re.fullmatch(r"\d{1,5}(-\d{1,5})+", plain):
        return trees.Tree((trees.ROOT, *map(int, plain.split("-"))))
    if text.partition(":")[0].strip() not in SHAPES:
        raise ValueError(
            f"must be children per level such as 3x2x1, parents of the nodes such as 0-0-1, or one of "
            f"{', '.join(SHAPES)}; got {text!r}"
        )
    return Choice.parse("shape", text)


def _siblings(text: str) -> enum.Enum:
    from specjax.types import Siblings

    return Siblings[lookup(text, SIBLINGS, "siblings")]


def _verifier(text: str) -> str:
    from specjax import verify

    verify.get(text).require_lossless()
    return text


def _step_time(text: str) -> Any:
    from specjax.theory import StepTime

    values = _numbers(text)
    if len(values) != 3:
        raise ValueError(f"must be three numbers such as 0/2e-4/0.03, got {text!r}")
    return StepTime(*values)


READERS: dict[str, Callable[[str], Any]] = {  # by the name of the setting; all others are integers or floats
    "policy": lambda text: Choice.parse("policy", text),
    "cache": lambda text: Choice.parse("cache", text),
    "inner": lambda text: Strategy.parse(text),
    "shape": _shape,
    "siblings": _siblings,
    "verifier": _verifier,
    "middle": lambda text: lookup(text, dict.fromkeys(MIDDLE, text), "middle model"),
    **dict.fromkeys(("layers", "buckets"), _integers),
    **dict.fromkeys(("accept", "verify_cost"), _numbers),
    **dict.fromkeys(("target", "draft"), _step_time),  # of the policy "goodput"
    **dict.fromkeys(FILES, str),
}


def read(setting: Setting, text: str, *, least: int) -> Any:
    """The value of a setting.

    Raises:
      ValueError: text that is not a value of the setting's type.
    """
    if setting.name in READERS:
        return READERS[setting.name](text)
    is_float = float in (setting.annotation, *typing.get_args(setting.annotation))
    return _number(text) if is_float else _integer(text, least)


def write(value: Any) -> str:
    """The text of a value, which `read` turns into the same value."""
    from specjax.theory import StepTime
    from specjax.trees import Tree

    if isinstance(value, Strategy | Choice):
        return value.text
    if isinstance(value, Tree):
        levels = regular_levels(value)
        return "x".join(map(str, levels)) if levels else "-".join(map(str, value.parents[1:]))
    if isinstance(value, enum.Enum):
        return next(text for text, name in SIBLINGS.items() if name == value.name)
    if isinstance(value, StepTime) or (isinstance(value, tuple) and any(isinstance(one, float) for one in value)):
        return "/".join(map(str, value))
    if isinstance(value, tuple):
        runs: list[list[int]] = []
        for one in value:
            if runs and runs[-1][1] == one - 1:
                runs[-1][1] = one
            else:
                runs.append([one, one])
        return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return str(value)


def regular_levels(tree: Any) -> tuple[int, ...] | None:
    """Children per level where all nodes of a level have equally many, such as (3, 2); None for other trees."""
    counts = [0] * tree.size
    for parent in tree.parents[1:]:
        counts[parent] += 1
    levels = [{counts[node] for node in range(tree.size) if tree.depth[node] == depth} for depth in range(tree.width)]
    if tree.size == 1 or any(len(found) > 1 for found in levels):
        return None
    return tuple(found.pop() for found in levels[:-1])


# --- the grammar -----------------------------------------------------------------------------------------------------


def split_settings(text: str, where: str) -> list[str]:
    """The parts between commas outside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise ValueError(f"{where}: unbalanced parentheses in {text!r}")
    return [part.strip() for part in parts]


def parse_settings(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a text such as "model:gamma=4".

    Raises:
      ValueError: an unknown name or setting (lists the valid ones and suggests the closest), or an invalid value.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    lookup(name, TABLES[kind], kind)
    where = f"{kind} {name!r}"
    if colon and not rest:
        raise ValueError(f"{where}: settings are missing after the colon")
    given: dict[str, Any] = {}
    for number, part in enumerate(split_settings(rest, where) if rest else ()):
        known = settings(kind, name)
        key, equals, value = (found.strip() for found in part.partition("="))
        if not known:
            raise ValueError(f"{where} has no settings, got {part!r}")
        if number == 0 and (not equals or not re.fullmatch(r"\w+", key)):
            key, value = next(iter(known)), part
        if key not in known:
            raise ValueError(f"{where} has no setting {key!r}{hint(key, known)} (settings: {', '.join(known)})")
        if key in given:
            raise ValueError(f"{where}: {key} is given twice")
        if value.startswith("(") and value.endswith(")"):
            value = value[1:-1].strip()
        if not value:
            raise ValueError(f"{where}: {key} has no value")
        try:
            given[key] = read(known[key], value, least=int(kind == "drafter"))
        except ValueError as error:
            if key in NESTED:
                raise
            raise ValueError(f"{where}: {key}{'' if str(error).startswith('must') else ':'} {error}") from None
    return name, given


def write_settings(name: str, given: Sequence[tuple[str, Any]]) -> str:
    """The text of a name and its settings."""
    parts = []
    for key, value in given:
        text = write(value)
        parts.append(f"{key}=({text})" if re.search(r"[,=()]", text) else f"{key}={text}")
    return name + (":" + ",".join(parts) if parts else "")


def _frozen(given: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(dict(given).items()))


# --- calls: one description that is both executed and printed --------------------------------------------------------


class Slot(NamedTuple):
    """The place of a model: a draft model by number, or the target (None)."""

    number: int | None


class Call(NamedTuple):
    """A call of a public function of `specjax`; arguments may be calls and slots."""

    function: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def _evaluate(node: Any, target: Any, drafts: Sequence[Any], done: dict[int, Any]) -> Any:
    """The value of a node; a node that occurs twice, such as the middle model of a cascade, is made once."""
    if isinstance(node, Slot):
        return target if node.number is None else drafts[node.number]
    if not isinstance(node, Call):
        return node
    if id(node) not in done:
        args = [_evaluate(arg, target, drafts, done) for arg in node.args]
        options = {key: _evaluate(value, target, drafts, done) for key, value in node.options.items()}
        done[id(node)] = resolve(node.function)(*args, **options)
    return done[id(node)]


def _show(node: Any, drafts: Sequence[str]) -> str:
    from specjax.theory import StepTime
    from specjax.trees import Tree

    if isinstance(node, Slot):
        return "target" if node.number is None else f'sj.load("{drafts[node.number]}")'
    if isinstance(node, Tree):
        levels = regular_levels(node)
        return f"sj.trees.regular({levels})" if levels else f"sj.trees.Tree({tuple(node.parents)})"
    if isinstance(node, enum.Enum):
        return f"sj.drafters.{node}"
    if isinstance(node, StepTime):
        return f"sj.theory.StepTime{tuple(node)}"
    if not isinstance(node, Call):
        return repr(node)
    options = [f"{key}={_show(value, drafts)}" for key, value in node.options.items()]
    return f"sj.{node.function}({', '.join([*(_show(arg, drafts) for arg in node.args), *options])})"


# Checks of constructors that need a model: they make them themselves, and `Strategy.parse` before a model is loaded.
CHECKS = {
    "drafters.dynamic_tree": "drafters.model_tree.check_size",
    "drafters.bounded": "drafters.small_kv.check_budget",
    "drafters.small_kv": "drafters.small_kv.check_budget",
}


def _check_call(node: Any) -> None:
    """Raises the ValueError that a constructor of the call would raise for its settings, whatever the models."""
    if not isinstance(node, Call):
        return
    for one in (*node.args, *node.options.values()):
        _check_call(one)
    if node.function in CHECKS:
        bound = inspect.signature(resolve(node.function)).bind(*node.args, **node.options)
        bound.apply_defaults()
        check = resolve(CHECKS[node.function])
        given = {name: bound.arguments[name] for name in inspect.signature(check).parameters if name in bound.arguments}
        check(**{name: _evaluate(value, None, (), {}) for name, value in given.items()})


TARGET = Slot(None)


def _call(kind: str, name: str, given: Mapping[str, Any], slots: Iterator[int], target: Any = TARGET) -> Call:
    """The constructor call of a name with its settings; `slots` are the numbers of its draft models."""
    entry, known = TABLES[kind][name], settings(kind, name)
    values = {key: read(known[key], text, least=0) for key, text in entry.defaults.items()} | dict(given)
    models: list[Any] = []

    def node(value: Any) -> Any:
        if isinstance(value, Strategy):  # the inner drafter of a cascade: its target is the middle model
            return _call("drafter", value.name, dict(value.settings), slots, models[0])
        return _call(value.kind, value.name, dict(value.settings), slots) if isinstance(value, Choice) else value

    def options(path: str) -> dict[str, Any]:
        keys = {parameter: KEYS.get(parameter, parameter) for parameter in _parameters(path)}
        return {p: node(values[key]) for p, key in keys.items() if key in values and not _is_model(kind, p)}

    for parameter in _parameters(entry.constructor):
        if _is_model(kind, parameter):
            own = parameter == "target" or values.get("middle") == "target"
            model = target if own else Slot(next(slots))
            bounds = parameter in entry.made and any(known[key].function == entry.made[parameter] for key in values)
            models.append(Call(entry.made[parameter], (model,), options(entry.made[parameter])) if bounds else model)
    arguments = options(entry.constructor)
    for parameter, path in entry.made.items():
        further = [key for key in values if known[key].function == path]
        if further and not _is_model(kind, parameter):
            if parameter in arguments:
                raise ValueError(f"{kind} {name!r}: pass either {KEYS[parameter]} or {further[0]}, not both")
            arguments[parameter] = Call(path, (target,) if "target" in _parameters(path) else (), options(path))
    for parameter, signature in _parameters(entry.constructor).items():
        if signature.default is NO_DEFAULT and parameter not in arguments and not _is_model(kind, parameter):
            path = entry.made.get(parameter)
            ways = [key for key, one in known.items() if one.parameter == parameter or one.function == path]
            raise ValueError(f"{kind} {name!r} requires the setting {' or '.join(ways)}")
    return Call(entry.constructor, tuple(models), arguments)


# --- what users of this module hold ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Choice:
    """A policy, cache selection or tree shape by name, with settings, such as "threshold:theta=0.3"."""

    kind: str
    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, kind: str, text: str) -> "Choice":
        """The choice that a text describes. Raises ValueError as `Strategy.parse`."""
        name, given = parse_settings(kind, text)
        found = cls(kind, name, _frozen(given))
        call = _call(kind, name, given, iter(()))
        if not any(found.files()):
            _evaluate(call, None, (), {})  # its constructor checks the values
        return found

    @property
    def text(self) -> str:
        """The canonical text."""
        return write_settings(self.name, self.settings)

    def build(self) -> Any:
        """What the constructor returns: a `policies.Rule`, a `drafters.Selection` or a `Tree`."""
        return _evaluate(_call(self.kind, self.name, dict(self.settings), iter(())), None, (), {})

    def files(self) -> Iterator[tuple[str, str]]:
        """Settings that are paths of files, with their values."""
        return ((key, value) for key, value in self.settings if key in FILES)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How to draft and verify, as plain data: hashable, comparable, printable.

    >>> strategy = Strategy.parse("cascade:inner=(model:gamma=3),gamma=6")
    >>> strategy.text
    'cascade:gamma=6,inner=(model:gamma=3)'
    >>> strategy.replace_settings(gamma=4).python(["middle", "small"])
    'sj.drafters.cascade(sj.load("middle"), drafter=sj.drafters.model(sj.load("small"), gamma=3), gamma=4)'

    Attributes:
      name: drafter, a key of `DRAFTERS`.
      settings: given settings, sorted by name. Values are those of the constructor's arguments, except that policies,
        caches and named shapes are `Choice`s and an inner drafter is a `Strategy`.
      verifier: name in `verify.TABLE`; None: the lossless verifier that suits the drafter.
      drafts: positions of its draft models in the list that `build` and `python` receive; (): the first `needs`.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    verifier: str | None = None
    drafts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _frozen(self.settings))

    @classmethod
    def of(cls, name: str, *, verifier: str | None = None, drafts: tuple[int, ...] = (), **given: Any) -> "Strategy":
        """A strategy from keyword arguments: `Strategy.of("model", gamma=4)`."""
        return cls(name, _frozen(given), verifier, drafts)

    @classmethod
    def parse(cls, text: str) -> "Strategy":
        """The strategy that a text describes, as after `--drafter`.

        Raises:
          ValueError: an unknown name or setting (lists the valid ones and suggests the closest), an invalid value, or
            settings that exclude each other.
        """
        name, given = parse_settings("drafter", text)
        found = cls(name, _frozen(given))
        found._check()
        return found

    def _check(self) -> None:
        given, where = dict(self.settings), f"drafter {self.name!r}"
        if "gamma" in given and "policy" in given:
            raise ValueError(f"{where}: pass either gamma or policy, not both")
        if given.get("middle") == "target" and not {"budget", "cache"} & set(given):
            raise ValueError(f"{where}: middle=target requires a bounded cache, such as budget=256")
        call = self.call()
        _check_call(call)
        if not call.args and not any(self.files()):
            _evaluate(call, None, (), {})  # needs no model: its constructor checks the values
        if self.nodes > LARGEST_TREE:
            raise ValueError(f"{where}: {self.nodes} nodes per round, at most {LARGEST_TREE} are supported")

    @property
    def text(self) -> str:
        """The canonical text for `--drafter`: `Strategy.parse(s.text) == s` where verifier and drafts are unset."""
        return write_settings(self.name, self.settings)

    def __getitem__(self, key: str) -> Any:
        """The value of a setting, or its default."""
        known = settings("drafter", self.name)
        setting = lookup(key, known, f"setting of drafter {self.name!r}")
        given = dict(self.settings)
        if key in given:
            return given[key]
        if key in DRAFTERS[self.name].defaults:
            return read(setting, setting.default, least=0)
        return None if setting.default is NO_DEFAULT else setting.default

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a setting that was given, else `default`."""
        return dict(self.settings).get(key, default)

    def replace_settings(self, **changes: Any) -> "Strategy":
        """The same strategy with other values of settings; None removes a setting.

        Raises:
          ValueError: a setting that the drafter does not have, or settings that exclude each other.
        """
        known = settings("drafter", self.name)
        for key in changes:
            if key not in known:
                names = ", ".join(known) or "none"
                raise ValueError(f"drafter {self.name!r} has no setting {key!r}{hint(key, known)} (settings: {names})")
        merged = {key: value for key, value in (dict(self.settings) | changes).items() if value is not None}
        found = dataclasses.replace(self, settings=_frozen(merged))
        found._check()
        return found

    @property
    def takes_gamma(self) -> bool:
        """Whether a fixed draft length can be chosen."""
        return "gamma" in settings("drafter", self.name) and self.get("policy") is None

    @property
    def gamma(self) -> int | None:
        """Draft tokens per round: the setting or its default; None for trees, plain decoding and policies."""
        if not self.takes_gamma:
            return None
        return resolve("drafters.MODEL_GAMMA") if self["gamma"] is None else self["gamma"]

    @property
    def tree(self) -> Any:
        """The static tree of a drafter with a shape; None for all others."""
        shape = self["shape"] if "shape" in settings("drafter", self.name) else None
        return shape.build() if isinstance(shape, Choice) else shape

    @property
    def nodes(self) -> int:
        """Tokens per target forward pass, the last committed one included."""
        if self.tree is not None:
            return self.tree.size
        known = settings("drafter", self.name)
        if "size" in known:
            return self["size"]
        if "guesses" in known:
            return (self["window"] + self["guesses"]) * (self["ngram"] - 1)
        return self._longest + 1

    @property
    def levels(self) -> int:
        """Tokens drafted one after another."""
        if self.tree is not None:
            return self.tree.width - 1
        known = settings("drafter", self.name)
        if "depth" in known:
            return self["depth"]
        return self["ngram"] - 1 if "guesses" in known else self._longest

    @property
    def _longest(self) -> int:
        policy = self.get("policy")
        return (self.gamma or 0) if policy is None or any(policy.files()) else policy.build().gamma_max

    @property
    def needs(self) -> int:
        """Number of draft models."""
        parameters = _parameters(DRAFTERS[self.name].constructor)
        own = "draft" in parameters and self.get("middle") != "target"
        return int(own) + (self["inner"].needs if "drafter" in parameters else 0)

    def call(self) -> Call:
        """The constructor call, with slots for the models."""
        slots = iter(self.drafts or range(self.needs))
        return _call("drafter", self.name, dict(self.settings), slots)

    def build(self, target: "Model", drafts: "Sequence[Model]" = ()) -> "LoadedDrafter":
        """The drafter.

        Args:
          target: loaded target model.
          drafts: loaded draft models, the largest first.

        Raises:
          ValueError: too few draft models, or models and settings that do not fit together.
        """
        call = self.call()
        needed = max((*self.drafts, self.needs - 1), default=-1) + 1
        if len(drafts) < needed:
            raise ValueError(f"drafter {self.text!r} requires {needed} draft model(s), got {len(drafts)}")
        return _evaluate(call, target, drafts, {})

    def python(self, drafts: Sequence[str] = ()) -> str:
        """The drafter as a Python expression, with `sj` for specjax and `target` for the loaded target."""
        return _show(self.call(), drafts)

    def label(self, drafts: Sequence[str] = ()) -> str:
        """A short label for tables: the settings, the draft models' last names, and the verifier if one is named."""
        parts = [self.name]
        for key, value in sorted(self.settings, key=lambda pair: pair[0] != "gamma"):
            if key == "gamma":
                parts.append(f"\u03b3={value}")
            elif key == "shape":
                text = write(value)
                parts.append(text if len(text) <= 16 else f"{self.nodes} nodes")
            elif key == "inner":
                parts.append(f"({value.label()})")
            elif key != "siblings":
                parts.append(f"{key}={write(value)}")
        if drafts:
            own = self.drafts or range(self.needs)
            parts += [" > ".join(drafts[number].rstrip("/").rpartition("/")[2] for number in own)] if own else []
        return " ".join(parts) + (f", {self.verifier}" if self.verifier else "")

    def files(self) -> Iterator[tuple[str, str]]:
        """Settings that are paths of files, with their values, inner drafters and policies included."""
        for key, value in self.settings:
            if key in FILES:
                yield key, value
            elif isinstance(value, Strategy | Choice):
                yield from value.files()

    def check_files(self) -> None:
        """Raises ValueError if a file that the settings name does not exist."""
        for key, file in self.files():
            if not Path(file).is_file():
                raise ValueError(f"drafter {self.text!r}: {key}={file}: no such file")


# --- help ------------------------------------------------------------------------------------------------------------

GRAMMAR = """\
NAME or NAME:key=value,key=value. A value with settings of its own is enclosed in parentheses:
cascade:gamma=6,inner=(model:gamma=3). Omitted settings have the defaults shown.
"""


def help_text(kind: str) -> str:
    """All entries of a kind with their settings, for `--drafter help` and `--policy help`."""
    kinds = ("drafter", "cache", "shape") if kind == "drafter" else (kind,)
    paragraphs = [GRAMMAR]
    for one in kinds:
        for name in TABLES[one]:
            prefix = "" if one == kind else f"{one}="
            head = textwrap.fill(f"{prefix}{name}: {summary(one, name)}", 110, subsequent_indent="  ")
            paragraphs.append("\n".join([head, *_setting_lines(one, name)]) + "\n")
    if kind == "drafter":
        paragraphs.append("\n".join(["Lossless verifiers, the default first:", *_verifier_lines()]))
    return "\n".join(paragraphs)


def _setting_lines(kind: str, name: str) -> Iterator[str]:
    known = settings(kind, name)
    plain = lambda value: isinstance(value, int | float | str)
    heads = {key: f"{key}={one.default}" if plain(one.default) else key for key, one in known.items()}
    width = max(map(len, heads.values()), default=0)
    for key, setting in known.items():
        head = f"    {heads[key]:{width}}  "
        yield textwrap.fill(head + setting.about, 110, subsequent_indent=" " * len(head)).rstrip()


def _verifier_lines() -> Iterator[str]:
    from specjax import verify
    from specjax.trees import chain, regular
    from specjax.types import Siblings

    shapes = {
        "chains of sampled tokens": (chain(2), Siblings.WITH_REPLACEMENT, False),
        "chains of copied tokens": (chain(2), Siblings.POINTS, False),
        "trees, siblings=without": (regular((2, 2)), Siblings.WITHOUT_REPLACEMENT, False),
        "trees, siblings=with": (regular((2, 2)), Siblings.WITH_REPLACEMENT, False),
        "trees, siblings=points": (regular((2, 2)), Siblings.POINTS, False),
        "one tree per row": (regular((2, 2)), Siblings.POINTS, True),
    }
    for words, (tree, siblings, dynamic) in shapes.items():
        first = verify.default(tree, siblings, dynamic).name
        names = [n for n, v in verify.TABLE.items() if v.lossless and v.supports(tree, siblings, dynamic)]
        yield f"    {words}: {', '.join([first, *(name for name in names if name != first)])}"
