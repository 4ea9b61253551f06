"""Values of a drafter's settings that have settings of their own: shapes of trees, and small caches.

Nothing here imports jax before something is made.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specjax.defaults import LARGEST_TREE
from specjax.naming import grammar
from specjax.naming.grammar import Key, Kind, Spec, whole

if TYPE_CHECKING:
    from specjax.trees import Tree


def _selection(name: str) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        from specjax import drafters

        return getattr(drafters, name)(**settings)

    return make


WINDOW = Key("latest tokens, always there", whole(1), 32)
EVERY = Key("committed tokens between two choices", whole(1), 64)
SELECTIONS: dict[str, Kind] = {
    "sinks": Kind("the first tokens (StreamingLLM)", _selection("Sinks"), {"count": Key("how many", whole(0), 4)}),
    "snapkv": Kind(
        "what the last queries look at",
        _selection("SnapKV"),
        {
            "window": WINDOW,
            "observed": Key("tokens that vote", whole(1), 32),
            "pool": Key("slots that a vote is averaged over", whole(1), 5),
            "every": EVERY,
        },
    ),
    "retrieval": Kind(
        "chunks that the last query meets best (TriForce)",
        _selection("Retrieval"),
        {
            "window": WINDOW._replace(default=64),
            "chunk": Key("tokens of a chunk", whole(1), 8),
            "observed": Key("queries that are summed", whole(1), 1),
            "every": EVERY._replace(default=32),
        },
    ),
}


def _tree_of(make: str, **settings: Any) -> "Tree":
    from specjax import trees

    return getattr(trees, make)(**settings)


ACCEPT = Key("how often the child of each rank is the accepted one", grammar.reals(), None, grammar.write_reals)
SIZE = Key("nodes, the root included", whole(2, LARGEST_TREE), 16)
SHAPES: dict[str, Kind] = {
    "chain": Kind(
        "one node a level",
        lambda gamma: _tree_of("chain", gamma=gamma),
        {"gamma": Key("levels", whole(1, LARGEST_TREE - 1))},
        bare="gamma",
    ),
    "sequoia": Kind(
        "the best tree for measured acceptance by rank",
        lambda accept, size=16, depth=None: _tree_of("sequoia", acceptance=list(accept), size=size, depth=depth),
        {"accept": ACCEPT, "size": SIZE, "depth": Key("the most levels", whole(1), "no limit")},
    ),
}


def read_shape(text: str) -> str | Spec:
    """A shape as text, or a Spec of SHAPES; one that makes no tree is refused here."""
    plain = text.replace(" ", "")
    if re.fullmatch(r"\d+(x\d+)*|\d+(-\d+)+", plain):
        _ = shape_tree(plain)
        return plain
    if text.partition(":")[0].strip() not in SHAPES:
        names = ", ".join(SHAPES)
        raise ValueError(
            f"must be children by level such as 3x2x1, parents of the nodes such as 0-0-1, or one of {names}; got "
            f"{text!r}"
        )
    found = grammar.parse(text, SHAPES, "shape")
    _ = shape_tree(found)
    return found


def shape_tree(shape: str | Spec) -> "Tree":
    """The tree of a shape.

    Raises:
      ValueError: it is none, or has more than LARGEST_TREE nodes.
    """
    from specjax import trees

    if isinstance(shape, Spec):
        kind = SHAPES[shape.name]
        missing = [key for key, setting in kind.keys.items() if setting.default is None and key not in shape.settings]
        if missing:
            raise ValueError(f"the shape {shape.name!r} needs {missing[0]}")
        return kind.make(**shape.settings)
    if "-" in shape:
        return trees.Tree((trees.ROOT, *map(int, shape.split("-"))))
    factors = tuple(map(int, shape.split("x")))
    if any(factor < 1 for factor in factors):
        raise ValueError(f"must have at least one child a level, got {shape!r}")
    nodes = level = 1
    for factor in factors:
        level *= factor
        nodes += level
        if nodes > LARGEST_TREE:
            raise ValueError(f"must have at most {LARGEST_TREE} nodes, and {shape!r} has more")
    return trees.regular(factors)


def write_shape(shape: str | Spec) -> str:
    """The text of a shape: read_shape(write_shape(shape)) == shape."""
    return grammar.label(shape, SHAPES) if isinstance(shape, Spec) else shape


def read_cache(text: str) -> Spec:
    """What a small cache keeps."""
    return grammar.parse(text, SELECTIONS, "cache")


def write_cache(cache: Spec) -> str:
    """The text of a cache."""
    return grammar.label(cache, SELECTIONS)


def selection(cache: Spec) -> Any:
    """The `drafters.Selection` of a cache."""
    return SELECTIONS[cache.name].make(**cache.settings)
