"""Benchmarks of published shapes: memory, the closed form, streams of typical acceptance, and runs of tiny shapes."""

import dataclasses

import jax
import numpy as np
import pytest

import specjax as sj
from specjax import api, measuring, theory, trees
from specjax import decoding as loop
from specjax.bench import shapes
from specjax.bench.decode import random_model
from specjax.bench.rounds import load_free
from specjax.bench.shapes import ShapeRun
from specjax.measuring import Runs
from specjax.models import opt, t5_config
from specjax.strategy import Strategy
from tests import battery

OPT = opt.OPTConfig(vocab_size=40, width=16, embed_width=16, layers=2, heads=2, mlp_width=16, max_positions=256)
T5 = t5_config.T5Config(
    vocab_size=40, width=16, head_width=8, heads=2, mlp_width=16, encoder_layers=2, decoder_layers=2
)


@pytest.fixture
def tiny(monkeypatch):
    """Tiny shapes under published names."""
    monkeypatch.setattr(opt, "sizes", lambda: {
        "big": dataclasses.replace(OPT, layers=3), "middle": OPT, "small": dataclasses.replace(OPT, layers=1),
    })  # fmt: skip
    monkeypatch.setattr(t5_config, "sizes", lambda: {"t5-big": T5, "t5-small": T5})


def run(drafter: str, **changed) -> ShapeRun:
    strategy = Strategy.parse(drafter)
    drafts = ("opt-middle", "opt-small")[2 - strategy.needs :]
    return ShapeRun("opt-big", drafts, strategy, **{"new": 32, "prompt": 8, "dtype": "float32", **changed})


# --- memory ---


def test_needed_bytes_contain_every_array_once(tiny):
    one = run("model:gamma=3")
    larger = dataclasses.replace(one, rows=64)
    weights = sum(leaf.nbytes for name in ("opt-big", "opt-small") for leaf in leaves(name))
    assert shapes.bytes_needed(one) > weights
    assert shapes.bytes_needed(larger) > shapes.bytes_needed(one) + 63 * 128 * 2 * (3 + 1) * 16 * 4
    assert shapes.bytes_needed(one) == shapes.bytes_needed(dataclasses.replace(one, drafts=("opt-small",) * 2))


def leaves(name):
    return jax.tree.leaves(random_model(name, "float32").params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "free", "best"),
    [("opt-66b", 14e9, "opt-2.7b"), ("t5-11b", 4e9, "t5-v1_1-large"), ("t5-xxl", 0.5e9, None)],
)
def test_shapes_that_do_not_fit_are_refused_with_the_largest_that_does(target, free, best, monkeypatch):
    monkeypatch.setattr(shapes, "free_memory", lambda: free)
    small = "opt-125m" if target.startswith("opt") else "t5-small"
    with pytest.raises(ValueError, match=target) as refused:
        shapes.check_run(ShapeRun(target, (small,), Strategy.of("model", gamma=5)))
    assert (f"fits is {best} (" in str(refused.value)) == (best is not None)


