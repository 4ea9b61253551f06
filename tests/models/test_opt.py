"""OPT: published shapes, paths, and (with torch) parity with transformers, 350m's form included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import opt
from specjax.models.format import Format
from tests.models import small

PUBLISHED = {
    "125m": 125_239_296, "350m": 331_196_416, "1.3b": 1_315_758_080, "2.7b": 2_651_596_800, "6.7b": 6_658_473_984,
    "13b": 12_853_473_280, "30b": 29_974_540_288, "66b": 65_719_701_504,
}  # fmt: skip


def test_published_sizes_have_the_published_counts():
    small.check_counts(opt, PUBLISHED)


@pytest.mark.parametrize("name", ["125m", *(pytest.param(n, marks=pytest.mark.slow) for n in PUBLISHED if n != "125m")])
def test_whole_models_have_the_published_counts(name):
    assert small.count(opt, opt.sizes()[name]) == PUBLISHED[name]


@pytest.mark.parametrize("name", ["opt", "opt-350m"])
def test_paths_are_the_documented_ones(name):
    config = small.CONFIGS[name][1]
    params = jax.eval_shape(lambda key: opt.FAMILY.init(key, config, Format()), jax.random.key(0))
    paths = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    layer = {f"{norm}.{leaf}" for norm in ("attn_norm", "mlp_norm") for leaf in ("scale", "bias")}
    layer |= {f"attn.{n}.{leaf}" for n in "qkvo" for leaf in ("kernel", "bias")}
    layer |= {f"mlp.{n}.{leaf}" for n in ("up", "down") for leaf in ("kernel", "bias")}
    trunk = {"embed.tokens.table", "embed.positions.table"}
    trunk |= {"final_norm.scale", "final_norm.bias"} if config.pre_norm else {"project_in.kernel", "project_out.kernel"}
    assert paths == trunk | {f"layers.{index}.{leaf}" for index in range(2) for leaf in layer}


def test_rows_past_the_table_of_positions_do_no_harm():
    """A stopped row may lie at the table's end: it is clamped there, and its neighbors do not notice."""
    built = small.build("opt")
    ready = built.prefill(
        built.params, jnp.asarray(small.tokens(0, 2, 5)), jnp.asarray([5, 5], jnp.int32), cache_len=80
    )
    block, mask = jnp.asarray(small.tokens(1, 2, 2)), jnp.asarray([[True, False], [True, True]])
    depth = jnp.arange(2, dtype=jnp.int32)
    want, _ = built.extend(built.params, block, ready.cache, mask, depth)
    beyond = ready.cache._replace(length=jnp.asarray([4, 75], jnp.int32))
    got, _ = built.extend(built.params, block, beyond, mask, depth)
    assert np.isfinite(np.asarray(got.logits)).all()
    np.testing.assert_array_equal(got.logits[0], want.logits[0])


def hugging_face(config: opt.OPTConfig):
    """A transformers OPT of the same shape with every parameter drawn, and its weights in our layout."""
    import torch
    import transformers

    theirs = transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=config.vocab_size, hidden_size=config.width, word_embed_proj_dim=config.embed_width,
            num_hidden_layers=config.layers, num_attention_heads=config.heads, ffn_dim=config.mlp_width,
            max_position_embeddings=config.max_positions, do_layer_norm_before=config.pre_norm,
        )
    ).eval()  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.2 * noise + (1 if "norm.weight" in name else 0)
    weights = {name.removeprefix("model.decoder."): jnp.asarray(v.numpy()) for name, v in theirs.state_dict().items()}

    def linear(name: str) -> dict:
        return {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}

    def norm(name: str) -> dict:
        return {"scale": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}

    def layer(at: str) -> dict:
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
        return {
            "attn_norm": norm(f"{at}.self_attn_layer_norm"),
            "attn": {ours: linear(f"{at}.self_attn.{name}") for ours, name in names.items()},
            "mlp_norm": norm(f"{at}.final_layer_norm"),
            "mlp": {"up": linear(f"{at}.fc1"), "down": linear(f"{at}.fc2")},
        }

    params = {
        "embed": {
            "tokens": {"table": weights["embed_tokens.weight"]},
            "positions": {"table": weights["embed_positions.weight"]},
        },
        "layers": {str(index): layer(f"layers.{index}") for index in range(config.layers)},
    }
    if config.pre_norm:
        return theirs, {**params, "final_norm": norm("final_layer_norm")}
    projections = {name: {"kernel": weights[f"{name}.weight"].T} for name in ("project_in", "project_out")}
    return theirs, {**params, **projections}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["opt", "opt-350m"])
def test_parity_with_transformers(name):
    config = small.CONFIGS[name][1]
    theirs, params = hugging_face(config)
    abstract = jax.eval_shape(lambda key: opt.FAMILY.init(key, config, Format()), jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, abstract)
    laid = small.laid_out(params, small.FLOAT32)
    model = opt.FAMILY.language_model(config, small.FLOAT32, capture=tuple(range(config.layers + 1)))
    small.assert_parity(
        theirs,
        model,
        laid,
        vocab=config.vocab_size,
        logits=lambda t: opt.FAMILY.score(laid, config, small.FLOAT32, t),
        last=lambda f: np.asarray(f if config.pre_norm else f @ params["project_out"]["kernel"]),
    )


@pytest.mark.torch
def test_published_counts_equal_transformers_on_the_meta_device():
    import torch
    import transformers

    for name, config in opt.sizes().items():
        with torch.device("meta"):
            theirs = transformers.OPTForCausalLM(
                transformers.OPTConfig(
                    hidden_size=config.width, word_embed_proj_dim=config.embed_width, num_hidden_layers=config.layers,
                    num_attention_heads=config.heads, ffn_dim=config.mlp_width, do_layer_norm_before=config.pre_norm,
                )
            )  # fmt: skip
        assert theirs.num_parameters() == PUBLISHED[name], name
