"""Traces: verdicts of draft nodes by hand, and a traced request against `generate`."""

import json

import numpy as np
import pytest

import specjax as sj
from specjax import trees
from specjax.stopping import Stop
from specjax.trace import rounds
from tests import battery
from tests.cli.test_segments import round_
from tests.verify.test_tree_loop import sampled_tree

RUN, EOS = np.array([int(Stop.RUNNING)]), np.array([int(Stop.EOS)])
TREE = trees.regular((2, 2))  # 0: 1 2; 1: 3 4; 2: 5 6


def row_round(info, after=RUN) -> rounds.RowRound:
    (found,) = rounds.row_rounds(info, 1, before=RUN, after=after)
    return found


def flags(found: rounds.RowRound, name: str) -> list[int]:
    return [node.node for node in found.nodes if getattr(node, name)]


def test_nodes_of_a_chain():
    found = row_round(round_([7, 8, 9], [7, 5], 1))
    assert [(n.parent, n.depth, n.token) for n in found.nodes] == [(0, 1, 7), (1, 2, 8), (2, 3, 9)]
    assert (flags(found, "accepted"), flags(found, "tested")) == ([1], [1, 2])
    assert (found.tokens, found.accepted, found.tested, found.ended) == ((7, 5), 1, 2, None)


def test_tokens_not_proposed_are_not_tested():
    found = row_round(round_([7, 8, 9], [7, 5], 1, valid=[True, False, False], tested=1))
    assert (flags(found, "valid"), flags(found, "tested"), flags(found, "accepted")) == ([1], [1], [1])


def test_siblings_with_equal_tokens_are_distinguished_by_their_children():
    """Both children of the root are token 7; the accepted path continues with 6, a child of the second one."""
    info = round_([7, 7, 1, 2, 5, 6], [7, 6, 3], 2, tree=TREE, tested=2)
    found = row_round(info)
    assert flags(found, "accepted") == [2, 6] and flags(found, "tested") == [2, 6]
    first = row_round(round_([7, 7, 1, 2, 5, 6], [7, 3], 1, tree=TREE, tested=2))
    assert flags(first, "accepted") == [1] and flags(first, "tested") == [1, 3, 4]


def test_accepted_path_outside_the_draft_is_an_internal_error():
    with pytest.raises(AssertionError, match="path"):
        row_round(round_([7, 8], [8, 8], 2))


def test_scratch_nodes_are_left_out():
    tree = trees.Tree((-1, 0, trees.SCRATCH), attends=((2, (0,)),))
    found = row_round(round_([7, 9], [7, 3], 1, tree=tree, tested=1))
    assert [node.node for node in found.nodes] == [1]


def test_the_last_round_of_a_row_has_its_stop_reason():
    assert row_round(round_([7], [7, 3], 1), after=EOS).ended == "eos"
    resting = round_([7], [7, 3], 1)._replace(active=np.array([False]))
    assert rounds.row_rounds(resting, 2, before=EOS, after=EOS) == ()


def pair():
    return battery.target("opt"), battery.draft("opt")


OPTIONS = {"max_new_tokens": [9, 4], "temperature": [0.0, 1.0], "seed": 3}
PROMPTS = [[5, 6, 7, 8], [9, 4]]


@pytest.mark.parametrize("name", battery.others_slow(["model", "ngram", "plain"], ["model"]))
def test_traced_request_equals_generate(name):
    target, draft = pair()
    drafter = {"model": sj.drafters.model(draft, gamma=3), "ngram": sj.drafters.ngram(gamma=3)}.get(
        name, sj.drafters.plain()
    )
    expected = sj.generate(target, PROMPTS, drafter=drafter, **OPTIONS)
    found = rounds.record(target, PROMPTS, drafter, OPTIONS, repeats=2)
    stats = expected.stats
    assert found.out.tokens == expected.tokens and found.out.stop_reasons == expected.stop_reasons
    assert found.prompts == PROMPTS and found.draft_steps == {"model": 3, "ngram": 1, "plain": 0}[name]
    for row in range(2):
        own = found.row(row)
        assert [t for b in own for t in b.tokens] == expected.tokens[row] and len(own) == stats.by_row["rounds"][row]
        assert [b.ended for b in own] == [None] * (len(own) - 1) + [expected.stop_reasons[row]]
    every = [b for one in found.rounds for b in one.rows]
    assert (sum(b.tested for b in every), sum(b.accepted for b in every)) == (stats.tested, stats.accepted)
    nodes = [node for b in every for node in b.nodes]
    assert sum(node.valid for node in nodes) == stats.drafted and sum(node.accepted for node in nodes) == stats.accepted
    np.testing.assert_equal([one.rate for one in rounds.by_depth(found)], list(stats.by_depth))
    assert all(one.reached == one.accepted / len(every) for one in rounds.by_depth(found))
    assert all(one.verify > 0 and (one.draft > 0) == (name != "plain") for one in found.rounds)
    assert found.out.stats.seconds["decode"] == pytest.approx(sum(one.draft + one.verify for one in found.rounds))
    assert found.prefill.target > 0 and (found.prefill.draft > 0) == (name != "plain")
    assert found.out.stats.compiles == 0 and found.out.stats.seconds["compile"] == 0


@pytest.mark.slow
def test_traced_tree():
    target, _ = pair()
    options = {"max_new_tokens": 8, "temperature": 1.0, "verifier": "multiround"}
    found = rounds.record(target, PROMPTS, sampled_tree(), options)
    assert found.out.tokens == sj.generate(target, PROMPTS, drafter=sampled_tree(), **options).tokens
    every = [b for one in found.rounds for b in one.rows]
    assert sum(node.accepted for b in every for node in b.nodes) == found.out.stats.accepted > 0
    assert any(sum(node.tested for node in b.nodes) > b.tested for b in every)  # two siblings rejected at one level
    assert len(rounds.by_depth(found)) == 2


def test_a_stopped_trace_keeps_its_rounds():
    target, draft = pair()
    drafter = sj.drafters.model(draft, gamma=3)
    found = rounds.record(target, PROMPTS, drafter, OPTIONS, repeats=3, stop=lambda: True)
    assert len(found.rounds) == 1 and found.out.stop_reasons[0] == "interrupted"
    assert found.out.tokens == [list(one.tokens) for one in found.rounds[0].rows]


def test_json_records():
    target, draft = pair()
    found = rounds.record(target, PROMPTS, sj.drafters.model(draft, gamma=3), OPTIONS)
    loaded = [json.loads(json.dumps(one, allow_nan=False)) for one in rounds.records(found, lambda token: f"t{token}")]
    assert [(one["round"], one["row"]) for one in loaded] == [(b.round, b.row) for r in found.rounds for b in r.rows]
    first = loaded[0]
    assert first["committed"] == list(found.rounds[0].rows[0].tokens)
    assert first["committed_text"] == [f"t{token}" for token in first["committed"]]
    assert set(first["seconds"]) == {"round", "draft", "verify"} and min(first["seconds"].values()) > 0
    node = first["drafted"][1]
    assert set(node) == {"node", "parent", "depth", "token", "valid", "tested", "accepted", "text"}
    assert (node["node"], node["parent"], node["depth"], node["text"]) == (2, 1, 2, f"t{node['token']}")
