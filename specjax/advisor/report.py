"""`Advice`, a recommendation with the measurements behind it: as text, as commands to copy, as JSON and as a figure."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax import plotting
from specjax.advisor import rank, texts
from specjax.advisor.measure import BatchRun
from specjax.advisor.rank import DRAWN, HEAD, PLAIN, SELF, Candidate, ChainCounts, Measurements
from specjax.advisor.trials import Trial
from specjax.plotting import GREY, INK, PURPLE, looks
from specjax.strategy import Strategy

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
      counted: runs over all prompts, available before anything is timed.
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
    counted: dict[Strategy, list[BatchRun]]

    def __repr__(self) -> str:
        """The verdict; all fields would fill many screens."""
        return f"<Advice: {self.verdict}>"

    @property
    def _best(self) -> Trial | Candidate | None:
        """The fastest of the trials, without trials of the predictions, that is faster than plain decoding beyond its
        error; None if none is."""
        return next((one for one in self.trials or self.candidates if one.speedup - one.error > 1), None)

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
        """The recommended call of `specjax.generate`, where `sj` is specjax."""
        strategy, options = self.strategy, self.settings
        load = f'sj.load("{self.target}")'
        given = [f"target := {load}" if strategy.name in (HEAD, *SELF) else load, "prompts"]
        if strategy != PLAIN:
            given.append(f"drafter={strategy.python(self.drafts)}")
            given += [f'verifier="{strategy.verifier}"'] if strategy.verifier else []
        given += [f"temperature={options['temperature']:g}", f"max_new_tokens={options['max_new_tokens']}"]
        return f"sj.generate({', '.join(given)})"

    def command(self, *, dtype: str = "float32", prompts: str | None = None, chat: bool = False) -> str:
        """`specjax generate ...` with the recommended drafter.

        Args:
          prompts: file of prompts; None: a placeholder.
          chat: the prompts are messages to a chat model.
        """
        strategy, options = self.strategy, self.settings
        words = ["specjax", "generate", "--target", self.target]
        for number in strategy.drafts:
            words += ["--draft", self.drafts[number]]
        words += ["--drafter", strategy.text]
        words += ["--verifier", strategy.verifier] if strategy.verifier else []
        words += ["--dtype", dtype] * (dtype != "float32")
        words += ["--temperature", f"{options['temperature']:g}", "--max-new-tokens", str(options["max_new_tokens"])]
        words += ["--ignore-eos"] * options["ignore_eos"] + ["--chat"] * chat
        end = f"--prompts {shlex.quote(prompts)}" if prompts is not None else '"..."'
        return f"{shlex.join(words)} {end}"

    @property
    def verdict(self) -> str:
        """The recommendation in one line."""
        if self.measured is None:
            return "No advice: interrupted before anything was timed."
        if self.helps:
            how = "measured" if self.trials else "predicted, not tried"
            return f"Use {self.label(self.strategy)}: {self.speedup:.2f} times plain decoding ({how})."
        return "Use plain decoding: no drafter is faster beyond the error."

    @property
    def reason(self) -> str:
        """The verdict with its explanation."""
        return " ".join(reasons(self))

    def label(self, strategy: Strategy) -> str:
        """A strategy with its models."""
        return strategy.label(self.drafts)

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, predicted, tried and concluded, for JSON."""
        from specjax.bench import record

        return {
            "target": self.target, "drafts": self.drafts, "settings": self.settings,
            "versions": record.versions(),
            "helps": self.helps, "use": self.drafter, "verifier": self.strategy.verifier,
            "use_drafts": [self.drafts[number] for number in self.strategy.drafts], "speedup": self.speedup,
            "speedup_error": self.error, "reason": reasons(self), "python": self.python,
            "measured": None if self.measured is None else _measured(self, self.measured),
            "candidates": [_candidate(self, one) for one in self.candidates],
            "trials": [_trial(self, one) for one in self.trials],
            "swept": [_trial(self, one) for one in self.swept], "behind": self.behind,
            "counted": [_counted(self, strategy, runs) for strategy, runs in self.counted.items()],
            "left_out": self.left_out, "interrupted": self.interrupted, "load": self.load,
        }  # fmt: skip


