"""Results of `specjax generate`: the closing table, the comparison, warnings, and the run as a JSON object."""

import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from specjax import __version__
from specjax.api import Generation
from specjax.cli.comparing import Comparison
from specjax.cli.options import Printing
from specjax.cli.prompts import Prompt
from specjax.config import Run
from specjax.drafters.bounded import BoundedDraft
from specjax.model import Model

SUSPICIOUS = 32  # with at least this many draft tokens, all rejected, a warning is printed


def closing_table(run: Run, out: Generation) -> Table:
    """Tokens, acceptance rates, times, stop reasons and models, one line each."""
    stats, seconds = out.stats, out.stats.seconds
    table = _grid("summary")
    rows = len(out.tokens)
    table.add_row("tokens", f"{stats.tokens}" + (f" in {rows} texts" if rows > 1 else ""))
    table.add_row("target passes", f"{stats.rounds}" + (" (summed over the texts)" if rows > 1 else ""))
    table.add_row("tokens per target pass", _number(stats.tokens_per_call))
    if stats.drafted:
        share = lambda rate, of: f"{_number(rate)}  ({stats.accepted} of {of})"
        table.add_row("accepted / tested", share(stats.accepted_per_tested, stats.tested))
        table.add_row("accepted / drafted", share(stats.accepted_per_drafted, stats.drafted))
        if not math.isnan(stats.overlap):
            table.add_row("overlap", f"{_number(stats.overlap)}  mean of \u03a3 min(p, q) over tested tokens")
        table.add_row("accepted by depth", "  ".join(_number(rate) for rate in stats.by_depth))
    shown = ("prefill", "draft", "verify") if "draft" in seconds else ("prefill", "decode")
    parts = [f"{name} {_seconds(seconds[name])}" for name in shown]
    whole = seconds.get("prefill", 0.0) + seconds.get("decode", 0.0)
    table.add_row("walltime", f"{_seconds(whole)}: {', '.join(parts)}")
    table.add_row("compile (not included)", f"{_seconds(seconds.get('compile', 0.0))}")
    table.add_row("speed", f"{_number(stats.tokens_per_second, 1)} tokens/s while decoding")
    table.add_row("stopped by", ", ".join(f"{name} {count}" if rows > 1 else name for name, count in _reasons(out)))
    table.add_row("lossless", f"{'yes' if out.lossless else 'NO'}, verifier {run.verifier.name}")
    table.add_row("target", described(run.target))
    source = run.drafter.source
    table.add_row("drafter", run.drafter.name + (f", {_size(source)}" if source is not None else ""))
    return table


def comparison_table(compared: Comparison) -> Table:
    """Plain and speculative decoding side by side."""
    table = Table(title="compared with plain decoding", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    for name in ("prefill", "decode", "tokens", "tokens/s", "compile"):
        table.add_column(name, justify="right")
    for name, run in (("plain", compared.plain), ("speculative", compared.fast)):
        table.add_row(
            name, _seconds(run.prefill), _seconds(run.decode), str(run.tokens), _number(run.speed, 1),
            _seconds(run.compile),
        )  # fmt: skip
    return table


def comparison_lines(compared: Comparison) -> list[str]:
    """The speed-up, and whether the outputs are equal."""
    lines = [
        f"speed-up {_number(compared.speedup)} for decoding, {_number(compared.speedup_whole)} including prefill "
        f"(medians of {compared.repeats} interleaved runs)"
    ]
    if not compared.greedy:
        lines.append("sampled: equal in distribution, not token for token (use --temperature 0 to compare tokens)")
    elif not compared.differences:
        lines.append("outputs equal, token for token")
    for found in compared.differences:
        lines.append(
            f"text {found.row + 1} first differs at new token {found.position + 1}: plain {found.plain}, speculative "
            f"{found.fast}; margin of the two largest target logits there: {found.margin:.3g}"
        )
    return lines


def warn(errors: Console, prog: str, out: Generation) -> None:
    """Prints one line for each problem of the run."""
    broken = [str(row + 1) for row, reason in enumerate(out.stop_reasons) if reason == "nan"]
    found = []
    if broken:
        found.append(
            f"text {', '.join(broken)} ended early: the logits contain NaN, so the weights (or the dtype) are broken; "
            "the text before is valid"
        )
    if out.stats.tested >= SUSPICIOUS and not out.stats.accepted:
        found.append(
            f"none of {out.stats.tested} draft tokens was accepted: the text is valid, but the drafter does not fit "
            "this target, or its weights are broken"
        )
    for line in found:
        errors.print(f"{prog}: warning: {line}", style="yellow", soft_wrap=True, markup=False)


def show(console: Console, table: Table, lines: Sequence[str] = ()) -> None:
    """A table after a blank line, and lines below it."""
    console.print()
    console.print(table, highlight=False, markup=False)
    for line in lines:
        console.print(line, highlight=False, markup=False)


def described(model: Model | BoundedDraft) -> str:
    """Name, size and dtype."""
    return f"{model.name}, {_size(model)}"


def _size(model: Model | BoundedDraft) -> str:
    return f"{_count(model.size)} parameters, {model.fmt.label}"


def _grid(title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _reasons(out: Generation) -> list[tuple[str, int]]:
    return Counter(out.stop_reasons).most_common()


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _number(value: float, digits: int = 2) -> str:
    return "\u2013" if math.isnan(value) else f"{value:.{digits}f}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


# --- JSON ------------------------------------------------------------------------------------------------------------


def record(
    run: Run, out: Generation, prompts: Sequence[Prompt], printing: Printing, compared: Comparison | None = None
) -> dict[str, Any]:
    """Everything about a run as plain values for JSON."""
    models, drafter = {"target": _model_record(run.target)}, run.drafter
    if drafter.source is not None:
        models["draft"] = _model_record(drafter.source)
    return {
        **out.to_dict(), "prompts": list(prompts), "verifier": run.verifier.name, "drafter": drafter.name,
        "compare": None if compared is None else compared.to_dict(),
        "settings": dataclasses.asdict(run.config) | dataclasses.asdict(printing), "models": models,
        "versions": {"specjax": __version__, "jax": jax.__version__},
    }  # fmt: skip


def print_json(content: str) -> None:
    """Prints JSON; characters that the encoding of stdout lacks are escaped."""
    try:
        content.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        content = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in content)
    print(content, flush=True)


def _model_record(model: Model | BoundedDraft) -> dict[str, Any]:
    return {
        "name": model.name, "family": model.family.name, "parameters": model.size,
        "dtype": model.fmt.label, "vocab_size": model.vocab_size,
    }  # fmt: skip
