"""Tables: the distributions against their definition in float64, counting by hand, and the drafter through the loop."""

import collections
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax import api, drafters
from specjax import decoding as loop
from specjax.drafters import fitting
from specjax.drafters.fitting import Table, bucket
from specjax.drafters.table import last_tokens, log_probs
from specjax.training.table import fit_samples
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import run, texts
from tests.test_decoding import SAMPLED, draws_warped_and_tells_raw, exact_joint, sampled_counts

V = battery.VOCAB
ORDERS = (1, 2, 3)


@functools.cache
def samples(family: str) -> tuple[tuple[int, ...], ...]:
    """What the target generates at temperature 1, from 8 prompts and 24 tokens."""
    return tuple(map(tuple, texts(run(family, drafters.plain(), 1.0))))


@functools.cache
def table_of(family: str, order: int) -> drafters.LoadedDrafter:
    fitted = fitting.fit(samples(family), vocab_size=V, order=order, successors=3, buckets=64)
    return drafters.table(fitted, gamma=3)


# --- counting and distributions ---------------------------------------------------------------------------------------


def distribution_by_hand(sequences, context, *, successors, buckets, smoothing, vocab) -> np.ndarray:
    """The distribution after a context as its definition: dictionaries, float64, contexts hashed as documented."""
    tokens = [t for part in sequences for t in part]
    probs = np.array([tokens.count(x) + smoothing for x in range(vocab)])
    probs /= probs.sum()
    for size in range(1, len(context) + 1):
        room = vocab if size == 1 else buckets
        where = lambda c, room=room: int(bucket(np.array([c]), room)[0])
        counts = collections.Counter()
        for part in sequences:
            for i in range(size, len(part)):
                if where(part[i - size : i]) == where(context[-size:]):
                    counts[part[i]] += 1
        if counts:
            whole = sum(counts.values()) + len(counts)
            listed = sorted(counts, key=lambda x: (-counts[x], x))[:successors]
            mass = {x: counts[x] / whole for x in listed}
            probs = (1 - sum(mass.values())) * probs
            for x, share in mass.items():
                probs[x] += share
    return probs


@pytest.mark.parametrize("buckets", battery.others_slow([1, 7, 1000], [7]))
def test_distributions_are_their_definition_and_sum_to_one(buckets):
    rng = np.random.default_rng(0)
    sequences = [rng.zipf(1.5, n).clip(1, 11).tolist() for n in (40, 1, 0, 25, 2)]
    plan = {"successors": 3, "buckets": buckets, "smoothing": 0.1}
    fitted = fitting.fit(sequences, vocab_size=12, order=3, **plan)
    fitting.check(fitted)
    contexts = rng.integers(0, 12, (50, 2))
    found = np.exp(jax.jit(log_probs)(jax.tree.map(jnp.asarray, fitted), jnp.asarray(contexts, jnp.int32)))
    assert found.min() > 0  # a token that was never seen has some mass
    for context, probs in zip(contexts.tolist(), found, strict=True):
        wanted = distribution_by_hand(sequences, context, vocab=12, **plan)
        np.testing.assert_allclose(wanted.sum(), 1, atol=1e-12)
        np.testing.assert_allclose(probs, wanted, atol=1e-6)


def test_counting_by_hand():
    fitted = fitting.fit([[5, 6, 5, 6, 5, 7], [6]], vocab_size=8, successors=1, smoothing=0.5)
    np.testing.assert_allclose(np.exp(fitted.log_unigram) * 11, [0.5] * 5 + [3.5, 3.5, 1.5], rtol=1e-6)
    (level,) = fitted.levels
    assert level.successors[:, 0].tolist() == [8, 8, 8, 8, 8, 6, 5, 8]  # nothing follows 7, nor the end of a sequence
    np.testing.assert_allclose(np.exp(level.log_mass[5:7, 0]), [2 / 5, 2 / 3], rtol=1e-6)  # 5: twice 6, once 7
    np.testing.assert_allclose(np.exp(level.log_back), [1, 1, 1, 1, 1, 3 / 5, 1 / 3, 1], rtol=1e-6)


def test_hashes_agree_in_numpy_and_jax_and_spread():
    contexts = np.array([(a, b) for a in range(200) for b in range(50)], np.int32)
    rows = bucket(contexts, 1 << 18)
    np.testing.assert_array_equal(rows, jax.jit(bucket, static_argnums=1)(jnp.asarray(contexts), 1 << 18))
    assert len(np.unique(rows)) > 0.95 * len(rows)  # 10,000 balls in 262,144 bins: 98 % at random
    assert rows.min() >= 0
    np.testing.assert_array_equal(bucket(contexts[:, :1], 200), contexts[:, 0])


