"""`advise`: measure, rank by theory, try the best ways beside plain decoding, and say which to use."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import api, checks, drafters
from specjax.advisor import measure, rank, running, trials, ways
from specjax.advisor.measure import Notes
from specjax.advisor.rank import Candidate, Measured
from specjax.advisor.running import Work
from specjax.advisor.trials import Trial
from specjax.advisor.ways import KINDS, PLAIN, Way
from specjax.bench import machine
from specjax.model import Model

DRAFTS = 2  # models that may draft: a cascade has no more levels here


class Advice(NamedTuple):
    """What was measured, and what follows.

    Attributes:
      measured: None where measuring was interrupted before anything was timed.
      candidates: every way that was weighed, the fastest by theory first.
      trials: of the first of them that differ enough, the fastest first; none with verify=0.
      swept: with sweep=True, `rank.field` of the candidates, and the way to use beside them; the fastest first.
      interrupted: whether something that was planned is missing.
      load: the largest share of the processors that other programs used while times were taken.
      settings: what was asked for.
    """

    target: str
    drafts: list[str]
    measured: Measured | None
    candidates: list[Candidate]
    trials: list[Trial]
    swept: list[Trial]
    left_out: list[str]
    interrupted: bool
    load: float
    settings: dict[str, Any]
    notes: Notes

    def __repr__(self) -> str:
        """The verdict: all that is in here would fill many screens."""
        from specjax.advisor import say

        return f"<Advice: {say.verdict(self)}>"

    @property
    def helps(self) -> bool:
        """Whether the best way is faster than plain decoding by more than the uncertainty."""
        if self.trials:
            return self.trials[0].speedup - self.trials[0].error > 1
        return bool(self.candidates) and self.candidates[0].speedup - self.candidates[0].error > 1

    @property
    def way(self) -> Way:
        """What to use; plain decoding where nothing helps."""
        if not self.helps:
            return PLAIN
        return self.trials[0].way if self.trials else self.candidates[0].way

    @property
    def speedup(self) -> float:
        """Of the way to use: measured where it was tried, else expected; 1 of plain decoding."""
        if not self.helps:
            return 1.0
        return self.trials[0].speedup if self.trials else self.candidates[0].speedup

    @property
    def error(self) -> float:
        """Half of the interval that `speedup` stands in the middle of."""
        if not self.helps:
            return 0.0
        return self.trials[0].error if self.trials else self.candidates[0].error

    @property
    def behind(self) -> float | None:
        """How far the way to use is behind the fastest that was swept, 0.05 being 5 %; None where nothing was."""
        if not self.swept:
            return None
        own = next((one.speedup for one in self.swept if one.way == self.way), 1.0)
        return 1 - own / max(self.swept[0].speedup, 1.0)

    @property
    def drafter(self) -> str:
        """As `specjax generate --drafter` takes it."""
        return ways.spec(self.way)

    @property
    def python(self) -> str:
        """A line that decodes so."""
        from specjax.advisor import say

        return say.python_line(self)

    @property
    def reason(self) -> str:
        """Why, in words."""
        from specjax.advisor import say

        return " ".join(say.reasons(self))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything that was measured, weighed, tried and concluded."""
        from specjax.advisor import say

        return say.record(self)


