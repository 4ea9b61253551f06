"""`specjax bench shapes`: speculative decoding at the size of published models, without their weights."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from specjax import checks
from specjax.bench.record import BYTES, Row
from specjax.checks import check_name
from specjax.cli import process
from specjax.cli.arguments import parse
from specjax.cli.rows import RowFiles
from specjax.config import Flag, arg
from specjax.strategy import Strategy

if TYPE_CHECKING:
    from specjax.bench.shapes import ShapeRun
    from specjax.model import Model


@dataclasses.dataclass(frozen=True)
class BenchShapes:
    """Measure speculative decoding at the size of published models, without their weights.

    Target and draft have published shapes and random weights. Both run in full, and each draft token is accepted with
    the given probability. Each row shows the measured costs and speed, the speed that theory predicts from these
    costs, and the published speed.

    specjax bench shapes --target t5-large --draft t5-small --alpha 0.75 --gamma 7 --dtype bfloat16

    specjax bench shapes --target opt-1.3b --draft opt-125m --alpha 0.6 0.8 --gamma 3 5 --rows 1 8

    specjax bench shapes --target opt-2.7b --draft opt-1.3b opt-125m --drafter cascade:gamma=6 --inner-alpha 0.8

    specjax bench shapes --target llama-3.2-1b --drafter head:folder=eagle3 --gamma 5 --alpha 0.8/0.75
    """

    target: Annotated[str, arg(metavar="SHAPE")] = "t5-large"
    """A shape from --list."""
    draft: Annotated[tuple[str, ...], arg(metavar="SHAPE ...")] = ("t5-small",)
    """A smaller shape; for a cascade, the middle one and the smallest."""
    drafter: Annotated[str, arg(metavar="NAME[:KEY=VALUE,...]")] = "model"
    """As for specjax generate --drafter. A folder of head may be a kind, such as eagle3: a head with random weights."""
    alpha: Annotated[tuple[str, ...], arg(metavar="ALPHA ...")] = ("0.75",)
    """Acceptance probability of a draft token, such as 0.75, or one for each depth, such as 0.9/0.8/0.6."""
    inner_alpha: Annotated[float, arg(metavar="ALPHA")] = 0.75
    """Acceptance probability in the inner rounds of a cascade."""
    gamma: Annotated[tuple[int, ...], arg(metavar="N ...")] = (7,)
    """Draft tokens per round, for drafters that do not set it."""
    dtype: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ("bfloat16",)
    """Of the weights: float32, bfloat16 or float16."""
    rows: Annotated[tuple[int, ...], arg(metavar="N ...")] = (1,)
    """Batch sizes."""
    temperature: Annotated[float, arg(metavar="T")] = 0.0
    """Of target and draft. It changes the cost of sampling alone, not what is accepted."""
    prompt_tokens: Annotated[int, arg(metavar="N")] = 64
    """Tokens per prompt."""
    max_new_tokens: Annotated[int, arg(metavar="N")] = 128
    """New tokens per row, rounded to whole rounds."""
    repeats: Annotated[
        int | None, arg(metavar="N", help_behavior_hint="(default: as many as fit into a minute, 3 to 15)")
    ] = None
    """Interleaved runs; medians are reported."""
    list: Flag = False
    """Print all shapes with their parameters and memory, and exit."""
    files: RowFiles = dataclasses.field(default_factory=RowFiles)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(BenchShapes, args, prog="specjax bench shapes")
    check(options)
    process.import_library()
    from specjax.bench import record, shapes
    from specjax.bench.decode import random_model
    from specjax.cli.progress import Progress, tables_and_errors
    from specjax.reproduce.report import cell

    if options.list:
        tables_and_errors()[0].print(record.terminal_table(all_shapes(), cell))
        return 0
    every = runs(options)
    for run in every:
        shapes.check_run(run)
    kept, console, errors = options.files.open()
    rows: list[Row] = []
    with Progress(errors, show=True) as progress:
        models: dict[str, Model] = {}

        def measure(run: "ShapeRun", title: str) -> Row:
            if any(model.fmt.dtype != run.dtype for model in models.values()):
                models.clear()

            def model(name: str) -> "Model":
                if name not in models:
                    progress.update(f"{title}: random weights of {name}")
                    models[name] = random_model(name, run.dtype)
                return models[name]

            notify = lambda done, total: progress.update(f"{title}: request {done} of {total}")
            return shapes.measure(run, model, repeats=options.repeats, progress=notify)

        try:
            for number, run in enumerate(every, start=1):
                key = {"bench": "shapes", "repeats": options.repeats, **run.key}
                rows += kept.rows(key) or kept.add(key, [measure(run, f"{number} of {len(every)}: {run.title}")])
        finally:  # on Ctrl-C, the finished rows are shown
            progress.clear()
            if rows:
                table = [shown(row) for row in rows]
                console.print(record.terminal_table(table, cell))
                if options.files.markdown is not None:
                    record.write_markdown(options.files.markdown, table)
    return 0


def check(options: BenchShapes) -> None:
    """Raises ValueError for invalid options, before JAX is imported."""
    options.files.check()
    listed = {"alpha": options.alpha, "gamma": options.gamma, "dtype": options.dtype, "rows": options.rows}
    checks.distinct(least=1, **listed)
    for dtype in options.dtype:
        check_name(dtype, BYTES, "dtype")
    for text in options.alpha:
        probabilities(text)
    checks.number("inner_alpha", options.inner_alpha, least=0, most=1)
    checks.decoding(temperature=options.temperature, max_new_tokens=options.max_new_tokens, gamma=options.gamma)
    repeats = () if options.repeats is None else (options.repeats,)
    checks.at_least(1, repeats=repeats, rows=options.rows, prompt_tokens=options.prompt_tokens)
    Strategy.parse(options.drafter).check_files()


def probabilities(text: str) -> tuple[float, ...]:
    """The numbers of one value of --alpha."""
    try:
        found = tuple(map(float, text.split("/")))
    except ValueError:
        raise ValueError(f"--alpha must be a number, or numbers joined by /, got {text!r}") from None
    return tuple(checks.number("alpha", one, least=0, most=1) for one in found)


def runs(options: BenchShapes) -> "list[ShapeRun]":
    """Every combination of the options."""
    from specjax.bench.shapes import ShapeRun

    strategy = Strategy.parse(options.drafter)
    open_gamma = strategy.takes_gamma and strategy.get("gamma") is None
    chosen = [strategy.replace_settings(gamma=gamma) for gamma in options.gamma] if open_gamma else [strategy]
    return [
        ShapeRun(
            options.target, options.draft[: strategy.needs], one, probabilities(alpha), options.inner_alpha, dtype,
            rows, options.temperature, options.prompt_tokens, options.max_new_tokens,
        )
        for dtype, rows, one, alpha in itertools.product(options.dtype, options.rows, chosen, options.alpha)
    ]  # fmt: skip


def all_shapes() -> list[Row]:
    """All shapes with their parameters and the memory of their weights."""
    from specjax.models.format import default_format
    from specjax.models.shapes import published_shapes, weight_bytes

    params = {name: weight_bytes(*shape, default_format()) / 4 for name, shape in published_shapes().items()}
    return [
        {"shape": name, "million parameters": count / 1e6, "GB float32": 4e-9 * count, "GB bfloat16": 2e-9 * count}
        for name, count in params.items()
    ]


def shown(row: Row) -> Row:
    """The columns of the table."""
    from specjax.bench.shapes import over_turns
    from specjax.reproduce.shapes import published

    number = lambda name: over_turns(row, name).shown("{:.3g}".format) if name in row else None
    costs = {name.removeprefix("c "): value for name, value in row.items() if name.startswith("c ")}
    one_cost = next(iter(costs.values())) if len(costs) == 1 else None
    return {
        "models": " > ".join(filter(None, (row["target"], row["draft"]))), "drafter": row["drafter"], "α": row["alpha"],
        "dtype": row["dtype"], "rows": row["rows"], "step ms": row["step_ms"], "c": one_cost or costs or None,
        "verify": row["verify"], "overhead": row.get("overhead"), "tokens/s": row["tokens_per_second"],
        "× plain": number("speedup"), "with prompt": row["speedup_with_prompt"], "closed form": number("closed_form"),
        "published": published(row),
    }  # fmt: skip
