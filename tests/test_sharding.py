"""Sharding on 8 fake devices: every parameter has a rule, results do not depend on the mesh, a layer costs two all-reduces."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import sharding
from specjax.models import opt
from specjax.models.format import Format, default_format

MESHES = [(2, 4), (1, 8), (4, 2)]
ROWS, PROMPT, SLOTS, BLOCK, HEADS, LAYERS, VOCAB = 8, 6, 32, 3, 8, 2, 96
FORMATS = {
    "separate": default_format("float32", platform="cpu", sharded=True),
    "stacked": default_format("float32", platform="cpu", sharded=True, stacked=True),
    "bfloat16": default_format("bfloat16", platform="cpu", sharded=True),  # kernels lie (out, in)
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One tiny model, as this file needs it."""

    module: Any
    config: Any
    rules: sharding.Rules

    def init(self, fmt: Format):
        return self.module.init(jax.random.key(0), self.config, fmt)

    def language_model(self, fmt: Format):
        return self.module.language_model(self.config, fmt)


OPT = opt.OPTConfig(VOCAB, width=64, embed_width=64, layers=LAYERS, heads=HEADS, mlp_width=128, max_positions=64)
CASES = {
    "opt": Case(opt, OPT, sharding.OPT),
    "opt-350m": Case(opt, dataclasses.replace(OPT, embed_width=32, pre_norm=False), sharding.OPT),
    "opt-97": Case(opt, dataclasses.replace(OPT, vocab_size=97), sharding.OPT),  # a vocabulary that does not divide
}
EVEN = [name for name in CASES if not name.endswith("-97")]


def inputs():
    prompt = jax.random.randint(jax.random.key(1), (ROWS, PROMPT), 0, VOCAB, jnp.int32)
    tokens = jax.random.randint(jax.random.key(2), (ROWS, BLOCK), 0, VOCAB, jnp.int32)
    return prompt, jnp.array([6, 3, 4, 5, 6, 2, 1, 6], jnp.int32), tokens


def decode(model, params, tokens, cache):
    """The target's share of a round: a block, of which two tokens are kept."""
    mask = jnp.tril(jnp.ones((BLOCK, BLOCK), bool))
    out, cache = model.extend(params, tokens, cache, mask, jnp.arange(BLOCK, dtype=jnp.int32))
    return out.logits, model.keep(cache, None, jnp.full((ROWS,), 2, jnp.int32))


@functools.cache
def reference(name: str, layout: str):
    fmt = FORMATS[layout]
    params, model = CASES[name].init(fmt), CASES[name].language_model(fmt)
    prompt, length, tokens = inputs()
    return decode(model, params, tokens, model.prefill(params, prompt, length, SLOTS).cache)


def on_mesh(name: str, layout: str, shape: tuple[int, int], rules: sharding.Rules | None = None):
    """(compiled decode step, its arguments) of a case on a mesh."""
    case, fmt = CASES[name], FORMATS[layout]
    rules = rules or case.rules
    mesh = sharding.make_mesh(*shape)
    params = sharding.place(case.init(fmt), mesh, rules, fmt, kv_heads=HEADS)
    model = sharding.on_mesh(case.language_model(fmt), mesh, rules)
    prompt, length, tokens = jax.device_put(inputs(), sharding.row_sharding(mesh))
    cache = jax.jit(model.prefill, static_argnums=3)(params, prompt, length, SLOTS).cache
    args = (params, tokens, cache)
    return jax.jit(functools.partial(decode, model), donate_argnums=2).lower(*args).compile(), args


