"""`specjax plan`: whether a request fits a TPU slice and how fast it would be, without the slice."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from specjax import checks, files
from specjax import config as presets
from specjax.cli import outputs, process
from specjax.cli.arguments import parse
from specjax.config import CacheDtype, Flag, RunConfig, arg

if TYPE_CHECKING:
    from specjax.planning.planner import Plan
    from specjax.planning.request import PlanRequest

PROG = "specjax plan"
GIB = 2**30
DONE, NO_FIT = 0, 1


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Plan a request on a TPU slice: memory, mesh, collectives and speed, without the slice and without weights.

    The programs are compiled ahead of time for the slice. Memory and collectives are the compiler's; times are a
    roofline with one efficiency. Exits with 1 if the request does not fit, and names the nearest that does. Requires
    the extra plan: pip install 'specjax[plan]'.

    specjax plan --target facebook/opt-66b --draft facebook/opt-125m --topology v5e:4x4

    specjax plan --target llama-3-70b --draft llama-3.2-1b --topology v6e-8 --rows 16 --alpha 0.7 --json
    """

    topology: Annotated[str, arg(metavar="SLICE")]
    """Such as v5e:4x4, v5litepod-16, v6e-8 or v5p-16 (16 cores, 8 chips)."""
    target: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: that of --config)")] = None
    """A published model by its name or Hugging Face id, or a folder with a config.json."""
    config: Annotated[str | None, arg(metavar="PRESET", help_behavior_hint="(default: none)")] = None
    """A preset of specjax generate, whose models, formats, mesh, gamma and new tokens are planned; a Python file that
    is executed."""
    draft: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: plain decoding)")] = None
    """A smaller model, whole on every chip."""
    slices: Annotated[int, arg(metavar="N")] = 1
    """Slices that share the rows of one program."""
    mesh: Annotated[str, arg(metavar="DATAxMODEL[xWIDE]")] = "auto"
    """Sizes of the axes, or auto: the fastest mesh that fits."""
    rows: Annotated[int, arg(metavar="N")] = 8
    """Prompts that are decoded together."""
    prompt_tokens: Annotated[int, arg(metavar="N")] = 512
    """Tokens per prompt."""
    max_new_tokens: Annotated[int, arg(metavar="N")] = 512
    """New tokens per row."""
    gamma: Annotated[int, arg(metavar="N")] = 4
    """Draft tokens per round."""
    alpha: Annotated[float, arg(metavar="ALPHA")] = 0.8
    """Acceptance probability of a draft token, as measured by specjax bench or sweep."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the weights."""
    weights: Annotated[Literal["int8"] | None, arg(metavar="int8", help_behavior_hint="(default: as dtype)")] = None
    """Store the target's weights in int8."""
    cache_dtype: Annotated[CacheDtype | None, arg(metavar="DTYPE", help_behavior_hint="(default: as dtype)")] = None
    """Number format of the target's keys and values."""
    compiler_layouts: Flag = False
    """Plan a custom loop whose arrays are placed as the compiler prefers; it takes fewer temporaries."""
    loop_only: Flag = False
    """Do not compile the program that reads the prompts."""
    json: Flag = False
    """Print JSON alone."""
    plot: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: no picture)")] = None
    """Draw memory and speed into this .svg or .png file."""
    fresh: Flag = False
    """Compile again, whatever was kept."""


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(PlanOptions, args, prog=PROG)
    if options.config is not None:
        process.import_library()
        options = parse(PlanOptions, args, prog=PROG, default=of_preset(options, presets.read(options.config)))
    if options.target is None:
        raise ValueError("--target or --config is required: name the model that is planned")
    checks.at_least(
        1, slices=options.slices, rows=options.rows, prompt_tokens=options.prompt_tokens,
        max_new_tokens=options.max_new_tokens, gamma=options.gamma,
    )  # fmt: skip
    outputs.picture(plot=options.plot)
    process.import_library()
    from specjax.cli.progress import Progress, tables_and_errors
    from specjax.planning.planner import plan

    console, errors = tables_and_errors()
    with Progress(errors, show=not options.json) as progress:
        progress.update(f"compiling for {options.topology}")
        found = plan(
            options.target, options.draft, topology=options.topology, slices=options.slices, mesh=options.mesh,
            rows=options.rows, prompt_tokens=options.prompt_tokens, max_new_tokens=options.max_new_tokens,
            gamma=options.gamma, alpha=options.alpha, dtype=options.dtype, weights=options.weights,
            cache_dtype=options.cache_dtype, compiler_layouts=options.compiler_layouts,
            prompt=not options.loop_only, keep=not options.fresh,
        )  # fmt: skip
        progress.clear()
    if options.plot is not None:
        from specjax.planning.pictures import draw

        draw(found, options.plot)
    if options.json:
        print(files.to_json(found.record()))
    else:
        for line in report(found):
            console.print(line, highlight=False, soft_wrap=True)
    return DONE if found.fits else NO_FIT


