"""transformers beside: the same weights decode to the same greedy texts, plainly, assisted and by prompt lookup."""

import pytest

import specjax as sj
from specjax import convert
from specjax.bench import assisted
from tests import battery

NEW = 10


@pytest.mark.torch
@pytest.mark.parametrize("family", ["opt", "t5"])
def test_greedy_texts_are_those_of_the_twin(family, tmp_path):
    module, config = battery.FAMILIES[family]
    made = []
    for name, model in (("target", battery.target(family)), ("draft", battery.draft(family))):
        published = module.to_published(config)
        convert.save_pretrained(tmp_path / name, model.params, published, fmt=model.fmt)
        made.append(sj.load(tmp_path / name))
    target, draft = made
    prompt = [3, 4, 5, 6, 3, 4]
    ours = sj.generate(target, [prompt], max_new_tokens=NEW, temperature=0.0, ignore_eos=True).tokens[0]
    peer = assisted.peer(target, draft, ignore_eos=True)
    ways = [
        peer.plain(new=NEW, temperature=0.0), peer.assisted(gamma=3, new=NEW, temperature=0.0),
        peer.lookup(gamma=3, new=NEW, temperature=0.0),
    ]  # fmt: skip
    assert [way(prompt) for way in ways] == [ours] * 3
    sampled = peer.assisted(gamma=2, new=4, temperature=1.0)(prompt)
    assert len(sampled) == 4 and peer.draft.generation_config.num_assistant_tokens == 2


@pytest.mark.torch
def test_a_text_ends_at_its_end_token(tmp_path):
    module, config = battery.FAMILIES["opt"]
    model = battery.target("opt")
    convert.save_pretrained(tmp_path, model.params, module.to_published(config), fmt=model.fmt)
    target = sj.load(tmp_path)
    free = sj.generate(target, [[3, 4, 5]], max_new_tokens=NEW, temperature=0.0, ignore_eos=True).tokens[0]
    end = free[2]
    peer = assisted.Peer(assisted.twin(target), None, (end,), False)
    assert peer.plain(new=NEW, temperature=0.0)([3, 4, 5]) == free[: free.index(end) + 1]


def test_without_torch_it_is_said(monkeypatch):
    monkeypatch.setattr(assisted, "available", lambda: False)
    with pytest.raises(ValueError, match="needs torch"):
        assisted.require()
