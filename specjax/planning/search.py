"""Which mesh suits a slice, and what fits where a request does not: by bytes, without compiling."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from specjax.planning import chips, lowering, memory, roofline
from specjax.planning.request import PlanRequest
from specjax.sharding import DATA

SPARE = 0.04  # of a chip's memory, for temporaries, before the compiler has reported them
MOST_ROWS = 4096


class Held(NamedTuple):
    """Bytes on one chip, by group: target, draft, caches and the rest."""

    groups: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.groups.values())


def held(request: PlanRequest) -> Held:
    """What a chip holds for a request.

    Raises:
      ValueError: sizes that do not divide over the mesh, or models that do not fit together.
    """
    programs = lowering.programs_of(request, request.abstract_mesh())
    compact = not request.compiler_layouts
    return Held({name: memory.held(tree, compact=compact) for name, tree in lowering.groups(programs).items()})


def meshes(request: PlanRequest) -> Iterator[tuple[int, ...]]:
    """Every factorization of the devices whose data axis the rows and the slices divide."""
    count = request.devices
    factors = [n for n in range(1, count + 1) if count % n == 0]
    for data, model, wide in itertools.product(factors, repeat=3):
        if data * model * wide == count and request.rows % data == 0 and data % request.slices == 0:
            yield (data, model) if wide == 1 else (data, model, wide)


def best_mesh(request: PlanRequest) -> tuple[int, ...]:
    """The mesh that decodes fastest among those that fit, or that needs the least memory where none does.

    Raises:
      ValueError: no mesh divides the rows, or none of them the weights.
    """
    lowering.unplaced(lowering.anywhere(request))  # what suits no mesh is reported once
    found: list[tuple[Any, tuple[int, ...]]] = []
    reason: ValueError | None = None
    for mesh in meshes(request):
        one = dataclasses.replace(request, mesh=mesh)
        try:
            total = held(one).total
        except ValueError as error:
            reason = error
            continue
        fits = total <= (1 - SPARE) * one.place.chip.memory
        found.append(((not fits, _seconds(one) if fits else total, len(mesh), mesh), mesh))
    if not found:
        raise reason or ValueError(
            f"rows={request.rows} do not divide over the {request.slices} slices of {request.topology}: "
            f"plan a multiple of {request.slices}"
        )
    return min(found)[1]


def _seconds(request: PlanRequest) -> float:
    """Time of a round."""
    speed = roofline.speed(request, 0.8)
    return speed.verify.value + (speed.draft.value * request.gamma if speed.draft else 0.0)


def alternatives(request: PlanRequest, temporaries: int) -> dict[str, PlanRequest]:
    """Requests near one that does not fit which would, by kind: fewer rows, another mesh, int8 weights, more chips.

    Args:
      temporaries: bytes that the program takes beside what it holds.
    """
    found: dict[str, PlanRequest] = {}
    mesh = best_mesh(request)
    other = dataclasses.replace(request, mesh=mesh)
    if mesh != request.mesh and fits(other, temporaries):
        found["mesh"] = other
    if rows := largest_rows(request, temporaries):
        found["rows"] = rows
    if request.weights is None:
        small = _on_best(dataclasses.replace(request, weights="int8"))
        if fits(small, temporaries):
            found["int8"] = small
    for place in chips.larger(request.place):
        large = _on_best(dataclasses.replace(request, topology=place.topology))
        if fits(large, temporaries):
            found["slice"] = large
            break
    return found


def _on_best(request: PlanRequest) -> PlanRequest:
    return dataclasses.replace(request, mesh=best_mesh(request))


def fits(request: PlanRequest, temporaries: int) -> bool:
    """Whether what a chip holds and some temporaries fit."""
    try:
        return held(request).total + temporaries <= request.place.chip.memory
    except ValueError:
        return False


def largest_rows(request: PlanRequest, temporaries: int) -> PlanRequest | None:
    """The request with as many rows as fit on its mesh, a multiple of its data axis; None: not one multiple.

    What a chip holds grows by the same amount with each multiple.
    """
    unit = request.axes[DATA]
    one, two = (held(dataclasses.replace(request, rows=count * unit)).total for count in (64, 128))
    each = (two - one) / 64
    count = int((request.place.chip.memory - temporaries - (one - 64 * each)) // each)
    return dataclasses.replace(request, rows=min(count * unit, MOST_ROWS)) if count > 0 else None
