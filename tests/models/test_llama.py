"""Llama family: rotary positions and their scalings, published shapes, and (with torch) parity with transformers."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import llama, rope
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from tests import battery
from tests.models import small

PUBLISHED = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-30b": 32_528_943_616, "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "vicuna-7b": 6_738_415_616, "vicuna-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
}  # fmt: skip

ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 24,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, mscale": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
    },
}  # fmt: skip
TINY = {
    "model_type": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
VARIANTS = {
    **{f"rope {name}": {"rope_parameters": {"rope_theta": 10000.0, **given}} for name, given in ROPES.items()},
    "one key-value head each, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "one key-value head for all, theta": {
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 16},
    "gelu": {"hidden_act": "gelu"},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
}  # fmt: skip


@pytest.mark.slow
def test_published_sizes_have_the_published_counts():
    small.check_counts(llama, PUBLISHED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_whole_models_have_the_published_counts(name):
    assert small.count(llama, llama.sizes()[name]) == PUBLISHED[name]


@pytest.mark.parametrize("name", ["llama-3.2-1b", pytest.param("qwen2.5-0.5b", marks=pytest.mark.slow)])
def test_a_full_size_block_runs_abstractly(name):
    config, fmt = llama.sizes()[name], Format(dtype="bfloat16", stacked=True, cache_dtype="bfloat16")
    model = llama.FAMILY.language_model(config, fmt)
    params = jax.eval_shape(lambda key: llama.FAMILY.init(key, config, fmt), jax.random.key(0))
    ids, lengths = jax.ShapeDtypeStruct((2, 16), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    ready = jax.eval_shape(lambda p, t, n: model.prefill(p, t, n, 64), params, ids, lengths)
    assert ready.cache.layers.k.shape == (config.layers, 2, config.kv_heads, 64, config.head_width)
    block = jax.ShapeDtypeStruct((2, 4), jnp.int32)
    out, _ = jax.eval_shape(
        lambda p, t, c: model.extend(p, t, c, jnp.tril(jnp.ones((4, 4), bool)), jnp.arange(4)),
        params,
        block,
        ready.cache,
    )
    assert out.logits.shape == (2, 4, config.vocab_size) and out.logits.dtype == jnp.float32


def test_paths_are_the_documented_ones():
    params = jax.eval_shape(
        lambda key: llama.FAMILY.init(key, small.CONFIGS["llama-tied"][1], Format()), jax.random.key(0)
    )
    paths = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    layer = {"attn_norm.scale", "mlp_norm.scale"}
    layer |= {f"attn.{n}.{leaf}" for n in "qkvo" for leaf in ("kernel", "bias")}
    layer |= {f"mlp.{n}.{leaf}" for n in ("gate", "up", "down") for leaf in ("kernel", "bias")}
    assert paths == {"embed.tokens.table", "final_norm.scale"} | {f"layers.{i}.{leaf}" for i in "01" for leaf in layer}
    for fmt, shape in ((Format(), (32, 71)), (Format(products=CPUProducts()), (71, 32))):
        untied = jax.eval_shape(
            lambda key, f=fmt: llama.FAMILY.init(key, small.CONFIGS["llama"][1], f), jax.random.key(0)
        )
        assert untied["head"]["kernel"].shape == shape


def test_rotation_turns_halves_and_depends_on_distance_alone():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def product(at: int, to: int) -> float:
        turns = (
            rope.rotation(jnp.asarray([[p]], jnp.int32), theta=100.0, width=8, scaling=rope.UNSCALED) for p in (at, to)
        )
        return float((rope.rotate(q, next(turns)) * rope.rotate(k, next(turns))).sum())

    assert product(5, 2) == pytest.approx(product(105, 102), abs=1e-4)
    assert abs(product(5, 2) - product(5, 3)) > 1e-2
    one = rope.rotate(
        jnp.asarray([1.0, 0, 0, 0], jnp.float32)[None, None, None],
        rope.rotation(jnp.asarray([[1]], jnp.int32), theta=100.0, width=4, scaling=rope.UNSCALED),
    )
    np.testing.assert_allclose(one[0, 0, 0], [math.cos(1), 0, math.sin(1), 0], atol=1e-6)


def test_angles_stay_right_at_far_positions():
    far = jnp.asarray([[0, 4095, 131071, 1_000_000]], jnp.int32)
    turn = jax.jit(lambda p: rope.rotation(p, theta=5e5, width=64, scaling=rope.UNSCALED))(far)
    angles = (np.asarray(far, np.float32)[..., None] * rope.base_frequencies(5e5, 64)).astype(np.float64)
    np.testing.assert_allclose(turn.cos, np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(turn.sin, np.sin(angles), atol=2e-6)


def test_dynamic_scaling_is_fixed_at_its_static_length():
    plain = rope.base_frequencies(10000.0, 8)
    np.testing.assert_array_equal(rope.DynamicScaling(2.0, trained=64).frequencies(10000.0, 8), plain)
    np.testing.assert_array_equal(rope.DynamicScaling(2.0, trained=64, length=40).frequencies(10000.0, 8), plain)
    longer = rope.DynamicScaling(2.0, trained=64, length=128).frequencies(10000.0, 8)
    np.testing.assert_allclose(longer, rope.base_frequencies(10000.0 * 3 ** (8 / 6), 8), rtol=1e-6)


def test_scalings_are_hashable_and_differ():
    records = [rope.read_scaling(given, 64) for given in ROPES.values()]
    assert len(set(records)) == len(records)
    drawn = {(record.frequencies(10000.0, 64).tobytes(), record.magnitude) for record in records}
    assert len(drawn) == len(records) - 1  # dynamic is unscaled up to the trained length
    assert [rope.read_scaling(record.published, 64) for record in records] == records  # as it is written back


def test_a_config_is_read_from_both_layouts_of_config_json():
    newer = llama.from_published({**TINY, "rope_parameters": {"rope_theta": 5e5, **ROPES["llama3"]}})
    older = llama.from_published({**TINY, "rope_theta": 5e5, "rope_scaling": {**ROPES["llama3"], "type": "llama3"}})
    assert newer == older and newer.rope_theta == 5e5 and newer.rope_scaling == rope.Llama3Scaling(8.0, 1.0, 4.0, 24)
    assert newer.head_width == 8 and not newer.tied and newer.eps == 1e-5
    assert llama.from_published({**TINY, "rope_scaling": None}).rope_scaling == rope.UNSCALED


@pytest.mark.parametrize("name", sorted(llama.sizes()))
def test_a_config_json_describes_every_published_shape(name):
    config = llama.sizes()[name]
    assert llama.from_published(llama.to_published(config)) == config


def test_shapes_of_no_model_type_have_no_config_json():
    with pytest.raises(ValueError, match="published"):
        llama.to_published(dataclasses.replace(llama.LlamaConfig(), qk_norm=True))


def test_the_trained_length_may_be_outside_the_scaling():
    """It comes before one within, as in transformers; without either it is that of the model."""
    for name, kind in (("yarn", rope.YarnScaling), ("llama3", rope.Llama3Scaling)):
        scaling = {entry: value for entry, value in ROPES[name].items() if not entry.startswith("original")}
        for layout in ("rope_scaling", "rope_parameters"):
            for within, beside, trained in ((None, 16, 16), (32, 16, 16), (32, None, 32), (None, None, 64)):
                inner = {**scaling, "original_max_position_embeddings": within}
                given = {**TINY, layout: inner, "original_max_position_embeddings": beside}
                found = llama.from_published(given).rope_scaling
                assert isinstance(found, kind) and found.trained == trained
    with pytest.raises(ValueError, match="original_max_position_embeddings"):
        llama.from_published({**TINY, "rope_scaling": ROPES["yarn"], "original_max_position_embeddings": "16"})


@pytest.mark.parametrize("entry", ["beta_fast", "beta_slow", "mscale", "mscale_all_dim"])
@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_zero_of_yarn_is_as_if_absent(entry, zero):
    given = {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, **ROPES["yarn"]}
    without = {name: value for name, value in given.items() if name != entry}
    assert rope.read_scaling({**given, entry: zero}, 64) == rope.read_scaling(without, 64)
    with pytest.raises(ValueError, match=entry):
        rope.read_scaling({**given, entry: -1}, 64)


def test_the_older_layout_comes_before_the_newer_one():
    both = {"rope_parameters": {"rope_theta": 777.0, **ROPES["llama3"]}, "rope_scaling": ROPES["linear"]}
    config = llama.from_published({**TINY, **both})
    assert config.rope_scaling == rope.LinearScaling(2.5) and config.rope_theta == 10000.0
    assert llama.from_published({**TINY, **both, "rope_scaling": {}}).rope_theta == 777.0


SLIDING = [
    {"model_type": "mistral", "sliding_window": 4096},
    {"model_type": "mistral"},  # its published default is a window
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
]
FULL = [
    {"model_type": "llama", "sliding_window": 4},  # which it does not know
    {"model_type": "mistral", "sliding_window": None},
    {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
    {"model_type": "qwen2", "layer_types": ["full_attention", "full_attention"]},
]


@pytest.mark.parametrize("given", SLIDING)
def test_sliding_windows_are_refused(given):
    with pytest.raises(ValueError, match="sliding window"):
        llama.from_published({**TINY, **given})


@pytest.mark.parametrize("given", FULL)
def test_full_attention_is_accepted(given):
    assert llama.from_published({**TINY, **given}).layers == 2


@pytest.mark.parametrize(
    "given, message",
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "key-value heads"),
        ({"hidden_act": "tanhshrink"}, "tanhshrink"),
        ({"head_dim": 7}, "head_width"),
    ],
)
def test_bad_configurations_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        llama.from_published({**TINY, **given})


def hugging_face(given: dict):
    """A transformers model of a variant with every parameter drawn, its config, and its weights in our layout."""
    import torch
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }
    described = {**TINY, **given}
    make_config, make_model = classes[described.pop("model_type")]
    theirs = make_model(make_config(**described)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.2 * noise if parameter.ndim == 2 else 1 + 0.2 * noise
    config = llama.from_published(theirs.config.to_dict())
    weights = {name: jnp.asarray(value.numpy()) for name, value in theirs.state_dict().items()}
    return theirs, config, in_our_layout(weights, config)


def in_our_layout(weights: dict, config: llama.LlamaConfig) -> dict:
    def linear(name: str) -> dict:
        bias = weights.get(f"{name}.bias")
        return {"kernel": weights[f"{name}.weight"].T} | ({} if bias is None else {"bias": bias})

    def layer(at: str) -> dict:
        return {
            "attn_norm": {"scale": weights[f"{at}.input_layernorm.weight"]},
            "attn": {n: linear(f"{at}.self_attn.{n}_proj") for n in "qkvo"},
            "mlp_norm": {"scale": weights[f"{at}.post_attention_layernorm.weight"]},
            "mlp": {n: linear(f"{at}.mlp.{n}_proj") for n in ("gate", "up", "down")},
        }

    params = {
        "embed": {"tokens": {"table": weights["model.embed_tokens.weight"]}},
        "layers": {str(i): layer(f"model.layers.{i}") for i in range(config.layers)},
        "final_norm": {"scale": weights["model.norm.weight"]},
    }
    return params if config.tied else {**params, "head": linear("lm_head")}


@pytest.mark.torch
@pytest.mark.parametrize(
    "variant",
    battery.others_slow(VARIANTS, ["rope llama3", "qwen2"]),
)
def test_parity_with_transformers(variant):
    theirs, config, params = hugging_face(VARIANTS[variant])
    model = llama.FAMILY.language_model(config, small.FLOAT32, capture=tuple(range(config.layers + 1)))
    abstract = jax.eval_shape(lambda key: llama.FAMILY.init(key, config, Format()), jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, abstract)
    laid = small.laid_out(params, small.FLOAT32)
    small.assert_parity(
        theirs, model, laid, vocab=97, logits=lambda t: llama.FAMILY.score(laid, config, small.FLOAT32, t)
    )


@pytest.mark.torch
@pytest.mark.parametrize("kind", ROPES)
def test_frequencies_equal_transformers(kind):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = {**TINY, "head_dim": 64, "rope_parameters": {"rope_theta": 5e5, **ROPES[kind]}}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**{k: v for k, v in given.items() if k != "model_type"}))
    ours = llama.from_published(given)
    np.testing.assert_allclose(ours.rope_scaling.frequencies(5e5, 64), theirs.inv_freq.numpy(), rtol=5e-7)
    assert ours.rope_scaling.magnitude == pytest.approx(theirs.attention_scaling, rel=1e-12)


BESIDE = {
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 16},
    "yarn, two lengths": {"rope_scaling": ROPES["yarn"], "original_max_position_embeddings": 32},
    "llama3": {
        "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 16,
    },
    "yarn, zeros": {
        "rope_scaling": {**ROPES["yarn"], "mscale": 1.0, "mscale_all_dim": 0.0, "beta_fast": 0, "beta_slow": 0},
    },
    "linear": {"rope_scaling": ROPES["linear"], "original_max_position_embeddings": 16},
    "a window": {"sliding_window": 4},
    "both layouts": {"rope_parameters": {"rope_theta": 777.0, **ROPES["llama3"]}, "rope_scaling": ROPES["linear"]},
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("layout", battery.others_slow(BESIDE, ["yarn", "llama3", "a window", "both layouts"]))
def test_logits_equal_transformers_in_older_layouts(layout, tmp_path):
    """Both read the same config.json, from the file."""
    import torch
    import transformers

    import specjax as sj

    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{k: v for k, v in TINY.items() if k != "model_type"})
    )
    for parameter in made.parameters():
        parameter.data.normal_(0 if parameter.ndim == 2 else 1, 0.2)
    made.save_pretrained(tmp_path)
    entries = json.loads((tmp_path / "config.json").read_text())
    del entries["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(entries | BESIDE[layout]))
    ids = np.random.default_rng(0).integers(0, TINY["vocab_size"], (2, 48))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        want = theirs(torch.tensor(ids)).logits.numpy()
    small.assert_close(sj.load(tmp_path).score(ids), want, 1e-4)


@pytest.mark.slow
@pytest.mark.torch
def test_published_counts_equal_transformers_on_the_meta_device():
    import torch
    import transformers

    for name, config in llama.sizes().items():
        qwen = name.startswith("qwen")
        make = transformers.Qwen2Config if qwen else transformers.LlamaConfig
        build = transformers.Qwen2ForCausalLM if qwen else transformers.LlamaForCausalLM
        with torch.device("meta"):
            theirs = build(
                make(
                    vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.layers,
                    num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
                    intermediate_size=config.mlp_width, tie_word_embeddings=config.tied,
                )
            )  # fmt: skip
        assert theirs.num_parameters() == PUBLISHED[name], name
