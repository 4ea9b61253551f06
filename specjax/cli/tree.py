"""`specjax tree show`: a tree of draft nodes and its attention mask, in the terminal and as a figure."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from specjax import files, trees
from specjax.checks import check_name
from specjax.cli import outputs
from specjax.cli.arguments import parse
from specjax.config import Flag, arg
from specjax.theory import tokens
from specjax.trees import ROOT, Tree

PROG = "specjax tree show"


@dataclasses.dataclass(frozen=True)
class TreeOptions:
    """Draw a tree of draft nodes and its attention mask in the target forward pass.

    Node 0 is the root, the last committed token. The rank of a child is its position among its siblings, from 0.

    specjax tree show chain 5

    specjax tree show regular 3 2 --output tree.svg

    specjax tree show paths 0,0,0 0,1 1,0 --accept 0.6,0.2

    specjax tree show medusa --accept 0.6,0.2,0.1 0.5,0.2,0.1 0.4,0.1,0.1 --size 12

    specjax tree show sequoia --accept 0.6,0.2,0.05 --size 16 --depth 4

    specjax tree show sequoia --accept 0.6,0.2,0.05 --cost 1:10 8:10.5 64:31 --draft-cost 0.8
    """

    kind: Annotated[tyro.conf.Positional[str], arg(metavar="{chain,regular,paths,parents,medusa,sequoia}", name="kind")]
    """chain: GAMMA. regular: children at every depth. paths: ranks such as 0,1 for the second child of the first child.
    parents: of nodes 1, 2, .... medusa, sequoia: the best tree for --accept."""
    values: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="VALUE ...", help_behavior_hint="")] = ()
    accept: Annotated[tuple[str, ...], arg(metavar="P,P,... ...", help_behavior_hint="")] = ()
    """Acceptance probability of the child of each rank: one list for all depths, or one list per depth; or a .json file
    with either. Adds the expected length to the output."""
    size: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """medusa, sequoia: number of nodes, the root included."""
    depth: Annotated[int | None, arg(metavar="D", help_behavior_hint="(default: no limit)")] = None
    """sequoia: most levels below the root."""
    cost: Annotated[tuple[str, ...], arg(metavar="NODES:TIME ...", help_behavior_hint="")] = ()
    """medusa, sequoia: choose the size as well, from the time of a target pass by number of nodes, from 1 on."""
    draft_cost: Annotated[float | None, arg(metavar="TIME", help_behavior_hint="(default: 0)")] = None
    """With --cost: time to draft one level, in the same unit."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw into an .svg or .png file (requires matplotlib)."""
    json: Flag = False
    """Print one JSON object and nothing else."""


