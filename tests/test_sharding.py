"""Sharding on 8 fake devices: a rule for every parameter, the same results on every mesh, two all-reduces a layer."""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import decoding, placement, sampling, sharding, stopping
from specjax.drafters import chain
from specjax.drafters.writer import model_writer
from specjax.models import llama, opt, t5, t5_config
from specjax.models.cpu import CPUProducts
from specjax.models.families import FAMILIES
from specjax.models.family import Family
from specjax.models.format import Format, default_format
from specjax.models.products import Products
from specjax.planning import program as hlo
from specjax.verify.token import token_level
from tests import battery

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

    family: Family
    config: Any

    @property
    def rules(self) -> sharding.Rules:
        return self.family.rules

    def init(self, fmt: Format):
        return self.family.init(jax.random.key(0), self.config, fmt)

    def language_model(self, fmt: Format):
        return self.family.language_model(self.config, fmt)


OPT = opt.OPTConfig(VOCAB, width=64, embed_width=64, layers=LAYERS, heads=HEADS, mlp_width=128, max_positions=64)
LLAMA = llama.LlamaConfig(
    VOCAB, width=64, layers=LAYERS, heads=2 * HEADS, kv_heads=HEADS, head_width=4, mlp_width=96, max_positions=64
)
T5 = t5.T5Config(VOCAB, width=32, head_width=8, heads=HEADS, mlp_width=64, encoder_layers=1, decoder_layers=LAYERS)
CASES = {
    "opt": Case(opt.FAMILY, OPT),
    "opt-350m": Case(opt.FAMILY, dataclasses.replace(OPT, embed_width=32, pre_norm=False)),
    "opt-97": Case(opt.FAMILY, dataclasses.replace(OPT, vocab_size=97)),  # a vocabulary that does not divide
    "llama": Case(llama.FAMILY, LLAMA),  # grouped queries, a head of its own
    "qwen2": Case(llama.FAMILY, dataclasses.replace(LLAMA, qkv_bias=True, tied=True)),
    "biases": Case(llama.FAMILY, dataclasses.replace(LLAMA, qkv_bias=True, o_bias=True, mlp_bias=True)),
    "opt-5": Case(opt.FAMILY, dataclasses.replace(OPT, heads=5, width=40, embed_width=40)),  # heads do not divide
    "opt-6": Case(opt.FAMILY, dataclasses.replace(OPT, heads=6, width=48, embed_width=48)),
    "llama-2": Case(llama.FAMILY, dataclasses.replace(LLAMA, heads=4, kv_heads=2)),
    "t5": Case(t5.FAMILY, T5),
    "t5-3": Case(t5.FAMILY, dataclasses.replace(T5, heads=3)),
    "t5-v1_1": Case(t5.FAMILY, dataclasses.replace(T5, gated=True, activation="gelu_new", tied=False)),
}
# Every family in its plainest form on every mesh; its variants and layouts on one each.
RUNS = [
    *((name, "separate", shape) for name in ("opt", "llama", "t5") for shape in MESHES),
    ("opt", "stacked", (2, 4)), ("opt", "bfloat16", (1, 8)), ("opt-350m", "separate", (4, 2)),
    ("opt-97", "separate", (2, 4)), ("llama", "bfloat16", (2, 4)), ("qwen2", "stacked", (1, 8)),
    ("t5-v1_1", "stacked", (4, 2)),
]  # fmt: skip
OFTEN = [
    ("t5-v1_1", "stacked", (4, 2)),
]  # fmt: skip


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
    cache = jax.jit(model.prefill, static_argnums=3)(params, prompt, length, SLOTS).cache
    return jax.jit(functools.partial(decode, model))(params, tokens, cache)


