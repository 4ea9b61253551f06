"""`specjax bench`: speed as ratios measured in one run, interleaved with transformers on the same weights."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax.cli.arguments import parse

NAMES = ("plain", "speculative", "overhead", "verify", "vocabulary")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed on this machine, as ratios to transformers in torch (where installed) on the same weights.

    plain: greedy decoding of OPT shapes. speculative: against assisted generation at equal acceptance. overhead: a
    round between models that cost nothing. verify: feeding several tokens in one call. vocabulary: argmax, draws,
    top-p. Runs are interleaved; the share of the processors that other programs used stands beside each.

    specjax bench plain --json plain.jsonl
    """

    name: Annotated[Literal["plain", "speculative", "overhead", "verify", "vocabulary"], tyro.conf.Positional]
    size: str = ""
    """OPT shape (plain: 125m; speculative and verify: 350m)."""
    dtype: tuple[str, ...] = ("float32", "bfloat16")
    rows: tuple[int, ...] = (1, 8)
    gamma: int = 5
    repeats: int = 5
    json: Path | None = None
    """Append one JSON object a row to this file."""


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(Bench, args, prog="specjax bench")
    from specjax.bench import machine
    from specjax.models import opt

    if options.size and options.size not in opt.sizes():
        raise ValueError(f"no OPT shape is named {options.size!r}: there are {', '.join(opt.sizes())}")
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {options.repeats}")
    about = machine.versions()
    print("  ".join(f"{name} {version}" for name, version in about.items()))
    for row in rows(options):
        print(line(row), flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row | {"versions": about}) + "\n")
    return 0


def rows(options: Bench) -> Iterator[dict[str, Any]]:
    """The measurements of one bench, as they come."""
    from specjax.bench import decode, vocabulary

    if options.name == "plain":
        return decode.plain((options.size or "125m",), options.dtype, options.rows, options.repeats)
    if options.name == "speculative":
        return decode.speculative(options.size or "350m", options.dtype, options.gamma, options.repeats)
    if options.name == "overhead":
        return decode.overhead((512, 50272), (3, 5, 7), options.repeats)
    if options.name == "verify":
        return decode.verify_cost(options.size or "350m", options.dtype, options.repeats)
    found = (vocabulary.measure(50272, rows) for rows in options.rows)
    return (
        {"bench": "vocabulary", "operation": one.operation, "rows": rows, "us": one.ours.median,
         "usual_us": one.usual.median, "ratio": one.ratio}
        for rows, several in zip(options.rows, found, strict=True) for one in several
    )  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row for people: numbers to three digits."""

    def show(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3g}"
        if isinstance(value, list):
            return "/".join(map(show, value))
        if isinstance(value, dict):
            return ",".join(f"{k}:{show(v)}" for k, v in value.items())
        return str(value)

    return "  ".join(f"{name}={show(value)}" for name, value in row.items())
