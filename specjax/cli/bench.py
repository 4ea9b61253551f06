"""`specjax bench`: speed as ratios measured in one run, interleaved with transformers on the same weights."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax import checks
from specjax.bench.record import BYTES, Row
from specjax.checks import check_name
from specjax.cli import process
from specjax.cli.arguments import parse
from specjax.cli.rows import NO_FILE, RowFiles
from specjax.config import Processes, arg
from specjax.strategy import Strategy

Name = Literal[
    "plain",
    "speculative",
    "composition",
    "verify",
    "overhead",
    "vocabulary",
    "verifiers",
    "committed",
    "long-context",
    "prefill",
    "context",
]
GAMMAS = {"composition": (3, 5, 7), "overhead": (3, 5, 7), "verifiers": (8,), "long-context": (4,)}  # others: 5
LENGTHS = "(default: 3 5 7 for composition and overhead; 8 for verifiers; 4 for long-context; 5)"
PROMPTS = {"prefill": (512, 2048, 4096), "context": (64,)}  # others: 4096
PROMPT_LENGTHS = "(default: 512 2048 4096 for prefill; 64 for context; 4096)"
TARGETS = {"prefill": "smollm2-135m", "context": "smollm2-135m"}
TARGET = "bundled/opt-target"
N = arg(metavar="N")
VOCABULARY = 50272  # tokens of OPT


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed on this machine. specjax sweep measures your own models and prompts; specjax bench shapes measures
    speculation at the size of published models.

    plain: greedy decoding of an OPT shape. speculative: beside assisted generation at equal acceptance. composition: a
    round beside its parts. verify: target passes over 2 to 16 tokens. overhead: a round of models that cost almost
    nothing. vocabulary: argmax, sampling, top-p. verifiers: cost of each beside a target pass. committed: tokens per
    round of every verifier on the same drafts. long-context: bytes that self-speculation reads per token. prefill:
    prompt tokens read per second. context: time of a round for each size of the cache.

    Where torch is installed, transformers runs interleaved on the same weights. The share of the processors that other
    programs used is reported beside each ratio: ratios measured on a busy machine are unreliable.

    specjax bench plain --json plain.jsonl

    specjax bench committed --prompts prompts.txt --gamma 5 8 --temperature 1
    """

    name: Annotated[Name, tyro.conf.Positional]
    size: Annotated[str, arg(metavar="SIZE", help_behavior_hint="(default: 125m for plain and verifiers; 350m)")] = ""
    """OPT shape of plain, speculative, composition, verify and verifiers."""
    dtype: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ("float32", "bfloat16")
    """Number formats of the weights."""
    rows: Annotated[tuple[int, ...], arg(metavar="N ...")] = (1, 8)
    """Batch sizes of plain, vocabulary, verifiers, long-context, prefill and context."""
    gamma: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint=LENGTHS)] = ()
    """Draft tokens per round."""
    target: Annotated[
        str,
        arg(
            metavar="MODEL", help_behavior_hint=f"(default: smollm2-135m for prefill, context; {TARGET} for committed)"
        ),
    ] = ""
    """committed, long-context (required), prefill, context: target model; of prefill and context, also a published
    shape, with random weights."""
    draft: Annotated[str, arg(metavar="MODEL")] = "bundled/opt-draft"
    """committed: draft model."""
    drafter: Annotated[str, arg(metavar="NAME[:KEY=VALUE,...]")] = "model"
    """committed: as for specjax generate --drafter, with at most one draft model."""
    prompts: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint=NO_FILE)] = None
    """committed: prompts, in a format of specjax sweep --file. long-context: a text that prompts are cut from."""
    style: Annotated[str, arg(metavar="NAME")] = "auto"
    """committed: how the target is addressed, as in specjax sweep."""
    temperature: Annotated[tuple[float, ...], arg(metavar="T ...")] = (0.0, 1.0)
    """committed, long-context, overhead: of target and draft."""
    max_new_tokens: Annotated[int, N] = 64
    """committed, long-context: tokens per row."""
    prompt_tokens: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint=PROMPT_LENGTHS)] = ()
    """long-context, prefill, context: tokens per prompt. prefill also reads one prompt of each length in one batch."""
    cache_len: Annotated[tuple[int, ...], arg(metavar="N ...")] = (128, 1024, 4096, 8192)
    """context: slots of the cache."""
    budget: Annotated[int, N] = 256
    """long-context: slots of keys and values that a draft step reads."""
    rounds: Annotated[int, N] = 2000
    """committed: rounds that all verifiers judge."""
    repeats: Annotated[int, N] = 5
    """Interleaved runs; medians are reported."""
    mesh: Annotated[str, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = ""
    """committed: devices that rows and the target are split over."""
    hosts: Processes = dataclasses.field(default_factory=Processes)
    files: RowFiles = dataclasses.field(default_factory=RowFiles)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(Bench, args, prog="specjax bench")
    process.import_library()
    check(options)
    from specjax.bench import record
    from specjax.cli.progress import Progress

    kept, _, errors = options.files.open()
    shown: list[Row] = []
    every = list(cases(options))
    with Progress(errors, show=True) as progress:
        for number, (key, measure) in enumerate(every, start=1):
            title = f"{number} of {len(every)}: {line(key)}"
            progress.update(title)
            for row in kept.rows(key) or kept.add(key, measure()):
                progress.clear()
                print(line(row), flush=True)
                shown.append(row)
                progress.update(title)
            if options.files.markdown is not None and process.peers().leader:
                record.write_markdown(options.files.markdown, shown)
    return 0


def line(row: Row) -> str:
    """A row as text."""
    from specjax.bench.record import to_text

    return "  ".join(f"{name}={to_text(value)}" for name, value in row.items())


def check(options: Bench) -> None:
    """Raises ValueError or FileNotFoundError for invalid options, before any work."""
    from specjax.models import opt

    if options.size:
        check_name(options.size, opt.sizes(), "size")
    options.files.check()
    listed = {"dtype": options.dtype, "rows": options.rows, "temperature": options.temperature}
    checks.distinct(least=1, **listed)
    checks.distinct(gamma=options.gamma, prompt_tokens=options.prompt_tokens)
    checks.distinct(least=1, cache_len=options.cache_len)
    for dtype in options.dtype:
        check_name(dtype, BYTES, "dtype")
    checks.decoding(temperature=options.temperature, max_new_tokens=options.max_new_tokens, gamma=options.gamma)
    checks.at_least(
        1, repeats=options.repeats, rows=options.rows, rounds=options.rounds, prompt_tokens=options.prompt_tokens,
        budget=options.budget, cache_len=options.cache_len,
    )  # fmt: skip
    if options.name in ("committed", "long-context"):
        if options.prompts is None:
            raise ValueError(f"bench {options.name} requires --prompts FILE")
        if not options.prompts.is_file():
            raise FileNotFoundError(f"--prompts {options.prompts}: no such file")
    if options.name == "long-context" and not options.target:
        raise ValueError("bench long-context requires --target MODEL: the bundled models hold 512 tokens")
    if options.name == "context":
        from specjax.bench import context

        row = max(options.prompt_tokens or PROMPTS["context"]) + context.NEW
        if min(options.cache_len) < row:
            raise ValueError(f"--cache-len {min(options.cache_len)} is too small: a row has up to {row} tokens")
    if options.name == "committed":
        process.check_mesh(options.mesh or None)
        if options.mesh and 8 % checks.mesh_shape(options.mesh)[0]:
            raise ValueError(f"--mesh {options.mesh}: committed decodes 8 rows, which DATA must divide")
    elif options.mesh or process.peers().count > 1:
        raise ValueError(
            f"bench {options.name} measures one process and device: --mesh and --processes are for committed"
        )
    if options.style != Bench.style and options.name != "committed":
        raise ValueError(f"--style is an option of bench committed, not of bench {options.name}")
    if options.name == "committed":
        from specjax.bench import tasks

        check_name(options.style, tasks.STYLES, "style")
        strategy = Strategy.parse(options.drafter)
        strategy.check_files()
        if strategy.needs > 1:
            raise ValueError(f"--drafter {options.drafter} needs {strategy.needs} draft models, and committed has one")
    elif options.drafter != Bench.drafter:
        raise ValueError(f"--drafter is an option of bench committed, not of bench {options.name}")


def cases(options: Bench) -> Iterator[tuple[Row, Callable[[], Iterator[Row]]]]:
    """What is measured: a key, which identifies the rows of a file, and a function. A stopped run loses one case."""
    from specjax.bench import context, decode, long_context, rounds, verifiers, vocabulary

    name, gammas, dtypes = options.name, options.gamma or GAMMAS.get(options.name, (5,)), {"dtype": options.dtype}
    timed = {"repeats": options.repeats}
    target, lengths = options.target or TARGETS.get(name, TARGET), options.prompt_tokens or PROMPTS.get(name, (4096,))
    sized = timed | {"size": options.size or ("125m" if name in ("plain", "verifiers") else "350m")}
    strategy = Strategy.parse(options.drafter)
    if strategy.takes_gamma and strategy.get("gamma") is None:
        texts = [strategy.replace_settings(gamma=gamma).text for gamma in gammas]
    else:
        texts = [strategy.text]
    # name -> function, values of which each combination is a case, and arguments of all cases
    every: dict[str, tuple[Callable[..., Iterator[Row]], dict[str, Any], dict[str, Any]]] = {
        "plain": (decode.plain, dtypes, sized | {"rows": options.rows}),
        "speculative": (decode.speculative, dtypes, sized | {"gammas": gammas}),
        "composition": (rounds.composition, dtypes, sized | {"gammas": gammas}),
        "verify": (rounds.verify_cost, dtypes, sized),
        "overhead": (
            rounds.overhead, {"vocab": (512, VOCABULARY)},
            timed | {"gammas": gammas, "temperatures": options.temperature},
        ),
        "vocabulary": (vocabulary.rows, {"batch": options.rows}, {"vocab_size": VOCABULARY}),
        "verifiers": (verifiers.cost, {"rows": options.rows, "gamma": gammas}, sized),
        "committed": (
            committed, dtypes | {"drafter": texts, "temperature": options.temperature},
            {
                "target": target, "draft": options.draft, "prompts": str(options.prompts),
                "rounds": options.rounds, "new": options.max_new_tokens,
                **({} if options.style == Bench.style else {"style": options.style}),
                **({"mesh": options.mesh} if options.mesh else {}),
            },
        ),
        "long-context": (
            long_context.measure,
            dtypes | {
                "rows": options.rows, "gamma": gammas, "temperature": options.temperature, "prompt": lengths,
            },
            {
                "target": target, "text": str(options.prompts), "budget": options.budget,
                "new": options.max_new_tokens, **timed,
            },
        ),
        "prefill": (
            context.prefill, dtypes | {"rows": options.rows}, timed | {"target": target, "prompts": lengths},
        ),
        "context": (
            context.context,
            dtypes | {"rows": options.rows, "prompt": lengths, "drafter": context.DRAFTERS},
            timed | {"target": target, "cache_len": options.cache_len},
        ),
    }  # fmt: skip
    function, axes, common = every[name]
    for values in itertools.product(*axes.values()):
        given = dict(zip(axes, values, strict=True)) | common
        yield {"bench": name, **timed, **given}, partial(function, **given)


def committed(
    *,
    target: str,
    draft: str,
    dtype: str,
    prompts: str,
    drafter: str,
    temperature: float,
    rounds: int,
    new: int,
    style: str = "auto",
    mesh: str = "",
) -> Iterator[Row]:
    """`verifiers.committed` for models by name on a file of prompts."""
    import specjax
    from specjax import sharding
    from specjax.bench import tasks, verifiers

    split = sharding.make_mesh(*checks.mesh_shape(mesh)) if mesh else None
    strategy, big = Strategy.parse(drafter), specjax.load(target, dtype=dtype, mesh=split)
    built = strategy.build(big, [specjax.load(draft, dtype=dtype) for _ in range(strategy.needs)])
    form, items = tasks.read(prompts)
    task = tasks.FORMATS[form].task
    given = tasks.prompts_for(big, task, items, style)
    for row in verifiers.committed(big, built, given, rounds=rounds, temperature=temperature, new=new):
        yield {"target": target, "dtype": dtype, "addressed": tasks.style_of(big, task, style)} | row
