"""`specjax.plan`: whether a request fits a TPU slice, what it takes there, and how fast it would be."""

import dataclasses
from typing import Any, NamedTuple

from specjax import checks
from specjax.checks import mesh_shape
from specjax.planning import chips, roofline, search
from specjax.planning.compiled import compile_request
from specjax.planning.request import PlanRequest
from specjax.theory import StepTimes

AUTO = "auto"


class Plan(NamedTuple):
    """What `plan` returns. Bytes are those of one chip.

    Attributes:
      request: with its mesh.
      fits: whether the loop, and reading the prompts, fit into a chip.
      memory: bytes of a chip.
      groups: bytes of target, draft, caches and the rest, as the compiled program lays them out.
      temporaries: bytes beside them, the larger of loop and prompt. None: the compiler gave up.
      needed: bytes that the compiler asks for.
      collectives: of the loop, see `program.traffic`.
      alpha, speed: acceptance probability, and what follows from it.
      alternatives: if it does not fit, requests near it that do, by kind: mesh, rows, int8, slice.
      largest: most rows that fit on this mesh; None where none do.
      seconds: compile times of loop and prompt.
    """

    request: PlanRequest
    fits: bool
    memory: float
    groups: dict[str, int]
    temporaries: int | None
    needed: float
    collectives: tuple[dict[str, Any], ...]
    alpha: float
    speed: roofline.Speed
    alternatives: dict[str, PlanRequest]
    largest: int | None
    seconds: dict[str, float]

    @property
    def step_times(self) -> StepTimes:
        """Predicted times of forward passes, for `policies.goodput(times.target, draft=times.draft)`."""
        return roofline.step_times(self.request)

    def record(self) -> dict[str, Any]:
        """The plan as data, for JSON."""
        speed = {
            name: value._asdict() if isinstance(value, roofline.Band) else value
            for name, value in self.speed._asdict().items()
        }
        return self._asdict() | {
            "request": dataclasses.asdict(self.request), "chips": self.request.devices, "speed": speed,
            "step_times": self.step_times._asdict(),
            "efficiency": {"value": roofline.ETA, "least": roofline.LOW, "most": roofline.HIGH},
            "alternatives": {kind: dataclasses.asdict(one) for kind, one in self.alternatives.items()},
        }  # fmt: skip


def plan(
    target: str,
    draft: str | None = None,
    *,
    topology: str,
    slices: int = 1,
    mesh: str = AUTO,
    rows: int = 8,
    prompt_tokens: int = 512,
    max_new_tokens: int = 512,
    gamma: int = 4,
    alpha: float = 0.8,
    dtype: str = "bfloat16",
    weights: str | None = None,
    cache_dtype: str | None = None,
    compiler_layouts: bool = False,
    prompt: bool = True,
    keep: bool = True,
) -> Plan:
    """Compiles a request's programs for a TPU slice ahead of time, without the slice and without weights.

    Memory and collectives are the compiler's; times are a roofline with one efficiency, see `planning.roofline`.

        out = sj.plan("facebook/opt-66b", "facebook/opt-125m", topology="v5e:4x4")
        out.fits, out.request.mesh, out.groups["target"]

    Args:
      target, draft: published models by name or Hugging Face id, or folders with a config.json. The draft is whole on
        every chip; None: plain decoding.
      topology: of a slice: "v5e:4x4", "v5litepod-16", "v6e-8", "v5p-16".
      slices: how many such slices share the rows.
      mesh: "DATAxMODEL", "DATAxMODELxWIDE", or "auto": the fastest that fits.
      rows: prompts that are decoded together.
      prompt_tokens, max_new_tokens: of each row.
      gamma: draft tokens per round.
      alpha: acceptance probability of a draft token, given or measured.
      dtype, weights, cache_dtype: as for `specjax.load`, the last two of the target.
      compiler_layouts: plan a loop whose arrays are placed as the compiler prefers (`planning.lowering`), as a custom
        loop can; False: `specjax.generate`, in default layouts.
      prompt: also compile the program that reads the prompts.
      keep: keep results in the user's cache folder, and read those of equal requests there.

    Raises:
      ValueError: an unknown model or topology, or sizes that do not divide. ImportError: libtpu is missing; it comes
        with the extra `plan`.
    """
    alpha = checks.number("alpha", alpha, least=0, most=1)
    place = chips.slice_named(topology)
    given = PlanRequest(
        target, draft, place.topology, slices, (1, place.chips * slices), rows, prompt_tokens, max_new_tokens, gamma,
        dtype, weights, cache_dtype, compiler_layouts,
    )  # fmt: skip
    request = dataclasses.replace(given, mesh=search.best_mesh(given) if mesh == AUTO else mesh_shape(mesh))
    if (size := request.axes["data"] * request.axes["model"] * request.axes["wide"]) != request.devices:
        raise ValueError(
            f"mesh {mesh} takes {size} chips, and {slices} x {topology} has {request.devices}: choose factors of "
            f"{request.devices}, or mesh=auto"
        )
    memory, estimate = place.chip.memory, search.held(request)
    if estimate.total > memory:  # the compiler would only confirm it
        compiled: dict[str, Any] = {"loop": {"needed": float(estimate.total)}}
    else:
        compiled = compile_request(request, prompt=prompt, keep=keep)
    loop = compiled["loop"]
    done = [one for one in compiled.values() if "needed" not in one]
    ok = len(done) == len(compiled)
    # While prompts are read, the state is an output of the program.
    asked = lambda one: one["arguments"] + one.get("unread", 0) + one["temporaries"] + one["outputs"]
    needs = [one["needed"] if "needed" in one else asked(one) for one in compiled.values()]
    temporaries = max((one["temporaries"] for one in done), default=None) if ok else None
    groups = loop.get("groups") or estimate.groups
    spare = int(search.SPARE * memory) if temporaries is None else temporaries
    if not ok and max(needs) > estimate.total:
        spare = max(spare, int(max(needs)) - estimate.total)
    fits = ok and max(needs) <= memory
    most = search.largest_rows(request, spare)
    seconds = {name: one["seconds"] for name, one in compiled.items() if "seconds" in one}
    return Plan(
        request, fits, memory, groups, temporaries, max(needs), tuple(loop.get("collectives", ())), alpha,
        roofline.speed(request, alpha), {} if fits else search.alternatives(request, spare),
        None if most is None else most.rows, seconds,
    )  # fmt: skip