def test_what_fits_or_is_unknown_is_not_refused(monkeypatch):
    for free in (1e12, None):
        monkeypatch.setattr(shapes, "free_memory", lambda free=free: free)
        shapes.check_run(ShapeRun("opt-66b", ("opt-125m",), Strategy.of("model", gamma=5)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"target": "opt-2b"}, "opt-2.7b"),
        ({"drafts": ("t5-smal",)}, "t5-small"),
        ({"drafts": ("t5-small",)}, "t5-small"),
        ({"drafts": ()}, "draft"),
        ({"strategy": Strategy.parse("cascade"), "drafts": ("opt-350m", "opt-125m"), "alpha": (0.5, 0.4)}, "alpha"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_are_refused(changed, reason):
    one = ShapeRun("opt-1.3b", ("opt-125m",), Strategy.of("model", gamma=5))
    with pytest.raises(ValueError, match=reason):
        shapes.check_run(dataclasses.replace(one, **changed))


# --- the closed form ---


def test_expected_tokens():
    assert shapes.expected_tokens(trees.chain(7), (0.75,)) == pytest.approx(theory.expected_tokens(0.75, 7))
    by_depth = shapes.expected_tokens(trees.chain(4), (0.9, 0.5))
    assert by_depth == pytest.approx(theory.expected_tokens_by_position([0.9, 0.5, 0.5, 0.5]))
    assert shapes.expected_tokens(trees.regular((2, 1)), (0.5,)) == pytest.approx(1 + 0.75 + 0.75 * 0.5)


def test_the_closed_form_of_a_chain_is_theorem_3_8():
    one = run("model:gamma=5", alpha=(0.8,))
    found = shapes.closed_form(one, trees.chain(5), 0.1, 1.5)
    assert found == pytest.approx(theory.walltime_factor(0.8, 5, 0.02, verify_cost=1.5))


def test_the_closed_form_of_a_cascade_is_that_of_theory():
    one = run("cascade:gamma=6,inner=(model:gamma=3)", alpha=(0.8,), inner_alpha=0.9)
    found = shapes.closed_form(one, trees.chain(6), 0.03, 1.0, 0.3)
    assert found == pytest.approx(theory.cascade_factor_whole_rounds([0.8, 0.9], [0.3, 0.01], [6, 3]))
    dearer = shapes.closed_form(one, trees.chain(6), 0.03, 1.5, 0.3)
    assert 1 / dearer == pytest.approx(1 / found + 0.5 / theory.expected_tokens(0.8, 6))


@pytest.mark.slow
@pytest.mark.parametrize("drafter, alpha, inner", [("gamma=2,inner=(model:gamma=1)", 0.9, 0.5)])
def test_inner_rounds_of_a_cascade_are_those_of_the_closed_form(drafter, alpha, inner, tiny):
    """Also those that read the last token of a block that was kept whole."""
    one = run(f"cascade:{drafter}", alpha=(alpha,), inner_alpha=inner, temperature=1.0)
    target, *drafts = (random_model(name, "float32") for name in (one.target, *one.drafts))
    settings = {"drafter": shapes.build(one, target, drafts), "verifier": shapes.verifier(one.alpha)}
    job = api.prepare(target, [[5]] * 64, max_new_tokens=200, temperature=1.0, ignore_eos=True, **settings).begin()
    end = jax.device_get(loop.generate(job.params, job.state, **job.static))
    found = end.draft.tally.rounds / end.totals.rounds
    without, wanted = (theory.rounds_to_fill(inner, 1, 2, kept) for kept in (0.0, alpha**2))
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - wanted) < 4 * error < abs(wanted - without) / 2


# --- measuring ---


@pytest.mark.slow
@pytest.mark.parametrize(("tree", "alpha", "new"), [
    (trees.chain(4), (0.8,), 32), (trees.regular((3, 2)), (0.6,), 32), (trees.chain(7), (0.75,), 128),
    (trees.chain(3), (0.9, 0.3), 128), (trees.chain(5), (0.15,), 64), (trees.chain(1), (0.465,), 64),
])  # fmt: skip
def test_chosen_streams_accept_close_to_the_expectation(tiny, tree, alpha, new):
    """They were chosen with another model: what is accepted depends on the stream alone."""
    whole, expected = shapes.whole_rounds(tree, alpha, new), shapes.expected_tokens(tree, alpha)
    assert whole == pytest.approx(new, abs=0.1 * new + expected)
    streams, target = shapes.typical_streams(tree, alpha, whole, 4), random_model("opt-big", "float32")
    settings = {"drafter": load_free(tree), "verifier": shapes.verifier(alpha), "max_new_tokens": whole}
    out = sj.generate(target, [[5, 6]] * 4, rows=streams, **settings)
    assert len(set(streams)) == 4
    for rounds in out.stats.by_row["rounds"]:
        assert whole / rounds == pytest.approx(expected, rel=0.02)
    if len(alpha) == 1 and tree.is_chain:
        assert out.stats.accepted_per_tested == pytest.approx(alpha[0], rel=0.02)
    elif tree.is_chain:
        reached = np.sum(out.stats.reached, axis=0)
        wanted = [alpha[min(depth, len(alpha) - 1)] for depth in range(tree.width - 1)]
        np.testing.assert_allclose(reached[1:] / reached[:-1], wanted, rtol=0.03)
    others = sj.generate(target, [[5, 6]] * 4, **settings).stats.by_row["rounds"]
    assert max(abs(whole / rounds / expected - 1) for rounds in others) > 0.04


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "inner", "blocks"), [(0.465, 0.651, (7, 3)), (0.9, 0.6, (5, 2))])
def test_chosen_streams_accept_close_to_the_expectation_in_inner_rounds(tiny, alpha, inner, blocks):
    outer, short = blocks
    one = run(f"cascade:gamma={outer},inner=(model:gamma={short})", alpha=(alpha,), inner_alpha=inner)
    target, *drafts = (random_model(name, "float32") for name in (one.target, *one.drafts))
    drafter = shapes.build(one, target, drafts)
    new = shapes.whole_rounds(drafter.drafter.tree, one.alpha, 64)
    streams = shapes.typical_streams(drafter.drafter.tree, one.alpha, new, 2, one)
    settings = {"drafter": drafter, "verifier": shapes.verifier(one.alpha), "max_new_tokens": new, "temperature": 1.0}
    job = api.prepare(target, [[5, 6]] * 2, rows=streams, **settings).begin()
    out = jax.device_get(loop.generate(job.params, job.state, **job.static))
    for totals, wanted in ((out.totals, alpha), (out.draft.tally, inner)):
        np.testing.assert_allclose(totals.accepted / totals.tested, wanted, rtol=0.02)


