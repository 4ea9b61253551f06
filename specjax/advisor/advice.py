"""`advise`: measure, predict, try the best candidates next to plain decoding, and recommend one."""

from collections.abc import Callable, Sequence

from specjax import api, checks, drafters
from specjax.advisor import measure, probes, rank, trials
from specjax.advisor.measure import Survey
from specjax.advisor.parts import deal, make_batches
from specjax.advisor.rank import KINDS, SELF
from specjax.advisor.report import Advice
from specjax.heads import load_head
from specjax.model import Model
from specjax.prompts import tokenize

DRAFTS = 2  # most draft models: a cascade has two


def advise(
    target: Model,
    drafts: Model | Sequence[Model] = (),
    prompts: api.Prompts = (),
    *,
    heads: str | Sequence[str] = (),
    temperature: float = 0.0,
    batch: int = 1,
    max_new_tokens: int = 64,
    ignore_eos: bool = False,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    verify: int = 3,
    turns: int = 3,
    sweep: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> Advice:
    """Recommends the drafter, draft length or tree that decodes these prompts fastest on this machine, if any helps.

    Measures the cost of verification and, for each drafter, acceptance and cost; predicts the speed-up of all
    strategies; decodes the best of them interleaved with plain decoding, and recommends the fastest one.

        advice = specjax.advise(target, draft, prompts, temperature=0.8)
        advice.python  # 'sj.generate(sj.load("..."), prompts, drafter=sj.drafters.model(...), ...)'

    Args:
      target: model from `specjax.load`.
      drafts: up to two draft models with the tokenizer of the target, the larger first. Drafters without a draft model
        are considered in any case.
      prompts: typical prompts, as for `specjax.generate`. Half of them are surveyed, and the candidates are tried on
        the others; with `sweep`, every second prompt is kept for it.
      heads: folders or ids of trained heads of the target, as for `specjax.load_head`.
      temperature: sampling temperature, 0 for greedy decoding.
      batch: prompts decoded together.
      max_new_tokens: most new tokens per prompt.
      ignore_eos: whether to decode past the end of text.
      seed: seed of sampling.
      kinds: drafters to consider: model, tree, dynamic-tree, head, ngram, suffix, suffix-tree, lookahead, cascade,
        layer-skip, quantized. None: all, the last two only without draft models.
      verify: number of candidates to try, up to three more follow where predictions were off; 0: predictions only.
      turns: timed runs of each strategy, of which the median counts.
      sweep: whether to decode `rank.field` of the candidates afterwards, on prompts that the recommendation has not
        seen, which measures how good it is (`Advice.behind`) and takes longer than the recommendation itself.
      progress: receives one line before each run.
      stop: polled between runs; True ends measuring, and what has been measured is returned.

    Returns:
      An `Advice` with the recommended strategy, its speed-up, and everything measured.

    Raises:
      ValueError: an invalid argument, before anything runs.
      RuntimeError: the logits contain NaN.
    """
    given = (drafts,) if isinstance(drafts, Model) else tuple(drafts)
    kinds = [kind for kind in KINDS if not (given and kind in SELF)] if kinds is None else kinds
    check(target, given, kinds)
    numbers = {"batch": batch, "turns": turns, "max_new_tokens": max_new_tokens}
    for name, value in numbers.items():
        checks.integer(name, value, least=1)
    checks.integer("verify", verify, least=0)
    checks.number("temperature", temperature, least=0)
    named = {name: load_head(name, target) for name in ((heads,) if isinstance(heads, str) else heads)}
    tokens, length = tokenize(target, prompts)
    ids = [tokens[row, :count].tolist() for row, count in enumerate(length)]
    options = {
        "temperature": temperature, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, "seed": seed,
    }  # fmt: skip
    parts = deal(ids, trials=verify > 0, sweep=sweep)
    batches = make_batches(parts, batch)
    survey = Survey(target, given, batches, options, tuple(kinds), named, turns, progress, stop)
    measure.run(survey)
    measured = measure.gather(survey)
    candidates = [] if measured is None else [one for one in rank.rank(measured) if one.strategy.name in kinds]
    tried = trials.try_out(survey, candidates, verify)
    settings = options | {
        "batch": batch, "kinds": list(kinds), "verify": verify, "turns": turns, "sweep": sweep, "prompts": len(ids),
        "prompts_of": {part.value: len(own) for part, own in parts.items()},
    }  # fmt: skip
    load = lambda: max(survey.load, default=0.0)
    names = [draft.name for draft in given]
    advice = Advice(
        target.name, names, measured, candidates, tried, [], survey.left_out, stop(), load(), settings,
        survey.counted,
    )  # fmt: skip
    if not sweep or advice.interrupted:
        return advice
    swept = trials.sweep(survey, candidates, advice.strategy)
    return advice._replace(swept=swept, interrupted=stop(), load=load())


def check(target: Model, drafts: Sequence[Model], kinds: Sequence[str]) -> None:
    """Raises ValueError unless the models fit together and the kinds exist."""
    for model in (target, *drafts):
        if not isinstance(model, Model):
            raise ValueError(f"target and drafts must be models from specjax.load, got {type(model).__name__}")
    if len(drafts) > DRAFTS:
        raise ValueError(f"drafts must be at most {DRAFTS} models, got {len(drafts)}")
    if not kinds:
        raise ValueError(f"kinds must name at least one of {', '.join(KINDS)}")
    for kind in kinds:
        checks.check_name(kind, KINDS, "drafter in kinds")
    for draft in drafts:
        drafters.model(draft, gamma=probes.LONG).check(target)
