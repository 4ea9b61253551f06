"""What a compiled program does inside its loop: read from `compiled.as_text()`, where nothing is noisy.

text = jax.jit(f).lower(*abstract).compile().as_text()
body = hlo.while_body(text)
assert not hlo.copies(body, cache_elements)
"""

import collections
import dataclasses
import math
import re

import numpy as np

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLS = r"(?:calls|to_apply|body|condition|branch_computations|called_computations)="
_CALLED = re.compile(_CALLS + r"(?:\{([^}]*)\}|%?([\w.\-]+))")
_OPCODE = re.compile(r"^(?:\(.*?\)|\w+\[[\d,]*\](?:\{[^}]*\})?) ([\w\-]+)\(")
TRANSFERS = ("send", "recv")  # across slices, through the hosts
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,{}]*\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[(.*?)\] \{(.*?)\})"
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "collective-broadcast")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    dtype: str
    shape: tuple[int, ...]
    operands: tuple[str, ...]
    line: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


Computation = tuple[Instruction, ...]


def computations(text: str) -> dict[str, Computation]:
    """Every computation of a module, by name."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            current = found.setdefault(header.group(2), [])
        elif line.startswith("}"):
            current = None
        elif current is not None and (parsed := _parse(line)) is not None:
            current.append(parsed)
    return {name: tuple(body) for name, body in found.items()}


def _parse(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    name, rest = match.groups()
    opcode, shape = _OPCODE.match(rest), _SHAPE.search(rest)
    if opcode is None:
        raise ValueError(f"an HLO line that this parser does not read: {line.strip()[:200]}")
    dims = tuple(int(n) for n in shape.group(2).split(",") if n) if shape else ()
    inside = rest[opcode.end() :].split(")")[0]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, opcode.group(1), shape.group(1) if shape else "", dims, operands, line.strip())


def reachable(found: dict[str, Computation], root: str) -> list[Instruction]:
    """Instructions of a computation and of everything that it calls: fusions, calls, inner loops."""
    seen, queue = set(), [root]
    lines: list[Instruction] = []
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        for instruction in found[name]:
            lines.append(instruction)
            for several, single in _CALLED.findall(instruction.line):
                queue += [name.strip().lstrip("%") for name in (several or single).split(",") if name.strip()]
    return lines


def _entry(text: str) -> str:
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.M)
    if entry is None:
        raise ValueError("no ENTRY computation in the text")
    return entry.group(1)


def program(text: str) -> list[Instruction]:
    """Every instruction that the program can reach."""
    return reachable(computations(text), _entry(text))


def while_bodies(text: str) -> list[list[Instruction]]:
    """Bodies of the loops in the entry computation and in what it calls outside any loop, in order of appearance."""
    found = computations(text)
    bodies, queue, seen = [], [_entry(text)], set()
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for instruction in found[name]:
            body = re.search(r"body=%?([\w.\-]+)", instruction.line)
            if instruction.opcode == "while" and body:
                bodies.append(reachable(found, body.group(1)))
            elif instruction.opcode == "call":
                queue += [c.lstrip("%") for c in re.findall(r"to_apply=(%?[\w.\-]+)", instruction.line)]
    return bodies


def while_body(text: str) -> list[Instruction]:
    """The body of the program's only outermost loop that holds dots (scatters expand to loops of their own)."""
    bodies = [body for body in while_bodies(text) if any(i.opcode in ("dot", "custom-call") for i in body)]
    if len(bodies) != 1:
        raise ValueError(f"expected one loop with matrix products in the program, found {len(bodies)}")
    return bodies[0]


def copies(body: list[Instruction], elements: int, axes: int | None = None) -> list[str]:
    """Copies and transposes of at least `elements` elements, fused ones included; those of so many axes alone."""
    kinds = ("copy", "copy-start", "transpose")
    found = [i for i in body if i.opcode in kinds and i.elements >= elements]
    return [i.line for i in found if axes in (None, len(i.shape))]


def converts(body: list[Instruction], elements: int) -> list[str]:
    """Conversions of at least `elements` elements from or to a half-precision type, fused ones included."""
    dtypes = {i.name: i.dtype for i in body}
    half = ("bf16", "f16")
    return [
        i.line
        for i in body
        if i.opcode == "convert"
        and i.elements >= elements
        and (i.dtype in half or any(dtypes.get(name) in half for name in i.operands))
    ]


def collectives(instructions: list[Instruction]) -> collections.Counter:
    """How often each kind of collective is in the instructions; a start and its done count once."""
    names = [i.opcode.removesuffix("-start") for i in instructions]
    return collections.Counter(name for name in names if name in COLLECTIVES)


def replica_groups(line: str) -> list[list[int]]:
    """Positions in the device assignment that a collective combines; empty: all."""
    found = _GROUPS.search(line)
    if found is None:
        return []
    text = found[1]
    if text.startswith("{{"):
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", text)]
    if text.startswith("mesh"):
        names, sizes = zip(*re.findall(r"'([^']+)'=(\d+)", found[2]), strict=True)
        grid = np.arange(math.prod(map(int, sizes))).reshape([int(size) for size in sizes])
        combined = [names.index(name) for name in re.findall(r"'([^']+)'", found[3])]
        others = [axis for axis in range(grid.ndim) if axis not in combined]
        count = math.prod(grid.shape[axis] for axis in combined)
        return grid.transpose(*others, *combined).reshape(-1, count).tolist()
    numbers = lambda part: [int(n) for n in part.split(",")]
    parts = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert parts is not None  # of _GROUPS
    shape, dims, order = parts.groups()
    grid = np.arange(math.prod(numbers(dims))).reshape(numbers(dims))
    return (grid if order is None else grid.transpose(numbers(order))).reshape(numbers(shape)).tolist()


def traffic(text: str, *, per_slice: int) -> list[dict]:
    """Collectives and transfers of a program: kind, bytes, devices that take part, whether it crosses slices, and the
    number of loops around it (1: once per round, 2: in each layer).

    Args:
      per_slice: devices of a slice, which are consecutive.
    """
    found = computations(text)
    lines: list[dict] = []
    queue, seen = [(_entry(text), 0)], set()
    while queue:
        name, depth = queue.pop(0)
        if (name, depth) in seen:
            continue
        seen.add((name, depth))
        for one in found[name]:
            kind = one.opcode.removesuffix("-start")
            if kind in COLLECTIVES or kind in TRANSFERS:
                groups = replica_groups(one.line)
                across = kind in TRANSFERS or any(len({n // per_slice for n in group}) > 1 for group in groups)
                size = sum(math.prod(dims) * width for dims, width in _arrays(one))
                members = len(groups[0]) if groups else 0
                lines.append({"kind": kind, "bytes": size, "devices": members, "across": across, "loops": depth})
            for several, single in _CALLED.findall(one.line):
                names = [each.strip().lstrip("%") for each in (several or single).split(",") if each.strip()]
                queue += [(each, depth + (one.opcode == "while")) for each in names]
    return lines


_WIDTHS = {"pred": 1, "bf16": 2, "f16": 2}


def _arrays(one: Instruction) -> list[tuple[tuple[int, ...], int]]:
    """Shapes and widths of the arrays that a collective returns."""
    result = one.line.split(" = ", 1)[1].split(f" {one.opcode}(")[0]
    arrays = [
        (tuple(int(n) for n in dims.split(",") if n), _WIDTHS.get(kind, int(re.sub(r"\D", "", kind) or 8) // 8))
        for kind, dims in _SHAPE.findall(result)
    ]
    return arrays[len(arrays) // 2 :] if one.opcode.endswith("-start") else arrays
