"""Advice in words, as lines to be copied, and as one JSON object."""

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specjax.advisor import rank, ways
from specjax.advisor.rank import Candidate, Chain, Measured
from specjax.advisor.ways import PLAIN, Way

if TYPE_CHECKING:
    from specjax.advisor.desk import Advice
    from specjax.advisor.trials import Trial

BUSY = 0.1  # share of the processors that others may use before times are called doubtful
TOLD = (4, 8, 16)  # widths of the curve that are told in words


def verdict(advice: "Advice") -> str:
    """The answer in one line."""
    if advice.measured is None:
        return "No advice: the run was interrupted before anything was timed."
    if advice.helps:
        how = "measured" if advice.trials else "expected, not tried"
        return f"Use {named(advice, advice.way)}: {advice.speedup:.2f} times plain decoding ({how})."
    return "This will not help: decode plainly."


def reasons(advice: "Advice") -> list[str]:
    """The verdict, and why, sentence by sentence."""
    lines = [verdict(advice)]
    measured = advice.measured
    if measured is None:
        return [*lines, *_doubts(advice)]
    if advice.trials:
        lines += _tried(advice, measured)
    elif advice.candidates:
        best = advice.candidates[0]
        lines.append(
            f"By theory {named(advice, best.way)} is fastest, at {best.speedup:.2f} \u00b1 {best.error:.2f} times "
            f"plain decoding: {_round(best, measured)}."
        )
    else:
        lines.append("Nothing could be weighed: give a draft model, or name other kinds of drafters.")
    lines += _swept(advice)
    lines.append(_machine(advice, measured))
    lines += [_acceptance(advice, chain, measured) for chain in measured.chains]
    lines += [f"Left out: {line}." for line in advice.left_out]
    return [*lines, *_doubts(advice)]


def named(advice: "Advice", way: Way) -> str:
    """A way with its models."""
    return ways.label(way, advice.drafts)


def _tried(advice: "Advice", measured: Measured) -> list[str]:
    best = advice.trials[0]
    turns = f"{best.least:.2f} to {best.most:.2f} over {len(best.whole)} turns"
    theory = f"theory expected {best.candidate.speedup:.2f} \u00b1 {best.candidate.error:.2f}"
    if advice.helps:
        return [f"It ran {turns}; {theory}: {_round(best.candidate, measured)}."]
    said = (
        f"The best of {len(advice.trials)} ways that were tried, {named(advice, best.way)}, ran at {best.speedup:.2f}"
    )
    lines = [f"{said} times plain decoding ({turns}; {theory}): {_round(best.candidate, measured)}."]
    if best.speedup > 1:
        lines.append("That is no gain beyond what the turns differ by.")
    for chain in measured.chains:
        alpha, c = first_accepted(chain), chain.cost.step / measured.curve.step
        if chain.way.kind in ways.DRAWN and c >= alpha:
            lines.append(
                f"A token of {_drawn_by(advice, chain)} costs {c:.2f} steps of the target and is "
                f"accepted {alpha:.2f} of the time: it costs more than it saves, at every length."
            )
    return lines


def _swept(advice: "Advice") -> list[str]:
    """What a sweep says of the answer."""
    if not advice.swept:
        return []
    best, behind = advice.swept[0], advice.behind
    own = next((one for one in advice.swept if one.way == advice.way), None)
    used = "plain decoding" if own is None else f"{named(advice, advice.way)} (then {own.speedup:.2f})"
    said = f"Of {len(advice.swept)} ways that were swept afterwards"
    if not behind:
        return [f"{said} none was faster than {used}."]
    return [
        f"{said} {named(advice, best.way)} was the fastest, at {best.speedup:.2f} ({best.least:.2f} to "
        f"{best.most:.2f}); {used} was {100 * behind:.1f} % behind."
    ]


def _round(one: Candidate, measured: Measured) -> str:
    return f"a round commits {one.tokens:.2f} tokens and takes {one.seconds / measured.curve.step:.2f} steps"


def _machine(advice: "Advice", measured: Measured) -> str:
    curve, batch = measured.curve, advice.settings["batch"]
    told = [f"{width} tokens {curve.relative(width):.2f}" for width in TOLD if width <= curve.widths[-1]]
    rows = "" if batch == 1 else f" of {batch} rows"
    return (
        f"A step{rows} of {ways.short(advice.target)} takes {1e3 * curve.step:.2f} ms here; "
        f"checking {', '.join(told)} steps."
    )


def first_accepted(chain: Chain) -> float:
    """The chance that the first drafted token of a round is accepted."""
    return float(rank.betas(chain.reached, 1)[0])


def _acceptance(advice: "Advice", chain: Chain, measured: Measured) -> str:
    chance = rank.betas(chain.reached, len(chain.reached) - 1)
    told = ", ".join(f"{value:.2f}" for value in chance[:4])
    if chain.way.kind in ways.DRAWN:
        c = chain.cost.step / measured.curve.step
        return (
            f"{_drawn_by(advice, chain)}: a token costs {c:.3f} steps; accepted by position, all "
            f"before it being accepted: {told}, ..."
        )
    return f"{chain.way.kind}: costs next to nothing; accepted by position, rounds without a match counted: {told}, ..."


def _drawn_by(advice: "Advice", chain: Chain) -> str:
    return ways.short(advice.drafts[chain.way.drafts[0]]) if chain.way.drafts else chain.way.kind


def _doubts(advice: "Advice") -> list[str]:
    lines = []
    if advice.load > BUSY:
        lines.append(
            f"Other programs used {100 * advice.load:.0f} % of the processors meanwhile: ask again on a quiet machine."
        )
    if advice.interrupted:
        lines.append("The run was interrupted: this rests on what had been measured by then.")
    return lines


