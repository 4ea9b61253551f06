"""Ways of decoding that can be named: on the command line, in Python, in words; and the drafter behind each."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax.trees import Tree


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of decoding.

    Attributes:
      kind: plain, verify (a draft that costs nothing), or the name of a drafter as the command line has it.
      settings: names and values, as the drafter's constructor takes them; of a tree its parents, of a cascade the
        gamma of its inner drafter as `inner`.
      drafts: places of the draft models in the list that was given; of a cascade the middle one first.
      verifier: a name of `specjax.verify.TABLE`.
    """

    kind: str
    settings: tuple[tuple[str, Any], ...] = ()
    drafts: tuple[int, ...] = ()
    verifier: str = "token"

    def __getitem__(self, name: str) -> Any:
        """A setting."""
        return dict(self.settings)[name]


PLAIN = Way("plain")
SELF = ("layer-skip", "quantized")  # drafters over the target's own weights: chains, as those of a draft model
DRAWN = ("model", *SELF)  # chains of tokens that a model draws
WHOLE = ("lookahead", "dynamic-tree", "suffix-tree")  # weighed just as they are run
KINDS = ("model", "tree", "dynamic-tree", "ngram", "suffix", "suffix-tree", "lookahead", "cascade", *SELF)


def verify(width: int) -> Way:
    """Rounds that check `width` tokens, nothing being drafted."""
    return PLAIN if width == 1 else Way("verify", (("width", width),))


def chain(kind: str, gamma: int, *drafts: int, verifier: str = "token") -> Way:
    """A chain of gamma tokens: of a model, or of what looks them up."""
    return Way(kind, (("gamma", gamma),), drafts, verifier)


def tree(shape: Tree, draft: int) -> Way:
    """A tree of a draft model's most probable tokens."""
    return Way("tree", (("parents", shape.parents[1:]),), (draft,), "deterministic")


def lookahead(window: int, ngram: int, guesses: int) -> Way:
    return Way("lookahead", (("window", window), ("ngram", ngram), ("guesses", guesses)), (), "deterministic")


def dynamic_tree(size: int, depth: int, width: int, draft: int) -> Way:
    return Way("dynamic-tree", (("size", size), ("depth", depth), ("width", width)), (draft,), "deterministic")


def suffix_tree(size: int, depth: int) -> Way:
    return Way("suffix-tree", (("size", size), ("depth", depth)), (), "deterministic")


def cascade(gamma: int, inner: int, middle: int, small: int, *, verifier: str = "token") -> Way:
    return Way("cascade", (("gamma", gamma), ("inner", inner)), (middle, small), verifier)


def shape_of(way: Way) -> Tree:
    """The tree of a way of kind "tree"."""
    return Tree((-1, *way["parents"]))


def regular_shape(shape: Tree) -> tuple[int, ...] | None:
    """(3, 2) where the root has three children and each of them two; None of a tree that is not regular."""
    counts = [0] * shape.size
    for parent in shape.parents[1:]:
        counts[parent] += 1
    levels = []
    for depth in range(shape.width):
        found = {counts[node] for node in range(shape.size) if shape.depth[node] == depth}
        if len(found) > 1:
            return None
        levels.append(found.pop())
    return tuple(levels[:-1])


def label(way: Way, drafts: Sequence[str] = ()) -> str:
    """In words, short enough for a table."""
    drawn = "" if way.verifier == "token" or way.kind in ("tree", *WHOLE) else f", {way.verifier}"
    names = " > ".join(short(drafts[number]) for number in way.drafts) if drafts else ""
    named = f" {names}" if names else ""
    if way.kind == "tree":
        shape = shape_of(way)
        regular = regular_shape(shape)
        told = "x".join(map(str, regular)) if regular else f"of {shape.size} nodes, {shape.width - 1} levels"
        return f"tree {told}{named}"
    if way.kind == "lookahead":
        return "lookahead " + ",".join(str(value) for _, value in way.settings)
    if way.kind in ("dynamic-tree", "suffix-tree"):
        wide = f", {way['width']} wide" if way.kind == "dynamic-tree" else ""
        return f"{way.kind} of {way['size']} nodes, {way['depth']} levels{wide}{named}"
    if way.kind == "cascade":
        return f"cascade \u03b3={way['gamma']}, inner \u03b3={way['inner']}{named}{drawn}"
    if way.kind == "verify":
        return f"checking {way['width']} tokens"
    return f"{way.kind} \u03b3={way['gamma']}{named}{drawn}" if way.settings else way.kind


