"""Runs and counts on a toy model, and the numbers derived from them."""

import dataclasses

import jax
import numpy as np
import pytest

from specjax import api, drafters, estimates
from specjax.advisor import measure, probes, rank, texts
from specjax.advisor.measure import BatchRun, Survey
from specjax.advisor.parts import Part, deal, make_batches
from specjax.advisor.rank import PLAIN
from specjax.advisor.texts import MISS
from specjax.heads.eagle import EagleConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.model import Model
from specjax.models import opt
from specjax.models.llama import LlamaConfig
from specjax.strategy import Strategy
from specjax.types import Siblings
from tests.cli import toys

LAYER = LlamaConfig(vocab_size=257, width=16, layers=1, heads=2, kv_heads=2, head_width=8, mlp_width=16)
PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


@pytest.fixture(scope="module")
def pair():
    config = opt.OPTConfig(vocab_size=257, width=16, embed_width=16, layers=1, heads=2, mlp_width=32, max_positions=128)
    make = lambda name, noise: Model(name, opt.FAMILY, config, toys.FMT, toys.params(0, config, noise=noise))
    return make("target", 0.0), make("draft", 0.05)


@pytest.fixture(scope="module")
def work(pair):
    options = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True, "seed": 0}
    return Survey(pair[0], (pair[1],), make_batches({Part.SURVEY: PROMPTS}, 2), options)


def test_batches_are_full():
    made = make_batches({Part.SURVEY: PROMPTS, Part.TRIALS: PROMPTS[:1]}, 2)
    assert made == (
        ((PROMPTS[0], PROMPTS[1]), 2, Part.SURVEY), ((PROMPTS[2], PROMPTS[0]), 1, Part.SURVEY),
        ((PROMPTS[0], PROMPTS[0]), 1, Part.TRIALS),
    )  # fmt: skip


@pytest.mark.parametrize("trials", [True, False])
@pytest.mark.parametrize("sweep", [True, False])
def test_no_prompt_is_used_twice(trials, sweep):
    prompts = [[number] for number in range(11)]
    parts = deal(prompts, trials=trials, sweep=sweep)
    assert sorted(prompt for own in parts.values() for prompt in own) == prompts
    assert set(parts) == {Part.SURVEY, *[Part.TRIALS] * trials, *[Part.SWEEP] * sweep}
    assert not sweep or len(parts[Part.SWEEP]) == 5
    assert set(map(len, deal(prompts[:1], trials=trials, sweep=sweep).values())) == {1}


@pytest.mark.slow
def test_decode_equals_generate(work, pair):
    target, draft = pair
    found = measure.decode(work, rank.chain("model", 3, 0), 1)
    wanted = api.generate(target, list(work.batches[1].prompts), drafter=drafters.model(draft, gamma=3), rows=[2, 3],
                         **work.options)  # fmt: skip
    assert found.tokens == wanted.tokens and found.committed == 24
    (reached,) = found.reached  # the second row fills the batch and is not counted
    assert reached[0] == wanted.stats.by_row["rounds"][0] and sum(reached[1:]) == wanted.stats.by_row["accepted"][0]
    assert len(reached) == 4 and list(reached) == sorted(reached, reverse=True)
    assert found.passes == max(wanted.stats.by_row["rounds"]) and found.prefill > 0 and found.decode > 0
    plain = measure.decode(work, PLAIN, 1)
    assert plain.tokens == found.tokens and plain.passes == 12 and plain.tokens_per_round == 1


def test_lengths_of_a_drafter_share_weights(work):
    short, long = (work.drafter(rank.chain("quantized", gamma)) for gamma in (1, 4))
    assert short.drafter is not long.drafter and short.params is long.params
    assert work.drafter(rank.chain("model", 1, 0)).params is not short.params


@pytest.mark.slow
def test_ranks_follow_the_logits_of_the_draft(work, pair):
    target, draft = pair
    written = [row for number in range(2) for row in measure.decode(work, PLAIN, number).tokens]
    prompts = [prompt for batch in work.batches for prompt in batch.prompts]
    found, chances = texts.scored(draft, target, prompts, written)
    assert [[float(place == 0) for place in row] for row in found] == [list(row) for row in chances]
    for prompt, text, ranks in zip(prompts, written, found, strict=True):
        logits = np.asarray(draft.score([*prompt, *text]))[0]
        for place, token in enumerate(text):
            order = np.argsort(-logits[len(prompt) - 1 + place], kind="stable").tolist()
            wanted = order.index(token)
            assert ranks[place] == (wanted if wanted < texts.RANKS else MISS)
    own, _ = texts.scored(target, target, prompts, written)
    assert {place for row in own for place in row} == {0}  # greedy text is the target's most probable
    assert any(place for row in found for place in row)


def run(seconds: float, passes: int = 10, prefill: float = 0.0) -> BatchRun:
    return BatchRun(prefill, seconds * passes, passes, ((passes,),), [[1] * passes])