# --- lines to be copied ----------------------------------------------------------------------------------------------


def python_line(advice: "Advice") -> str:
    """`sj.generate(...)` with the drafter to use; `sj` is specjax."""
    way, options = advice.way, advice.settings
    load = f'sj.load("{advice.target}")'
    given = [f"target := {load}" if way.kind in ways.SELF else load, "prompts"]
    if way != PLAIN:
        given.append(f"drafter={ways.python(way, advice.drafts)}")
        given += [f'verifier="{way.verifier}"'] * (way.verifier != "token")
    given += [f"temperature={options['temperature']:g}", f"max_new_tokens={options['max_new_tokens']}"]
    return f"sj.generate({', '.join(given)})"


def command_line(advice: "Advice", *, dtype: str = "float32", prompts: str | None = None) -> str:
    """`specjax generate ...` with the drafter to use.

    Args:
      prompts: a file of prompts; None: a place for one.
    """
    way, options = advice.way, advice.settings
    words = ["specjax", "generate", "--target", advice.target]
    for number in way.drafts:
        words += ["--draft", advice.drafts[number]]
    words += ["--drafter", ways.spec(way)]
    words += ["--verifier", way.verifier] * (way.verifier != "token")
    words += ["--dtype", dtype] * (dtype != "float32")
    words += ["--temperature", f"{options['temperature']:g}", "--max-new-tokens", str(options["max_new_tokens"])]
    words += ["--ignore-eos"] * options["ignore_eos"]
    end = f"--prompts {shlex.quote(prompts)}" if prompts is not None else '"..."'
    return f"{shlex.join(words)} {end}"


# --- JSON ------------------------------------------------------------------------------------------------------------


def record(advice: "Advice") -> dict[str, Any]:
    """Plain values: what was asked, measured, weighed, tried and concluded."""
    from specjax.advisor.desk import versions

    measured = advice.measured
    return {
        "target": advice.target, "drafts": advice.drafts, "settings": advice.settings, "versions": versions(),
        "helps": advice.helps, "use": ways.spec(advice.way), "verifier": advice.way.verifier,
        "use_drafts": [advice.drafts[number] for number in advice.way.drafts], "speedup": advice.speedup,
        "speedup_error": advice.error, "reason": reasons(advice), "python": python_line(advice),
        "measured": None if measured is None else _measured(advice, measured),
        "candidates": [_candidate(advice, one) for one in advice.candidates],
        "trials": [_trial(advice, one) for one in advice.trials],
        "swept": [_trial(advice, one) for one in advice.swept], "behind": advice.behind,
        "counted": [_counted(advice, way, runs) for way, runs in advice.notes.passes.items()],
        "left_out": advice.left_out, "interrupted": advice.interrupted, "load": advice.load,
    }  # fmt: skip


def _measured(advice: "Advice", measured: Measured) -> dict[str, Any]:
    curve = measured.curve
    return {
        "step_seconds": curve.step,
        "verify": [
            {"tokens": width, "seconds": took, "relative": took / curve.step, "error": off / curve.step}
            for width, took, off in zip(curve.widths, curve.seconds, curve.spread, strict=True)
        ],
        "prefill_seconds": measured.plain.prefill, "calls": measured.plain.calls,
        "chains": [
            {
                "drafter": chain.way.kind, "draft": _draft(advice, chain.way), "c": chain.cost.step / curve.step,
                "overhead": chain.cost.overhead / curve.step, "reached": list(chain.reached),
                "accepted_by_position": rank.betas(chain.reached, len(chain.reached) - 1).tolist(),
                "cost": chain.cost._asdict(),
            }
            for chain in measured.chains
        ],
        "ranks": [
            {
                "draft": advice.drafts[one.draft], "accepted_by_depth_and_rank": rank.rank_table(one.rows).tolist(),
                "c": one.cost.step / curve.step, "overhead": one.cost.overhead / curve.step,
                "cost": one.cost._asdict(),
            }
            for one in measured.ranks
        ],
        "inners": [
            {"middle": advice.drafts[one.middle], "small": advice.drafts[one.small], "alpha": one.alpha}
            for one in measured.inners
        ],
    }  # fmt: skip


def _candidate(advice: "Advice", one: Candidate) -> dict[str, Any]:
    return {
        "drafter": ways.spec(one.way), "draft": _draft(advice, one.way), "verifier": one.way.verifier,
        "tokens": one.tokens, "seconds": one.seconds, "factor": one.factor, "speedup": one.speedup,
        "error": one.error,
    }  # fmt: skip


def _trial(advice: "Advice", one: "Trial") -> dict[str, Any]:
    return _candidate(advice, one.candidate) | {
        "measured_speedup": one.speedup, "measured_least": one.least, "measured_most": one.most,
        "measured_error": one.error, "measured_turns": len(one.whole), "measured_factor": one.factor,
        "measured_tokens": one.tokens,
    }  # fmt: skip


def _draft(advice: "Advice", way: Way) -> str | list[str] | None:
    names = [advice.drafts[number] for number in way.drafts]
    return names if len(names) > 1 else names[0] if names else None


def _counted(advice: "Advice", way: Way, runs: Sequence[Any]) -> dict[str, Any]:
    """A way over all prompts: what Ctrl-C leaves when nothing has been timed yet."""
    reached = [sum(column) for column in zip(*(run.reached for run in runs), strict=True)]
    accepted = sum(reached[1:])
    return {
        "way": named(advice, way), "calls": sum(run.calls for run in runs), "reached": reached,
        "tokens": sum(run.committed for run in runs), "accepted": accepted,
        "tokens_a_round": 1 + accepted / reached[0] if reached[0] else math.nan,
    }  # fmt: skip
