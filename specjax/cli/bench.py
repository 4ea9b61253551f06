"""`specjax bench`: speed as ratios measured in one run, interleaved with transformers on the same weights."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax.checks import check_name
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.naming import drafting

Row = dict[str, Any]

Name = Literal[
    "plain",
    "speculative",
    "composition",
    "verify",
    "overhead",
    "vocabulary",
    "verifiers",
    "pair",
    "committed",
    "long-context",
]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed on this machine, as ratios to transformers in torch (where installed) on the same weights.

    plain: greedy decoding of OPT shapes. speculative: against assisted generation at equal acceptance. composition: a
    round against its parts measured apart. verify: feeding several tokens in one call. overhead: a round between models
    that cost nothing. vocabulary: argmax, draws, top-p. verifiers: what each costs beside a call of the target. pair:
    acceptance and speed of a target and a draft of yours on your prompts. committed: tokens a round of every verifier
    on the same drafts of that pair. long-context: bytes a token that self-speculation reads on long rows of a target.
    Runs are interleaved; the share of the processors that other programs used stands beside each.

    specjax bench plain --json plain.jsonl

    specjax bench pair --target bundled/opt-target --draft bundled/opt-draft --prompts prompts.txt --gamma 3 5
    """

    name: Annotated[Name, tyro.conf.Positional]
    size: str = ""
    """OPT shape (plain and verifiers: 125m; speculative, composition and verify: 350m)."""
    dtype: tuple[str, ...] = ("float32", "bfloat16")
    rows: tuple[int, ...] = (1, 8)
    gamma: tuple[int, ...] = ()
    """Draft tokens a round (long-context: 4; speculative, pair and committed: 5; composition and overhead: 3 5 7;
    verifiers: 8)."""
    target: str = "bundled/opt-target"
    """pair, committed and long-context: the model that decides."""
    draft: str = "bundled/opt-draft"
    """pair and committed: the model that drafts."""
    drafter: str = "model"
    """pair and committed: as for specjax generate --drafter, of at most one draft model."""
    prompts: Path | None = None
    """pair and committed: one prompt a line; with a tab, a reference follows, and pair reports BLEU and chrF (needs
    sacrebleu). long-context: a text to cut prompts from."""
    temperature: tuple[float, ...] = (0.0, 1.0)
    """pair, committed, long-context and overhead."""
    max_new_tokens: int = 64
    """pair, committed and long-context: tokens of a row."""
    prompt_tokens: int = 4096
    """long-context: tokens of a prompt."""
    budget: int = 256
    """long-context: slots of keys and values that a draft step reads."""
    rounds: int = 2000
    """committed: rounds that all verifiers judge."""
    repeats: int = 5
    json: Path | None = None
    """Append one JSON object a row to this file. Rows that the file has already are not measured again."""
    markdown: Path | None = None
    """Write the rows as a Markdown table to this file."""


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(Bench, args, prog="specjax bench")
    check(options)
    from specjax.bench import machine, record
    from specjax.cli.progress import Progress, tables_and_errors

    about = machine.versions()
    kept = record.Record(options.json, about)
    print("  ".join(f"{name} {version}" for name, version in about.items()))
    shown: list[Row] = []
    every = list(cases(options))
    with Progress(tables_and_errors()[1], show=True) as progress:
        for number, (case, measure) in enumerate(every, start=1):
            told = f"{number} of {len(every)}: {line(case)}"
            progress.tell(told)
            for row in kept.rows(case) or kept.add(case, measure()):
                progress.clear()
                print(line(row), flush=True)
                shown.append(row)
                progress.tell(told)
            if options.markdown is not None:
                record.write_markdown(options.markdown, shown)
    return 0


def check(options: Bench) -> None:
    """Raises ValueError or FileNotFoundError for what cannot work, before any work."""
    from specjax.bench import runner
    from specjax.models import opt

    if options.size:
        check_name(options.size, opt.sizes(), "OPT shape")
    checks.writable(json=options.json, markdown=options.markdown)
    listed = {"dtype": options.dtype, "rows": options.rows, "temperature": options.temperature}
    checks.some(**listed)
    checks.once(**listed, gamma=options.gamma)
    for dtype in options.dtype:
        check_name(dtype, runner.WIDTH, "dtype")
    checks.request(temperature=options.temperature, max_new_tokens=options.max_new_tokens, gamma=options.gamma)
    checks.at_least(
        1, repeats=options.repeats, rows=options.rows, rounds=options.rounds, prompt_tokens=options.prompt_tokens,
        budget=options.budget,
    )  # fmt: skip
    if options.name in ("pair", "committed", "long-context"):
        if options.prompts is None:
            holds = "a long text" if options.name == "long-context" else "one prompt a line"
            raise ValueError(f"bench {options.name} needs --prompts FILE: {holds}")
        if not options.prompts.is_file():
            raise FileNotFoundError(f"{options.prompts}: no such prompts file")
    if options.name in ("pair", "committed"):
        spec = drafting.parse(options.drafter)
        drafting.check_files(spec)
        for gamma in options.gamma:
            drafting.with_asked_gamma(spec, gamma)
        if drafting.needs(spec) > 1:
            raise ValueError(f"bench {options.name} has one draft model, and {options.drafter!r} needs more")
    elif options.drafter != "model":
        raise ValueError(f"--drafter has no meaning for bench {options.name}: leave it out")


