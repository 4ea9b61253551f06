"""Registry of drafters, draft-length policies, small caches and tree shapes by name.

An entry names a public constructor. Its settings, their types, defaults and help are read from the signature and
docstring of that constructor, so that a new drafter takes its own module, one line in `DRAFTERS` and a test. The
grammar of `specjax.strategy`, `--drafter help`, sweeps and advice follow. Importing this module does not import jax.
"""

import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from specjax.checks import lookup


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
    "head": Entry("drafters.head", made={"head": "heads.load_head"}),
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
KEYS = {
    "drafter": "inner", "selection": "cache", "fitted": "file", "path": "corpus", "acceptance": "accept",
    "name": "folder",
}  # fmt: skip
NO_DEFAULT = inspect.Parameter.empty

# Checks of constructors that need a model: they make them themselves, and `Strategy.parse` before a model is loaded.
CHECKS = {
    "drafters.dynamic_tree": "drafters.token_tree.check_size",
    "drafters.bounded": "drafters.small_kv.check_budget",
    "drafters.small_kv": "drafters.small_kv.check_budget",
}


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
    for parameter in parameters(entry.constructor):
        if not is_model(kind, parameter):
            if parameter not in entry.made or parameter in KEYS:
                _add(found, entry, entry.constructor, parameter)
            for one in parameters(entry.made[parameter]) if parameter in entry.made else ():
                if not is_model("drafter", one) and one not in parameters(entry.constructor):
                    _add(found, entry, entry.made[parameter], one)
    for one in parameters(entry.made["draft"]) if "draft" in entry.made else ():
        if not is_model(kind, one):
            _add(found, entry, entry.made["draft"], one)
    if name == "cascade":
        about = "model that drafts: a draft model, or the target with a bounded cache"
        found["middle"] = Setting("middle", "", "middle", str, "draft", about)
    return found


def parameters(path: str) -> Mapping[str, inspect.Parameter]:
    """Parameters of the function at a path, by name."""
    return inspect.signature(resolve(path)).parameters


def is_model(kind: str, parameter: str) -> bool:
    """Whether the parameter of a constructor of this kind is a model."""
    return kind == "drafter" and parameter in ("draft", "target")


def _add(found: dict[str, Setting], entry: Entry, path: str, parameter: str) -> None:
    name, signature = KEYS.get(parameter, parameter), parameters(path)[parameter]
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
