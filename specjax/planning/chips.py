"""TPU chips and slices: memory, bandwidths, and the topology of a slice by its usual name.

Numbers per chip from "How to Scale Your Model" (Austin et al. 2025), chapter on TPUs; memory as the compiler counts it.
"""

import math
import re
from typing import NamedTuple

from specjax import checks

GIB = 2**30


class Chip(NamedTuple):
    """One chip.

    Attributes:
      memory: bytes that a program may use.
      bandwidth: bytes per second of its memory.
      flops, int8_ops: peak operations per second in bfloat16 and int8.
      links: bytes per second of one axis of the interconnect, both directions.
      network: bytes per second per host between slices.
      hosts: chips of one host.
    """

    memory: float
    bandwidth: float
    flops: float
    int8_ops: float
    links: float
    network: float = 25e9
    hosts: int = 4


CHIPS = {
    "v4": Chip(30.75 * GIB, 1.2e12, 275e12, 275e12, 9e10),
    "v5e": Chip(15.75 * GIB, 8.1e11, 1.97e14, 3.94e14, 9e10, hosts=8),
    "v5p": Chip(95.74 * GIB, 2.8e12, 4.59e14, 9.18e14, 1.8e11),
    "v6e": Chip(31.25 * GIB, 1.6e12, 9.2e14, 1.84e15, 1.8e11, hosts=8),
}
FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"}
GRIDS = {"v4": CUBES, "v5e": FLAT, "v5p": CUBES, "v6e": FLAT}
CORES = ("v4", "v5p")  # named by TensorCores, of which a chip has two


class Slice(NamedTuple):
    """Chips that are connected directly: `v5e:4x4`."""

    kind: str
    grid: str

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        return math.prod(map(int, self.grid.split("x")))

    @property
    def topology(self) -> str:
        """Its name for the compiler."""
        return f"{self.kind}:{self.grid}"

    @property
    def name(self) -> str:
        """Its name for the cloud: v5p-16 has 16 cores, and 8 chips."""
        kind = {"v5e": "v5litepod"}.get(self.kind, self.kind)
        return f"{kind}-{self.chips * (2 if self.kind in CORES else 1)}"


def slice_named(name: str) -> Slice:
    """The slice of a name: "v5e:4x4", or as clouds name it: "v5litepod-16", "v5e-16", "v6e-8", "v5p-16" (16 cores).

    >>> slice_named("v5p-16").topology, slice_named("v5e:4x4").name
    ('v5p:2x2x2', 'v5litepod-16')

    Raises:
      ValueError: an unknown kind of chip, grid or size.
    """
    found = re.fullmatch(r"(\w+?)(?:litepod)?(?::(\d+(?:x\d+)+)|-(\d+))", name.strip().lower())
    if found is None:
        raise ValueError(f"topology {name!r} is not KIND:GRID or KIND-SIZE, such as v5e:4x4, v6e-8 or v5p-16")
    kind, grid, size = found.groups()
    kind = {"v5": "v5e", "v5lite": "v5e"}.get(kind, kind)
    checks.check_name(kind, CHIPS, "kind of chip")
    grids = GRIDS[kind]
    if grid is None:
        count = int(size) // (2 if kind in CORES else 1)
        if count not in grids:
            sizes = ", ".join(Slice(kind, one).name for one in grids.values())
            raise ValueError(f"topology {name!r} is not a size of {kind}: choose one of {sizes}, or name its grid")
        grid = grids[count]
    if grid.count("x") != next(iter(grids.values())).count("x"):
        raise ValueError(f"topology {name!r}: a grid of {kind} is written such as {kind}:{grids[8]}")
    return Slice(kind, grid)


def larger(small: Slice) -> list[Slice]:
    """Slices of the same kind with more chips, smallest first."""
    return [Slice(small.kind, grid) for count, grid in GRIDS[small.kind].items() if count > small.chips]