def advise(
    target: Model,
    drafts: Model | Sequence[Model] = (),
    prompts: api.Prompts = (),
    *,
    temperature: float | int = 0.0,
    batch: int = 1,
    max_new_tokens: int = 64,
    ignore_eos: bool = False,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    verify: int = 3,
    turns: int = 3,
    sweep: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> Advice:
    """Says which drafter, draft length or tree decodes these prompts fastest on this machine, if any does.

    Measures what verifying costs here, what each drafter accepts and costs, ranks all ways by theory, decodes the best
    of them in turns with plain decoding, and answers with the fastest of those that were tried.

    Args:
      target: a model from `specjax.load`.
      drafts: up to two models that share its tokenizer, the larger first; none: what needs no model is weighed.
      prompts: as for `specjax.generate`, of the kind that will be decoded.
      temperature, max_new_tokens, ignore_eos, seed: as for `specjax.generate`.
      batch: prompts decoded together.
      kinds: drafters that are weighed, of model, tree, dynamic-tree, ngram, suffix, suffix-tree, lookahead, cascade,
        layer-skip, quantized. None: all, but the last two only where no draft is given, which costs far less.
      verify: how many ways are tried, and up to three more that these make look better; 0: none, and the answer is
        theory's alone.
      turns: timed runs of every way; medians count.
      sweep: whether all that was weighed is decoded afterwards (`rank.field`), which tells how good the answer is
        (`Advice.behind`) and takes longer than the answer; that stays what it was.
      tell: hears what is going on.
      stop: asked between runs; once it says True, what has been measured is all there is.

    Raises:
      ValueError: bad input, in one line, before anything is run. RuntimeError: the logits hold NaN.
    """
    work = make_work(target, drafts, prompts, batch=batch, kinds=kinds, turns=turns, tell=tell, stop=stop, options={
        "temperature": temperature, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, "seed": seed,
    })  # fmt: skip
    checks.integer("verify", verify, least=0)
    notes = measure.fresh()
    measure.survey(work, notes)
    measured = measure.gather(notes)
    candidates = [] if measured is None else [one for one in rank.rank(measured) if one.way.kind in work.kinds]
    tried = trials.try_out(work, notes, candidates, verify)
    settings = {
        "temperature": temperature, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, "seed": seed,
        "batch": batch, "kinds": list(work.kinds), "verify": verify, "turns": turns, "sweep": sweep,
        "prompts": count_prompts(prompts),
    }  # fmt: skip
    advice = Advice(
        target.name, work.names, measured, candidates, tried, [], notes.left_out, stop(), max(notes.load, default=0.0),
        settings, notes,
    )  # fmt: skip
    if not sweep or advice.interrupted:
        return advice
    swept = trials.sweep(work, notes, candidates, advice.way)
    return advice._replace(swept=swept, interrupted=stop(), load=max(notes.load, default=0.0))


def make_work(
    target: Model,
    drafts: Model | Sequence[Model],
    prompts: api.Prompts,
    *,
    batch: int,
    kinds: Sequence[str] | None,
    turns: int,
    options: dict[str, Any],
    tell: Callable[[str], None],
    stop: Callable[[], bool],
) -> Work:
    """What is to be measured, all of it checked.

    Raises:
      ValueError: see `advise`.
    """
    given = (drafts,) if isinstance(drafts, Model) else tuple(drafts)
    for model in (target, *given):
        if not isinstance(model, Model):
            raise ValueError(f"target and drafts must be models from specjax.load, got {type(model).__name__}")
    if len(given) > DRAFTS:
        raise ValueError(f"at most {DRAFTS} drafts are weighed, got {len(given)}: leave the least likely ones out")
    for name, value in (("batch", batch), ("turns", turns), ("max_new_tokens", options["max_new_tokens"])):
        checks.integer(name, value, least=1)
    if not (np.isfinite(options["temperature"]) and options["temperature"] >= 0):
        raise ValueError(f"temperature must be at least 0 and finite, got {options['temperature']}")
    kinds = [kind for kind in KINDS if not (given and kind in ways.SELF)] if kinds is None else kinds
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds of drafters are {', '.join(KINDS)}; got {unknown[0] if unknown else 'none'}")
    for draft in given:
        drafters.model(draft, gamma=measure.LONG).check(target)
    tokens, length = api.tokenize(target, prompts)
    ids = [tokens[row, :count].tolist() for row, count in enumerate(length)]
    return Work(target, given, running.make_batches(ids, batch), options, tuple(kinds), turns, tell, stop)


def count_prompts(prompts: api.Prompts) -> int:
    return 1 if isinstance(prompts, str) else len(prompts)


def versions() -> dict[str, str]:
    """Of the program and what it runs on."""
    from specjax import __version__

    return {"specjax": __version__, **machine.versions()}