CASCADE = "cascade:gamma=4,inner=(model:gamma=2)"
MEASURED = (
    CASCADE, "model:gamma=3", "tree:3x2", "dynamic-tree:size=6,depth=2,width=3", "ngram:gamma=2",
    "layer-skip:layers=0,gamma=2",
)  # fmt: skip


@pytest.mark.parametrize("drafter", battery.others_slow(MEASURED, ["model:gamma=3"]))
def test_a_row_has_costs_and_speeds(tiny, drafter):
    done = []
    one = run(drafter, rows=2, inner_alpha=0.5)
    row = shapes.measure(one, lambda name: random_model(name, "float32"), repeats=2,
                         progress=lambda *numbers: done.append(numbers))  # fmt: skip
    assert done[-1][0] == done[-1][1] > 0
    assert row["tokens_per_second"] > 0 and row["plain_tokens_per_second"] > 0 and row["verify"] > 0
    assert min(row["turns"]["speedup"]) <= row["speedup"] <= max(row["turns"]["speedup"])
    costs = {"model": {"opt-small"}, "tree": {"opt-small"}, "cascade": {"opt-middle x3", "opt-small"},
             "layer-skip": {"layer-skip"}}  # fmt: skip
    found = {name.removeprefix("c ") for name in row if name.startswith("c ")}
    assert found == costs.get(drafter.partition(":")[0], set()) and ("closed_form" in row) == bool(found)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", battery.others_slow(["model:gamma=3", "tree:3x2"], ["model:gamma=3"]))
def test_every_drafted_token_can_be_accepted(tiny, drafter):
    one = run(drafter, alpha=(0.6,), new=64)
    row = shapes.measure(one, lambda name: random_model(name, "float32"), repeats=1)
    tree = trees.chain(3) if drafter.startswith("model") else trees.regular((3, 2))
    assert row["tokens_per_round"] == pytest.approx(shapes.expected_tokens(tree, (0.6,)), rel=0.02)


@pytest.mark.slow
def test_encoder_decoders_are_measured(tiny):
    one = ShapeRun("t5-big", ("t5-small",), Strategy.of("model", gamma=2), (0.5,), dtype="bfloat16", prompt=8, new=16)
    row = shapes.measure(one, lambda name: random_model(name, "bfloat16"), repeats=1)
    assert row["c t5-small"] > 0 and row["closed_form"] > 0 and row["speedup_with_prompt"] > 0


@pytest.mark.slow
def test_costs_are_ratios_to_a_step_and_the_closed_form_follows(tiny, monkeypatch):
    """Seconds per round: a step 2, a verification 3, a round 5, and 1.7 with a target that costs nothing, 0.2 of it
    without a draft."""
    seconds = {"plain": 2.0, "verify": 3.0, "round": 5.0}
    one = sj.generate(random_model("opt-small", "float32"), [[5]], max_new_tokens=10)

    def took(each: float) -> sj.Generation:
        stats = dataclasses.replace(one.stats, seconds={"prefill": 1.0, "decode": 10 * each})
        return dataclasses.replace(one, stats=stats)

    runs = {name: Runs(None, (took(each),) * 3, (), 0.0) for name, each in seconds.items()}
    runs |= {name: Runs(None, (each,) * 3, (), 0.0) for name, each in {"drafting": 1.7, "no drafting": 0.2}.items()}
    monkeypatch.setattr(measuring, "interleave", lambda programs, turns, **options: runs)
    row = shapes.measure(run("model:gamma=3"), lambda name: random_model(name, "float32"))
    costs = [row[name] for name in ("c opt-small", "verify", "overhead", "speedup")]
    assert costs == pytest.approx([0.25, 1.5, 0.25, 0.4])
    assert row["closed_form"] == pytest.approx(theory.walltime_factor(0.75, 3, 0.25, verify_cost=1.5))
    assert row["speedup_with_prompt"] == pytest.approx(21 / 51)


