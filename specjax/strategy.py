"""`Strategy`: how to draft and verify, as data. The grammar of the command line, presets and sweeps:

    model                    ngram:gamma=4,longest=3          cascade:gamma=6,inner=(model:gamma=3)
    tree:3x2                 layer-skip:layers=0-2+5          small-kv:budget=256,cache=(snapkv:window=16)

A name of `specjax.registry` and its settings. The key of the first setting may be omitted. A value with settings of its
own is enclosed in parentheses.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specjax import registry
from specjax import settings as values
from specjax.checks import hint, lookup
from specjax.defaults import LARGEST_TREE
from specjax.registry import NO_DEFAULT, Setting

if TYPE_CHECKING:
    from specjax.drafters import LoadedDrafter
    from specjax.model import Model

NESTED = {  # setting -> kind of its value
    "policy": "policy", "cache": "cache", "shape": "shape", "tree": "shape", "inner": "drafter",
}  # fmt: skip
Given = tuple[tuple[str, Any], ...]


# --- the grammar -----------------------------------------------------------------------------------------------------


def parse(kind: str, text: str) -> tuple[str, Given]:
    """Name and settings of a text such as "model:gamma=4".

    Raises:
      ValueError: an unknown name or setting (lists the valid ones and suggests the closest), or an invalid value.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    lookup(name, registry.TABLES[kind], kind)
    where = f"{kind} {name!r}"
    if colon and not rest:
        raise ValueError(f"{where}: settings are missing after the colon")
    given: dict[str, Any] = {}
    for number, part in enumerate(_split(rest, where) if rest else ()):
        known = registry.settings(kind, name)
        key, equals, value = (found.strip() for found in part.partition("="))
        if known and number == 0 and (not equals or not re.fullmatch(r"\w+", key)):
            key, value = next(iter(known)), part
        setting = find_setting(kind, name, key)
        if key in given:
            raise ValueError(f"{where}: {key} is given twice")
        if value.startswith("(") and value.endswith(")"):
            value = value[1:-1].strip()
        if not value:
            raise ValueError(f"{where}: {key} has no value")
        given[key] = _read(setting, value, where, least=int(kind == "drafter"))
    return name, _frozen(given)


def _split(text: str, where: str) -> list[str]:
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


def find_setting(kind: str, name: str, key: str) -> Setting:
    """A setting of an entry. Raises ValueError that lists all of them and suggests the closest."""
    known = registry.settings(kind, name)
    if key not in known:
        names = ", ".join(known) or "none"
        raise ValueError(f"{kind} {name!r} has no setting {key!r}{hint(key, known)} (settings: {names})")
    return known[key]


def _read(setting: Setting, text: str, where: str, *, least: int) -> Any:
    kind = NESTED.get(setting.name)
    if kind == "drafter":
        return Strategy.parse(text)
    if kind and (kind != "shape" or text.partition(":")[0].strip() in registry.SHAPES):
        return Choice.parse(kind, text)
    try:
        return values.read(setting.name, setting.annotation, text, least=least)
    except ValueError as error:
        raise ValueError(f"{where}: {setting.name}{'' if str(error).startswith('must') else ':'} {error}") from None


def _write(value: Any) -> str:
    return value.text if isinstance(value, Strategy | Choice) else values.write(value)


def _frozen(given: Mapping[str, Any] | Given) -> Given:
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


TARGET = Slot(None)


def evaluate(node: Any, target: Any = None, drafts: Sequence[Any] = (), done: dict[int, Any] | None = None) -> Any:
    """The value of a node; a node that occurs twice, such as the middle model of a cascade, is made once."""
    if isinstance(node, Slot):
        return target if node.number is None else drafts[node.number]
    if not isinstance(node, Call):
        return node
    done = {} if done is None else done
    if id(node) not in done:
        args = [evaluate(arg, target, drafts, done) for arg in node.args]
        options = {key: evaluate(value, target, drafts, done) for key, value in node.options.items()}
        done[id(node)] = registry.resolve(node.function)(*args, **options)
    return done[id(node)]