def of_preset(options: PlanOptions, preset: RunConfig) -> PlanOptions:
    """The options with the values of a preset.

    Raises:
      ValueError: a preset of several draft models, or of a drafter without one.
    """
    if len(preset.drafts) > 1 or preset.strategy.name not in ("model", "plain"):
        raise ValueError(f"{options.config}: plans are of one draft model or none, not of {preset.strategy.text}")
    return dataclasses.replace(
        options, target=preset.target, draft=next(iter(preset.drafts), None), dtype=preset.dtype,
        weights=preset.weights, cache_dtype=preset.cache_dtype, mesh=preset.mesh or options.mesh,
        gamma=preset.strategy.get("gamma", options.gamma), max_new_tokens=preset.max_new_tokens,
    )  # fmt: skip


def report(plan: "Plan") -> Iterator[str]:
    """The lines of a plan."""
    request, speed = plan.request, plan.speed
    yield f"{title(request)}: {'fits' if plan.fits else 'does not fit'}"
    yield f"  memory of a chip   {gib(plan.needed)} of {gib(plan.memory)} GiB"
    for name, size in plan.groups.items():
        yield f"    {name:16} {gib(size)}"
    if plan.temporaries is not None:
        yield f"    {'temporaries':16} {gib(plan.temporaries)}"
    for kind, other in plan.alternatives.items():
        yield f"  would fit ({kind}): {title(other)}"
    if not plan.fits and not plan.alternatives:
        yield "  nothing near it would fit: use a smaller target, or another kind of chip"
    if plan.fits and plan.largest is not None:
        yield f"  largest batch      {plan.largest} rows on this mesh, estimated"
    if plan.collectives:
        yield "  collectives of a round"
        for one in plan.collectives:
            where = "across slices" if one["across"] else "inside a slice"
            often = "in each layer" if one["loops"] > 1 else "once" if one["loops"] else "outside the loop"
            yield f"    {one['kind']:14} {one['bytes'] / 1e6:9.3f} MB over {one['devices']} chips, {often}, {where}"
    yield f"  target pass        {band(speed.plain, 1e3)} ms for 1 token"
    if speed.draft is not None:
        yield f"                     {band(speed.verify, 1e3)} ms for {request.block}"
        yield f"  draft step         {band(speed.draft, 1e3)} ms"
    rate = band(speed.tokens_per_second, 1)
    yield f"  tokens per second  {rate}" + (f" at α = {plan.alpha:g}" if speed.draft else "")
    if speed.draft is not None:
        yield f"  speed-up           {speed.speedup:.2f} over {band(speed.plain_per_second, 1)} without the draft"
        pays = "never" if speed.pays_from is None else f"from α >= {speed.pays_from:.2f}"
        yield f"  the draft pays     {pays}; best draft length at α = {plan.alpha:g}: {speed.best_gamma}"
        if speed.none_above is not None:
            yield f"  above {speed.none_above} rows       draft nothing"
    from specjax.planning.roofline import ETA, HIGH, LOW

    yield f"  Times are a roofline at an efficiency of {ETA} ({LOW} to {HIGH}); memory is the compiler's."


def title(request: "PlanRequest") -> str:
    """A request in one line."""
    models = request.target + (f" + {request.draft}" if request.draft else "")
    several = f"{request.slices} x " if request.slices > 1 else ""
    kind = f" in {request.weights}" if request.weights else ""
    mesh = "x".join(map(str, request.mesh))
    return f"{models}{kind} on {several}{request.topology}, mesh {mesh}, {request.rows} rows"


def gib(size: int | float) -> str:
    return f"{size / GIB:6.2f}"


def band(band: Any, scale: int | float) -> str:
    """A value with its bounds, three digits each."""
    value, least, most = (f"{one * scale:.3g}" if one * scale < 1000 else f"{one * scale:.0f}" for one in band)
    return f"{value} ({least} to {most})"
