"""A tree in the terminal: a drawing with one line per leaf, and a table with one line per node.

0──1──3
│  └──4
└──2
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specjax.trees import ROOT, Tree

GLYPHS = {"along": "─", "down": "│", "fork": "├", "last": "└", "sees": "■", "blind": "·"}
ASCII = {"along": "-", "down": "|", "fork": "+", "last": "`", "sees": "x", "blind": "."}


def show(console: Console, tree: Tree, *, values: Sequence[float] | None, lines: Sequence[str]) -> None:
    """Prints the drawing, the table and the summary lines.

    Parts wider than the terminal are replaced by a note; a pipe or a file receives everything.
    """
    glyphs = ASCII if console.options.ascii_only else GLYPHS
    drawn = drawing(tree, glyphs)
    gaps = 2 * tree.size + FRAME <= console.width
    needed = tree.size * (2 if gaps else 1) + FRAME
    if not console.is_terminal:
        console.width = max(console.width, needed, len(drawn[0]))
    console.print()
    if max(map(len, drawn)) <= console.width:
        for line in drawn:
            console.print(Text(line), no_wrap=True)
    else:
        console.print(f"the drawing needs {max(map(len, drawn))} columns: widen the terminal, or use --output")
    console.print()
    fits = needed <= console.width
    console.print(node_table(tree, values, glyphs, mask=fits, gaps=gaps))
    if not fits:
        console.print(f"the mask needs {needed} columns: widen the terminal, or use --output")
    for line in lines:
        console.print(line, markup=False)


FRAME = 40  # columns of the table without the mask


def drawing(tree: Tree, glyphs: dict[str, str]) -> list[str]:
    """The tree with first children to the right and others below; one line per leaf."""
    cell = len(str(tree.size - 1))
    along = glyphs["along"]
    kids: list[list[int]] = [[] for _ in tree.parents]
    for node, parent in enumerate(tree.parents[1:], start=1):
        kids[parent].append(node)
    blocks: dict[int, list[str]] = {}
    for node in range(tree.size - 1, -1, -1):  # children come after their parents
        label = str(node)
        if not kids[node]:
            blocks[node] = [label]
            continue
        lines = []
        for kid in kids[node]:
            first, last = kid == kids[node][0], kid == kids[node][-1]
            corner = label if first else glyphs["last"] if last else glyphs["fork"]
            below = (" " if last else glyphs["down"]).ljust(cell + 2)
            block = blocks.pop(kid)
            lines.append(corner + along * (cell + 2 - len(corner)) + block[0])
            lines += [below + line for line in block[1:]]
        blocks[node] = lines
    return blocks[0]


def node_table(tree: Tree, values: Sequence[float] | None, glyphs: dict[str, str], *, mask: bool, gaps: bool) -> Table:
    """One line per node: parent, depth, acceptance probability and mask."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("node", "parent", "depth", *(["accepted"] if values is not None else [])):
        table.add_column(name, justify="right", no_wrap=True)
    if mask:
        table.add_column("sees node 0, 1, 2, ...", no_wrap=True, min_width=2 * tree.size - 1 if gaps else tree.size)
    for node, parent in enumerate(tree.parents):
        cells = [str(node), "" if parent == ROOT else str(parent), str(tree.depth[node])]
        if values is not None:
            cells.append(f"{values[node]:.3f}")
        if mask:
            marks = (glyphs["sees"] if sees else glyphs["blind"] for sees in tree.mask[node])
            cells.append((" " if gaps else "").join(marks))
        table.add_row(*cells)
    return table