def uses_models(node: Any) -> bool:
    """Whether a call has slots."""
    if isinstance(node, Call):
        return any(map(uses_models, (*node.args, *node.options.values())))
    return isinstance(node, Slot)


def show(node: Any, drafts: Sequence[str]) -> str:
    """A node as a Python expression."""
    if isinstance(node, Slot):
        return "target" if node.number is None else f'sj.load("{drafts[node.number]}")'
    if not isinstance(node, Call):
        return values.python(node)
    options = [f"{key}={show(value, drafts)}" for key, value in node.options.items()]
    return f"sj.{node.function}({', '.join([*(show(arg, drafts) for arg in node.args), *options])})"


def check_call(node: Any) -> None:
    """Raises the ValueError that a constructor of the call would raise for its settings, whatever the models."""
    if not isinstance(node, Call):
        return
    for one in (*node.args, *node.options.values()):
        check_call(one)
    if node.function in registry.CHECKS:
        bound = inspect.signature(registry.resolve(node.function)).bind(*node.args, **node.options)
        bound.apply_defaults()
        check = registry.resolve(registry.CHECKS[node.function])
        given = {name: bound.arguments[name] for name in inspect.signature(check).parameters if name in bound.arguments}
        check(**{name: evaluate(value) for name, value in given.items()})


def _call(kind: str, name: str, given: Mapping[str, Any], slots: Iterator[int], target: Slot | Call = TARGET) -> Call:
    """The constructor call of a name with its settings; `slots` are the numbers of its draft models."""
    entry, known, where = registry.TABLES[kind][name], registry.settings(kind, name), f"{kind} {name!r}"
    chosen = {key: _read(known[key], text, where, least=0) for key, text in entry.defaults.items()} | dict(given)
    models: list[Any] = []

    def node(value: Any) -> Any:
        if isinstance(value, Strategy):  # the inner drafter of a cascade: its target is the middle model
            return _call("drafter", value.name, dict(value.settings), slots, models[0])
        return _call(value.kind, value.name, dict(value.settings), slots) if isinstance(value, Choice) else value

    def options(path: str) -> dict[str, Any]:
        keys = {parameter: registry.KEYS.get(parameter, parameter) for parameter in registry.parameters(path)}
        return {p: node(chosen[key]) for p, key in keys.items() if key in chosen and not registry.is_model(kind, p)}

    for parameter in registry.parameters(entry.constructor):
        if registry.is_model(kind, parameter):
            own = parameter == "target" or chosen.get("middle") == "target"
            model = target if own else Slot(next(slots))
            bounds = parameter in entry.made and any(known[key].function == entry.made[parameter] for key in chosen)
            models.append(Call(entry.made[parameter], (model,), options(entry.made[parameter])) if bounds else model)
    arguments = options(entry.constructor)
    for parameter, path in entry.made.items():
        further = [key for key in chosen if known[key].function == path]
        if further and not registry.is_model(kind, parameter):
            if parameter in arguments:
                raise ValueError(f"{where}: pass either {registry.KEYS[parameter]} or {further[0]}, not both")
            given = {"target": target} if "target" in registry.parameters(path) else {}
            arguments[parameter] = Call(path, (), options(path) | given)
    for parameter, signature in registry.parameters(entry.constructor).items():
        if signature.default is NO_DEFAULT and parameter not in arguments and not registry.is_model(kind, parameter):
            path = entry.made.get(parameter)
            keys = [key for key, one in known.items() if one.parameter == parameter or one.function == path]
            raise ValueError(f"{where} requires the setting {' or '.join(keys)}")
    return Call(entry.constructor, tuple(models), arguments)


