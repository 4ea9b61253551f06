"""Continuous batching: tokens of a static batch, whatever the slots and the order; one program for each bucket."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import decoding, stopping
from tests import battery

COUNT = 12
BUDGET = [5, 14, 7, 12, 3, 16, 9, 1, 13, 6, 4, 11]


def model(family: str = "opt"):
    return dataclasses.replace(battery.target(family), name=f"{family} of a test")


def asked() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, battery.VOCAB, n).tolist() for n in rng.integers(1, 30, COUNT)]


def drafter(kind: str, family: str = "opt"):
    draft = battery.draft(family)
    special = {
        "small-kv": lambda: sj.drafters.small_kv(model(family), gamma=3, budget=16),
        "suffix": lambda: sj.drafters.suffix(gamma=4),
        "tree": lambda: sj.drafters.tree(draft, sj.trees.regular((2, 2))),
        "cascade": lambda: sj.drafters.cascade(draft, battery.drafter_for("model-2", family), gamma=4),
    }
    return special[kind]() if kind in special else battery.drafter_for(kind, family)


def same_as_static(kind, temperature, slots, *, family="opt", verifier=None, order=None):
    target, prompts = model(family), asked()
    common = {"drafter": drafter(kind, family), "verifier": verifier, "seed": 4}
    static = sj.generate(target, prompts, temperature=temperature, max_new_tokens=BUDGET, **common)
    order = list(range(COUNT)) if order is None else order
    before = decoding.trace_count()
    served = sj.serve_batch(
        target, [prompts[row] for row in order], rows=order, slots=slots, temperature=temperature,
        max_new_tokens=[BUDGET[row] for row in order], **common,
    ).result()  # fmt: skip
    assert decoding.trace_count() - before <= 2  # these prompts are in one bucket
    assert served.tokens == [static.tokens[row] for row in order]
    assert served.stop_reasons == [static.stop_reasons[row] for row in order]
    return static, served


@pytest.mark.slow
def test_sampled_rows_are_those_of_a_static_batch_in_any_order():
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    static, served = same_as_static("model-3", 0.8, 3, order=order)
    assert served.stats.by_row["rounds"] == tuple(static.stats.by_row["rounds"][row] for row in order)


slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("slots", [4, 8])
def test_any_number_of_slots(slots, temperature):
    same_as_static("model-3", temperature, slots)


@slow
@pytest.mark.parametrize("kind", ["plain", "ngram-4", "suffix", "heuristic-4", "small-kv", "tree", "cascade"])
def test_any_drafter(kind):
    same_as_static(kind, 0.8, 3)


@slow
def test_goodput_with_the_coupled_verifier():
    """Its lengths depend on the other rows of the batch, and the text does not."""
    _, served = same_as_static("goodput-4", 0.8, 3, verifier="coupled")
    lengths = {a / b for a, b in zip(served.stats.by_row["drafted"], served.stats.by_row["rounds"], strict=True)}
    assert len(lengths) > 1


@slow
@pytest.mark.filterwarnings("ignore:.*ended with its first token")
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_other_families(family):
    same_as_static("model-3", 0.8, 3, family=family)


@slow
def test_control_streams_by_slot_fail():
    """The same rows with the number of the slot that they would get as their stream."""
    target, prompts = model(), asked()
    static = sj.generate(target, prompts, temperature=0.8, max_new_tokens=BUDGET, seed=4)
    by_slot = sj.serve_batch(
        target, prompts, rows=[row % 3 for row in range(COUNT)], slots=3, temperature=0.8, max_new_tokens=BUDGET, seed=4
    ).result()
    assert by_slot.tokens != static.tokens


@pytest.mark.slow
def test_what_was_yielded_is_not_decoded_again():
    target, prompts = model(), asked()[:4]
    known = sj.prefix(target, [7, 8, 9])
    options = {"prefix": known, "temperature": 0.8, "max_new_tokens": [4, 9, 6, 12], "seed": 4}
    serving = sj.serve_batch(target, prompts, slots=2, **options)
    first, served = next(iter(serving))
    assert serving.rounds < 12
    out = serving.result()
    assert out.tokens == sj.generate(target, prompts, **options).tokens and out.tokens[first] == served.tokens
    rounds = serving.rounds
    assert serving.result().tokens == out.tokens and serving.rounds == rounds


def test_rows_have_their_own_parameters_and_stop_rules():
    target, prompts = model(), asked()[:4]
    plain = sj.generate(target, prompts, temperature=0, max_new_tokens=12, ignore_eos=True)
    ends = [[plain.tokens[row][3]] if row % 2 else [] for row in range(4)]
    served = sj.serve_batch(
        target, prompts, slots=2, temperature=[0, 0, 0.9, 0], max_new_tokens=12, stop_tokens=ends, ignore_eos=True
    ).result()
    for row in (0, 1, 3):
        whole = plain.tokens[row]
        cut = whole[: whole.index(ends[row][0]) + 1] if ends[row] else whole
        assert served.tokens[row] == cut
    assert served.stop_reasons[1] == "stop_token" and served.stop_reasons[0] == "max_tokens"
    assert served.tokens[2] != plain.tokens[2]


@pytest.mark.slow
def test_a_choice_of_stop_rules_is_each_of_them():
    """Tables of unequal sizes; the matched state is the last one of each."""
    pieces = [bytes([97 + token % 26]) * (1 + token // 26) for token in range(60)]
    strings = [(), ("ab", "cd"), tuple("abcdefgh"[i:] + "z" * i for i in range(8))]
    each = [stopping.rules(60, eos=[59], stop_strings=one, pieces=pieces) for one in strings]
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 60, (300, 6)), jnp.int32)
    chosen = jnp.asarray(rng.integers(0, 3, 300), jnp.int32)
    many = lambda x, dtype=jnp.int32: jnp.full((300,), x, dtype)
    call = lambda rules: stopping.cut(rules, tokens, many(6), many(9), many(4), many(0), many(True, bool))
    got = call(jax.tree.map(jnp.asarray, stopping.choice_of(each, np.asarray(chosen))))
    for number, rules in enumerate(each):
        want, here = call(rules), np.asarray(chosen) == number
        np.testing.assert_array_equal(got.length[here], want.length[here])
        np.testing.assert_array_equal(got.stop[here], want.stop[here])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"slots": 0}, "slots"),
        ({"stop_tokens": [[1], [2]]}, "stop_tokens"),
        ({"max_new_tokens": [1, 2]}, "max_new_tokens"),
    ],
)
def test_invalid_arguments_raise(options, name):
    with pytest.raises(ValueError, match=name):
        sj.serve_batch(model(), asked(), **options)
