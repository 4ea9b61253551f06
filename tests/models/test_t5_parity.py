"""T5 against transformers in torch, on tiny random models: layer first, then model, both directions."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_flatten_with_path

from specjax import trees
from specjax.models import t5, t5_config
from specjax.models.cache import KV
from specjax.models.format import default_format
from specjax.models.relative import bucket, plain_distance
from tests import battery

pytestmark = pytest.mark.torch

FMT = default_format("float32", platform="cpu")
SLOTS = 24
BOUND = 1e-4  # of the scale of what is compared
SMALL = t5.T5Config(
    vocab_size=67, width=24, head_width=5, heads=4, mlp_width=40, encoder_layers=2, decoder_layers=3, buckets=8,
    max_distance=10,
)  # fmt: skip
CONFIGS = {
    "relu-tied": SMALL,
    "gated-tied": dataclasses.replace(SMALL, gated=True, activation="gelu_new"),
    "gated-tied-unscaled": dataclasses.replace(SMALL, gated=True, activation="gelu_new", scaled=False),
    "relu-untied": dataclasses.replace(SMALL, tied=False),
    "gated-untied": dataclasses.replace(SMALL, gated=True, activation="gelu_new", tied=False),
}


def theirs(config, seed=0):
    """A random T5ForConditionalGeneration of this shape; position biases are drawn wide, so that they matter."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    hf = T5Config(
        vocab_size=config.vocab_size, d_model=config.width, d_kv=config.head_width, num_heads=config.heads,
        d_ff=config.mlp_width, num_layers=config.encoder_layers, num_decoder_layers=config.decoder_layers,
        relative_attention_num_buckets=config.buckets, relative_attention_max_distance=config.max_distance,
        feed_forward_proj="gated-gelu" if config.gated else "relu", tie_word_embeddings=config.scales_head,
        dropout_rate=0.0, layer_norm_epsilon=config.eps, decoder_start_token_id=config.start_token,
    )  # fmt: skip
    model = T5ForConditionalGeneration(hf).eval()
    if not config.tied:  # transformers ties a freshly built head; of its configuration it reads whether that is scaled
        model.lm_head.weight = torch.nn.Parameter(torch.randn(config.vocab_size, config.width) * config.width**-0.5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "relative" in name:
                value.normal_(0, 2.0)
            if "norm" in name:
                value.uniform_(0.5, 1.5)
    return model


def name_of(path: str, config) -> str:
    """transformers' name of a parameter of ours."""
    parts = path.split(".")
    if parts[0] == "embed":
        return "shared.weight"
    if parts[0] == "head":
        return "lm_head.weight"
    stack = parts[0]
    if parts[1] == "relative_bias":
        return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    if parts[1] == "final_norm":
        return f"{stack}.final_layer_norm.weight"
    index, module = parts[2], parts[3]
    mlp = 2 if stack == "decoder" else 1
    number = {"attn": 0, "cross": 1, "mlp": mlp}[module.removesuffix("_norm")]
    base = f"{stack}.block.{index}.layer.{number}"
    if module.endswith("_norm"):
        return f"{base}.layer_norm.weight"
    if module == "mlp":
        inner = {"up": "wi_1" if config.gated else "wi", "gate": "wi_0", "down": "wo"}[parts[4]]
        return f"{base}.DenseReluDense.{inner}.weight"
    return f"{base}.{'EncDecAttention' if module == 'cross' else 'SelfAttention'}.{parts[4]}.weight"


def from_torch(model, config):
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    used = set()

    def read(path, leaf):
        path = ".".join(str(k.key) for k in path)
        used.add(name_of(path, config))
        value = state[name_of(path, config)]
        value = value.T if path.endswith("kernel") and not FMT.products.out_in else value
        assert value.shape == leaf.shape, path
        return jnp.asarray(value)

    params = jax.tree.map_with_path(read, t5.FAMILY.abstract(config, FMT))
    shared = {
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        *(["lm_head.weight"] if config.tied else []),
    }
    assert set(state) - used == shared
    return params


@functools.cache
def built(config):
    """One model of theirs, our parameters, and our compiled functions."""
    model = theirs(config)
    lm = t5.FAMILY.language_model(config, FMT, capture=tuple(range(config.decoder_layers)))
    return model, from_torch(model, config), jax.jit(lm.prefill, static_argnums=3), jax.jit(lm.extend), jax.jit(lm.keep)


def to_torch(params, model, config):
    """Fills `model` in place with our parameters."""
    import torch

    state = model.state_dict()
    for path, leaf in tree_flatten_with_path(params)[0]:
        path = ".".join(str(k.key) for k in path)
        value = np.array(leaf.T if path.endswith("kernel") and not FMT.products.out_in else leaf)
        state[name_of(path, config)] = torch.from_numpy(value)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        state[name] = state["shared.weight"]
    if config.tied:
        state["lm_head.weight"] = state["shared.weight"]
    model.load_state_dict(state)


def close(ours, other):
    ours, other = np.asarray(ours), other.detach().numpy()
    assert ours.shape == other.shape
    assert np.abs(ours - other).max() <= BOUND * np.abs(other).max()


def inputs(config, rows=3, width=14, steps=13):
    import torch

    rng = np.random.default_rng(0)
    tokens = rng.integers(1, config.vocab_size, (rows, width)).astype(np.int32)
    length = np.asarray([width, 5, 2], np.int32)
    decoder = rng.integers(1, config.vocab_size, (rows, steps)).astype(np.int32)
    mask = torch.from_numpy((np.arange(width)[None] < length[:, None]).astype(np.int64))
    return tokens, length, decoder, mask


def whole(model, tokens, mask, decoder, **options):
    import torch

    with torch.no_grad():
        return model(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=mask,
            decoder_input_ids=torch.from_numpy(decoder).long(),
            **options,
        )


@pytest.fixture(params=battery.others_slow(CONFIGS, ["gated-tied-unscaled"]))
def config(request):
    return CONFIGS[request.param]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("shape", [(32, 128), (8, 10), (64, 1000)])
def test_buckets(shape, bidirectional):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    count, last = shape
    distance = np.arange(-4000, 4001)
    other = T5Attention._relative_position_bucket(torch.from_numpy(distance), bidirectional, count, last)
    ours = bucket(distance, count=count, max_distance=last, bidirectional=bidirectional)
    np.testing.assert_array_equal(ours, other.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_attention_and_mlp_layers(config, stack):
    import torch

    model, params, *_ = built(config)
    ours = getattr(t5.FAMILY.module(params, config, FMT), stack)
    block = ours.layers["0"]
    x = np.random.default_rng(2).normal(size=(2, 13, config.width)).astype(np.float32)

    layer = getattr(model, stack).block[0].layer
    seen = np.tril(np.ones((13, 13), bool)) if stack == "decoder" else np.ones((13, 13), bool)
    mask = torch.where(torch.from_numpy(seen), 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        other = layer[0].SelfAttention(torch.from_numpy(x), mask=mask)[0]
        dense = layer[-1].DenseReluDense(torch.from_numpy(x))
    bias = ours.bias(plain_distance(13, 13))
    kv = KV(*(a.transpose(0, 2, 1, 3) for a in block.attn.keys_values(jnp.asarray(x))))
    close(block.attn(jnp.asarray(x), kv, jnp.broadcast_to(jnp.asarray(seen), (2, 13, 13)), bias), other)
    close(block.mlp(jnp.asarray(x)), dense)


def test_logits_and_hidden_states_both_directions(config):
    tokens, length, decoder, mask = inputs(config)
    model, params, prefill, extend, _ = built(config)
    out = whole(model, tokens, mask, decoder, output_hidden_states=True)

    @jax.jit
    def read(params, tokens, length, decoder):
        module = t5.FAMILY.module(params, config, FMT)
        return module.encode(tokens, length), module(tokens, decoder, encoder_length=length)

    encoded, logits = read(params, tokens, length, decoder)
    below = mask.bool()[..., None]
    close(np.where(below.numpy(), encoded, 0), out.encoder_last_hidden_state * below)
    close(logits, out.logits)

    tree = trees.chain(decoder.shape[1] - 1)
    ours, _ = extend(params, decoder, prefill(params, tokens, length, SLOTS).cache, tree.mask, tree.depth)
    for hidden, other in zip((*ours.hiddens, ours.features), out.decoder_hidden_states, strict=True):
        close(hidden, other)

    again = theirs(config, seed=1)
    assert (whole(again, tokens, mask, decoder).logits - out.logits).abs().max() > 0.01  # another model before
    to_torch(params, again, config)
    np.testing.assert_array_equal(whole(again, tokens, mask, decoder).logits.numpy(), out.logits.numpy())


def test_cached_steps(config):
    """Ours one token at a time against theirs with its own cache."""
    import torch

    tokens, length, decoder, mask = inputs(config)
    model, params, prefill, extend, keep = built(config)
    cache, one = prefill(params, tokens, length, SLOTS).cache, trees.chain(0)
    encoded = model.encoder(input_ids=torch.from_numpy(tokens).long(), attention_mask=mask)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # until 5.23
    past = None
    for step in range(decoder.shape[1]):
        token = decoder[:, step : step + 1]
        with torch.no_grad():
            out = model(
                encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=torch.from_numpy(token).long(),
                use_cache=True, **{name: past},
            )  # fmt: skip
        past = out["past_key_values"]
        ours, cache = extend(params, token, cache, one.mask, one.depth)
        cache = keep(cache, None, np.ones_like(length))
        close(ours.logits, out.logits)


def test_tree_block(config):
    """A tree below a ragged prefix against transformers run on each node's own path."""
    tokens, length, decoder, mask = inputs(config)
    model, params, prefill, extend, keep = built(config)
    first = trees.chain(decoder.shape[1] - 1)
    before = np.asarray([12, 3, 7], np.int32)
    _, cache = extend(params, decoder, prefill(params, tokens, length, SLOTS).cache, first.mask, first.depth)
    cache = keep(cache, None, before)
    tree = trees.from_paths([(0, 0), (0, 1), (1, 0, 0)])
    block = np.random.default_rng(8).integers(1, config.vocab_size, (3, tree.size)).astype(np.int32)
    ours, _ = extend(params, block, cache, tree.mask, tree.depth)
    rows, nodes = np.repeat(np.arange(3), tree.size), np.tile(np.arange(tree.size), 3)
    paths = [
        np.concatenate([decoder[row, : before[row]], block[row, tree.paths[node, : tree.depth[node] + 1]]])
        for row, node in zip(rows, nodes, strict=True)
    ]
    last = np.asarray([len(path) - 1 for path in paths])
    padded = np.stack([np.pad(path, (0, last.max() + 1 - len(path))) for path in paths])  # causal: padding is not read
    out, logits = whole(model, tokens[rows], mask[rows], padded), np.asarray(ours.logits)
    for index, (row, node) in enumerate(zip(rows, nodes, strict=True)):
        close(logits[row, node], out.logits[index, last[index]])


def test_parameter_counts_of_published_shapes():
    import torch
    from transformers import T5ForConditionalGeneration

    for name, config in t5_config.sizes().items():
        with torch.device("meta"):
            model = theirs_on_meta(T5ForConditionalGeneration, config)
        total = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
        if not config.tied and model.lm_head.weight is model.shared.weight:
            total += config.vocab_size * config.width
        short = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
        tree = jax.eval_shape(lambda short=short: t5.FAMILY.init(jax.random.key(0), short, FMT))
        ours = sum(leaf.size for leaf in jax.tree.leaves(tree))
        for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            ours += (count - 1) * sum(leaf.size for leaf in jax.tree.leaves(tree[stack]["layers"]["0"]))
        assert ours == total, name


def theirs_on_meta(cls, config):
    from transformers import T5Config

    return cls(
        T5Config(
            vocab_size=config.vocab_size, d_model=config.width, d_kv=config.head_width, num_heads=config.heads,
            d_ff=config.mlp_width, num_layers=config.encoder_layers, num_decoder_layers=config.decoder_layers,
            feed_forward_proj="gated-gelu" if config.gated else "relu", tie_word_embeddings=config.scales_head,
        )
    )  # fmt: skip
