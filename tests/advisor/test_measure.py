"""What is run and counted, on a toy model; and how notes become numbers."""

import dataclasses

import numpy as np
import pytest

from specjax import api, drafters
from specjax.advisor import measure, running, ways
from specjax.advisor.rank import MISS
from specjax.advisor.running import Run, Work
from specjax.advisor.ways import PLAIN
from specjax.model import Model
from specjax.models import opt
from tests.cli import toys

PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


@pytest.fixture(scope="module")
def pair():
    config = opt.OPTConfig(vocab_size=257, width=16, embed_width=16, layers=1, heads=2, mlp_width=32, max_positions=128)
    make = lambda name, noise: Model(name, opt, config, toys.FMT, toys.params(0, config, noise=noise))
    return make("target", 0.0), make("draft", 0.05)


@pytest.fixture(scope="module")
def work(pair):
    options = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True, "seed": 0}
    return Work(pair[0], (pair[1],), running.make_batches(PROMPTS, 2), options)


def test_batches_are_full():
    assert running.make_batches(PROMPTS, 2) == ((PROMPTS[0], PROMPTS[1]), (PROMPTS[2], PROMPTS[0]))
    assert running.make_batches(PROMPTS[:1], 4) == ((PROMPTS[0],) * 4,)


def test_a_run_is_what_generate_does(work, pair):
    target, draft = pair
    found = running.decode(work, ways.chain("model", 3, 0), 1)
    asked = api.generate(target, list(work.batches[1]), drafter=drafters.model(draft, gamma=3), rows=[2, 3],
                         **work.options)  # fmt: skip
    assert found.tokens == asked.tokens and found.committed == 24
    assert found.reached[0] == asked.stats.rounds and sum(found.reached[1:]) == asked.stats.accepted
    assert len(found.reached) == 4 and list(found.reached) == sorted(found.reached, reverse=True)
    assert found.calls == max(asked.stats.rounds_by_row) and found.prefill > 0 and found.decode > 0
    plain = running.decode(work, PLAIN, 1)
    assert plain.tokens == found.tokens and plain.calls == 12 and running.accepted_and_one(plain) == 1


def test_all_lengths_share_the_weights_that_a_drafter_makes(work):
    short, long = (work.guide(ways.chain("quantized", gamma)) for gamma in (1, 4))
    assert short.drafter is not long.drafter and short.params is long.params
    assert work.guide(ways.chain("model", 1, 0)).params is not short.params


def test_ranks_are_those_of_the_drafts_own_laws(work, pair):
    target, draft = pair
    texts = [row for number in range(2) for row in running.decode(work, PLAIN, number).tokens]
    prompts = [prompt for batch in work.batches for prompt in batch]
    found = measure.ranks_of(draft, prompts, texts, ranks=3)
    for prompt, text, ranks in zip(prompts, texts, found, strict=True):
        logits = np.asarray(draft.score([*prompt, *text]))[0]
        for place, token in enumerate(text):
            order = np.argsort(-logits[len(prompt) - 1 + place], kind="stable").tolist()
            wanted = order.index(token)
            assert ranks[place] == (wanted if wanted < 3 else MISS)
    own = measure.ranks_of(target, prompts, texts)
    assert {rank for row in own for rank in row} == {0}  # greedy text is what the target itself thinks best
    assert any(rank for row in found for rank in row)  # and the draft does not always


def run(seconds: float, calls: int = 10, prefill: float = 0.0) -> Run:
    return Run(prefill, seconds * calls, calls, (calls,), [[1] * calls])


def test_rounds_are_timed_beside_plain_decoding_of_the_same_turn():
    """The machine runs at half speed in the second turn: the ratio does not see it."""
    turns = {PLAIN: [run(1.0), run(2.0), run(1.0)], ways.verify(2): [run(1.5), run(3.0), run(1.5)]}
    curve = measure.curve_of(turns)
    assert curve.widths == (1, 2) and curve.seconds == (1.0, 1.5) and curve.spread[1] == 0.0
    assert curve.spread[0] == pytest.approx(0.5 / np.sqrt(3))


def test_what_falls_is_pooled():
    assert measure.rising([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert measure.rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert measure.rising([]) == []


def test_short_runs_get_more_turns(work):
    notes = measure.fresh()
    for seconds, wanted in ((10.0, 3), (0.5, 4), (0.001, 15)):
        notes.passes[PLAIN] = [run(seconds, calls=1)]
        assert measure.turns_of(work, notes) == wanted


def test_a_turn_that_is_stopped_is_left_out_whole(work, monkeypatch):
    ran = []

    def decode(work, way, number):
        ran.append(way)
        return run(1.0)

    monkeypatch.setattr(running, "decode", decode)
    into = {}
    halted = dataclasses.replace(work, stop=lambda: len(ran) >= 3)
    running.take_turns(halted, [PLAIN, ways.verify(2)], into, 2, [0])
    assert {way: len(runs) for way, runs in into.items()} == {PLAIN: 1, ways.verify(2): 1}


def test_broken_weights_are_told_in_one_line(work):
    config = work.target.config
    params = toys.params(0, config)
    params["final_norm"]["scale"] = params["final_norm"]["scale"] * np.float32("nan")
    broken = dataclasses.replace(work, target=Model("broken", opt, config, toys.FMT, params))
    with pytest.raises(RuntimeError, match="the logits of broken hold NaN"):
        running.decode(broken, PLAIN, 0)


def test_what_a_target_cannot_have_is_left_out_and_said(work):
    """Of one layer none can be skipped."""
    notes = measure.fresh()
    alone = dataclasses.replace(work, kinds=("layer-skip", "quantized"))
    assert {way.kind for way in measure.possible(alone, notes, measure.probes(alone))} == {"quantized"}
    assert len(notes.left_out) == 1 and notes.left_out[0].startswith("layer-skip: a model of 1 layer has none to skip")


def test_a_way_has_one_drafter_however_often_it_runs(work):
    way = ways.chain("quantized", 2)
    assert work.guide(way) is work.guide(way)
    assert dataclasses.replace(work, target=work.drafts[0]).guide(way) is not work.guide(way)