# --- text ------------------------------------------------------------------------------------------------------------


def reasons(advice: Advice) -> list[str]:
    """The verdict and its explanation, one sentence per line."""
    lines = [advice.verdict]
    measured = advice.measured
    if measured is not None:
        if advice.trials:
            lines += _tried(advice, measured)
        elif advice.candidates:
            best = advice.candidates[0]
            lines.append(
                f"The best prediction is {advice.label(best.strategy)} at {best.speedup:.2f} \u00b1 {best.error:.2f} "
                f"times plain decoding; tokens per round {_round(best, measured)}."
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


def _tried(advice: Advice, measured: Measurements) -> list[str]:
    best = next((one for one in advice.trials if one.strategy == advice.strategy), advice.trials[0])
    turns = f"{best.least:.2f} to {best.most:.2f} over {len(best.turns)} turns"
    predicted = f"predicted {best.candidate.speedup:.2f} \u00b1 {best.candidate.error:.2f}"
    if advice.helps:
        on, first = _on(advice, "trials"), advice.trials[0]
        lines = [
            f"Measured {best.speedup:.2f} \u00b1 {best.error:.2f} {on} ({turns}), {predicted}; tokens per round "
            f"measured {best.tokens:.2f}, {_round(best.candidate, measured)}."
        ]
        if first != best:
            name, gain = advice.label(first.strategy), f"{first.speedup:.2f} \u00b1 {first.error:.2f}"
            lines.append(f"{name} ran at {gain}, which may be no gain: try more prompts.")
        return lines
    lines = [
        f"The fastest of {len(advice.trials)} candidates tried, {advice.label(best.strategy)}, ran at "
        f"{best.speedup:.2f} times plain decoding ({turns}; {predicted}); tokens per round measured {best.tokens:.2f}, "
        f"{_round(best.candidate, measured)}."
    ]
    if best.speedup > 1:
        lines.append("The gain is within the error.")
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
    used = "plain decoding" if own is None else f"{advice.label(advice.strategy)} ({own.speedup:.2f} in the sweep)"
    on = _on(advice, "sweep")
    if not behind:
        return [f"Swept {on}: none of {len(advice.swept)} strategies was faster than {used}."]
    return [
        f"Swept {on}: the fastest of {len(advice.swept)} strategies was {advice.label(best.strategy)} at "
        f"{best.speedup:.2f} \u00b1 {best.error:.2f}; {used} was {100 * behind:.1f} % behind."
    ]


def _on(advice: Advice, part: str) -> str:
    """The prompts of a part in words."""
    count = advice.settings["prompts_of"][part]
    if advice.settings["prompts"] < 2:
        return "on the prompt of the survey"
    return f"on {count} prompt{'s' * (count > 1)} that {'was' if count == 1 else 'were'} not surveyed"


def _round(one: Candidate, measured: Measurements) -> str:
    """The predicted round of a candidate."""
    return f"predicted {one.tokens:.2f}, in {one.seconds / measured.curve.step:.2f} steps per round"


def _machine(advice: Advice, measured: Measurements) -> str:
    curve, batch = measured.curve, advice.settings["batch"]
    widths = [f"{width} tokens {curve.relative(width):.2f}" for width in CURVE if width <= curve.widths[-1]]
    rows = "" if batch == 1 else f" for {batch} rows"
    return f"A step of the target takes {1e3 * curve.step:.2f} ms{rows}; verification of {', '.join(widths)} steps."


def first_accepted(chain: ChainCounts) -> float:
    """Acceptance probability of the first draft token of a round."""
    return float(rank.betas(chain.total, 1)[0])


def _acceptance(advice: Advice, chain: ChainCounts, measured: Measurements) -> str:
    probs = rank.betas(chain.total, len(chain.total) - 1)
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


# --- JSON ------------------------------------------------------------------------------------------------------------


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
                "drafter": one.strategy.name, "draft": _drafts(advice, one.strategy), "reached": list(one.total),
                "accepted_by_position": rank.betas(one.total, len(one.total) - 1).tolist(), **cost(one),
            }
            for one in measured.chains
        ],
        "ranks": [
            {
                "draft": advice.drafts[one.draft], **cost(one),
                "accepted_by_depth_and_rank": texts.rank_table(one.rows).tolist(),
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
        "measured_error": one.error, "measured_turns": len(one.turns), "measured_factor": one.factor,
        "measured_tokens": one.tokens,
    }  # fmt: skip


def _drafts(advice: Advice, strategy: Strategy) -> str | list[str] | None:
    names = [advice.drafts[number] for number in strategy.drafts]
    return names if len(names) > 1 else names[0] if names else None


def _counted(advice: Advice, strategy: Strategy, runs: Sequence[BatchRun]) -> dict[str, Any]:
    reached = [sum(column) for column in zip(*(row for run in runs for row in run.reached), strict=True)]
    accepted = sum(reached[1:])
    return {
        "strategy": advice.label(strategy), "target_passes": sum(run.passes for run in runs), "reached": reached,
        "tokens": sum(run.committed for run in runs), "accepted": accepted,
        "tokens_per_round": 1 + accepted / reached[0] if reached[0] else math.nan,
    }  # fmt: skip


# --- figure ----------------------------------------------------------------------------------------------------------


def write_figure(path: Path, advice: Advice) -> None:
    """Draws into an .svg or .png file.

    Raises:
      ValueError: nothing was timed, matplotlib is not installed, or another suffix.
    """
    if advice.measured is None:
        raise ValueError("the advice has nothing to draw: it was interrupted before anything was timed")
    plotting.save(path, lambda figure: draw(figure, advice))


def draw(new_figure: Any, advice: Advice) -> Any:
    """Left: predicted and measured speed-up by the levels of a draft. Right: cost of verification by width."""
    figure = new_figure(figsize=(10.5, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    figure.suptitle(advice.verdict, fontsize=11, x=0.01, ha="left", parse_math=False)
    _speeds(left, advice)
    _curve(right, advice)
    return figure


def _speeds(axes: Any, advice: Advice) -> None:
    lines: dict[str, dict[int, float]] = {}
    for one in advice.candidates:
        best, at = lines.setdefault(_family(advice, one.strategy), {}), one.strategy.levels
        best[at] = max(best.get(at, 0.0), one.speedup)
    look = looks(lines)
    for name, line in lines.items():
        levels = sorted(line)
        axes.plot(levels, [line[at] for at in levels], ms=4, lw=1.4, label=f"{name}, predicted", **look[name])
    for one in advice.trials:
        axes.errorbar(
            [one.strategy.levels], [one.speedup], yerr=[one.error], ecolor=INK, capsize=3, ms=8, mec=INK,
            label=f"{advice.label(one.strategy)}, measured", **look[_family(advice, one.strategy)] | {"ls": "none"},
        )  # fmt: skip
    axes.axhline(1.0, color=GREY, lw=1, ls="--")
    axes.text(0.99, 1.0, "plain decoding", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=GREY,
              fontsize=8.5)  # fmt: skip
    plotting.finish(axes, "levels of the draft: \u03b3, or depth of a tree", "speed-up", "Predicted and measured")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)


def _curve(axes: Any, advice: Advice) -> None:
    assert advice.measured is not None
    curve = advice.measured.curve
    relative = [took / curve.step for took in curve.seconds]
    axes.errorbar(
        curve.widths, relative, yerr=[off / curve.step for off in curve.spread], color=PURPLE, ecolor=INK, capsize=2,
        marker="o", ms=4, lw=1.4,
    )  # fmt: skip
    plotting.finish(axes, "verified tokens per row", "time, in steps of plain decoding", "Cost of verification")
    axes.set_ylim(bottom=0)
    axes.set_xticks(curve.widths)


def _family(advice: Advice, strategy: Strategy) -> str:
    return f"{strategy.name} {' > '.join(short(advice.drafts[number]) for number in strategy.drafts)}".strip()
