"""Requests on a mesh: what rounds read and carry is placed once, whatever the drafter is made of."""

import dataclasses
import itertools
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import cli, decoding, drafters, sharding, trees
from specjax.base import Drafter
from specjax.model import Model
from specjax.models import opt
from specjax.types import Draft, Shared, Siblings
from tests.drafters.heads import head
from tests.test_sharding import FORMATS, HEADS, LAYERS, MIXED, OPT, VOCAB, leaves


def loaded(mesh, *, layers: int = LAYERS, rules: sharding.Rules = opt.FAMILY.rules) -> Model:
    """What `specjax.load` gives, without a checkpoint."""
    config, fmt = dataclasses.replace(OPT, layers=layers), FORMATS["separate"]
    params = opt.FAMILY.init(jax.random.key(0), config, fmt)
    if mesh is not None:
        params = sharding.place(params, mesh, rules, fmt, kv_heads=HEADS)
    return Model("tiny", opt.FAMILY, config, fmt, params, mesh=mesh, rules=rules)


PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]] * 2
WHOLE = sharding.replicated(opt.FAMILY.rules)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [WHOLE, opt.FAMILY.rules], ids=["replicated", "split"])
def test_streaming_on_a_mesh_compiles_one_round(rules):
    """The state that prefill leaves is laid as rounds return it, or the second round would compile again."""
    mesh = sharding.make_mesh(2, 4)
    drafter = drafters.model(loaded(mesh, layers=1, rules=rules), gamma=2)
    stream = specjax.stream(loaded(mesh), PROMPTS, drafter=drafter, max_new_tokens=6, temperature=0.0)
    before, rounds = specjax.compiled_programs().count, sum(1 for _ in stream)
    assert rounds > 1
    assert specjax.compiled_programs().count == before + 1
    plain = specjax.generate(loaded(None), PROMPTS, max_new_tokens=6, temperature=0.0)
    assert stream.result().tokens == plain.tokens


def head_for(capture: tuple[int, ...] = ()) -> drafters.LoadedDrafter:
    """A head of random weights for `loaded`, on no mesh."""
    width = OPT.width * (2 * len(capture) or 1)
    params = jax.random.normal(jax.random.key(1), (2, width, VOCAB)) / 8
    return drafters.LoadedDrafter("head", head(trees.chain(2), VOCAB, capture=capture), params)


class Counted(NamedTuple):
    """State with a table [V] that rows share, beside a count of each row."""

    table: Shared
    count: jax.Array


def shared_table(vocab_size: int) -> drafters.LoadedDrafter:
    """Proposes the token that a table [V] in the state names for the last one."""

    def init(params, prompt, length, cache_len, prefilled):
        del prompt, cache_len, prefilled
        return Counted(Shared(params), jnp.zeros_like(length))

    def propose(params, key, state, pending, warp):
        del params, key, warp
        tokens = jnp.stack([pending, state.table.value[pending]], 1)
        return Draft(tokens, jnp.ones_like(tokens, bool), None), state

    def commit(params, state, committed):
        del params
        return state._replace(count=state.count + committed.length)

    functions = Drafter(trees.chain(1), init, propose, commit, siblings=Siblings.POINTS)
    return drafters.LoadedDrafter("table", functions, jnp.arange(vocab_size, dtype=jnp.int32)[::-1])


WITHOUT_MESH = {
    "model": lambda: drafters.model(loaded(None, layers=1), gamma=2),
    "head": head_for,
    "three streams": lambda: head_for((0, 1, 2)),
    "suffix with a corpus": lambda: drafters.suffix(drafters.corpus([[1, 2, 3, 4, 5], [9, 8, 7]]), gamma=2),
    "table": lambda: table_of_counts(VOCAB),
    "shared state": lambda: shared_table(VOCAB),
    "cascade": lambda: drafters.cascade(loaded(None, layers=1), head_for(), gamma=2),
    "layer skip": None,  # made of the target
}


def table_of_counts(vocab_size: int) -> drafters.LoadedDrafter:
    text = np.random.default_rng(0).integers(0, vocab_size, 200).tolist()
    return drafters.table(drafters.fitting.fit([text], vocab_size=vocab_size), gamma=2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "temperature"), [*itertools.product(WITHOUT_MESH, [0.0, MIXED])], ids=str)
def test_only_the_target_is_loaded_with_a_mesh(kind, temperature):
    """Draft weights, corpora, tables, biases and prompts are placed once: the tokens of one device, one compile."""
    mesh = sharding.make_mesh(2, 4)
    options = {"max_new_tokens": 6, "temperature": temperature, "logit_bias": {3: -1.0}, "ignore_eos": True}
    make = WITHOUT_MESH[kind] or (lambda: drafters.layer_skip(loaded(mesh), gamma=2, layers=[0]))
    target = loaded(mesh)
    drafter = make()
    stream = specjax.stream(target, PROMPTS, drafter=drafter, **options)
    for leaf in jax.tree.leaves(stream._job.params):
        assert set(leaf.sharding.device_set) == set(mesh.devices.flat)
    before = {path: leaf.sharding for path, leaf in leaves(stream._at.state).items()}
    traces = decoding.trace_count()
    rounds = sum(1 for _ in stream)
    assert rounds > 1
    assert decoding.trace_count() <= traces + 1
    for path, leaf in leaves(stream._at.state).items():
        assert leaf.sharding.is_equivalent_to(before[path], leaf.ndim), path
    alone = drafters.layer_skip(loaded(None), gamma=2, layers=[0]) if kind == "layer skip" else drafter
    expected = specjax.generate(loaded(None), PROMPTS, drafter=alone, **options)
    assert stream.result().tokens == expected.tokens


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_bundled_model_of_five_heads_on_every_device(temperature, capsys):
    """`specjax generate --mesh 2x4` prints the text of one device."""
    words = [
        "Once upon a time",
        "The little dog",
        "--max-new-tokens",
        "10",
        "--temperature",
        str(temperature),
        "--json",
    ]
    tokens = []
    for more in ([], ["--mesh", "2x4"]):
        assert cli.main(["generate", *words, *more]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["tokens"])
    assert tokens[0] == tokens[1] and len(tokens[0][0]) == 10


def test_two_meshes_in_one_program_are_refused():
    drafter = drafters.model(loaded(sharding.make_mesh(4, 2), layers=1), gamma=2)
    with pytest.raises(ValueError, match=r"'data': 4, 'model': 2.*'data': 2, 'model': 4.*the same mesh"):
        specjax.generate(loaded(sharding.make_mesh(2, 4)), PROMPTS, drafter=drafter)