def test_a_table_of_a_real_vocabulary_is_small():
    rng = np.random.default_rng(0)
    text = rng.zipf(1.2, 200_000).clip(1, 50_000) - 1
    fitted = fitting.fit([text], vocab_size=50_000)
    nbytes = sum(array.nbytes for array in jax.tree.leaves(fitted))
    assert nbytes == 4 * 50_000 + 50_000 * (8 * 32 + 4) < 14_000_000
    fitting.check(fitted)


# --- files -------------------------------------------------------------------------------------------------------


def test_a_saved_table_is_the_table(tmp_path):
    fitted = fitting.fit(samples("opt"), vocab_size=V, order=3, buckets=16)
    file = tmp_path / "deeper" / "opt.safetensors"
    fitting.save(fitted, file)
    again = fitting.load(file)
    assert jax.tree.structure(again) == jax.tree.structure(fitted)
    for one, other in zip(jax.tree.leaves(fitted), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert [f.name for f in file.parent.iterdir()] == ["opt.safetensors"]  # nothing is left beside it
    assert drafters.table(str(file), gamma=2).name == "3-gram table x2"


def test_files_without_a_table_raise(tmp_path):
    fitted = fitting.fit(samples("opt"), vocab_size=V)
    file = tmp_path / "t.safetensors"
    with pytest.raises(ValueError, match=r"t\.safetensors"):
        drafters.table(file)
    file.write_bytes(b"rubbish of some length")
    with pytest.raises(ValueError, match="safetensors"):
        drafters.table(file)
    fitting.save(fitted, file)
    arrays = load_file(file)
    save_file(arrays, file)
    with pytest.raises(ValueError, match="table"):
        fitting.load(file)
    save_file({k: v for k, v in arrays.items() if k != "2.log_back"}, file, metadata={"format": fitting.FORMAT})
    with pytest.raises(ValueError, match=r"2\.log_back"):
        fitting.load(file)
    save_file(arrays | {"2.log_back": arrays["2.log_back"] + 0.1}, file, metadata={"format": fitting.FORMAT})
    with pytest.raises(ValueError, match="level 2"):
        fitting.load(file)


def test_invalid_tables_and_arguments_raise():
    fit = functools.partial(fitting.fit, vocab_size=5)
    invalid = {
        "token": lambda: fit([[]]),
        "token 5": lambda: fit([[1, 5]]),
        "token -1": lambda: fit([[1, -1]]),
        "order": lambda: fit([[1]], order=0),
        "smoothing": lambda: fit([[1]], smoothing=0.0),
        "tokenizer": lambda: fitting.fit_texts(battery.target("opt"), ["text"]),
        "gamma": lambda: drafters.table(fit([[1]]), gamma=0),
        "got int": lambda: drafters.table(3),
        "unigram": lambda: drafters.table(Table(np.zeros((5,), np.float32))),
    }
    for named, call in invalid.items():
        with pytest.raises(ValueError, match=named):
            call()
    narrow = drafters.table(fit([[1, 2]]))
    with pytest.raises(ValueError, match=r"5 tokens.*13"):
        run("opt", narrow)


# --- the buffer --------------------------------------------------------------------------------------------------


def test_history_keeps_what_was_committed():
    prompt, drafter = jnp.asarray([[1, 2, 3], [4, 9, 9]], jnp.int32), drafters.ngram().drafter
    commit, rewind = jax.jit(drafter.commit), jax.jit(drafter.rewind)
    state = drafter.init((), prompt, jnp.asarray([3, 1], jnp.int32), 6, None)
    assert last_tokens(state, 3, jnp.asarray([3, 4], jnp.int32)).tolist() == [[1, 2, 3], [4, 4, 4]]
    state = commit((), state, battery.commit_of([[5, 6], [7, 7]], [2, 0]))
    state = commit((), state, battery.commit_of([[8, 8], [7, 6]], [1, 2]))
    content = lambda s: [row[:n].tolist() for row, n in zip(*jax.device_get((s.tokens, s.length)), strict=True)]
    assert content(state) == [[1, 2, 3, 5, 6, 8], [4, 7, 6]]
    state = rewind((), state, jnp.asarray([3, 0]), jnp.asarray([2, 2]))
    assert content(state) == [[1, 2, 3, 2], [4, 7, 6]]


# --- through the loop --------------------------------------------------------------------------------------------


def assert_greedy_equals_plain(family: str, order: int):
    state = run(family, table_of(family, order))
    assert texts(state) == battery.plain(family)
    assert 0 < state.totals.accepted.sum() < state.totals.tested.sum()


@pytest.mark.slow
@pytest.mark.parametrize("family", tuple(battery.FAMILIES))
@pytest.mark.parametrize("order", ORDERS)
def test_greedy_equals_plain_everywhere(family, order):
    assert_greedy_equals_plain(family, order)


def test_drafts_are_those_of_the_text_so_far():
    """Greedy drafts of a trigram, round by round, from rows that were cut and rows that ended: by hand in numpy."""
    made = table_of("opt", 3)
    budget = np.array([3, 24, 24, 9, 24, 1, 24, 24])
    decode, state, static = battery.prepare("opt", made, SAMPLED, budget=budget)
    greedy = [row for row, t in enumerate(SAMPLED) if t == 0]
    rows = [battery.prompts()[row, :n].tolist() for row, n in enumerate(battery.LENGTHS)]
    best = jax.jit(lambda context: log_probs(made.params, context).argmax(-1))
    seen = 0
    for _, info in loop.stream(decode, state, verify=token_level, **static):
        info = jax.device_get(info)
        for row in greedy:
            text = list(rows[row])
            for token in info.proposed[row, 1:].tolist() if info.active[row] else []:
                padded = [text[0], *text][-2:]
                assert token == int(best(np.asarray([padded], np.int32)).item())
                text.append(token)
                seen += 1
        for row in range(battery.ROWS):
            rows[row] += info.committed[row, : info.emitted[row]].tolist()
    assert seen > 20
    new = [row[n:] for row, n in zip(rows, battery.LENGTHS, strict=True)]
    assert [len(row) for row in new] == budget.tolist()
    assert [new[row] for row in greedy] == [battery.plain("opt")[row][: budget[row]] for row in greedy]


def p_value(made: drafters.LoadedDrafter, family: str = "opt") -> float:
    counts = sampled_counts(made, family)
    return min(distributions.chi_square(h, exact_joint(t, family)) for t, h in counts.items())


@pytest.mark.slow
def test_sampled_rows_follow_the_joint_distribution():
    assert p_value(table_of("opt", 2)) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(("family", "order"), [("opt", 1), ("opt", 3), ("t5", 2), ("llama", 3)])
def test_sampled_rows_follow_the_joint_distribution_everywhere(family, order):
    assert p_value(table_of(family, order), family) > distributions.ALPHA


@pytest.mark.slow
def test_control_another_log_q_is_detected():
    right = table_of("opt", 2)
    other = draws_warped_and_tells_raw(right.drafter.propose, 1.5)
    assert p_value(right._replace(drafter=right.drafter._replace(propose=other))) < distributions.ALPHA


@pytest.mark.slow
def test_a_table_fitted_to_the_target_is_accepted_more_often():
    """Than one fitted to other text, by the share of mass that the distributions have in common."""
    other = np.random.default_rng(0).integers(0, V, (8, 24))
    share = []
    for sequences in (samples("opt"), other):
        made = drafters.table(fitting.fit(sequences, vocab_size=V), gamma=3)
        totals = jax.device_get(run("opt", made, 1.0).totals)
        share.append(float(totals.overlap.sum() / totals.tested.sum()))
    assert share[0] > share[1] + 0.1, share


@pytest.mark.parametrize("family", ["opt", "t5"])
def test_samples_are_counted_from_the_end_of_the_prompt(family, monkeypatch):
    """Through `api.generate`, in batches of one size."""
    model, calls = battery.target(family), []

    def generate(model, prompts, **options):
        calls.append((len(prompts), list(options["rows"])))
        return types.SimpleNamespace(tokens=[[p[-1] + 1, 5] for p in prompts])

    monkeypatch.setattr(api, "generate", generate)
    prompts = [[1, 2, 3], [7], [4, 4]]
    fitted = fit_samples(model, prompts, batch=2, order=3, buckets=8, max_new_tokens=2)
    assert calls == [(2, [0, 1]), (2, [2, 3])]
    first = {"opt": [[2, 3, 4, 5], [7, 8, 5], [4, 4, 5, 5]], "t5": [[0, 4, 5], [0, 8, 5], [0, 5, 5]]}[family]
    wanted = fitting.fit(first, vocab_size=V, order=3, buckets=8)
    for one, other in zip(jax.tree.leaves(fitted), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_samples_of_a_model_make_a_table():
    fitted = fit_samples(battery.target("opt"), [[1, 2], [3]], max_new_tokens=4, batch=2)
    assert (fitted.order, fitted.vocab_size) == (2, V)
