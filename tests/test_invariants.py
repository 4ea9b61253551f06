"""The ten invariants of the design, one class each, named by number and subject.

Each docstring names what breaks it: the mutation under which the test was seen to fail. The batteries beside this file
go wider; here is the sharpest direct test of each.
"""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import config, drafters, sampling, stopping, trees, verify
from specjax import decoding as loop
from specjax.cli import report
from specjax.models import opt
from specjax.models.format import Format
from specjax.planning import program as hlo
from specjax.stopping import Stop
from specjax.types import Draft
from specjax.verify import Verifier, token
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import Setting, drafter_for, prepare, run, texts
from tests.verify.chains import chain_batch, enable_x64, token_outcomes

FAMILIES = tuple(battery.FAMILIES)
MIXED = [0.0, 0.7, 1.3, 1.0, 0.0, 0.9, 1.1, 0.8]


def rounds(family, name, *options, **more):
    """The states before the first round and after each, on the host and without their keys."""
    decode, state, static = prepare(family, drafter_for(name, family), *options, **more)
    yield jax.device_get(state._replace(key=()))
    for after, _ in loop.stream(decode, state, verify=token_level, **static):
        yield jax.device_get(after._replace(key=()))


def other_weights(model):
    """The same shapes, other numbers."""
    return jax.tree.map(lambda p: jnp.flip(p, -1) if p.ndim == 2 else p, model.params)


class Test1ParamsAreArguments:
    """Broken by a model or a drafter that closes over its weights."""

    def test_other_weights_are_used_without_a_trace(self):
        target = battery.target("opt")
        swapped = dataclasses.replace(target, params=other_weights(target))
        draft = drafter_for("model-3", "opt")
        first = run("opt", draft)
        traces = loop.trace_count()
        state = run("opt", draft._replace(params=swapped.params), params=swapped.params)
        assert loop.trace_count() == traces
        assert texts(state) != texts(first)
        # A draft with the target's new weights is never refused: both were taken from the arguments.
        assert state.totals.accepted.sum() == state.totals.tested.sum() > 0

    @pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["t5"]))
    def test_no_weight_is_a_constant_of_the_program(self, family):
        """Every weight has a shape of its own here; no constant of the compiled round has one of them."""
        decode, state, static = prepare(family, drafter_for("model-2", family))
        step = loop.make_step(static["model"], static["drafter"], token_level)
        closed = jax.make_jaxpr(step)(decode, state)
        weights = {leaf.shape for leaf in jax.tree.leaves(decode.target) if leaf.ndim == 2}
        shapes = [np.shape(const) for const in constants(closed)]
        assert not weights & set(shapes)
        assert sum(int(np.prod(shape)) for shape in shapes) < 1000

    def test_the_search_for_constants_finds_them(self):
        weights = jnp.ones((16, 32))
        closed = jax.make_jaxpr(jax.jit(lambda x: x @ weights))(jnp.ones((2, 16)))
        assert (16, 32) in [np.shape(const) for const in constants(closed)]

    def test_static_choices_are_frozen_and_hashable(self):
        choices = [config for _, config in battery.FAMILIES.values()]
        choices += [battery.FMT, trees.chain(2)]
        for choice in choices:
            assert hash(choice) == hash(dataclasses.replace(choice))
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(choice, dataclasses.fields(choice)[0].name, None)