def test_rounds_are_relative_to_plain_decoding_in_the_same_turn():
    """The machine runs at half speed in the second turn, which the ratio cancels."""
    turns = {PLAIN: [run(1.0), run(2.0), run(1.0)], Strategy.of("free", gamma=1): [run(1.5), run(3.0), run(1.5)]}
    curve = measure.curve_of({one: list(zip(runs, turns[PLAIN], strict=True)) for one, runs in turns.items()})
    assert curve.widths == (1, 2) and curve.seconds == (1.0, 1.5) and curve.spread[1] == 0.0
    assert curve.spread[0] == pytest.approx(estimates.median([1.0, 2.0, 1.0], sample="turns").margin)


def test_isotonic_regression():
    assert measure.rising([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert measure.rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert measure.rising([]) == []


def test_short_runs_get_more_turns(work):
    fresh = dataclasses.replace(work)
    for seconds, wanted in ((10.0, 3), (0.5, 4), (0.001, 15)):
        fresh.counted[PLAIN] = [run(seconds, passes=1)]
        assert fresh.turns_needed == wanted


def test_incomplete_turns_are_discarded(work, monkeypatch):
    ran = []

    def decode(work, strategy, number):
        ran.append(strategy)
        return run(1.0)

    monkeypatch.setattr(measure, "decode", decode)
    free = Strategy.of("free", gamma=1)
    halted = dataclasses.replace(work, stop=lambda: len(ran) >= 3)
    assert measure.interleave(halted, [free], 2, [0, 1]) == {}
    halted = dataclasses.replace(work, stop=lambda: len(ran) >= 10)
    found = measure.interleave(halted, [free], 3, [0, 1])
    assert {one: len(turns) for one, turns in found.items()} == {PLAIN: 1, free: 1}
    assert found[PLAIN][0][0].passes == 20  # both batches


def test_nan_raises(work):
    config = work.target.config
    params = toys.params(0, config)
    params["final_norm"]["scale"] = params["final_norm"]["scale"] * np.float32("nan")
    broken = dataclasses.replace(work, target=Model("broken", opt.FAMILY, config, toys.FMT, params))
    with pytest.raises(RuntimeError, match="broken"):
        measure.decode(broken, PLAIN, 0)


def test_unsupported_drafters_are_left_out_with_the_reason(work):
    alone = dataclasses.replace(work, kinds=("layer-skip", "quantized"))
    assert {one.name for one in measure.possible(alone, probes.probes(alone))} == {"quantized"}
    assert len(alone.left_out) == 1 and alone.left_out[0].startswith("layer-skip")


def test_drafters_are_built_once(work):
    strategy = rank.chain("quantized", 2)
    assert work.drafter(strategy) is work.drafter(strategy)
    assert dataclasses.replace(work, target=work.drafts[0]).drafter(strategy) is not work.drafter(strategy)


@pytest.mark.slow
def test_a_head_is_measured_at_two_lengths_and_as_a_dynamic_tree(pair):
    """One that drafts two tokens at one length alone; its longer chains are not predicted."""
    target = pair[0]
    long = new_head(EagleConfig(LAYER, 16), "eagle", target)
    short = new_head(MedusaConfig(257, 16, 2), "medusa", target)
    options = {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True, "seed": 0}
    batches = make_batches({Part.SURVEY: PROMPTS[:2]}, 2)
    survey = Survey(target, (), batches, options, (rank.HEAD,), {"long": long, "short": short}, turns=1)
    gammas = [(one["folder"], one["gamma"]) for one in probes.probes(survey)]
    assert gammas == [("long", 2), ("long", 8), ("short", 2)]
    assert [(one["folder"], one["dynamic"]) for one in probes.fixed_probes(survey)] == [("long", 8), ("long", 16)]
    measure.run(survey)
    measured = measure.gather(survey)
    assert measured is not None
    found = [one.strategy for one in rank.rank(measured)]
    assert {one["gamma"] for one in found if one["folder"] == "short"} == {1, 2}
    assert {one["gamma"] for one in found if one["folder"] == "long" and one.gamma} == set(range(1, 16))


@pytest.mark.slow
def test_trees_of_distinct_samples_are_measured_above_temperature_0(pair):
    """Of heads and draft models, no deeper than a head drafts."""
    target, draft = pair
    short = new_head(MedusaConfig(257, 16, 2), "medusa", target)
    options = {"temperature": 1.0, "max_new_tokens": 4, "ignore_eos": True, "seed": 0}
    batches = make_batches({Part.SURVEY: PROMPTS[:2]}, 2)
    survey = Survey(target, (draft,), batches, options, ("model", "tree", rank.HEAD), {"short": short}, turns=1)
    measure.run(survey)
    measured = measure.gather(survey)
    assert measured is not None
    drawn = [one.strategy for one in measured.fixed]
    assert [(one.name, one.nodes) for one in drawn] == [("tree", 8), ("tree", 16), ("head", 8), ("head", 16)]
    assert all(survey.drafter(one).drafter.siblings is Siblings.WITHOUT_REPLACEMENT for one in drawn)
    assert {one.levels for one in drawn if one.name == "head"} == {2}
    assert {one.strategy for one in rank.field(rank.rank(measured))} >= {*drawn}
    greedy = dataclasses.replace(survey, options=options | {"temperature": 0.0})
    assert not probes.fixed_probes(greedy)


def new_head(config, kind, target):
    params = KINDS[kind].init(jax.random.key(1), config, target.fmt)
    return Head(kind, KINDS[kind], config, target.fmt, params, target)
