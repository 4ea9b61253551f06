"""`specjax reproduce heads`: the table that calibrates trees, verdicts of given rows, a run in its smallest size."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import cli
from specjax.bench import rates, record, tasks
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.reproduce import heads
from specjax.reproduce.checks import ClaimVerdict
from specjax.reproduce.setup import Setup, other_texts, read_prompts
from specjax.trace import rounds

SETUP = Setup(batch=2, max_new_tokens=12, head_target="bundled/opt-tiny")


@functools.cache
def medusa() -> Head:
    """A random head whose ranks differ by depth."""
    target = sj.load("bundled/opt-tiny")
    config = MedusaConfig(target.vocab_size, target.config.width, heads=2)
    fmt = dataclasses.replace(target.fmt, stacked=False)
    params = KINDS["medusa"].init(jax.random.key(0), config, fmt)
    drawn = jax.random.normal(jax.random.key(1), (config.width, config.width)) * 0.02
    params["blocks"]["1"]["0"]["kernel"] = drawn
    return Head("a head", KINDS["medusa"], config, fmt, params, target)


@pytest.mark.slow
def test_ranks_are_those_of_the_heads_at_every_place_of_the_text():
    head, target = medusa(), medusa().target
    found = heads.rank_acceptance(SETUP, head)
    prompts = tasks.prompts_for(target, "story", [*map(tasks.Item, other_texts("story"))][: SETUP.batch])
    out = sj.generate(target, prompts, temperature=0.0, max_new_tokens=SETUP.max_new_tokens, ignore_eos=True)
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(target.params))

    @jax.jit
    def scored(params, own, ends, tokens):
        """Logits of both levels behind a text."""
        features = target.family.module(params, target.config, target.fmt).read(tokens, ()).features
        return [head.module(own).logits(level, ends, features) for level in range(2)]

    hits, tried = np.zeros((2, heads.RANKS)), np.zeros((2, 1))
    for prompt, text in zip(prompts, out.tokens, strict=True):
        start = target.text.encode(prompt)
        tokens = jnp.asarray([[*start, *text]])
        for level, logits in enumerate(scored(target.params, head.params, ends, tokens)):
            best = np.argsort(-np.asarray(logits)[0], kind="stable")
            for place in range(len(text) - level):
                drafted = best[len(start) - 2 + place, : heads.RANKS]
                hits[level] += drafted == text[place + level]
                tried[level] += 1
    np.testing.assert_allclose(found, hits / tried, atol=1e-6)
    assert hits.sum() > 0


@pytest.mark.slow
def test_accepted_samples_are_those_of_the_text_by_rank_and_shape_the_trees_above_temperature_0():
    head, target = medusa(), medusa().target
    setup = dataclasses.replace(SETUP, max_new_tokens=40)
    prompts = tasks.prompts_for(target, "story", [*map(tasks.Item, other_texts("story"))][: setup.batch])
    shape = sj.trees.from_paths([(0,) * level + (rank,) for level in range(2) for rank in range(heads.RANKS)])
    drafter = sj.drafters.head(head, tree=shape, siblings=sj.Siblings.WITHOUT_REPLACEMENT)
    settings = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True, "seed": setup.seed}
    trace = rounds.record(target, prompts, drafter, settings)
    hits, tested = np.zeros(heads.RANKS), 0
    for one in (one for number in range(len(prompts)) for one in trace.row(number)):
        tested, parent = tested + one.tested, 0
        for token in one.tokens[: one.accepted]:
            children = [node for node in one.nodes if node.parent == parent]
            rank = [node.token for node in children].index(token)
            hits[rank], parent = hits[rank] + 1, children[rank].node
    assert (hits > 0).sum() > 1
    np.testing.assert_allclose(heads.sample_acceptance(setup, head, 1.0), hits / tested)
    one, shelf = heads.Drafting("medusa", "a folder"), record.Shelf("float32", print)
    shelf.keep(("head", one.folder), lambda: head)
    accepted = shelf.keep(("samples", one.folder), lambda: [0.1, 0.5, *[0.05] * 6])
    drawn = dict(heads.shapes(setup, one, target, 1.0, shelf))[heads.tree(8)].drafter
    assert drawn.siblings is sj.Siblings.WITHOUT_REPLACEMENT
    assert drawn.tree == sj.trees.sequoia(accepted, 8, depth=2)


def timed(seconds):
    """Two turns of two prompts of 10 tokens."""
    same = lambda value: np.full((2, 2), value).tolist()
    return {"tokens": same(10.0), "seconds": same(seconds), "decode_seconds": same(seconds)}


def rows(tokens, accepted, speed):
    """Rows of drafters on two prompts that hardly differ.

    Args:
      tokens: name -> tokens per pass of chains and trees.
      accepted: name -> acceptance at each position.
      speed: name -> times plain decoding.
    """
    found = []
    for name, rate in tokens.items():
        for temperature in heads.TEMPERATURES:
            shapes = [heads.chain(5), heads.chain(7), heads.tree(16), heads.tree(32)]
            for shape in shapes if name not in heads.UNTRAINED else shapes[:2]:
                reached = np.cumprod([1.0, *accepted.get(name, [0.5] * 7)])
                counts = {"rounds": [1000, 1001], "tokens": [1000 * rate, 1001 * rate]}
                counts |= {key: [0, 0] for key in ("tested", "accepted", "drafted")}
                counts |= {f"reached {n}": [1000 * one, 1001 * one] for n, one in enumerate(reached)}
                row = rates.rate_columns(counts, ["a", "b"])
                if shape in heads.timed(SETUP):
                    ours, plain = timed(1 / speed[name]), timed(1.0)
                    row |= rates.run_columns({"drafted": ours, "plain": plain}, ["a", "b"])
                found.append(row | {"name": name, "task": "story", "temperature": temperature, "shape": shape})
    return found


TOKENS = {"medusa": 2.5, "eagle": 3.9, "hass": 4.5, "eagle3": 5.0, heads.DRAFT: 2.3}
SPEED = dict(zip(TOKENS, (1.3, 1.5, 1.6, 1.8, 1.2), strict=True))
FALLING = [0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1]


def verdicts(found):
    return {check.claim: check.verdict for check in heads.report(SETUP, found).checks}


def test_the_published_order_is_reproduced_and_its_mirror_is_not():
    given = verdicts(rows(TOKENS, {}, SPEED))
    mirrored = verdicts(rows({name: 8 - one for name, one in TOKENS.items()}, {"eagle3": FALLING}, SPEED))
    measured = [claim.text for claim in heads.CLAIMS if {claim.greater, claim.less} <= set(TOKENS)]
    measured.remove(heads.CLAIMS[-1].text)  # no even tree here
    assert len(measured) == 5
    for text in measured:
        assert given[text] is ClaimVerdict.REPRODUCED
        assert mirrored[text] is ClaimVerdict.NOT
    flat = next(claim for claim in given if "EAGLE-3 does not fall" in claim)
    assert given[flat] is ClaimVerdict.REPRODUCED and mirrored[flat] is ClaimVerdict.NOT


def test_a_faster_draft_model_is_reported():
    best = lambda found: next(check for check in heads.report(SETUP, found).checks if "best head" in check.claim)
    assert best(rows(TOKENS, {}, SPEED)).verdict is ClaimVerdict.REPRODUCED
    assert best(rows(TOKENS, {}, SPEED | {heads.DRAFT: 2.0})).verdict is ClaimVerdict.PARTLY


@pytest.mark.parametrize("given", [("runs/head",), ("eagle=a", "eagle=b")])
def test_heads_need_distinct_names(given):
    with pytest.raises(ValueError):
        heads.compared(dataclasses.replace(SETUP, heads=given))


def test_rows_of_a_head_stay_when_others_are_compared():
    """A head that is added later does not make the others be measured again."""
    items = read_prompts((), heads.TASKS, 2)
    keys = lambda *given: [case.key for case in heads.cases(dataclasses.replace(SETUP, heads=given), items)]
    hass, medusa = "hass=bundled/opt-target-hass", "medusa=bundled/opt-target-medusa"
    assert [key for key in keys(hass, medusa) if key["name"] != "medusa"] == keys(hass)


def test_what_is_drafted_is_not_counted_again_for_other_timings():
    items = read_prompts((), heads.TASKS, 2)
    keys = lambda **given: [record.name(case.key) for case in heads.cases(dataclasses.replace(SETUP, **given), items)]
    first, second = keys(), keys(gamma=2, timed=3, repeats=7)
    assert set(first) & set(second) == set(first[: len(first) // 2])
    assert not set(first) & set(keys(max_new_tokens=9))


def test_tasks_are_lines_of_their_own_and_together():
    found = rows(TOKENS, {}, SPEED)
    (alone,) = {row["task"] for row in heads.report(SETUP, found).table}
    assert alone == "story"
    found += [row | {"task": "chat"} for row in rows({"eagle": 2.0}, {}, {"eagle": 1.1})]
    table = {(row["task"], row["T"], row["drafter"]): row["τ of γ = 7"] for row in heads.report(SETUP, found).table}
    taus = [float(str(table[task, 0.0, "eagle"]).split()[0]) for task in ("chat", "all", "story")]
    assert taus == sorted(taus) and taus[0] < taus[1] < taus[2]
    assert table["chat", 0.0, "hass"] is None


@pytest.mark.slow
def test_a_head_is_measured_in_its_smallest_size(tmp_path, capsys):
    medusa().save_pretrained(tmp_path / "head", format="original")
    args = ["reproduce", "heads", "--heads", f"medusa={tmp_path / 'head'}", "--head-target", "bundled/opt-tiny"]
    assert cli.main([*args, "--quick", "--json", str(tmp_path / "rows.jsonl"), "--figures", str(tmp_path)]) == 0
    assert (tmp_path / "heads.png").is_file()
    printed = capsys.readouterr().out
    assert "medusa" in printed and "ngram" in printed
