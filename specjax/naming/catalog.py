"""`--drafter help` and `--policy help`: every drafter or policy with its settings, and the verifiers that serve it."""

from collections.abc import Iterator

from specjax import verify
from specjax.naming import drafting, nested, policing
from specjax.naming.grammar import Kind, Table
from specjax.trees import chain, regular
from specjax.types import Siblings

MAKES = {  # a drafter's drafts, as one that a verifier is asked about: tree, siblings, whether each row has its own
    drafting.CHAIN: (chain(2), Siblings.WITH_REPLACEMENT, False),
    drafting.COPIES: (chain(2), Siblings.POINTS, False),
    drafting.TREE: (regular((2, 2)), Siblings.WITHOUT_REPLACEMENT, False),
    drafting.POINTS: (regular((2, 2)), Siblings.POINTS, False),
    drafting.TREES: (regular((2, 2)), Siblings.POINTS, True),
}
GRAMMAR = """\
NAME or NAME:key=value,key=value. A value with settings of its own stands in parentheses:
cascade:gamma=6,inner=(model:gamma=3). Settings that are left out have the values shown.
"""


def of_drafters() -> str:
    """Every drafter, and how it is written."""
    return "\n".join([GRAMMAR, *listing(drafting.DRAFTERS, "drafter")])


def of_policies() -> str:
    """Every policy, and how it is written."""
    return "\n".join([GRAMMAR, *listing(policing.POLICIES, "policy")])


def listing(table: Table, what: str) -> Iterator[str]:
    """A paragraph for each: its line, its settings, the verifiers that serve it."""
    for name, kind in table.items():
        models = ["", " [one draft model]", " [two draft models or more]"][kind.models({})]
        yield f"{name}: {kind.about}{models}"
        yield from settings(kind)
        if kind.makes:
            yield f"    verifiers: {', '.join(verifiers(kind))}"
        yield ""
    if what == "drafter":
        for key, inside in (("cache", nested.SELECTIONS), ("shape", nested.SHAPES)):
            yield from listing({f"{key}={name}": kind for name, kind in inside.items()}, key)
        yield "The first verifier named is the default. Of a tree with siblings=with or points, others serve:"
        for told, siblings in (("with", Siblings.WITH_REPLACEMENT), ("points", Siblings.POINTS)):
            yield f"    siblings={told}: {', '.join(serving(regular((2, 2)), siblings, False))}"


def settings(kind: Kind) -> Iterator[str]:
    """One line a setting."""
    told = [f"{key}={setting.default}" if _plain(setting.default) else key for key, setting in kind.keys.items()]
    width = max(map(len, told), default=0)
    for left, setting in zip(told, kind.keys.values(), strict=True):
        words = "" if setting.default is None or _plain(setting.default) else f" (default: {setting.default})"
        yield f"    {left:{width}}  {setting.about}{words}"


def verifiers(kind: Kind) -> list[str]:
    """Names of the lossless verifiers that serve what it drafts, the default first."""
    return serving(*MAKES[kind.makes])


def serving(tree, siblings: Siblings, dynamic: bool) -> list[str]:
    first = verify.default(tree, siblings, dynamic).name
    every = [n for n, v in verify.TABLE.items() if v.lossless and v.supports(tree, siblings, dynamic)]
    return [first, *(name for name in every if name != first)]


def _plain(default) -> bool:
    """Whether a default can be typed as it stands."""
    return default is not None and " " not in str(default)
