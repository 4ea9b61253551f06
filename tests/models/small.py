"""Tiny decoders whose every parameter matters, in every layout: what the tests of models/ share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.base import LanguageModel
from specjax.models import llama, opt
from specjax.models.format import Format, default_format
from specjax.models.rope import Llama3Scaling
from specjax.types import Params

FLOAT32 = default_format("float32", platform="cpu")
CONFIGS: dict[str, tuple[Any, Any]] = {
    "opt": (
        opt.FAMILY,
        opt.OPTConfig(
            vocab_size=71, width=32, embed_width=32, layers=2, heads=4, mlp_width=48, max_positions=64,
        ),
    ),
    "opt-350m": (
        opt.FAMILY,
        opt.OPTConfig(
            vocab_size=71, width=32, embed_width=16, layers=2, heads=4, mlp_width=48, max_positions=64, pre_norm=False
        ),
    ),
    "llama": (
        llama.FAMILY,
        llama.LlamaConfig(
            vocab_size=71, width=32, layers=2, heads=4, kv_heads=2, head_width=8, mlp_width=48, max_positions=64,
            rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 16),
        ),
    ),
    "llama-tied": (
        llama.FAMILY,
        llama.LlamaConfig(
            vocab_size=71, width=24, layers=2, heads=2, kv_heads=2, head_width=16, mlp_width=40, max_positions=64,
            tied=True, qkv_bias=True, o_bias=True, mlp_bias=True,
        ),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Small:
    """A built model: its parameters, its pure functions, and its cacheless scores."""

    params: Params
    model: LanguageModel
    score: Callable
    config: Any
    fmt: Format

    @property
    def prefill(self) -> Callable:
        return _jitted(self.model.prefill, "cache_len")

    @property
    def extend(self) -> Callable:
        return _jitted(self.model.extend, "offset")

    @property
    def keep(self) -> Callable:
        return _jitted(self.model.keep)


@functools.cache
def _jitted(f: Callable, *static: str) -> Callable:
    return jax.jit(f, static_argnames=static)


@functools.cache
def parameters(name: str) -> Params:
    """Separate float32 layers, kernels (in, out), drawn so that no bias is 0, no scale 1 and the logits spread."""
    module, config = CONFIGS[name]
    initial = module.init(jax.random.key(1), config, Format())
    return noisy(initial, 2, lambda leaf: 0.25 if leaf.ndim == 2 else 0.3)


def noisy(params: Params, seed: int, scale: Callable[[np.ndarray], float]) -> Params:
    """Adds to each array normal noise of this scale. Sums are numpy's: JAX would compile one for each shape."""
    leaves, structure = jax.tree.flatten(jax.device_get(params))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    added = [
        leaf + leaf.dtype.type(scale(leaf)) * np.asarray(jax.random.normal(key, leaf.shape, leaf.dtype))
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.map(jnp.asarray, jax.tree.unflatten(structure, added))


def laid_out(params: Params, fmt: Format) -> Params:
    """The same weights as `fmt` wants them in memory."""

    def lay(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name.endswith("kernel"):
            kernel = (leaf.T if fmt.products.out_in else leaf).astype(fmt.dtype)
            count = fmt.products.parts(leaf.shape[0])
            return kernel if count == 1 else {str(i): part for i, part in enumerate(np.split(kernel, count, axis=1))}
        return leaf.astype(fmt.dtype) if name == "embed.tokens.table" else leaf

    params = jax.tree_util.tree_map_with_path(lay, jax.device_get(params))
    if fmt.stacked:
        layers = params["layers"]
        order = [layers[str(index)] for index in range(len(layers))]
        params = {**params, "layers": jax.tree.map(lambda *leaves: np.stack(leaves), *order)}
    return jax.tree.map(jnp.asarray, params)


@functools.cache
def build(name: str, fmt: Format = FLOAT32, capture: tuple[int, ...] = ()) -> Small:
    module, config = CONFIGS[name]
    params = laid_out(parameters(name), fmt)
    model = module.language_model(config, fmt, capture=capture)
    score = jax.jit(lambda params, tokens: module.score(params, config, fmt, tokens))
    return Small(params, model, score, config, fmt)


def tokens(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 71, shape).astype(np.int32)


def padded(rows: list[list[int]], width: int) -> np.ndarray:
    """Left-aligned rows, the rest filled with an id that would be noticed if it were read."""
    out = np.full((len(rows), width), 70, np.int32)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out


def assert_close(got, want, bound: float = 2e-5) -> None:
    """Maximal difference within `bound` of the scale of `want`."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    assert got.shape == want.shape
    difference, scale = np.abs(got - want).max(), np.abs(want).max()
    assert difference <= bound * scale, (
        f"differs by {difference:.3g} on a scale of {scale:.3g}: {difference / scale:.3g}"
    )


def assert_parity(
    theirs, model: LanguageModel, params: Params, *, vocab: int, logits: Callable, last: Callable = np.asarray
) -> None:
    """Equal to a transformers model on a ragged, right-padded batch: layer after layer, then the logits, then read as a
    prompt, as a block and one token at a time through the cache. `model` captures the stream into every layer;
    `last` turns our features into their last hidden state."""
    import torch

    rng = np.random.default_rng(0)
    lengths, width = [11, 30, 1, 19], 30
    ids = rng.integers(3, vocab, (len(lengths), width)).astype(np.int32)
    real = np.arange(width)[None] < np.asarray(lengths)[:, None]
    with torch.no_grad():
        want = theirs(
            torch.tensor(ids, dtype=torch.long), attention_mask=torch.tensor(real, dtype=torch.long),
            output_hidden_states=True, use_cache=False,
        )  # fmt: skip
    expected = want.logits.numpy()
    ready = jax.jit(model.prefill, static_argnums=3)(params, jnp.asarray(ids), jnp.ones((4,), jnp.int32), 40)
    extend, keep = jax.jit(model.extend), jax.jit(model.keep)
    chain = jnp.tril(jnp.ones((width, width), bool)), jnp.arange(width, dtype=jnp.int32)
    out, _ = extend(params, jnp.asarray(ids), ready.cache, *chain)  # the whole text as one block over an empty cache
    for index, (stream, hidden) in enumerate(zip(out.hiddens[:-1], want.hidden_states[:-1], strict=True)):
        assert_close(np.asarray(stream)[real], hidden.numpy()[real], 1e-4), index
    assert_close(last(out.features)[real], want.hidden_states[-1].numpy()[real], 1e-4)
    assert_close(np.asarray(out.logits)[real], expected[real], 1e-4)
    assert_close(np.asarray(logits(jnp.asarray(ids)))[real], expected[real], 1e-4)

    prompts = np.asarray([4, 17, 1, 8], np.int32)
    ready = jax.jit(model.prefill, static_argnums=3)(params, jnp.asarray(ids), jnp.asarray(prompts), 40)
    inside = np.arange(width)[None] < prompts[:, None]
    assert_close(last(ready.features)[inside], want.hidden_states[-1].numpy()[inside], 1e-4)
    cache, one = ready.cache, (jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32))
    for _ in range(8):
        at = np.asarray(cache.length)
        block = np.take_along_axis(ids, np.minimum(at, width - 1)[:, None], 1)
        out, cache = extend(params, jnp.asarray(block), cache, *one)
        alive = at < np.asarray(lengths)
        assert_close(np.asarray(out.logits)[alive, 0], expected[alive, at[alive]], 1e-4)
        cache = keep(cache, None, jnp.asarray(alive, jnp.int32))


def count(model: Any, config: Any) -> int:
    """Parameters of a model of any size; nothing is allocated."""
    params = jax.eval_shape(lambda key: model.FAMILY.init(key, config, Format(dtype="bfloat16")), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def check_counts(model: Any, published: dict[str, int]) -> None:
    """Every published shape has its published number of parameters. Layers are equal, so that two short models tell
    what each layer adds."""
    shapes = model.sizes()
    assert shapes.keys() == published.keys()
    for name, config in shapes.items():
        one, two = (count(model, dataclasses.replace(config, layers=n)) for n in (1, 2))
        assert one + (config.layers - 1) * (two - one) == published[name], name