def constants(closed):
    """Constants of a jaxpr and of every jaxpr inside it."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(value, "consts"):
                yield from constants(value)
        yield from (v.val for v in equation.invars if hasattr(v, "val"))


class Test2CachesHoldAllButPending:
    """Broken by a `keep` that advances by one too many, a stopped row that commits, or stops its neighbors."""

    @pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["llama"]))
    def test_lengths_of_both_caches_round_by_round(self, family):
        read = np.zeros_like(battery.LENGTHS) if family == "t5" else battery.LENGTHS - 1
        for state in rounds(family, "model-3", MIXED, budget=[3, 9, 1, 5, 7, 2, 9, 4]):
            held = read + np.asarray(state.length)
            assert state.cache.length.tolist() == held.tolist()
            running = np.asarray(state.stop) == Stop.RUNNING
            draft = np.asarray(state.draft.cache.length + state.draft.lag)
            assert draft[running].tolist() == held[running].tolist()

    def test_contents_are_those_of_reading_the_text_at_once(self):
        state = run("opt", drafter_for("model-3", "opt"), MIXED, setting=Setting(max_new=9))
        lm, params = battery.target("opt").lm, battery.target("opt").params
        whole = np.zeros((battery.ROWS, 32), np.int32)
        lengths = battery.LENGTHS + np.asarray(state.length)
        for row, (prompt, n, new) in enumerate(zip(battery.prompts(), battery.LENGTHS, texts(state), strict=True)):
            whole[row, : lengths[row]] = [*prompt[:n], *new]
        read = jax.jit(lm.prefill, static_argnums=3)(params, jnp.asarray(whole), jnp.asarray(lengths), 64)
        assert state.pending.tolist() == read.pending.tolist()
        held = np.arange(60)[None] < (lengths - 1)[:, None]
        for ours, fresh in zip(jax.tree.leaves(state.cache.layers), jax.tree.leaves(read.cache.layers), strict=True):
            ours, fresh = (np.swapaxes(np.asarray(a), 1, 2)[:, :60][held] for a in (ours, fresh))
            np.testing.assert_allclose(ours, fresh, atol=2e-5 * np.abs(fresh).max())

    def test_a_stopped_row_changes_nothing_more(self):
        states = list(rounds("opt", "model-3", MIXED, budget=[3, 9, 1, 5, 7, 2, 9, 4]))
        watched = lambda s: (s.tokens, s.length, s.pending, s.stop, s.room, s.cache.length, s.totals)
        stopped = 0
        for before, after in itertools.pairwise(states):
            ended = np.asarray(before.stop) != Stop.RUNNING
            stopped += ended.sum()
            for a, b in zip(jax.tree.leaves(watched(before)), jax.tree.leaves(watched(after)), strict=True):
                np.testing.assert_array_equal(a[ended], b[ended])
        assert stopped > 0
        assert states[-1].length.tolist() == [3, 9, 1, 5, 7, 2, 9, 4]


class Test3PositionsAreLengthPlusDepth:
    """Broken by positions taken from the slot, and by a cache limit that is looked at after the write."""

    @pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["t5"]))
    def test_siblings_share_one_position(self, family):
        """The same token twice below the root, in two slots: equal logits, those of the chain."""
        model = battery.target(family)
        read = jax.jit(model.lm.prefill, static_argnums=3)(
            model.params, jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS), 32
        )
        extend = jax.jit(model.lm.extend)
        twins, single = trees.regular((2,)), trees.chain(1)
        child = jnp.full_like(read.pending, 5)
        block = jnp.stack([read.pending, child, child], 1)
        tree, _ = extend(model.params, block, read.cache, twins.mask, twins.depth)
        chain, _ = extend(model.params, block[:, :2], read.cache, single.mask, single.depth)
        scale = float(jnp.abs(chain.logits).max())
        np.testing.assert_allclose(tree.logits[:, 2], tree.logits[:, 1], atol=2e-6 * scale)
        np.testing.assert_allclose(tree.logits[:, :2], chain.logits, atol=2e-6 * scale)

    @pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["llama"]))
    def test_a_full_cache_has_lost_nothing(self, family):
        """At CACHE_FULL, with a block of nine that no longer fits, the committed slots are those of a roomy run."""
        full, roomy = (run(family, drafter_for("model-8", family), setting=Setting(cache_len=n)) for n in (18, 60))
        ended = np.asarray(full.stop) == Stop.CACHE_FULL
        assert ended.any()
        assert (np.asarray(full.cache.length)[ended] == 18).all()
        for tight, loose in zip(jax.tree.leaves(full.cache.layers), jax.tree.leaves(roomy.cache.layers), strict=True):
            tight, loose = np.asarray(tight)[ended, :, :18], np.asarray(loose)[ended, :, :18]
            np.testing.assert_allclose(tight, loose, atol=2e-5 * np.abs(loose).max())


WARP = {
    "temperature": [0.0, 0.7, 1.3, 1.0, 0.9, 1.1, 0.8, 0.6], "top_k": [0, 5, 0, 0, 4, 0, 9, 0],
    "top_p": [1, 1, 0.8, 1, 0.9, 1, 1, 0.7], "min_p": [0, 0, 0, 0.1, 0, 0, 0.05, 0],
    "repetition_penalty": [1.5, 1, 1, 1.3, 1, 1.7, 1, 1.2], "logit_bias": {3: -4.0, 5: 1.5, 8: float("-inf")},
}  # fmt: skip


class Test4OneWarpInFloat32:
    """Broken by a draft distribution with another warp than the target's, or by a log_q that was not drawn from."""

    @pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["llama"]))
    def test_a_draft_with_the_targets_weights_has_the_targets_distributions(self, family):
        decode, state, static = prepare(family, drafters.model(battery.target(family), gamma=3), **WARP)
        tree = static["drafter"].tree

        @jax.jit
        def distributions_of(decode, state):
            warp = loop.make_warp(decode.sampling, state.seen)
            draft, _ = static["drafter"].propose(decode.draft, state.key, state.draft, state.pending, warp)
            out, _ = static["model"].extend(decode.target, draft.tokens, state.cache, tree.mask, tree.depth)
            return draft.log_q, warp(out.logits, draft.tokens[:, tree.paths])

        log_q, log_p = distributions_of(decode, state)
        assert log_q.dtype == log_p.dtype == jnp.float32
        q, p = np.exp(log_q[:, :-1]), np.exp(log_p[:, :-1])
        np.testing.assert_array_equal(q == 0, p == 0)
        np.testing.assert_allclose(q, p, atol=2e-5)

    def test_the_reported_distribution_is_the_one_sampled_from(self):
        """Both draft tokens of 4096 rows, as ranks of a uniform distribution by the reported masses."""
        count = 4096
        plan = {"temperature": np.resize([0.6, 1.4], count), "top_k": np.resize([5, 0, 9], count)}
        tokens = np.tile(battery.prompts()[4], (count, 1))
        decode, state, static = prepare(
            "opt", drafter_for("model-2", "opt"), **plan, tokens=tokens, lengths=np.full((count,), 9, np.int32)
        )

        draft = first_draft(decode, state, drafter=static["drafter"])
        ranks = self.ranks(draft.tokens, np.exp(np.asarray(draft.log_q, np.float64)))
        even = np.full((8, 8), 1 / 64)
        assert distributions.chi_square(ranks, even) > distributions.ALPHA
        flat = jax.nn.log_softmax(np.asarray(draft.log_q) * 0.8)  # the control: reported at another temperature
        assert (
            distributions.chi_square(self.ranks(draft.tokens, np.exp(np.asarray(flat, np.float64))), even)
            < distributions.ALPHA
        )

    @staticmethod
    def ranks(tokens, reported):
        """[8, 8] counts of F(token - 1) + u mass(token) of both draft tokens, u uniform."""
        rng, cells = np.random.default_rng(0), []
        for node in (0, 1):
            probs, drawn = reported[:, node], np.asarray(tokens)[:, node + 1]
            at = np.arange(len(drawn))
            below = probs.cumsum(-1)[at, drawn] - probs[at, drawn]
            cells.append(np.minimum((below + rng.random(len(drawn)) * probs[at, drawn]) * 8, 7).astype(int))
        return distributions.histogram(np.stack(cells, 1), 8)

    def test_half_precision_weights_give_float32_distributions(self):
        """And no softmax in bfloat16: the logits are float32 before the warp."""
        _, config = battery.FAMILIES["opt"]
        fmt = Format(dtype="bfloat16")
        lm = opt.FAMILY.language_model(config, fmt)
        params = opt.FAMILY.init(jax.random.key(0), config, fmt)
        read = jax.jit(lm.prefill, static_argnums=3)(params, jnp.ones((1, 4), jnp.int32), jnp.asarray([4]), 8)
        one = trees.chain(0)
        out, _ = jax.jit(lm.extend)(params, read.pending[:, None], read.cache, one.mask, one.depth)
        assert out.logits.dtype == jnp.float32
        assert sampling.warp(sampling.sampling_params(1, battery.VOCAB), out.logits).dtype == jnp.float32


