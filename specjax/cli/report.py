"""What is told after the text: the closing table, the comparison, warnings."""

import math
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from specjax.api import Generation
from specjax.cli.comparing import Comparison
from specjax.drafters import LoadedDrafter
from specjax.model import Model

SUSPICIOUS = 32  # drafted tokens, all rejected, from which on it is told


def closing_table(out: Generation, target: Model, guide: LoadedDrafter, verifier: str) -> Table:
    """Tokens, calls, rates, walltime, stop reasons and what ran, one line each."""
    stats, seconds = out.stats, out.stats.seconds
    table = _grid("what it took")
    rows = len(out.tokens)
    table.add_row("tokens", f"{stats.tokens}" + (f" in {rows} texts" if rows > 1 else ""))
    table.add_row("target calls", f"{stats.rounds}" + (" (summed over the texts)" if rows > 1 else ""))
    table.add_row("tokens per call", _number(stats.tokens_per_call))
    if stats.drafted:
        share = lambda rate, of: f"{_number(rate)}  ({stats.accepted} of {of})"
        table.add_row("accepted / tested", share(stats.accepted_per_tested, stats.tested))
        table.add_row("accepted / drafted", share(stats.accepted_per_drafted, stats.drafted))
        if not math.isnan(stats.overlap):
            table.add_row("overlap", f"{_number(stats.overlap)}  mean of \u03a3 min(p, q) over the tested tokens")
        table.add_row("accepted by depth", "  ".join(_number(rate) for rate in stats.by_depth))
    shown = ("prefill", "draft", "verify") if "draft" in seconds else ("prefill", "decode")
    parts = [f"{name} {_seconds(seconds[name])}" for name in shown]
    whole = seconds.get("prefill", 0.0) + seconds.get("decode", 0.0)
    table.add_row("walltime", f"{_seconds(whole)}: {', '.join(parts)}")
    table.add_row("compile, apart", f"{_seconds(seconds.get('compile', 0.0))}")
    table.add_row("speed", f"{_number(stats.tokens_per_second, 1)} tokens/s while decoding")
    table.add_row("stopped by", ", ".join(f"{name} {count}" if rows > 1 else name for name, count in _reasons(out)))
    table.add_row("lossless", f"{'yes' if out.lossless else 'NO'}, verifier {verifier}")
    table.add_row("target", described(target))
    table.add_row("drafter", guide.name + (f", {described(guide.source)}" if guide.source is not None else ""))
    return table


def comparison_table(compared: Comparison) -> Table:
    """Both ways of decoding side by side."""
    table = Table(title="compared with plain decoding", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    for name in ("prefill", "decode", "tokens", "tokens/s", "compile, apart"):
        table.add_column(name, justify="right")
    for name, run in (("plain", compared.plain), ("speculative", compared.fast)):
        table.add_row(
            name, _seconds(run.prefill), _seconds(run.decode), str(run.tokens), _number(run.speed, 1),
            _seconds(run.compile),
        )  # fmt: skip
    return table


def comparison_lines(compared: Comparison) -> list[str]:
    """The speed-up and the verdict on equality, in words."""
    lines = [
        f"speed-up {_number(compared.speedup)} while decoding, {_number(compared.speedup_whole)} with the prompt "
        f"(median of {compared.repeats} interleaved runs, both warm)"
    ]
    if not compared.greedy:
        lines.append("sampled: equal in law, not token by token (temperature 0 compares tokens)")
    elif not compared.differences:
        lines.append("outputs equal, token for token")
    for found in compared.differences:
        lines.append(
            f"text {found.row + 1} differs at new token {found.position + 1}: plain {found.plain}, speculative "
            f"{found.fast}; the target's two best logits are {found.margin:.3g} apart there"
        )
    return lines


def warnings(out: Generation) -> list[str]:
    """One line for each thing that went wrong in the run."""
    broken = [str(row + 1) for row, reason in enumerate(out.stop_reasons) if reason == "nan"]
    said = []
    if broken:
        said.append(
            f"text {', '.join(broken)} ended early: the logits hold NaN, so the weights (or the dtype) are broken; "
            "what stands before is sound"
        )
    if out.stats.tested >= SUSPICIOUS and not out.stats.accepted:
        said.append(
            f"none of {out.stats.tested} drafted tokens was accepted: the text is sound, but the drafter does not suit "
            "this target, or its weights are broken"
        )
    return said


def show(console: Console, table: Table, lines: Sequence[str] = ()) -> None:
    """A table after a blank line, and the lines that sum it up."""
    console.print()
    console.print(table, highlight=False, markup=False)
    for line in lines:
        console.print(line, highlight=False, markup=False)


def described(model: Model) -> str:
    """Name, size and dtype."""
    return f"{model.name}, {_count(model.size)} parameters, {model.fmt.dtype}"


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