HEADS = [
    "eagle,gamma=2", "eagle3,gamma=3", "eagle3,tree=(3x2)", "eagle,dynamic=6,depth=2,width=2", "medusa,gamma=2",
    "mlp,gamma=1", "peagle,gamma=3", "dflash,gamma=3", "falcon,gamma=2",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_random_heads_of_every_kind_are_measured(tiny, head, monkeypatch):
    monkeypatch.setattr(shapes, "DRAFT_VOCABULARY", 24)
    if not head.startswith(("medusa", "mlp")):  # the others read streams of three layers
        monkeypatch.setattr(opt, "sizes", lambda: {"big": dataclasses.replace(OPT, layers=8)})
    one = run(f"head:folder={head}")
    shapes.check_run(one)
    row = shapes.measure(one, lambda name: random_model(name, "float32"), repeats=1)
    assert row["speedup"] > 0 and row["tokens_per_round"] > 1
    assert ("c head" in row) == ("closed_form" in row) == ("overhead" in row) == ("dynamic" not in head)
    if "gamma" in head:
        assert row["accepted_per_tested"] == pytest.approx(0.75, rel=0.02)


def test_a_random_head_has_the_published_proportions(tiny, monkeypatch):
    monkeypatch.setattr(opt, "sizes", lambda: {"big": dataclasses.replace(OPT, layers=8)})
    monkeypatch.setattr(shapes, "DRAFT_VOCABULARY", 24)
    target = random_model("opt-big", "bfloat16")
    for kind, rows in {"eagle3": 24, "medusa": 5 * 40}.items():
        drafter = shapes.build(run(f"head:folder={kind}"), target, ())
        kernels = [leaf for leaf in jax.tree.leaves(drafter.params.head) if {24, 40} & set(leaf.shape)]
        assert {leaf.dtype for leaf in kernels} == {jax.numpy.dtype("bfloat16")}
        assert sum(max(leaf.shape) for leaf in kernels) == rows
        assert not any(np.all(leaf == leaf.ravel()[0]) for leaf in kernels)
    smaller = shapes.bytes_needed(run("ngram:gamma=5"))
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(drafter.params.head))
    assert shapes.bytes_needed(run("head:folder=medusa,gamma=5")) == pytest.approx(smaller + 2 * weights)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["model:gamma=3", "tree:3x2", "head:folder=medusa,gamma=2"])
def test_a_target_that_costs_nothing_leaves_the_drafting(tiny, drafter):
    """The same rounds, and none of the target's weights is read."""
    one, target = run(drafter, alpha=(0.6,)), random_model("opt-big", "float32")
    chosen = shapes.build(one, target, [random_model("opt-small", "float32")] * len(one.drafts))
    settings = {"drafter": chosen, "verifier": shapes.verifier(one.alpha), "max_new_tokens": 32, "temperature": 0.0}
    job = api.prepare(target, [[5, 6, 7]], **settings).begin()
    rounds = sj.generate(target, [[5, 6, 7]], **settings).stats.by_row["rounds"]
    static = job.static | {"model": shapes.costless(job.static["model"])}
    lost = job.params._replace(target=jax.tree.map(lambda leaf: leaf * jax.numpy.nan, job.params.target))
    ended = loop.generate(lost, job.state, **static)
    assert tuple(ended.totals.rounds.tolist()) == rounds


def test_errors_are_those_of_turns():
    row = {"speedup": 2.0, "c x": 0.5, "turns": {"speedup": [1.0, 2.0, 3.0], "c x": [0.5, 0.5, 0.5]}}
    assert shapes.over_turns(row, "speedup").error == pytest.approx(1.25 / 3**0.5)
    assert shapes.over_turns(row, "c x").error == 0
