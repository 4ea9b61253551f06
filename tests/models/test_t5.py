"""T5 against itself: cached, ragged, tree-shaped and padded runs give the logits of one plain pass."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import keystr, tree_flatten_with_path

from specjax import decoding, sampling, stopping, trees
from specjax.drafters.chain import chain
from specjax.drafters.writer import model_writer
from specjax.models import t5, t5_config
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from specjax.models.relative import block_distance, bucket
from specjax.verify.token import token_level

# Heads narrower than width / heads, unlike depths, and distances that reach the shared and the last bucket.
TIED = t5.T5Config(
    vocab_size=61, width=16, head_width=5, heads=3, mlp_width=24, encoder_layers=1, decoder_layers=2, buckets=8,
    max_distance=10,
)  # fmt: skip
GATED = dataclasses.replace(TIED, gated=True, activation="gelu_new", tied=False, start_token=3)
CONFIGS = {"relu-tied": TIED, "gated-untied": GATED}
FLOAT32 = Format()
SCANNED = Format(stacked=True)
SLOTS = 40
ULPS = 2e-5  # of the logits' scale: float32 sums in another order


@functools.cache
def weights(config: t5.T5Config, fmt: Format = FLOAT32):
    """Drawn parameters with position biases large enough that a wrong distance shows."""
    params = t5.FAMILY.init(jax.random.key(7), config, fmt)
    for stack in ("encoder", "decoder"):
        params[stack]["relative_bias"]["table"] *= 8.0
    return params


@functools.cache
def compiled(config: t5.T5Config, fmt: Format = FLOAT32):
    lm = t5.FAMILY.language_model(config, fmt)
    score = jax.jit(
        lambda params, prompt, length, tokens: t5.FAMILY.score(
            params, config, fmt, prompt, tokens, encoder_length=length
        )
    )
    return lm, jax.jit(lm.prefill, static_argnums=3), jax.jit(lm.extend, static_argnums=5), jax.jit(lm.keep), score


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def prompts(config, rows=3, width=9):
    rng = np.random.default_rng(1)
    tokens = jnp.asarray(rng.integers(0, config.vocab_size, (rows, width)), jnp.int32)
    return tokens, jnp.asarray([width, 4, 1][:rows], jnp.int32)


def assert_close(actual, expected, bound=ULPS):
    scale = np.abs(expected).max()
    assert np.abs(np.asarray(actual) - expected).max() <= bound * scale


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_a_scaled_head_reads_is_smaller_by_the_root_of_the_width(tied):
    scaled, unscaled = (dataclasses.replace(TIED, tied=tied, scaled=flag) for flag in (True, False))
    tokens, length = prompts(scaled)
    ours, other = (compiled(one)[-1](weights(one), tokens, length, tokens[:, :4]) for one in (scaled, unscaled))
    assert_close(ours * scaled.width**0.5, other)
    for one in (scaled, unscaled):
        read = t5.from_published(t5.to_published(one))
        assert read.scales_head == one.scaled and read == dataclasses.replace(one, scaled=read.scaled)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_scaled_as_it_is_tied_where_nothing_is_said(tied):
    assert dataclasses.replace(TIED, tied=tied).scales_head == tied


def test_buckets_are_those_of_exact_arithmetic():
    """Bucket k of m shared ones opens at the smallest n with n^m >= exact^(m-k) max^k, in integers."""
    for count, max_distance, bidirectional in ((32, 128, True), (32, 128, False), (8, 10, False), (64, 256, True)):
        side = count // 2 if bidirectional else count
        exact, shared = side // 2, side - side // 2

        def slow(n, exact=exact, shared=shared, top=max_distance):
            if n < exact:
                return n
            return exact + sum(n**shared >= exact ** (shared - k) * top**k for k in range(1, shared))

        n = np.arange(0, 3 * max_distance)
        expected = np.asarray([slow(int(i)) for i in n])
        options = {"count": count, "max_distance": max_distance, "bidirectional": bidirectional}
        np.testing.assert_array_equal(bucket(-n, **options), expected)
        ahead = expected + side * (n > 0) if bidirectional else 0 * n
        np.testing.assert_array_equal(bucket(n, **options), ahead)


@pytest.mark.parametrize("stacked", [False, True])
def test_parameter_paths(stacked):
    params = jax.eval_shape(lambda: t5.FAMILY.init(jax.random.key(0), GATED, Format(stacked=stacked)))
    paths = {".".join(str(k.key) for k in path): leaf.shape for path, leaf in tree_flatten_with_path(params)[0]}
    inner, width = 15, 16
    attention = {"q": (width, inner), "k": (width, inner), "v": (width, inner), "o": (inner, width)}
    expected = {"embed.tokens.table": (61, width), "head.kernel": (width, 61)}
    for stack, count, attentions in (("encoder", 1, ["attn"]), ("decoder", 2, ["attn", "cross"])):
        layer = {f"{name}_norm.scale": (width,) for name in (*attentions, "mlp")}
        layer |= {f"{name}.{p}.kernel": shape for name in attentions for p, shape in attention.items()}
        layer |= {"mlp.gate.kernel": (width, 24), "mlp.up.kernel": (width, 24), "mlp.down.kernel": (24, width)}
        expected |= {f"{stack}.relative_bias.table": (8, 3), f"{stack}.final_norm.scale": (width,)}
        for name, shape in layer.items():
            if stacked:
                expected[f"{stack}.layers.{name}"] = (count, *shape)
            else:
                expected |= {f"{stack}.layers.{i}.{name}": shape for i in range(count)}
    assert paths == expected


PARAMETERS = {
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096, "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344, "t5-v1_1-small": 76_961_152, "t5-v1_1-base": 247_577_856, "t5-v1_1-large": 783_150_080,
    "t5-v1_1-xl": 2_849_757_184, "t5-v1_1-xxl": 11_135_332_352,
}  # fmt: skip


def parameters(config) -> int:
    """Parameters of a shape, without drawing one: layers are alike, so one of each kind is traced and multiplied."""
    short = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
    tree = jax.eval_shape(lambda: t5.FAMILY.init(jax.random.key(0), short, Format("bfloat16")))
    total = sum(leaf.size for leaf in jax.tree.leaves(tree))
    for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        total += (count - 1) * sum(leaf.size for leaf in jax.tree.leaves(tree[stack]["layers"]["0"]))
    return total


def test_published_sizes_have_their_parameter_counts():
    sizes = t5_config.sizes()
    flan = {name.replace("t5-v1_1", "flan-t5") for name in PARAMETERS if "v1_1" in name}
    assert set(sizes) == set(PARAMETERS) | flan
    assert {name: parameters(sizes[name]) for name in PARAMETERS} == PARAMETERS
    for name in flan:
        assert sizes[name] == sizes[name.replace("flan-t5", "t5-v1_1")]


def test_a_full_size_tree_is_traced_whole():
    tree = jax.eval_shape(
        lambda: t5.FAMILY.init(jax.random.key(0), t5_config.sizes()["t5-small"], Format("bfloat16", stacked=True))
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(tree)) == PARAMETERS["t5-small"]
    assert tree["decoder"]["layers"]["cross"]["q"]["kernel"].shape == (6, 512, 512)


@pytest.mark.slow
def test_prefill_opens_every_row_with_the_start_token(config):
    _, prefill, *_ = compiled(config)
    read = prefill(weights(config), *prompts(config), SLOTS)
    assert read.pending.tolist() == [config.start_token] * 3
    assert read.cache.length.tolist() == [0, 0, 0]
    assert read.features.shape == (3, 1, config.width)


def ragged_schedule(config, fmt, steps=15):
    """Random chains and trees, of which each row keeps a random number: (row tokens, logits of each kept token)."""
    rng = np.random.default_rng(5)
    _, prefill, extend, keep, _ = compiled(config, fmt)
    params, (tokens, length) = weights(config, fmt), prompts(config)
    cache = prefill(params, tokens, length, SLOTS).cache
    kept, logits = [[] for _ in length], [[] for _ in length]
    for step in range(steps):
        tree = (trees.chain(2), trees.from_paths([(0, 1), (1, 0, 0), (0, 0)]), trees.chain(0))[step % 3]
        block = jnp.asarray(rng.integers(0, config.vocab_size, (len(kept), tree.size)), jnp.int32)
        out, cache = extend(params, block, cache, tree.mask, tree.depth)
        paths = tree.paths[rng.integers(0, tree.size, len(kept))]
        n = [int(rng.integers(0, len(set(path)) + 1)) for path in paths]
        if tree.is_chain:
            paths = np.tile(np.arange(tree.size), (len(kept), 1))
        cache = keep(cache, None if tree.is_chain else jnp.asarray(paths), jnp.asarray(n, jnp.int32))
        for row, (path, count) in enumerate(zip(paths, n, strict=True)):
            kept[row] += [int(block[row, node]) for node in path[:count]]
            logits[row] += [np.asarray(out.logits[row, node]) for node in path[:count]]
    assert cache.length.tolist() == [len(row) for row in kept]
    return kept, logits


def padded(rows):
    width = max(map(len, rows))
    return jnp.asarray([row + [0] * (width - len(row)) for row in rows], jnp.int32)


@pytest.mark.parametrize(
    ("config", "fmt"),
    [pytest.param(TIED, FLOAT32, marks=pytest.mark.slow), (GATED, SCANNED)],
    ids=["unrolled", "stacked"],
)
def test_ragged_schedule_of_chains_and_trees_equals_score(config, fmt):
    kept, logits = ragged_schedule(config, fmt)
    lengths = [len(row) for row in kept]
    assert len(set(lengths)) == 3 and max(lengths) > config.max_distance
    whole = compiled(config, fmt)[-1](weights(config, fmt), *prompts(config), padded(kept))
    for row, length in enumerate(lengths):
        assert_close(np.stack(logits[row]), np.asarray(whole[row, :length]))


def committed(config, lengths=(6, 0, 3)):
    """A cache whose rows hold different numbers of tokens, and those tokens."""
    _, prefill, extend, keep, _ = compiled(config)
    params = weights(config)
    block = jnp.asarray(np.random.default_rng(3).integers(0, config.vocab_size, (3, max(lengths))), jnp.int32)
    tree = trees.chain(max(lengths) - 1)
    _, cache = extend(params, block, prefill(params, *prompts(config), SLOTS).cache, tree.mask, tree.depth)
    cache = keep(cache, None, jnp.asarray(lengths, jnp.int32))
    return cache, [block[row, :n].tolist() for row, n in enumerate(lengths)]


TREE = trees.from_paths([(0, 0, 0), (0, 1), (1, 0), (1, 1, 0), (2,)])


def test_tree_block_equals_one_path_at_a_time():
    config = GATED
    cache, before = committed(config)
    _, _, extend, _, score = compiled(config)
    block = jnp.asarray(np.random.default_rng(4).integers(0, config.vocab_size, (3, TREE.size)), jnp.int32)
    out, _ = extend(weights(config), block, cache, TREE.mask, TREE.depth)
    for node in range(TREE.size):
        path = TREE.paths[node, : TREE.depth[node] + 1]
        rows = [row + [int(block[i, p]) for p in path] for i, row in enumerate(before)]
        # one shape for all nodes, so that score compiles once
        alone = score(weights(config), *prompts(config), jnp.pad(padded(rows), ((0, 0), (0, 12)))[:, :12])
        for i, row in enumerate(rows):
            assert_close(out.logits[i, node], np.asarray(alone[i, len(row) - 1]))


@pytest.mark.slow
@pytest.mark.parametrize(("config", "batched"), [(TIED, False), (GATED, True)], ids=["mask [S,N]", "mask [B,S,N]"])
def test_tree_grown_level_by_level_equals_one_block(config, batched):
    cache, _ = committed(config)
    _, _, extend, _, _ = compiled(config)
    params = weights(config)
    block = jnp.asarray(np.random.default_rng(4).integers(0, config.vocab_size, (3, TREE.size)), jnp.int32)
    whole, _ = extend(params, block, cache, TREE.mask, TREE.depth)
    for depth in range(TREE.width):
        (nodes,) = np.nonzero(TREE.depth == depth)
        first, last = int(nodes[0]), int(nodes[-1]) + 1
        mask, depths = TREE.mask[first:last, :last], TREE.depth[first:last]
        if batched:
            mask, depths = np.tile(mask, (3, 1, 1)), np.tile(depths, (3, 1))
        out, cache = extend(params, block[:, first:last], cache, mask, depths, first)
        assert_close(out.logits, np.asarray(whole.logits[:, first:last]))


def test_block_distance_of_a_tree_by_hand():
    """Two committed slots; nodes 0 -> 1, 2 and 1 -> 3, the last level fed apart."""
    tree = trees.from_paths([(0, 0), (1,)])
    far = block_distance(jnp.asarray([2]), jnp.asarray(tree.mask[3:]), jnp.asarray([[2]]), 7)
    np.testing.assert_array_equal(np.where(tree.mask[3], far[0, 0, 2:6], 9), [-2, -1, 9, 0])
    np.testing.assert_array_equal(far[0, 0, :2], [-4, -3])


def test_a_full_row_drops_its_block_and_leaves_the_others_alone():
    config = GATED
    cache, _ = committed(config)
    _, _, extend, _, _ = compiled(config)
    tree = trees.chain(2)
    block = jnp.asarray([[1, 2, 3]] * 3, jnp.int32)
    expected, _ = extend(weights(config), block, cache, tree.mask, tree.depth)
    full = cache._replace(length=cache.length.at[0].set(SLOTS - 1))
    out, after = extend(weights(config), block, full, tree.mask, tree.depth)
    assert np.isfinite(np.asarray(out.logits)).all()
    np.testing.assert_array_equal(out.logits[1:], expected.logits[1:])
    for old, new in zip(jax.tree.leaves(full.layers), jax.tree.leaves(after.layers), strict=True):
        np.testing.assert_array_equal(old[0], new[0])


@pytest.mark.slow
def test_tokens_past_the_prompt_do_not_matter(config):
    tokens, length = prompts(config)
    decoder = jnp.asarray(np.random.default_rng(6).integers(0, config.vocab_size, (3, 5)), jnp.int32)
    score = compiled(config)[-1]
    one = score(weights(config), tokens, length, decoder)
    beyond = jnp.arange(tokens.shape[1])[None] >= length[:, None]
    other = score(weights(config), jnp.where(beyond, (tokens + 11) % config.vocab_size, tokens), length, decoder)
    np.testing.assert_array_equal(one, other)
    alone = score(weights(config), tokens[1:2, :4], length[1:2], decoder[1:2])
    assert_close(one[1], np.asarray(alone[0]))
    changed = score(weights(config), tokens.at[1, 3].add(1) % config.vocab_size, length, decoder)
    assert np.abs(changed[1] - one[1]).max() > 1e-3 * np.abs(one[1]).max()  # the control: what is below it does


def test_stacked_layers_equal_unrolled_ones(config):
    params = weights(config)
    stacked = {**params}
    for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        layers = [params[stack]["layers"][str(i)] for i in range(count)]
        stacked[stack] = {**params[stack], "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}
    decoder = jnp.asarray([[3, 1, 4, 1, 5]] * 3, jnp.int32)
    one = compiled(config)[-1](params, *prompts(config), decoder)
    assert_close(compiled(config, SCANNED)[-1](stacked, *prompts(config), decoder), np.asarray(one))


@pytest.mark.slow
@pytest.mark.parametrize(("config", "fmt"), [(TIED, FLOAT32), (GATED, SCANNED)], ids=["unrolled", "stacked"])
def test_captured_streams_enter_their_layers(config, fmt):
    lm = t5.FAMILY.language_model(config, fmt, capture=(0, 2))
    params, tree = weights(config, fmt), trees.chain(1)
    cache = compiled(config, fmt)[1](params, *prompts(config), SLOTS).cache
    block = jnp.asarray([[5, 6]] * 3, jnp.int32)
    out, _ = jax.jit(lm.extend)(params, block, cache, tree.mask, tree.depth)
    first, last = map(np.asarray, out.hiddens)
    np.testing.assert_array_equal(first, params["embed"]["tokens"]["table"][block])
    normed = last / np.sqrt(np.square(last).mean(-1, keepdims=True) + config.eps)
    assert_close(out.features, normed * np.asarray(params["decoder"]["final_norm"]["scale"]))


@pytest.mark.slow
def test_bfloat16_stays_near_float32(config):
    """8 bits of mantissa, rounded at each kernel's input: 5 % of the logits' scale, and not bit for bit."""
    half = Format("bfloat16", products=CPUProducts(min_rows=2))
    params = weights(config)

    def lower(path, leaf):
        name = keystr(path)
        if "kernel" in name:
            return leaf.T.astype(jnp.bfloat16)
        return leaf.astype(jnp.bfloat16) if "tokens" in name else leaf

    lowered = jax.tree.map_with_path(lower, params)
    wanted = jax.eval_shape(lambda: t5.FAMILY.init(jax.random.key(0), config, half))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), lowered) == jax.tree.map(lambda a: (a.shape, a.dtype), wanted)
    decoder = jnp.asarray([[3, 1, 4, 1, 5]] * 3, jnp.int32)
    one = np.asarray(compiled(config)[-1](params, *prompts(config), decoder))
    two = compiled(config, half)[-1](lowered, *prompts(config), decoder)
    assert two.dtype == jnp.float32
    assert_close(two, one, 0.05)
    assert np.abs(two - one).max() > 0


def test_one_trace_for_every_length():
    config = GATED
    lm, prefill, *_ = compiled(config)
    traces = []

    @jax.jit
    def step(params, tokens, cache, n):
        traces.append(1)
        tree = trees.chain(1)
        out, cache = lm.extend(params, tokens, cache, tree.mask, tree.depth)
        return out.logits, lm.keep(cache, None, n)

    cache = prefill(weights(config), *prompts(config), SLOTS).cache
    for n in ([1, 0, 2], [2, 2, 0], [0, 1, 1]):
        _, cache = step(weights(config), jnp.ones((3, 2), jnp.int32), cache, jnp.asarray(n, jnp.int32))
    assert cache.length.tolist() == [3, 3, 3]
    assert len(traces) == 1


def greedy(config, new):
    """Plain greedy decoding by `score` alone: [B, new]."""
    tokens = np.full((3, 1 + new), config.start_token, np.int32)
    score = compiled(config)[-1]
    for step in range(new):
        logits = score(weights(config), *prompts(config), jnp.asarray(tokens))
        tokens[:, step + 1] = np.asarray(logits[:, step]).argmax(-1)
    return tokens[:, 1:]


@pytest.mark.slow
def test_speculation_with_a_t5_draft_is_greedy_decoding():
    """A draft that is right about half of the time, on rows of unlike prompts and budgets."""
    config = GATED
    gamma, budget = 3, [12, 5, 9]
    lm = compiled(config)[0]
    noise = iter(jax.random.split(jax.random.key(9), 200))
    near = lambda leaf: leaf * (1 + 0.2 * jax.random.normal(next(noise), leaf.shape))
    draft = jax.tree.map(near, weights(config))
    sampled = sampling.sampling_params(3, config.vocab_size, temperature=0.0)
    params = decoding.DecodeParams(weights(config), draft, sampled, stopping.rules(config.vocab_size))
    static = {"model": lm, "drafter": chain(model_writer(lm), gamma)}
    # Nothing is drawn at temperature 0. The reuse checker takes two slices of one array of keys for a reuse.
    with jax.debug_key_reuse(False):
        key = decoding.row_keys(0, jnp.arange(3))
        state = decoding.prefill(
            params, key, *prompts(config), jnp.asarray(budget, jnp.int32), **static, cache_len=16, max_new=12
        )
        state = decoding.generate(params, state, verify=token_level, **static)
    expected = greedy(config, 12)
    for row, new in enumerate(budget):
        assert state.tokens[row, :new].tolist() == expected[row, :new].tolist()
    accepted, tested = int(state.totals.accepted.sum()), int(state.totals.tested.sum())
    assert 0.2 * tested < accepted < tested  # both outcomes were met