def levels(way: Way) -> int:
    """Tokens drafted one after the other."""
    if way.kind == "tree":
        return shape_of(way).width - 1
    if way.kind in ("dynamic-tree", "suffix-tree"):
        return way["depth"]
    return way["ngram"] - 1 if way.kind == "lookahead" else way["gamma"]


def nodes(way: Way) -> int:
    """Tokens of a call of the target, the last committed one included."""
    if way.kind == "tree":
        return shape_of(way).size
    if way.kind in ("dynamic-tree", "suffix-tree"):
        return way["size"]
    if way.kind == "lookahead":
        return (way["window"] + way["guesses"]) * (way["ngram"] - 1)
    return way["gamma"] + 1


def short(model: str) -> str:
    """The last part of a model's name."""
    return model.rstrip("/").rpartition("/")[2] or model


# --- the drafter -----------------------------------------------------------------------------------------------------


def guide(way: Way, drafts: Sequence[Any], target: Any) -> Any:
    """The drafter with its weights.

    Args:
      drafts: the models that `way.drafts` counts.
      target: that of the ways of `SELF`.
    """
    from specjax import drafters
    from specjax.bench.rounds import free

    own = [drafts[number] for number in way.drafts]
    if way.kind == "plain":
        return drafters.plain()
    if way.kind == "verify":
        return drafters.LoadedDrafter("free", free(way["width"] - 1))
    if way.kind == "tree":
        return drafters.tree(own[0], shape_of(way), siblings=drafters.Siblings.POINTS)
    if way.kind == "cascade":
        return drafters.cascade(own[0], drafters.model(own[1], gamma=way["inner"]), gamma=way["gamma"])
    own += [target] * (way.kind in SELF)
    return getattr(drafters, way.kind.replace("-", "_"))(*own, **dict(way.settings))


def python(way: Way, drafts: Sequence[str]) -> str:
    """The drafter as Python, `sj` being specjax and `target` the loaded one; "None" for plain decoding."""
    load = [f'sj.load("{drafts[number]}")' for number in way.drafts]
    if way.kind == "plain":
        return "None"
    if way.kind == "tree":
        regular = regular_shape(shape_of(way))
        made = f"sj.trees.regular({regular})" if regular else f"sj.trees.Tree({(-1, *way['parents'])})"
        return f"sj.drafters.tree({load[0]}, {made}, siblings=sj.drafters.Siblings.POINTS)"
    if way.kind == "cascade":
        inner = f"sj.drafters.model({load[1]}, gamma={way['inner']})"
        return f"sj.drafters.cascade({load[0]}, {inner}, gamma={way['gamma']})"
    given = [*load, *["target"] * (way.kind in SELF), *(f"{name}={value}" for name, value in way.settings)]
    return f"sj.drafters.{way.kind.replace('-', '_')}({', '.join(given)})"


def spec(way: Way) -> str:
    """What `--drafter` takes."""
    if way.kind == "plain":
        return "plain"
    if way.kind == "tree":
        regular = regular_shape(shape_of(way))
        shape = "x".join(map(str, regular)) if regular else "-".join(map(str, way["parents"]))
        return f"tree:shape={shape},siblings=points"
    if way.kind == "cascade":
        return f"cascade:gamma={way['gamma']},inner=(model:gamma={way['inner']})"
    return f"{way.kind}:" + ",".join(f"{name}={value}" for name, value in way.settings)