class TreeView(NamedTuple):
    """A tree and its expected performance."""

    tree: Tree
    values: list[float] | None  # acceptance probability of each node
    choice: trees.TreeChoice | None  # if the size was chosen too


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: an unknown kind, values that are not a tree, or contradictory options.
    """
    options = parse(TreeOptions, args, prog=PROG, compiles=False)
    if options.output is not None:
        outputs.picture(output=options.output)
    view = build(options)
    if options.output is not None:
        from specjax.trees import picture

        picture.save(view.tree, options.output, values=view.values)
    if options.json:
        print(json.dumps(record(options.kind, view), allow_nan=False))
        return 0
    from specjax.cli import progress, tree_drawing

    tree_drawing.show(progress.open_console(), view.tree, values=view.values, lines=_summary(view))
    return 0


def build(options: TreeOptions) -> TreeView:
    """Builds the tree.

    Raises:
      ValueError: as `main`.
    """
    check_name(options.kind, (*VALUES, *SEARCHED), "kind of tree")
    acceptance = read_acceptance(options.accept)
    tree, choice = _searched(options, acceptance) if options.kind in SEARCHED else (_given(options), None)
    if acceptance is None:
        return TreeView(tree, None, choice)
    values = trees.node_values(tree, acceptance).tolist()
    tokens.check_siblings(acceptance)
    return TreeView(tree, values, choice)


def record(kind: str, view: TreeView) -> dict[str, Any]:
    """The tree as plain values, for JSON."""
    tree = view.tree
    found: dict[str, Any] = {
        "kind": kind, "size": tree.size, "levels": tree.width - 1, "parents": list(tree.parents),
        "depth": tree.depth.tolist(), "ranks": ranks(tree), "mask": tree.mask.astype(int).tolist(),
    }  # fmt: skip
    if view.values is not None:
        found |= {"accepted_with_probability": view.values, "expected_length": sum(view.values)}
    if view.choice is not None:
        found |= {"round_time": view.choice.seconds, "speedup": view.choice.speedup}
    return found


def ranks(tree: Tree) -> list[list[int]]:
    """The path of ranks to every node; `trees.from_paths` builds the tree from them."""
    born, paths = [0] * tree.size, [[]]
    for parent in tree.parents[1:]:
        paths.append([*paths[parent], born[parent]])
        born[parent] += 1
    return paths


def read_acceptance(given: Sequence[str]) -> list[Any] | None:
    """The value of --accept: one list of probabilities, or one per depth.

    Raises:
      ValueError: neither numbers nor a JSON file with numbers.
    """
    if not given:
        return None
    if len(given) == 1 and given[0].endswith(".json"):
        try:
            table = json.loads(files.read_text(given[0], "table"))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"--accept {given[0]} is not JSON: {error}") from None
        if not isinstance(table, list):
            raise ValueError(f"--accept {given[0]} must hold a list of numbers or of lists, got {type(table).__name__}")
        return table
    rows = [_numbers(float, "--accept", row) for row in given]
    return rows[0] if len(rows) == 1 else rows


def _numbers(kind: Callable[[str], Any], name: str, text: str) -> list[Any]:
    try:
        return [kind(one) for one in text.split(",")]
    except ValueError:
        what = "probabilities such as 0.6,0.2" if kind is float else "whole numbers such as 0,1"
        raise ValueError(f"{name} {text!r} is not a list of {what}") from None


# --- the kinds -------------------------------------------------------------------------------------------------------

VALUES = {"chain": "5", "regular": "3 2", "paths": "0,0 0,1 1", "parents": "0 0 1"}  # examples
SEARCHED = ("medusa", "sequoia")


def _given(options: TreeOptions) -> Tree:
    """The tree that VALUES determine."""
    kind = options.kind
    for name in ("size", "depth", "cost", "draft_cost"):
        if getattr(options, name) not in (None, ()):
            raise ValueError(f"--{name.replace('_', '-')} does not apply to the kind {kind!r}")
    paths = [_numbers(int, kind, value) for value in options.values]
    flat = [one for path in paths for one in path]
    if not flat or (kind == "chain" and len(flat) > 1):
        raise ValueError(f"{kind} requires values such as {kind} {VALUES[kind]}")
    if kind == "paths":
        return trees.from_paths(paths)
    if kind == "chain":
        return trees.chain(flat[0])
    return trees.regular(flat) if kind == "regular" else Tree((ROOT, *flat))


def _searched(options: TreeOptions, acceptance: list | None) -> tuple[Tree, trees.TreeChoice | None]:
    """The best tree for --accept, of --size nodes or of the size that --cost makes fastest."""
    if options.values:
        raise ValueError(f"{options.kind} takes no values, got {' '.join(options.values)}: use --accept and --size")
    if acceptance is None:
        raise ValueError(f"{options.kind} requires --accept, the acceptance probability of each rank")
    if (options.size is None) == (not options.cost):
        raise ValueError(f"{options.kind} requires either --size N or --cost NODES:TIME ..., not both")
    if options.draft_cost is not None and not options.cost:
        raise ValueError("--draft-cost requires --cost")
    medusa = options.kind == "medusa"
    if medusa and options.depth is not None:
        raise ValueError("--depth does not apply to the kind 'medusa', which has one level per head")
    if medusa and acceptance and not isinstance(acceptance[0], list):
        acceptance = [acceptance]  # one head
    if options.size is None:
        sizes, times = zip(*map(_point, options.cost), strict=True)
        drafting = 0.0 if options.draft_cost is None else options.draft_cost
        found = trees.fastest(acceptance, sizes, times, draft_seconds=drafting, depth=options.depth)
        return found.tree, found
    if medusa:
        return trees.best_tree(acceptance, options.size), None
    return trees.sequoia(acceptance, options.size, depth=options.depth), None


def _point(text: str) -> tuple[int, float]:
    nodes, _, time = text.partition(":")
    try:
        return int(nodes), float(time)
    except ValueError:
        raise ValueError(f"--cost {text!r} is not NODES:TIME, such as 8:10.5") from None


def _summary(view: TreeView) -> list[str]:
    tree = view.tree
    leaves = tree.size - len(set(tree.parents[1:]))
    lines = [f"nodes {tree.size}, the root included; levels below it {tree.width - 1}; leaves {leaves}"]
    if view.values is not None:
        lines.append(f"expected length {sum(view.values):.3f} tokens per round")
    if view.choice is not None:
        lines.append(f"a round takes {view.choice.seconds:.4g}; speed-up over plain decoding {view.choice.speedup:.3f}")
        if view.choice.tree.size == 1:
            lines.append("no tree is faster than plain decoding at this cost")
    return lines