class Test5StrictAcceptance:
    """Broken by `<=`, by p / q > u, by an epsilon in a residual, and by a residual that does not fall back to p."""

    def test_at_the_edges(self):
        u, p, q = np.float32([[0, 0, 0, 0, 0.5, 0.5], [0, 0, 1e-30, 0, 0.25, 0.2500001], [0.5, 0, 0.5, 1, 0.5, 0.5]])
        passed = token.accepts(jnp.asarray(u), jnp.asarray(p), jnp.asarray(q))
        assert passed.tolist() == [False, False, True, False, False, True]

    def test_residuals_have_no_epsilon(self):
        p = jnp.asarray([[1e-30, 0.5, 0.5, 0.0], [0.25, 0.75, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0]])
        q = jnp.asarray([[0.0, 0.5, 0.5, 0.0], [0.25, 0.75, 0.0, 0.0], [0.2, 0.4, 0.4, 0.0]])
        left = token.residual(p, q)
        np.testing.assert_array_equal(left[0], p[0] * jnp.asarray([1.0, 0.0, 0.0, 0.0]))
        np.testing.assert_array_equal(left[1], p[1])  # nothing is left: p itself
        np.testing.assert_allclose(left[2], [0, 0, 0.1, 0], atol=1e-7)
        assert left[2, 3] == left[2, 0] == 0

    def test_a_draft_without_mass_in_either_distribution_is_refused_without_nan(self):
        log = lambda probs: jnp.log(jnp.asarray([[probs, probs]], jnp.float32))
        draft = Draft(jnp.asarray([[0, 2]]), jnp.ones((1, 2), bool), log([1.0, 0.0, 0.0]))
        verdict = token.walk(jnp.zeros((1, 1)), jnp.full((1, 2), 0.5), trees.chain(1), draft, log([0.0, 1.0, 0.0]))
        assert (verdict.accepted.tolist(), verdict.token.tolist()) == ([0], [1])


