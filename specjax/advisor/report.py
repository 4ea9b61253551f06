"""`Advice`, a recommendation with the measurements behind it: as text, as commands to copy, and as JSON."""

import math
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from specjax.advisor import rank
from specjax.advisor.measure import SurveyLog
from specjax.advisor.rank import DRAWN, PLAIN, SELF, Candidate, ChainCounts, Measurements
from specjax.advisor.trials import Trial
from specjax.registry import Strategy

BUSY = 0.1  # share of the processors used by other programs above which times are doubtful
CURVE = (4, 8, 16)  # widths of the verify curve in the text


class Advice(NamedTuple):
    """A recommendation and the measurements behind it.

    Attributes:
      target, drafts: names of the models.
      measured: None if interrupted before anything was timed.
      candidates: all strategies considered, the fastest prediction first.
      trials: candidates that were decoded, the fastest first; empty with verify=0.
      swept: with sweep=True, trials of `rank.field` and of the recommended strategy, the fastest first.
      left_out: reasons for strategies that were not considered.
      interrupted: whether part of the work is missing.
      load: largest share of the processors used by other programs during timed runs.
      settings: the arguments.
      log: all runs.
    """

    target: str
    drafts: list[str]
    measured: Measurements | None
    candidates: list[Candidate]
    trials: list[Trial]
    swept: list[Trial]
    left_out: list[str]
    interrupted: bool
    load: float
    settings: dict[str, Any]
    log: SurveyLog

    def __repr__(self) -> str:
        """The verdict; all fields would fill many screens."""
        return f"<Advice: {verdict(self)}>"

    @property
    def _best(self) -> Trial | Candidate | None:
        """The fastest trial, without trials the best prediction, if faster than plain decoding beyond its error."""
        first = next(iter(self.trials or self.candidates), None)
        return first if first is not None and first.speedup - first.error > 1 else None

    @property
    def helps(self) -> bool:
        """Whether a drafter is faster than plain decoding beyond the uncertainty."""
        return self._best is not None

    @property
    def strategy(self) -> Strategy:
        """The recommended strategy; plain decoding if none helps."""
        return PLAIN if self._best is None else self._best.strategy

    @property
    def speedup(self) -> float:
        """Speed-up of the recommended strategy: measured if tried, else predicted; 1 for plain decoding."""
        return 1.0 if self._best is None else self._best.speedup

    @property
    def error(self) -> float:
        """Uncertainty of `speedup`."""
        return 0.0 if self._best is None else self._best.error

    @property
    def behind(self) -> float | None:
        """Gap between the recommended and the fastest swept strategy, such as 0.05 for 5 %; None without a sweep."""
        if not self.swept:
            return None
        own = next((one.speedup for one in self.swept if one.strategy == self.strategy), 1.0)
        return 1 - own / max(self.swept[0].speedup, 1.0)

    @property
    def drafter(self) -> str:
        """The strategy as an argument of `specjax generate --drafter`."""
        return self.strategy.text

    @property
    def python(self) -> str:
        """The recommended call of `specjax.generate`."""
        return python_line(self)

    @property
    def reason(self) -> str:
        """The verdict with its explanation."""
        return " ".join(reasons(self))

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, predicted, tried and concluded, for JSON."""
        return record(self)


def verdict(advice: Advice) -> str:
    """The recommendation in one line."""
    if advice.measured is None:
        return "No advice: interrupted before anything was timed."
    if advice.helps:
        how = "measured" if advice.trials else "predicted, not tried"
        return f"Use {named(advice, advice.strategy)}: {advice.speedup:.2f} times plain decoding ({how})."
    return "Use plain decoding: no drafter is faster."


def reasons(advice: Advice) -> list[str]:
    """The verdict and its explanation, one sentence per line."""
    lines = [verdict(advice)]
    measured = advice.measured
    if measured is not None:
        if advice.trials:
            lines += _tried(advice, measured)
        elif advice.candidates:
            best = advice.candidates[0]
            lines.append(
                f"The best prediction is {named(advice, best.strategy)} at {best.speedup:.2f} \u00b1 {best.error:.2f} "
                f"times plain decoding: {_round(best, measured)}."
            )
        else:
            lines.append("There are no candidates: pass a draft model, or other kinds of drafters.")
        lines += _swept(advice)
        lines.append(_machine(advice, measured))
        lines += [_acceptance(advice, chain, measured) for chain in measured.chains]
        lines += [f"Left out: {line}." for line in advice.left_out]
    if advice.load > BUSY:
        lines.append(
            f"Other programs used {100 * advice.load:.0f} % of the processors: measure again on an idle machine."
        )
    if advice.interrupted:
        lines.append("The run was interrupted: the result is based on the measurements up to then.")
    return lines


def named(advice: Advice, strategy: Strategy) -> str:
    """The label of a strategy with its models."""
    return strategy.label(advice.drafts)


def _tried(advice: Advice, measured: Measurements) -> list[str]:
    best = advice.trials[0]
    turns = f"{best.least:.2f} to {best.most:.2f} over {len(best.whole)} turns"
    predicted = f"predicted {best.candidate.speedup:.2f} \u00b1 {best.candidate.error:.2f}"
    if advice.helps:
        return [f"Measured {turns}, {predicted}: {_round(best.candidate, measured)}."]
    lines = [
        f"The fastest of {len(advice.trials)} candidates tried, {named(advice, best.strategy)}, ran at "
        f"{best.speedup:.2f} times plain decoding ({turns}; {predicted}): {_round(best.candidate, measured)}."
    ]
    if best.speedup > 1:
        lines.append("The gain is within the spread of the turns.")
    for chain in measured.chains:
        alpha, c = first_accepted(chain), chain.cost.step / measured.curve.step
        if chain.strategy.name in DRAWN and c >= alpha:
            lines.append(
                f"A token of {_drawn_by(advice, chain)} costs {c:.2f} steps of the target and is accepted with "
                f"probability {alpha:.2f}: it does not pay at any draft length."
            )
    return lines


def _swept(advice: Advice) -> list[str]:
    """The result of a sweep."""
    if not advice.swept:
        return []
    best, behind = advice.swept[0], advice.behind
    own = next((one for one in advice.swept if one.strategy == advice.strategy), None)
    used = "plain decoding" if own is None else f"{named(advice, advice.strategy)} ({own.speedup:.2f} in the sweep)"
    if not behind:
        return [f"None of {len(advice.swept)} swept strategies was faster than {used}."]
    return [
        f"The fastest of {len(advice.swept)} swept strategies was {named(advice, best.strategy)} at {best.speedup:.2f} "
        f"({best.least:.2f} to {best.most:.2f}); {used} was {100 * behind:.1f} % behind."
    ]


def _round(one: Candidate, measured: Measurements) -> str:
    return f"{one.tokens:.2f} tokens per round, {one.seconds / measured.curve.step:.2f} steps per round"


def _machine(advice: Advice, measured: Measurements) -> str:
    curve, batch = measured.curve, advice.settings["batch"]
    widths = [f"{width} tokens {curve.relative(width):.2f}" for width in CURVE if width <= curve.widths[-1]]
    rows = "" if batch == 1 else f" for {batch} rows"
    return f"A step of the target takes {1e3 * curve.step:.2f} ms{rows}; verification of {', '.join(widths)} steps."


def first_accepted(chain: ChainCounts) -> float:
    """Acceptance probability of the first draft token of a round."""
    return float(rank.betas(chain.reached, 1)[0])


def _acceptance(advice: Advice, chain: ChainCounts, measured: Measurements) -> str:
    probs = rank.betas(chain.reached, len(chain.reached) - 1)
    by_position = ", ".join(f"{value:.2f}" for value in probs[:4])
    if chain.strategy.name in DRAWN:
        c = chain.cost.step / measured.curve.step
        return f"{_drawn_by(advice, chain)}: {c:.3f} steps per token; acceptance by position {by_position}, ..."
    return f"{chain.strategy.name}: acceptance by position, including rounds without a match, {by_position}, ..."


def _drawn_by(advice: Advice, chain: ChainCounts) -> str:
    return short(advice.drafts[chain.strategy.drafts[0]]) if chain.strategy.drafts else chain.strategy.name


def short(model: str) -> str:
    """The last part of a model name."""
    return model.rstrip("/").rpartition("/")[2] or model


# --- commands to copy ------------------------------------------------------------------------------------------------


def python_line(advice: Advice) -> str:
    """`sj.generate(...)` with the recommended drafter, where `sj` is specjax."""
    strategy, options = advice.strategy, advice.settings
    load = f'sj.load("{advice.target}")'
    given = [f"target := {load}" if strategy.name in SELF else load, "prompts"]
    if strategy != PLAIN:
        given.append(f"drafter={strategy.python(advice.drafts)}")
        given += [f'verifier="{strategy.verifier}"'] if strategy.verifier else []
    given += [f"temperature={options['temperature']:g}", f"max_new_tokens={options['max_new_tokens']}"]
    return f"sj.generate({', '.join(given)})"


def command_line(advice: Advice, *, dtype: str = "float32", prompts: str | None = None) -> str:
    """`specjax generate ...` with the recommended drafter.

    Args:
      prompts: file of prompts; None: a placeholder.
    """
    strategy, options = advice.strategy, advice.settings
    words = ["specjax", "generate", "--target", advice.target]
    for number in strategy.drafts:
        words += ["--draft", advice.drafts[number]]
    words += ["--drafter", strategy.text]
    words += ["--verifier", strategy.verifier] if strategy.verifier else []
    words += ["--dtype", dtype] * (dtype != "float32")
    words += ["--temperature", f"{options['temperature']:g}", "--max-new-tokens", str(options["max_new_tokens"])]
    words += ["--ignore-eos"] * options["ignore_eos"]
    end = f"--prompts {shlex.quote(prompts)}" if prompts is not None else '"..."'
    return f"{shlex.join(words)} {end}"


# --- JSON ------------------------------------------------------------------------------------------------------------


def record(advice: Advice) -> dict[str, Any]:
    """Settings, measurements, candidates, trials and conclusions as plain values."""
    from specjax import __version__
    from specjax.bench import record

    measured = advice.measured
    return {
        "target": advice.target, "drafts": advice.drafts, "settings": advice.settings,
        "versions": {"specjax": __version__, **record.versions()},
        "helps": advice.helps, "use": advice.drafter, "verifier": advice.strategy.verifier,
        "use_drafts": [advice.drafts[number] for number in advice.strategy.drafts], "speedup": advice.speedup,
        "speedup_error": advice.error, "reason": reasons(advice), "python": python_line(advice),
        "measured": None if measured is None else _measured(advice, measured),
        "candidates": [_candidate(advice, one) for one in advice.candidates],
        "trials": [_trial(advice, one) for one in advice.trials],
        "swept": [_trial(advice, one) for one in advice.swept], "behind": advice.behind,
        "counted": [_counted(advice, strategy, runs) for strategy, runs in advice.log.passes.items()],
        "left_out": advice.left_out, "interrupted": advice.interrupted, "load": advice.load,
    }  # fmt: skip


def _measured(advice: Advice, measured: Measurements) -> dict[str, Any]:
    curve = measured.curve
    cost = lambda one: {
        "c": one.cost.step / curve.step, "overhead": one.cost.overhead / curve.step, "cost": one.cost._asdict(),
    }  # fmt: skip
    return {
        "step_seconds": curve.step,
        "verify": [
            {"tokens": width, "seconds": took, "relative": took / curve.step, "error": off / curve.step}
            for width, took, off in zip(curve.widths, curve.seconds, curve.spread, strict=True)
        ],
        "prefill_seconds": measured.plain.prefill, "target_passes": measured.plain.passes,
        "chains": [
            {
                "drafter": one.strategy.name, "draft": _drafts(advice, one.strategy), "reached": list(one.reached),
                "accepted_by_position": rank.betas(one.reached, len(one.reached) - 1).tolist(), **cost(one),
            }
            for one in measured.chains
        ],
        "ranks": [
            {
                "draft": advice.drafts[one.draft], **cost(one),
                "accepted_by_depth_and_rank": rank.rank_table(one.rows).tolist(),
            }
            for one in measured.ranks
        ],
        "inners": [
            {"middle": advice.drafts[one.middle], "small": advice.drafts[one.small], "alpha": one.alpha}
            for one in measured.inners
        ],
    }  # fmt: skip


def _candidate(advice: Advice, one: Candidate) -> dict[str, Any]:
    return {
        "drafter": one.strategy.text, "draft": _drafts(advice, one.strategy), "verifier": one.strategy.verifier,
        "tokens": one.tokens, "seconds": one.seconds, "factor": one.factor, "speedup": one.speedup,
        "error": one.error,
    }  # fmt: skip


def _trial(advice: Advice, one: Trial) -> dict[str, Any]:
    return _candidate(advice, one.candidate) | {
        "measured_speedup": one.speedup, "measured_least": one.least, "measured_most": one.most,
        "measured_error": one.error, "measured_turns": len(one.whole), "measured_factor": one.factor,
        "measured_tokens": one.tokens,
    }  # fmt: skip


def _drafts(advice: Advice, strategy: Strategy) -> str | list[str] | None:
    names = [advice.drafts[number] for number in strategy.drafts]
    return names if len(names) > 1 else names[0] if names else None


def _counted(advice: Advice, strategy: Strategy, runs: Sequence[Any]) -> dict[str, Any]:
    """Counts of a strategy over all prompts, available before anything is timed."""
    reached = [sum(column) for column in zip(*(run.reached for run in runs), strict=True)]
    accepted = sum(reached[1:])
    return {
        "strategy": named(advice, strategy), "target_passes": sum(run.passes for run in runs), "reached": reached,
        "tokens": sum(run.committed for run in runs), "accepted": accepted,
        "tokens_per_round": 1 + accepted / reached[0] if reached[0] else math.nan,
    }  # fmt: skip