def leaves(tree) -> dict[str, Any]:
    return {sharding.path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_logits_and_cache_sharding_do_not_depend_on_the_mesh(name, layout, shape):
    step, (params, tokens, cache) = on_mesh(name, layout, shape)
    before = jax.tree.map(lambda a: a.sharding, cache)
    logits, after = step(params, tokens, cache)
    expected, unsharded = reference(name, layout)
    tight = 3e-6 if layout != "bfloat16" else 2e-2  # bfloat16: activations rounded after sums in another order
    error = np.abs(jax.device_get(logits) - jax.device_get(expected)).max()
    assert error <= tight * float(jnp.abs(expected).max())
    assert jax.tree.map(lambda a: a.sharding, after) == before
    np.testing.assert_array_equal(after.length, unsharded.length)
    kv = jax.tree.leaves(after.layers)[0]
    assert kv.sharding.shard_shape(kv.shape)[-4:-2] == (ROWS // shape[0], HEADS // shape[1])


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("name", EVEN)
def test_two_all_reduces_a_layer(name, shape):
    """And one for the embedding, whose rows lie on different devices; the logits stay split and need none."""
    step, _ = on_mesh(name, "separate", shape)
    assert sharding.collectives(step.as_text()) == {"all-reduce": 2 * LAYERS + 1}
    step, _ = on_mesh(name, "stacked", shape)
    assert sharding.collectives(step.as_text()) == {"all-reduce": 2 + 1}


def test_bad_rules_cost_other_collectives():
    """Negative control: `o` by columns makes the partitioner gather activations."""
    table = tuple(
        sharding.Rule(r.pattern, (P(None, "model"),)) if r.pattern.endswith(r"\.o\.kernel") else r
        for r in sharding.OPT.table
    )
    step, _ = on_mesh("opt", "stacked", (1, 8), dataclasses.replace(sharding.OPT, table=table))
    assert set(sharding.collectives(step.as_text())) - {"all-reduce"}


def test_a_replicated_model_talks_to_nobody():
    step, (params, tokens, cache) = on_mesh("opt", "stacked", (2, 4), sharding.replicated(sharding.OPT))
    assert sharding.collectives(step.as_text()) == {}
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(step(params, tokens, cache)[0], reference("opt", "stacked")[0], atol=1e-6)


@pytest.mark.parametrize("name", EVEN)
def test_no_device_holds_the_whole_model(name):
    """Each has an eighth of what is split; only norms, the biases after an all-reduce, positions and 350m's
    projections are whole everywhere."""
    _, (params, _, _) = on_mesh(name, "stacked", (1, 8))
    for path, leaf in leaves(params).items():
        whole = re.search(r"norm|\.(o|down)\.bias|positions|project_", path)
        assert {s.data.size for s in leaf.addressable_shards} == {leaf.size // (1 if whole else 8)}, path


SIZES = opt.sizes()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_published_size_has_a_rule_for_every_parameter(size, stacked):
    config = dataclasses.replace(SIZES[size], layers=2)
    fmt = Format(dtype="bfloat16", out_in=not stacked, stacked=stacked)
    params = jax.eval_shape(lambda key: opt.init(key, config, fmt), jax.random.key(0))
    ways = int(np.gcd(config.heads, 8))
    placed = sharding.shardings(params, sharding.make_mesh(8 // ways, ways), sharding.OPT, fmt, kv_heads=config.heads)
    assert jax.tree.structure(placed) == jax.tree.structure(params)
    assert placed["embed"]["tokens"]["table"].spec == P("model", None)


@pytest.mark.parametrize("rules", [sharding.OPT], ids=["opt"])
def test_every_rule_names_some_parameter(rules):
    """A rule that no variant's parameters match is a typing error in the table, and none is shadowed."""
    used = set()
    for case in CASES.values():
        if case.rules is rules:
            paths = leaves(jax.eval_shape(lambda case=case: case.init(FORMATS["stacked"])))
            used |= {next(r.pattern for r in rules.table if re.fullmatch(r.pattern, path)) for path in paths}
    assert used == {rule.pattern for rule in rules.table}


def test_spec_follows_the_format():
    q = "layers.3.attn.q.kernel"
    assert sharding.spec_for(q, sharding.OPT, Format()) == P(None, "model")
    assert sharding.spec_for(q, sharding.OPT, Format(out_in=True)) == P("model", None)
    assert sharding.spec_for("layers.attn.q.kernel", sharding.OPT, Format(stacked=True)) == P(None, None, "model")
    table = "embed.tokens.table"  # [V, D] in every format
    assert sharding.spec_for(table, sharding.OPT, Format(out_in=True, stacked=True)) == P("model", None)
    assert sharding.spec_for(q, sharding.replicated(sharding.OPT), Format()) == P(None, None)


@pytest.mark.parametrize("rules", [sharding.OPT, sharding.LLAMA, sharding.T5, sharding.replicated(sharding.OPT)])
def test_a_parameter_without_a_rule_is_named(rules):
    with pytest.raises(ValueError, match=r"'layers\.0\.attn\.gate\.kernel'"):
        sharding.spec_for("layers.0.attn.gate.kernel", rules, Format())


def test_a_vocabulary_that_does_not_divide_falls_back_to_the_width():
    _, (params, _, _) = on_mesh("opt-97", "separate", (2, 4))
    assert params["embed"]["tokens"]["table"].sharding.spec == P(None, "model")


def test_what_does_not_divide_is_refused():
    mesh, fmt = sharding.make_mesh(1, 8), Format()
    with pytest.raises(ValueError, match=r"12 key-value heads do not divide over model=8: use model=4"):
        sharding.shardings({}, mesh, sharding.OPT, fmt, kv_heads=12)
    sharding.shardings({}, mesh, sharding.replicated(sharding.OPT), fmt, kv_heads=12)
    up = {"layers": {"0": {"mlp": {"up": {"kernel": jax.ShapeDtypeStruct((64, 100), jnp.float32)}}}}}
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up\.kernel of shape \(64, 100\) does not divide"):
        sharding.shardings(up, mesh, sharding.OPT, fmt, kv_heads=8)
    with pytest.raises(ValueError, match=r"rule speaks of 3 axes.*stacked=True"):
        sharding.shardings(up, mesh, sharding.OPT, Format(stacked=True), kv_heads=8)
    with pytest.raises(ValueError, match=r"batch of 3 rows does not divide over data=2: pad it to 4"):
        sharding.check_rows(3, sharding.make_mesh(2, 4))


def test_a_mesh_takes_all_its_devices():
    with pytest.raises(ValueError, match=r"data=3 x model=2 takes 6 devices, there are 8"):
        sharding.make_mesh(3, 2)
    with pytest.raises(ValueError, match=r"at least 1, got data=0"):
        sharding.make_mesh(0, 8)
    mesh = sharding.make_mesh(model=2, devices=jax.devices()[:2])
    assert dict(mesh.shape) == {"data": 1, "model": 2}
    assert all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def test_states_are_led_by_rows():
    mesh = sharding.make_mesh(2, 4)
    state = {"tokens": jnp.zeros((8, 5)), "key": jax.random.split(jax.random.key(0), 8), "round": jnp.zeros(())}
    placed = sharding.cache_shardings(state, mesh, sharding.OPT)
    assert placed["tokens"] == placed["key"] == NamedSharding(mesh, P("data"))
    assert placed["round"] == NamedSharding(mesh, P())
