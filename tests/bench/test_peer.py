"""transformers on the same weights: equal greedy outputs, plain, assisted and by prompt lookup."""

import pytest

import specjax as sj
from specjax.bench import peer
from tests import battery

NEW = 10


@pytest.mark.torch
@pytest.mark.parametrize("family", battery.others_slow(["opt", "t5"], ["opt"]))
def test_greedy_outputs_are_equal(family):
    target, draft = battery.target(family), battery.draft(family)
    prompt = [3, 4, 5, 6, 3, 4]
    ours = sj.generate(target, [prompt], max_new_tokens=NEW, temperature=0.0, ignore_eos=True).tokens
    other = peer.make_peer(target, draft)
    decoders = [other.plain(new=NEW), other.assisted(gamma=3, new=NEW), other.lookup(gamma=3, new=NEW)]
    assert [decode([prompt]) for decode in decoders] == [ours] * 3
    sampled = other.assisted(gamma=2, new=4, temperature=1.0)
    assert len(sampled([prompt])[0]) == 4 and 1 < other.counted(sampled, [prompt])() <= 5
    assert other.draft.generation_config.num_assistant_tokens == 2


@pytest.mark.torch
def test_an_output_ends_at_the_end_token():
    target, prompt = battery.target("opt"), [3, 4, 5]
    free = sj.generate(target, [prompt], max_new_tokens=NEW, temperature=0.0, ignore_eos=True).tokens[0]
    other = peer.make_peer(target)._replace(eos=(free[2],))
    assert other.plain(new=NEW)([prompt]) == [free[: free.index(free[2]) + 1]]


def test_torch_is_required(monkeypatch):
    monkeypatch.setattr(peer, "available", lambda: False)
    with pytest.raises(ValueError, match="--peer"):
        peer.require()