class Test6ChosenNodesArePointMasses:
    """Broken by returning q for a token that was chosen without chance. Trees drawn without replacement have
    their own test beside their verifier."""

    Q = staticmethod(distributions.random_model(2, 3, sharpness=1.0))
    P = staticmethod(distributions.random_model(1, 3, sharpness=1.0))

    def emitted(self, drawn: bool):
        """Exact distribution of three tokens if each draft is the argmax of q, as a point mass or returned as drawn."""
        chosen = lambda prefix: np.eye(3)[int(np.argmax(self.Q(prefix)))]
        with enable_x64(True):
            mass, draft, log_p = chain_batch(self.P, chosen, 3, 2, points=True)
            if drawn:
                tokens = np.asarray(draft.tokens)
                reported = [[self.Q(tuple(row[1 : i + 1].tolist())) for i in range(3)] for row in tokens]
                draft = draft._replace(log_q=jnp.log(jnp.asarray(reported)))
            return distributions.completed(token_outcomes(mass, draft, log_p), self.P, 3, 3)

    def test_point_masses_keep_the_distribution(self):
        np.testing.assert_allclose(self.emitted(drawn=False), distributions.joint(self.P, 3), atol=1e-12)

    def test_control_the_distribution_of_q_does_not(self):
        assert np.abs(self.emitted(drawn=True) - distributions.joint(self.P, 3)).max() > 1e-2

    @pytest.mark.parametrize("kind", ["plain", "model-3", "ngram-3"])
    def test_what_tells_no_distribution_draws_nothing(self, kind):
        """Drafts without a distribution are the same under every key; drafts with one are not."""
        first, second = (proposal(kind, seed) for seed in (0, 1))
        same = bool((first.tokens == second.tokens).all())
        assert same == (first.log_q is None)


