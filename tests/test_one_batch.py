"""Rows of one batch that want different things: sampling parameters, stops and faults, through the whole loop."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import api, drafters, stopping
from specjax.stopping import Stop
from tests import battery, distributions
from tests.battery import Setting, drafter_for, run, texts

KINDS = ("plain", "model-2", "ngram-2")
COPIES, NEW = 2048, 2
BIAS = {3: 1.5, 7: -2.0, 11: float("-inf")}
CHOICES = (  # one batch holds `COPIES` rows of each, one after the other
    {"temperature": 0.0},
    {"temperature": 0.0, "penalty": 1.6, "bias": BIAS},
    {"temperature": 1.2, "top_k": 3},
    {"temperature": 0.9, "top_p": 0.7},
    {"temperature": 1.4, "min_p": 0.15},
    {"temperature": 1.3, "penalty": 1.8},
    {"temperature": 0.8, "bias": BIAS},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.05, "penalty": 1.3, "bias": BIAS},
)
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0, "bias": None}
ROW = 4  # whose prompt all rows have


def mixed(kind: str) -> list[np.ndarray]:
    """The first two tokens of the rows of each choice, [COPIES, 2] each."""
    count = COPIES * len(CHOICES)
    column = lambda name: [({**OFF, **CHOICES[row % len(CHOICES)]})[name] for row in range(count)]
    state = run(
        "opt", drafter_for(kind, "opt"), column("temperature"), top_k=column("top_k"), top_p=column("top_p"),
        min_p=column("min_p"), repetition_penalty=column("penalty"), logit_bias=column("bias"),
        tokens=np.tile(battery.prompts()[ROW], (count, 1)), lengths=np.full((count,), battery.LENGTHS[ROW], np.int32),
        setting=Setting(max_new=NEW, cache_len=16),
    )  # fmt: skip
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * count
    new = np.asarray(state.tokens)[:, :NEW]
    return [new[index :: len(CHOICES)] for index in range(len(CHOICES))]


@pytest.fixture(scope="module", params=battery.others_slow(KINDS, ["ngram-2"]))
def batch(request):
    return mixed(request.param)


def distribution_of(choice) -> np.ndarray:
    return distributions.joint(battery.exact_model("opt", ROW, **choice), NEW)


def test_each_row_follows_its_own_distribution(batch):
    """Of plain decoding and of every drafter: greedy rows the one text, sampled rows the joint of two tokens."""
    for choice, new in zip(CHOICES, batch, strict=True):
        assert (
            distributions.chi_square(distributions.histogram(new, battery.VOCAB), distribution_of(choice))
            > distributions.ALPHA
        ), choice


def test_the_support_is_exactly_that_of_the_distribution(batch):
    """Nothing that a filter excludes comes out, and everything that it leaves and 2048 rows can show does."""
    for choice, new in zip(CHOICES, batch, strict=True):
        probs, counts = distribution_of(choice), distributions.histogram(new, battery.VOCAB)
        assert not counts[probs == 0].any(), choice
        assert (counts[probs > 12 / COPIES] > 0).all(), choice  # missed with a chance of exp(-12) each


def test_the_choices_differ():
    """The control: each choice's rows refuse the distribution of every other choice, with a power near one."""
    for choice in CHOICES:
        for other in CHOICES:
            if choice is not other:
                assert distributions.power(distribution_of(other), distribution_of(choice), COPIES) > 0.99, (
                    choice,
                    other,
                )


# --- a fault in one row ------------------------------------------------------------------------------------------

POISON = 11


def poisoned():
    """Llama's weights with an embedding that is NaN for one token; its head is a table of its own."""
    params = battery.target("llama").params
    table = params["embed"]["tokens"]["table"]
    broken = {"table": table.at[POISON].set(jnp.nan)}
    return {**params, "embed": {**params["embed"], "tokens": broken}}


def clean_prompts() -> np.ndarray:
    return battery.prompts() % POISON


@pytest.mark.parametrize("kind", battery.others_slow(["plain", "model-3"], ["model-3"]))
def test_nan_in_one_row_stops_it_alone(kind):
    """The row whose prompt holds the poisoned token; the others can never write it."""
    ban = {"logit_bias": {POISON: float("-inf")}}
    expected = texts(run("llama", drafter_for(kind, "llama"), tokens=clean_prompts(), **ban))
    tokens = clean_prompts()
    tokens[4, 2] = POISON
    state = run("llama", drafter_for(kind, "llama"), tokens=tokens, params=poisoned(), **ban)
    others = [row for row in range(battery.ROWS) if row != 4]
    assert [texts(state)[row] for row in others] == [expected[row] for row in others]
    assert [state.stop.tolist()[row] for row in others] == [Stop.MAX_TOKENS] * len(others)
    assert (state.stop[4], state.length[4], state.totals.rounds[4]) == (Stop.NAN, 0, 0)


def test_nan_on_the_way_keeps_what_was_committed():
    expected = texts(run("llama", drafters.plain(), tokens=clean_prompts()))
    state = run("llama", drafters.plain(), tokens=clean_prompts(), params=poisoned())
    for row, new, stop in zip(expected, texts(state), state.stop.tolist(), strict=True):
        hit = POISON in row[:-1]
        assert new == (row[: row.index(POISON) + 1] if hit else row)
        assert stop == (Stop.NAN if hit else Stop.MAX_TOKENS)
    assert {Stop.NAN, Stop.MAX_TOKENS} == set(state.stop.tolist())


# --- several stops -----------------------------------------------------------------------------------------------


def test_several_stop_tokens_inside_an_accepted_block():
    """A perfect draft of eight, so that stops lie inside accepted blocks; each token gives its own code."""
    perfect = drafters.model(battery.target("opt"), gamma=8)
    whole = battery.plain("opt")
    eos, stops = (whole[3][5],), (whole[0][6], whole[4][3])
    assert len({*eos, *stops}) == 3
    state = run("opt", perfect, setting=Setting(eos=eos, stop_tokens=stops))
    inside = 0
    for row, new, stop in zip(whole, texts(state), state.stop.tolist(), strict=True):
        ends = [i for i, token in enumerate(row) if token in (*eos, *stops)]
        assert new == (row[: ends[0] + 1] if ends else row)
        code = Stop.MAX_TOKENS if not ends else Stop.EOS if row[ends[0]] in eos else Stop.STOP_TOKEN
        assert stop == code
        inside += bool(ends) and (ends[0] + 1) % 9 != 0
    assert {Stop.EOS, Stop.STOP_TOKEN} <= set(state.stop.tolist())
    assert inside >= 2


def test_a_token_that_is_both_is_the_end_of_text():
    codes = np.asarray(stopping.rules(5, eos=[3], stop_tokens=[3, 1]).codes)
    assert codes.tolist() == [0, Stop.STOP_TOKEN, 0, Stop.EOS, 0]


# --- buckets -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_length_within_the_bucket_compiles_nothing():
    model, plan = battery.target("llama"), {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    draft = drafter_for("model-1", "llama")
    first = api.generate(model, [[1, 2, 3], [4]], drafter=draft, **plan)
    again = api.generate(model, [[5] * 20, [6] * 100], drafter=draft, **plan)
    beyond = api.generate(model, [[5] * 20, [6] * 140], drafter=draft, **plan)
    assert (first.stats.compiles, again.stats.compiles) == (2, 0)  # prefill and generate
    assert beyond.stats.compiles == 2
    assert [len(row) for out in (first, again, beyond) for row in out.tokens] == [4] * 6