@functools.cache
def on_mesh(name: str, layout: str, shape: tuple[int, ...], rules: sharding.Rules | None = None):
    """(compiled decode step, its arguments) of a case on a mesh."""
    case, fmt = CASES[name], FORMATS[layout]
    rules = rules or case.rules
    mesh = sharding.make_mesh(*shape)
    params = sharding.place(case.init(fmt), mesh, rules, fmt, kv_heads=case.config.kv_heads)
    model = sharding.on_mesh(case.language_model(fmt), mesh, rules)
    prompt, length, tokens = jax.device_put(inputs(), sharding.row_sharding(mesh))
    cache = jax.jit(model.prefill, static_argnums=3)(params, prompt, length, SLOTS).cache
    args = (params, tokens, cache)
    return jax.jit(functools.partial(decode, model)).lower(*args).compile(), args


def collectives(compiled) -> dict[str, int]:
    return dict(hlo.collectives(hlo.program(compiled.as_text())))


def leaves(tree) -> dict[str, Any]:
    return {sharding.path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name, layout, shape", RUNS, ids=str)
def test_logits_and_cache_sharding_do_not_depend_on_the_mesh(name, layout, shape):
    step, (params, tokens, cache) = on_mesh(name, layout, shape)
    logits, after = step(params, tokens, cache)
    expected, unsharded = reference(name, layout)
    tight = 3e-6 if layout != "bfloat16" else 2e-2  # bfloat16: activations rounded after sums in another order
    error = np.abs(jax.device_get(logits) - jax.device_get(expected)).max()
    assert error <= tight * float(jnp.abs(expected).max())
    for path, leaf in leaves(after).items():
        assert leaf.sharding.is_equivalent_to(leaves(cache)[path].sharding, leaf.ndim), path
        assert leaf.sharding.shard_shape(leaf.shape) == leaves(cache)[path].sharding.shard_shape(leaf.shape)
    np.testing.assert_array_equal(after.length, unsharded.length)
    for kv in jax.tree.leaves((after.layers, () if after.cross is None else after.cross.layers)):
        assert kv.sharding.shard_shape(kv.shape)[-4:-2] == (ROWS // shape[0], HEADS // shape[1])


UNEVEN = [("opt-5", (2, 4), 1), ("llama-2", (1, 8), 1), ("t5-3", (2, 4), 1)]
WIDE = [("opt", (1, 4, 2), 8), ("llama-2", (2, 2, 2), 2), ("t5-v1_1", (2, 2, 2), 4), ("opt-5", (2, 2, 2), 1),
        ("opt-6", (2, 2, 2), 2)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name, shape, heads", [*UNEVEN, *WIDE], ids=str)
def test_more_devices_than_heads(name, shape, heads):
    """Heads that do not divide: attention and caches are whole on the model axis, the rest is split. `wide` splits what
    has no key-value heads further. The logits are those of one device, and no weight moves."""
    step, (params, tokens, cache) = on_mesh(name, "stacked", shape)
    logits, after = step(params, tokens, cache)
    expected, _ = reference(name, "stacked")
    assert np.abs(jax.device_get(logits) - jax.device_get(expected)).max() <= 3e-6 * float(jnp.abs(expected).max())
    kv_heads = CASES[name].config.kv_heads
    for kv in jax.tree.leaves(after.layers):
        assert kv.sharding.shard_shape(kv.shape)[-4:-2] == (ROWS // shape[0], kv_heads // heads)
    up = next(leaf for path, leaf in leaves(params).items() if path.endswith("mlp.up.kernel"))
    assert math.prod(up.sharding.shard_shape(up.shape)) == up.size // math.prod(shape[1:])
    largest = {i.elements for i in hlo.program(step.as_text()) if i.opcode in hlo.COLLECTIVES}
    assert max(largest) == ROWS // shape[0] * BLOCK * VOCAB  # the logits


@pytest.mark.parametrize(
    "name, layout, shape", battery.others_slow([run for run in RUNS if run[0] != "opt-97"], OFTEN), ids=str
)
def test_a_layer_needs_two_all_reduces(name, layout, shape):
    """T5's decoder has a third, after cross-attention. One more is of the embedding, whose rows lie on different
    devices, and one all-gather collects the logits. No weight and no cache moves."""
    step, _ = on_mesh(name, layout, shape)
    a_layer = 3 if name.startswith("t5") else 2
    layers = 1 if layout == "stacked" else LAYERS  # a scan's body is once in the text
    assert collectives(step) == {"all-reduce": a_layer * layers + 1, "all-gather": 1}
    gathers = [i for i in hlo.program(step.as_text()) if i.opcode == "all-gather"]
    assert [i.elements for i in gathers] == [ROWS // shape[0] * BLOCK * VOCAB]


@pytest.mark.slow
def test_bad_rules_cost_other_collectives():
    """Negative control: `o` by columns makes the partitioner gather activations."""
    table = tuple(
        sharding.Rule(r.pattern, (P(None, "model"),)) if r.pattern.endswith(r"\.o\.kernel") else r
        for r in opt.FAMILY.rules.table
    )
    step, _ = on_mesh("opt", "stacked", (1, 8), dataclasses.replace(opt.FAMILY.rules, table=table))
    assert sum(collectives(step).values()) > 4


@pytest.mark.slow
def test_a_replicated_model_talks_to_nobody():
    step, (params, tokens, cache) = on_mesh("opt", "stacked", (2, 4), sharding.replicated(opt.FAMILY.rules))
    assert collectives(step) == {}
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(step(params, tokens, cache)[0], reference("opt", "stacked")[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "opt-350m", "llama", "biases", "t5-v1_1"])
def test_no_device_holds_the_whole_model(name):
    """Each has an eighth of what is split; only norms, the biases after an all-reduce, positions and 350m's
    projections are whole everywhere."""
    case, fmt = CASES[name], FORMATS["stacked"]
    params = sharding.place(case.init(fmt), sharding.make_mesh(1, 8), case.rules, fmt, kv_heads=HEADS)
    for path, leaf in leaves(params).items():
        whole = re.search(r"norm|\.(o|down)\.bias|positions|project_", path)
        assert {s.data.size for s in leaf.addressable_shards} == {leaf.size // (1 if whole else 8)}, path


def published() -> dict[str, tuple[Case, int, int]]:
    """name -> (two layers of the published shape, query heads, key-value heads)."""
    cut = dataclasses.replace
    sizes = {f"opt-{n}": (Case(opt.FAMILY, cut(c, layers=2)), c.heads, c.heads) for n, c in opt.sizes().items()}
    for name, c in llama.sizes().items():
        sizes[name] = (Case(llama.FAMILY, cut(c, layers=2)), c.heads, c.kv_heads)
    for name, c in t5_config.sizes().items():
        sizes[name] = (Case(t5.FAMILY, cut(c, encoder_layers=1, decoder_layers=1)), c.heads, c.heads)
    return sizes


# One size for each set of parameters: projections, tied and untied heads, biases, few key-value heads, gates.
STRUCTURES = (
    "opt-125m", "opt-350m", "llama-7b", "llama-3-70b", "llama-3.2-1b", "qwen2.5-7b", "qwen2.5-0.5b", "t5-small",
    "t5-v1_1-small",
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "stacked"),
    battery.others_slow(
        itertools.product(published(), [False, True]),
        [(size, at % 2 == 0) for at, size in enumerate(STRUCTURES)],
    ),
)
def test_every_published_size_has_a_rule_for_every_parameter(size, stacked):
    case, _, kv_heads = published()[size]
    fmt = Format("bfloat16", stacked, products=Products() if stacked else CPUProducts())
    params = jax.eval_shape(lambda: case.init(fmt))
    ways = math.gcd(kv_heads, 8)
    placed = sharding.shardings(params, sharding.make_mesh(8 // ways, ways), case.rules, fmt, kv_heads=kv_heads)
    assert jax.tree.structure(placed) == jax.tree.structure(params)
    assert placed["embed"]["tokens"]["table"].spec == P("model", None)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rule_names_some_parameter(family):
    """A rule that no variant's parameters match is a typing error in the table, and none is shadowed."""
    rules, used = FAMILIES[family].rules, set()
    for case in CASES.values():
        if case.rules is rules:
            paths = leaves(jax.eval_shape(lambda case=case: case.init(FORMATS["separate"])))
            names = {re.sub(r"layers\.\d+", "layers", path) for path in paths}
            used |= {next(r.pattern for r in rules.table if re.fullmatch(r.pattern, name)) for name in names}
    assert used == {rule.pattern for rule in rules.table}


def test_spec_follows_the_format():
    q = "layers.3.attn.q.kernel"
    assert sharding.spec_for(q, opt.FAMILY.rules, Format()) == P(None, "model")
    assert sharding.spec_for(q, opt.FAMILY.rules, Format(products=CPUProducts())) == P("model", None)
    assert sharding.spec_for("layers.attn.q.kernel", opt.FAMILY.rules, Format(stacked=True)) == P(None, None, "model")
    parts = Format(products=CPUProducts(part=8))  # each is laid out as the whole would be
    assert sharding.spec_for("layers.3.mlp.down.kernel.1", opt.FAMILY.rules, parts) == P(None, "model")
    table = "embed.tokens.table"  # [V, D] in every format
    assert sharding.spec_for(table, opt.FAMILY.rules, Format(stacked=True, products=CPUProducts())) == P("model", None)
    assert sharding.spec_for(q, sharding.replicated(opt.FAMILY.rules), Format()) == P(None, None)


@pytest.mark.parametrize(
    "rules", [opt.FAMILY.rules, llama.FAMILY.rules, t5.FAMILY.rules, sharding.replicated(opt.FAMILY.rules)]
)
def test_a_parameter_without_a_rule_is_named(rules):
    with pytest.raises(ValueError, match=r"'layers\.0\.attn\.gate\.kernel'"):
        sharding.spec_for("layers.0.attn.gate.kernel", rules, Format())


@pytest.mark.slow
def test_a_vocabulary_that_does_not_divide_falls_back_to_the_width():
    _, (params, _, _) = on_mesh("opt-97", "separate", (2, 4))
    assert params["embed"]["tokens"]["table"].sharding.spec == P(None, "model")


def test_what_does_not_divide_is_refused():
    mesh, fmt = sharding.make_mesh(1, 8), Format()
    up = {"layers": {"0": {"mlp": {"up": {"kernel": jax.ShapeDtypeStruct((64, 100), jnp.float32)}}}}}
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up\.kernel"):
        sharding.shardings(up, mesh, opt.FAMILY.rules, fmt, kv_heads=8)
    with pytest.raises(ValueError, match="stacked=True"):
        sharding.shardings(up, mesh, opt.FAMILY.rules, Format(stacked=True), kv_heads=8)
    with pytest.raises(ValueError, match="data=2"):
        sharding.check_rows(3, sharding.make_mesh(2, 4))


def test_a_mesh_takes_all_its_devices():
    with pytest.raises(ValueError, match="data=3"):
        sharding.make_mesh(3, 2)
    with pytest.raises(ValueError, match="data=0"):
        sharding.make_mesh(0, 8)
    mesh = sharding.make_mesh(model=2, devices=jax.devices()[:2])
    assert dict(mesh.shape) == {"data": 1, "model": 2}
    assert all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def test_states_are_led_by_rows():
    mesh = sharding.make_mesh(2, 4)
    state = {"tokens": jnp.zeros((8, 5)), "key": jax.random.split(jax.random.key(0), 8), "round": jnp.zeros(())}
    placed = sharding.cache_shardings(state, mesh, opt.FAMILY.rules)
    assert placed["tokens"] == placed["key"] == NamedSharding(mesh, P("data"))
    assert placed["round"] == NamedSharding(mesh, P())


def speculate(name: str, mesh, temperature):
    """(static choices, parameters, state before the first round) of a target with a one-layer draft of its family."""
    case, fmt = CASES[name], FORMATS["separate"]
    layers = {"decoder_layers": 1} if case.family is t5.FAMILY else {"layers": 1}
    small = dataclasses.replace(case, config=dataclasses.replace(case.config, **layers))
    models, weights = [], []
    for one, rules in ((case, case.rules), (small, sharding.replicated(case.rules))):
        model, params = one.language_model(fmt), one.init(fmt)
        if mesh is not None:
            model = sharding.on_mesh(model, mesh, rules)
            params = sharding.place(params, mesh, rules, fmt, kv_heads=HEADS)
        models.append(model)
        weights.append(params)
    warps = sampling.sampling_params(ROWS, VOCAB, temperature=temperature)
    static = {"model": models[0], "drafter": chain.chain(model_writer(models[1]), 3)}
    given = decoding.DecodeParams(*weights, warps, stopping.rules(VOCAB))
    prompt, length, _ = inputs()
    keys = decoding.row_keys(0, jnp.arange(ROWS, dtype=jnp.int32))
    budget = jnp.full((ROWS,), 12, jnp.int32)
    state = decoding.prefill(given, keys, prompt, length, budget, **static, cache_len=24, max_new=12)
    if mesh is not None:
        rules = case.rules
        state = jax.device_put(state, placement.state_shardings(state, mesh, rules, draft=sharding.replicated(rules)))
    return static, given, state


@functools.cache
def alone(name: str, temperature):
    static, given, state = speculate(name, None, temperature)
    return decoding.generate(given, state, verify=token_level, **static)


MIXED = (0.0, 0.8) * (ROWS // 2)


@pytest.mark.parametrize(
    "name, temperature, shape",
    [
        ("t5", 0.0, (2, 4)),
        pytest.param("opt", 0.0, (2, 4), marks=pytest.mark.slow),
        pytest.param("opt", 0.0, (1, 8), marks=pytest.mark.slow),
        pytest.param("opt", 0.0, (4, 2), marks=pytest.mark.slow),
        pytest.param("opt", MIXED, (2, 4), marks=pytest.mark.slow),
        pytest.param("llama", 0.0, (2, 4), marks=pytest.mark.slow),
    ],
    ids=str,
)  # fmt: skip
def test_same_tokens_on_every_mesh(name, temperature, shape):
    """Speculative decoding with a replicated draft: token for token what one device gives, rounds included."""
    static, given, state = speculate(name, sharding.make_mesh(*shape), temperature)
    out = decoding.generate(given, state, verify=token_level, **static)
    expected = alone(name, temperature)
    assert jax.device_get(expected.totals.accepted).sum() > 0  # or a draft that is never right would hide the drafter
    for field in ("tokens", "length", "stop"):
        np.testing.assert_array_equal(getattr(out, field), getattr(expected, field))
    np.testing.assert_array_equal(out.totals.rounds, expected.totals.rounds)


@pytest.mark.slow
def test_a_round_keeps_every_sharding_and_moves_no_weight():
    static, given, state = speculate("opt", sharding.make_mesh(2, 4), 0.8)
    before = {path: leaf.sharding for path, leaf in leaves(state).items()}
    compiled = decoding.one_round.lower(given, state, verify=token_level, **static).compile()
    program = hlo.program(compiled.as_text())
    assert [i.elements for i in program if i.opcode == "all-gather"] == [ROWS // 2 * 4 * VOCAB]
    sums = [i for i in program if i.opcode == "all-reduce"]
    assert len([i for i in sums if i.shape]) == 2 * LAYERS + 1
    assert all(i.dtype == "pred" and "cond/branch_1" in i.line for i in sums if not i.shape)  # of filters, where used
    assert collectives(compiled).keys() == {"all-reduce", "all-gather"}
    after, _ = decoding.one_round(given, state, verify=token_level, **static)
    for path, leaf in leaves(after).items():
        assert leaf.sharding.is_equivalent_to(before[path], leaf.ndim), path


@pytest.mark.slow
def test_a_batch_that_does_not_divide_is_refused():
    odd = alone("opt", 0.0)._replace(stop=jax.ShapeDtypeStruct((3,), jnp.int32))
    with pytest.raises(ValueError, match="data=2"):
        placement.state_shardings(odd, sharding.make_mesh(2, 4), opt.FAMILY.rules, draft=opt.FAMILY.rules)
