"""Golden checkpoints through the whole path, from file to logits, against what transformers said of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.convert import load_params, locate, table_for
from specjax.models import llama, opt, t5
from specjax.models.format import Format
from tests.convert.writers import GGUF_NAMES, GOLDEN, NAMES, WRITERS, write_gguf

TOLERANCE = 1e-4  # of the largest logit
FORMATS = {"separate": Format(), "stacked": Format(stacked=True), "(out, in)": Format(out_in=True)}


def opt_config(published: dict) -> opt.OPTConfig:
    return opt.OPTConfig(
        vocab_size=published["vocab_size"],
        width=published["hidden_size"],
        embed_width=published["word_embed_proj_dim"],
        layers=published["num_hidden_layers"],
        heads=published["num_attention_heads"],
        mlp_width=published["ffn_dim"],
        max_positions=published["max_position_embeddings"],
        pre_norm=published["do_layer_norm_before"],
    )


def t5_config(published: dict) -> t5.T5Config:
    return t5.T5Config(
        vocab_size=published["vocab_size"],
        width=published["d_model"],
        head_width=published["d_kv"],
        heads=published["num_heads"],
        mlp_width=published["d_ff"],
        encoder_layers=published["num_layers"],
        decoder_layers=published["num_decoder_layers"],
        buckets=published["relative_attention_num_buckets"],
        max_distance=published["relative_attention_max_distance"],
        gated=published["feed_forward_proj"].startswith("gated"),
        activation=published["dense_act_fn"],
        tied=published["tie_word_embeddings"],
        eps=published["layer_norm_epsilon"],
    )


FAMILIES = {
    "opt": (opt, opt_config),
    "t5": (t5, t5_config),
    "llama": (llama, llama.from_published),
    "qwen2": (llama, llama.from_published),
}


def logits_of(path, golden, fmt: Format, change=lambda params: params) -> np.ndarray:
    """[rows, positions, V]: the logits of the checkpoint at `path` on the golden inputs."""
    with (found := locate(path)).source as source:
        family, configure = FAMILIES[found.config["model_type"]]
        config = configure(found.config)
        abstract = jax.eval_shape(lambda key: family.init(key, config, fmt), jax.random.key(0))
        params = change(load_params(source, table_for(found.config), abstract, fmt=fmt))
    if "decoder" in golden:
        lengths = jnp.asarray(golden["mask"].sum(1).astype(np.int32))
        return np.asarray(
            family.score(params, config, fmt, *map(jnp.asarray, (golden["tokens"], lengths, golden["decoder"])))
        )
    return np.asarray(family.score(params, config, fmt, jnp.asarray(golden["tokens"])))


def fault(logits: np.ndarray, golden) -> float:
    """The largest difference over real positions, relative to the largest logit."""
    real = np.ones(logits.shape[:2], bool) if "decoder" in golden else golden["mask"].astype(bool)
    return float(np.abs(logits - golden["logits"])[real].max() / np.abs(golden["logits"][real]).max())


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_golden_logits(name, fmt):
    golden = np.load(GOLDEN / name / "logits.npz")
    assert fault(logits_of(GOLDEN / name, golden, fmt), golden) <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_weights_are_near_and_float32_is_not_free(name):
    """The negative control: rounded weights leave the tolerance, so the goldens would show a wrong dtype."""
    golden = np.load(GOLDEN / name / "logits.npz")
    error = fault(logits_of(GOLDEN / name, golden, dataclasses.replace(FORMATS["(out, in)"], dtype="bfloat16")), golden)
    assert TOLERANCE < error < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_matters(name):
    """The other control: a small change of any one parameter shows, so none of them is ignored or read in vain."""
    golden = np.load(GOLDEN / name / "logits.npz")
    fmt = FORMATS["separate"]
    paths: list = []
    logits_of(GOLDEN / name, golden, fmt, change=lambda p: paths.extend(jax.tree_util.tree_leaves_with_path(p)) or p)
    for keys, _ in paths:

        def bump(params, keys=keys):
            return jax.tree_util.tree_map_with_path(lambda k, v: v * 1.5 if k == keys else v, params)

        error = fault(logits_of(GOLDEN / name, golden, fmt, change=bump), golden)
        key_bias = keys[-2:] == (jax.tree_util.DictKey("k"), jax.tree_util.DictKey("bias"))
        # a bias of the keys alone shifts every score of a query alike where positions do not rotate
        assert (error > TOLERANCE) != (key_bias and name.startswith("opt")), jax.tree_util.keystr(keys)


@pytest.mark.parametrize("writer", WRITERS)
def test_golden_logits_from_every_file_format(writer, rewrite):
    for name in ("opt-post-norm-projected", "t5-gated-untied", "llama-grouped-untied"):
        golden = np.load(GOLDEN / name / "logits.npz")
        assert fault(logits_of(rewrite(name, writer), golden, FORMATS["stacked"]), golden) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in GGUF_NAMES if "scaled" not in name])
def test_golden_logits_from_gguf(name, tmp_path):
    write_gguf(tmp_path / "model.gguf", name)
    golden = np.load(GOLDEN / name / "logits.npz")
    assert fault(logits_of(tmp_path / "model.gguf", golden, FORMATS["stacked"]), golden) <= TOLERANCE