@functools.partial(jax.jit, static_argnames="drafter")
def first_draft(decode, state, *, drafter):
    warp = loop.make_warp(decode.sampling, state.seen)
    return drafter.propose(decode.draft, state.key, state.draft, state.pending, warp)[0]


def proposal(kind: str, seed: int) -> Draft:
    """The first draft of the batch, at temperature 1."""
    decode, state, static = prepare("opt", drafter_for(kind, "opt"), 1.0, setting=Setting(seed=seed))
    return first_draft(decode, state, drafter=static["drafter"])


class Test7DroppingLooksAtNoSampledToken:
    """Broken by a drafter that leaves out a node because of the token drawn for it."""

    @staticmethod
    def looks_ahead(drafts: list[Draft]) -> bool:
        """Whether two drafts of a row agree on all tokens before a node and differ in whether it was proposed."""
        for one, other in itertools.combinations(drafts, 2):
            tokens = np.asarray(one.tokens == other.tokens).cumprod(1).astype(bool)
            agree = np.pad(tokens, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
            if (agree & np.asarray(one.valid != other.valid)).any():
                return True
        return False

    @pytest.mark.parametrize(
        "kind", ["plain", "model-3", "ngram-3", "threshold-4", pytest.param("disco-4", marks=pytest.mark.slow)]
    )
    def test_no_drafter_does(self, kind):
        assert not self.looks_ahead([proposal(kind, seed) for seed in range(4)])

    def test_control_one_that_does_is_seen_here_and_in_the_distribution(self):
        drafts = [proposal("model-3", seed) for seed in range(4)]
        dropped = [d._replace(valid=d.valid.at[:, 1:].set(d.tokens[:, 1:] % 2 == 0)) for d in drafts]
        assert self.looks_ahead(dropped)
        with enable_x64(True):
            mass, draft, log_p = chain_batch(Test6ChosenNodesArePointMasses.P, Test6ChosenNodesArePointMasses.Q, 3, 2)
            cut = draft._replace(valid=draft.valid.at[:, 1:].set(draft.tokens[:, 1:] % 2 == 0))
            probs = distributions.completed(token_outcomes(mass, cut, log_p), Test6ChosenNodesArePointMasses.P, 3, 3)
        assert np.abs(probs - distributions.joint(Test6ChosenNodesArePointMasses.P, 3)).max() > 1e-3


class Test8KeysOfRolesRoundsAndRows:
    """Broken by a key used in two roles or two rounds, and by keys split over the batch."""

    def test_no_key_is_met_twice(self):
        """Every key that the drafter and the verifier see, and those of the verifier's roles, over three rounds."""
        seen: list[np.ndarray] = []
        plain = drafters.plain().drafter
        note = lambda key: jax.debug.callback(lambda data: seen.append(np.array(data)), jax.random.key_data(key))

        def propose(params, key, state, pending, warp):
            note(key)
            return plain.propose(params, key, state, pending, warp)

        def recording(key, tree, draft, log_p):
            note(key)
            for role in token.split_roles(jax.random.wrap_key_data(jax.random.key_data(key))):
                note(role)
            return token_level(key, tree, draft, log_p)

        spy = drafters.plain()._replace(drafter=plain._replace(propose=propose))
        decode, state, static = prepare("opt", spy, MIXED)
        assert jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key)
        step = jax.jit(loop.make_step(static["model"], static["drafter"], recording))
        for _ in range(3):
            state, _ = step(decode, state)
        jax.effects_barrier()
        keys = np.concatenate(seen)
        assert len(keys) == 3 * 4 * battery.ROWS
        assert len(np.unique(keys, axis=0)) == len(keys)

    def test_a_rows_key_is_its_numbers(self):
        data = lambda rows: np.asarray(jax.random.key_data(loop.row_keys(3, jnp.asarray(rows))))
        np.testing.assert_array_equal(data([5, 2]), data([0, 1, 2, 3, 4, 5])[[5, 2]])
        assert len(np.unique(data(range(100)), axis=0)) == 100