# --- what users of this module hold ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Choice:
    """A policy, cache selection or tree shape by name, with settings, such as "threshold:theta=0.3"."""

    kind: str
    name: str
    settings: Given = ()

    @classmethod
    def parse(cls, kind: str, text: str) -> "Choice":
        """The choice that a text describes. Raises ValueError as `Strategy.parse`."""
        found = cls(kind, *parse(kind, text))
        call = found.call()
        if not any(found.files()):
            evaluate(call)  # its constructor checks the values
        return found

    @property
    def text(self) -> str:
        """The canonical text."""
        parts = []
        for key, value in self.settings:
            text = _write(value)
            parts.append(f"{key}=({text})" if re.search(r"[,=()]", text) else f"{key}={text}")
        return self.name + (":" + ",".join(parts) if parts else "")

    def call(self) -> Call:
        """The constructor call."""
        return _call(self.kind, self.name, dict(self.settings), iter(()))

    def build(self) -> Any:
        """What the constructor returns: a `policies.Rule`, a `drafters.Selection` or a `Tree`."""
        return evaluate(self.call())

    def files(self) -> Iterator[tuple[str, str]]:
        """Settings that are paths of files, with their values, nested ones included."""
        for key, value in self.settings:
            if key in values.FILES:
                yield key, value
            elif isinstance(value, Strategy | Choice):
                yield from value.files()


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How to draft and verify, as plain data: hashable, comparable, printable.

    >>> strategy = Strategy.parse("cascade:inner=(model:gamma=3),gamma=6")
    >>> strategy.text
    'cascade:gamma=6,inner=(model:gamma=3)'
    >>> strategy.replace_settings(gamma=4).python(["middle", "small"])
    'sj.drafters.cascade(sj.load("middle"), drafter=sj.drafters.model(sj.load("small"), gamma=3), gamma=4)'

    Attributes:
      name: drafter, a key of `registry.DRAFTERS`.
      settings: given settings, sorted by name. Values are those of the constructor's arguments, except that policies,
        caches and named shapes are `Choice`s and an inner drafter is a `Strategy`.
      verifier: name in `verify.TABLE`; None: the lossless verifier that suits the drafter.
      drafts: positions of its draft models in the list that `build` and `python` receive; (): the first `needs`.
    """

    name: str
    settings: Given = ()
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
        found = cls(*parse("drafter", text))
        found._check()
        return found

    def _check(self) -> None:
        given, where = dict(self.settings), f"drafter {self.name!r}"
        if "gamma" in given and "policy" in given:
            raise ValueError(f"{where}: pass either gamma or policy, not both")
        if given.get("middle") == "target" and not {"budget", "cache"} & set(given):
            raise ValueError(f"{where}: middle=target requires a bounded cache, such as budget=256")
        call = self.call()
        check_call(call)
        if not uses_models(call) and not any(self.files()):
            evaluate(call)  # its constructor checks the values
        if self.nodes > LARGEST_TREE:
            raise ValueError(f"{where}: {self.nodes} nodes per round, at most {LARGEST_TREE} are supported")

    @property
    def _choice(self) -> Choice:
        return Choice("drafter", self.name, self.settings)

    @property
    def text(self) -> str:
        """The canonical text for `--drafter`: `Strategy.parse(s.text) == s` where verifier and drafts are unset."""
        return self._choice.text

    def files(self) -> Iterator[tuple[str, str]]:
        """Settings that are paths of files, with their values, inner drafters and policies included."""
        return self._choice.files()

    def check_files(self) -> None:
        """Raises ValueError if a file that the settings name does not exist."""
        for key, file in self.files():
            if not Path(file).is_file():
                raise ValueError(f"drafter {self.text!r}: {key}={file}: no such file")

    def __getitem__(self, key: str) -> Any:
        """The value of a setting, or its default."""
        setting, given = find_setting("drafter", self.name, key), dict(self.settings)
        if key in given:
            return given[key]
        if key in registry.DRAFTERS[self.name].defaults:
            return _read(setting, setting.default, self.name, least=0)
        return None if setting.default is NO_DEFAULT else setting.default

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a setting that was given, else `default`."""
        return dict(self.settings).get(key, default)

    def replace_settings(self, **changes: Any) -> "Strategy":
        """The same strategy with other values of settings; None removes a setting.

        Raises:
          ValueError: a setting that the drafter does not have, or settings that exclude each other.
        """
        for key in changes:
            find_setting("drafter", self.name, key)
        merged = {key: value for key, value in (dict(self.settings) | changes).items() if value is not None}
        found = dataclasses.replace(self, settings=_frozen(merged))
        found._check()
        return found

    def _has(self, key: str) -> bool:
        return key in registry.settings("drafter", self.name)

    @property
    def takes_gamma(self) -> bool:
        """Whether a fixed draft length can be chosen."""
        given = dict(self.settings)
        return self._has("gamma") and not {"policy", "tree", "dynamic"} & given.keys()

    @property
    def gamma(self) -> int | None:
        """Draft tokens per round: the setting or its default; None for trees, plain decoding and policies."""
        if not self.takes_gamma:
            return None
        return registry.resolve("drafters.model.MODEL_GAMMA") if self["gamma"] is None else self["gamma"]

    @property
    def tree(self) -> Any:
        """The static tree of a drafter with a shape; None for all others."""
        shape = self["shape"] if self._has("shape") else self.get("tree")
        return shape.build() if isinstance(shape, Choice) else shape

    @property
    def nodes(self) -> int:
        """Tokens per target forward pass, the last committed one included."""
        if self.tree is not None:
            return self.tree.size
        if self._has("size") or self.get("dynamic"):
            return self["size"] if self._has("size") else self["dynamic"]
        if self._has("guesses"):
            return (self["window"] + self["guesses"]) * (self["ngram"] - 1)
        return self._longest + 1

    @property
    def levels(self) -> int:
        """Tokens drafted one after another."""
        if self.tree is not None:
            return self.tree.width - 1
        if self._has("depth") and (self.name != "head" or self.get("dynamic")):
            return self["depth"]
        return self["ngram"] - 1 if self._has("guesses") else self._longest

    @property
    def _longest(self) -> int:
        policy = self.get("policy")
        return (self.gamma or 0) if policy is None or any(policy.files()) else policy.build().gamma_max

    @property
    def needs(self) -> int:
        """Number of draft models."""
        parameters = registry.parameters(registry.DRAFTERS[self.name].constructor)
        own = "draft" in parameters and self.get("middle") != "target"
        return int(own) + (self["inner"].needs if "drafter" in parameters else 0)

    def call(self) -> Call:
        """The constructor call, with slots for the models."""
        return _call("drafter", self.name, dict(self.settings), iter(self.drafts or range(self.needs)))

    def build(self, target: "Model", drafts: "Sequence[Model]" = ()) -> "LoadedDrafter":
        """The drafter.

        Args:
          target: loaded target model.
          drafts: loaded draft models, the largest first.

        Raises:
          ValueError: too few draft models, or models and settings that do not fit together.
        """
        needed = max((*self.drafts, self.needs - 1), default=-1) + 1
        if len(drafts) < needed:
            raise ValueError(f"drafter {self.text!r} requires {needed} draft model(s), got {len(drafts)}")
        return evaluate(self.call(), target, drafts)

    def python(self, drafts: Sequence[str] = ()) -> str:
        """The drafter as a Python expression, with `sj` for specjax and `target` for the loaded target."""
        return show(self.call(), drafts)

    def label(self, drafts: Sequence[str] = ()) -> str:
        """A short label for tables: the settings, the draft models' last names, and the verifier if one is named."""
        parts = [self.name]
        for key, value in sorted(self.settings, key=lambda pair: pair[0] != "gamma"):
            if key == "gamma":
                parts.append(f"\u03b3={value}")
            elif key in ("shape", "tree"):
                text = _write(value)
                parts.append(text if len(text) <= 16 else f"{self.nodes} nodes")
            elif key == "inner":
                parts.append(f"({value.label()})")
            elif key != "siblings" or _write(value) != "points":
                parts.append(f"{key}={_write(value)}")
        if drafts:
            own = self.drafts or range(self.needs)
            parts += [" > ".join(drafts[number].rstrip("/").rpartition("/")[2] for number in own)] if own else []
        return " ".join(parts) + (f", {self.verifier}" if self.verifier else "")