def cases(options: Bench) -> Iterator[tuple[dict[str, Any], Callable[[], Iterator[Row]]]]:
    """What is measured, one key and one function each; a row of a resumed file is known by its key."""
    from specjax.bench import committed, decode, long_context, pair, rounds, verifiers, vocabulary

    size, repeats, name = options.size or "350m", options.repeats, options.name
    key: dict[str, Any] = {"bench": name, "repeats": repeats}
    if name == "vocabulary":
        for rows in options.rows:
            yield key | {"rows": rows}, partial(vocabulary.rows, 50272, rows)
    elif name == "verifiers":
        for rows, gamma in itertools.product(options.rows, options.gamma or (8,)):
            given = {"size": options.size or "125m", "rows": rows, "gamma": gamma}
            yield key | given, partial(verifiers.cost, **given, repeats=repeats)
    elif name == "overhead":
        for vocab in (512, 50272):
            given = {"vocab": vocab, "gamma": options.gamma or (3, 5, 7), "temperature": options.temperature}
            run = partial(rounds.overhead, (vocab,), given["gamma"], repeats, options.temperature)
            yield key | given, run
    elif name == "pair":
        spec = drafting.parse(options.drafter)
        given = {"gamma": drafting.gammas(spec, options.gamma or (5,)), "temperature": options.temperature}
        given |= {"new": options.max_new_tokens}
        for dtype in options.dtype:
            named = {
                "target": options.target, "draft": options.draft, "dtype": dtype, "prompts": str(options.prompts),
                "drafter": drafting.label(spec),
            }  # fmt: skip
            yield key | named | given, partial(pair.measure, **named, **given, repeats=repeats)
    elif name == "long-context":
        ways = itertools.product(options.dtype, options.rows, options.gamma or (4,), options.temperature)
        for dtype, rows, gamma, warmth in ways:
            given = {
                "target": options.target,
                "dtype": dtype,
                "text": str(options.prompts),
                "rows": rows,
                "gamma": gamma,
            }
            given |= {"prompt": options.prompt_tokens, "budget": options.budget, "temperature": warmth}
            given |= {"new": options.max_new_tokens}
            for way in long_context.WAYS:  # minutes each, and so a case each: a stopped run loses one at the most
                yield key | given | {"way": way}, partial(long_context.measure, **given, way=way)
    elif name == "committed":
        spec = drafting.parse(options.drafter)
        gammas = drafting.gammas(spec, options.gamma or (5,))
        every = [drafting.with_gamma(spec, n) for n in gammas] or [spec]
        for dtype, one, warmth in itertools.product(options.dtype, every, options.temperature):
            named = {"target": options.target, "draft": options.draft, "dtype": dtype, "prompts": str(options.prompts)}
            given = named | {"drafter": drafting.label(one), "temperature": warmth}
            given |= {"rounds": options.rounds, "new": options.max_new_tokens}
            yield key | given, partial(committed.of_pair, **given)
    else:
        for dtype in options.dtype:
            if name == "plain":
                shape = options.size or "125m"
                run = partial(decode.plain, (shape,), (dtype,), options.rows, repeats)
                yield key | {"size": shape, "dtype": dtype, "rows": options.rows}, run
                continue
            gammas = options.gamma or ((3, 5, 7) if name == "composition" else (5,))
            run = {
                "speculative": partial(decode.speculative, size, (dtype,), gammas, repeats),
                "composition": partial(rounds.composition, size, (dtype,), gammas, repeats),
                "verify": partial(rounds.verify_cost, size, (dtype,), repeats),
            }[name]
            yield key | {"size": size, "dtype": dtype, "gamma": gammas}, run


def line(row: Row) -> str:
    """A row for people."""
    from specjax.bench.record import show

    return "  ".join(f"{name}={show(value)}" for name, value in row.items())