class Test9GuaranteesAreSaid:
    """Broken by a docstring that contradicts the table, and by a report without the verifier's guarantee."""

    @pytest.mark.parametrize("name", verify.TABLE)
    def test_first_line_of_every_verifier(self, name):
        verifier = verify.TABLE[name]
        stated = re.match(r"(Lossless|Lossy)\b", (verifier.fn.__doc__ or "").strip())
        assert stated is not None
        assert verifier.name == name
        assert verifier.lossless == (stated.group(1) == "Lossless")

    @pytest.mark.parametrize("lossless", [True, False])
    def test_every_report_states_it(self, lossless, monkeypatch):
        monkeypatch.setitem(verify.TABLE, "of a test", Verifier("of a test", token_level, lossless=lossless))
        made = config.Run(config.RunConfig(verifier="of a test"), battery.target("opt"), [], drafters.plain())
        out = made.generate([[1, 2]], max_new_tokens=2, temperature=0.0)
        assert out.lossless == lossless
        table = report.closing_table(made, out)
        cells = "".join(str(cell) for column in table.columns for cell in column.cells)
        assert ("yes, verifier of a test" in cells) == lossless
        assert ("NO, verifier of a test" in cells) != lossless


AUTOMATON = stopping.automaton([b"ab"], [bytes([97 + i % 5]) for i in range(battery.VOCAB)], battery.VOCAB)


class Test10OneCompileAndNoHost:
    """Broken by a Python number in a shape, a seed or a setting as a static argument, and by a callback in the loop."""

    def test_only_another_shape_or_tree_is_traced(self):
        counts = []

        def counted(name="model-3", **more):
            before = loop.trace_count()
            run("opt", drafter_for(name, "opt"), **more)
            counts.append(loop.trace_count() - before)

        counted(temperature=MIXED)
        counted(temperature=MIXED[::-1], setting=Setting(seed=5, eos=(3,), stop_tokens=(4, 5)), budget=[4] * 8)
        counted(temperature=MIXED, lengths=battery.LENGTHS[::-1].copy(), rows=np.arange(8) + 90)
        assert counts[1:] == [0, 0]
        counted(temperature=0.9, top_k=3, repetition_penalty=1.2, setting=Setting(automaton=AUTOMATON))
        assert counts[3] == 0
        counted("ngram-7", temperature=MIXED)
        assert counts[4] == 2  # another tree: prefill and generate

    def test_a_callback_would_be_seen_and_there_is_none(self):
        decode, state, static = prepare("opt", drafter_for("model-3", "opt"), MIXED)
        compiled = loop.generate.lower(decode, state, verify=token_level, **static).compile().as_text()
        assert not host_calls(compiled)
        talks = jax.jit(lambda x: jax.debug.callback(lambda n: None, x)).lower(state.length).compile()
        assert host_calls(talks.as_text())


def host_calls(text: str) -> list[str]:
    """Instructions of a compiled program that talk to the host."""
    kinds = ("infeed", "outfeed", "send", "recv")
    return [i.line for i in hlo.program(text) if i.opcode in kinds or "callback" in i.line.split("metadata=")[0]]
