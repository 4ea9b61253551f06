"""Caches: whatever is fed in whatever order, the logits are those of the plain sequence."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.models import cache as caches
from specjax.models import llama, opt
from specjax.models.cache import KV, Cache
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format, default_format
from specjax.models.products import TPUProducts
from specjax.planning import program as hlo
from tests.battery import others_slow
from tests.models import small

ROWS, SLOTS, BLOCK = 4, 48, 6  # chains and random trees have one shape: one compile
CHAIN = trees.chain(BLOCK - 1)
STACKED = Format(stacked=True)
LAYOUTS = {
    "separate": default_format("float32", platform="cpu"),
    "stacked": STACKED,
    "4-D dots": Format(products=CPUProducts(flat_heads=False)),
    "in-out": Format(),
}

CASES = (
    [(name, "separate") for name in small.CONFIGS]
    + [("llama", layout) for layout in LAYOUTS][1:]
    + [("opt-350m", "stacked")]
)


def start(built: small.Small, lengths: list[int], seed: int, width: int = 7):
    """A ragged prompt read into the cache: (what each row's cache holds, Prefilled)."""
    prompt = small.tokens(seed, len(lengths), width)
    out = built.prefill(built.params, jnp.asarray(prompt), jnp.asarray(lengths, jnp.int32), cache_len=SLOTS)
    held = [prompt[row, : n - 1].tolist() for row, n in enumerate(lengths)]
    assert np.asarray(out.cache.length).tolist() == [n - 1 for n in lengths]
    assert np.asarray(out.pending).tolist() == [prompt[row, n - 1] for row, n in enumerate(lengths)]
    return held, out


def scores_after(built: small.Small, sequences: list[list[int]]) -> np.ndarray:
    """Cacheless logits at the last position of each sequence."""
    logits = built.score(built.params, jnp.asarray(small.padded(sequences, SLOTS)))
    return np.asarray(logits)[np.arange(len(sequences)), [len(s) - 1 for s in sequences]]


def node_scores(built: small.Small, tree: trees.Tree, held: list[list[int]], block: np.ndarray) -> np.ndarray:
    """[B, N, V]: every node's logits, one path at a time."""
    routes = [[n for n in range(tree.size) if tree.mask[node, n]] for node in range(tree.size)]
    sequences = [row + [int(block[b, n]) for n in route] for b, row in enumerate(held) for route in routes]
    return scores_after(built, sequences).reshape(len(held), tree.size, -1)


def random_tree(rng: np.random.Generator, size: int) -> trees.Tree:
    return trees.Tree((trees.ROOT, *(int(rng.integers(0, node)) for node in range(1, size))))


def feed(built: small.Small, cache, block: np.ndarray, tree: trees.Tree):
    return built.extend(built.params, jnp.asarray(block), cache, jnp.asarray(tree.mask), jnp.asarray(tree.depth))


@pytest.mark.parametrize("name, layout", others_slow(CASES, [("opt", "separate"), ("llama", "stacked")]))
def test_any_ragged_schedule_equals_scoring(name, layout):
    built = small.build(name, LAYOUTS[layout])
    rng = np.random.default_rng(sum(map(ord, name + layout)))
    held, out = start(built, rng.integers(1, 8, ROWS).tolist(), seed=3)
    cache = out.cache
    for _ in range(5):
        block = rng.integers(0, 71, (ROWS, BLOCK)).astype(np.int32)
        got, cache = feed(built, cache, block, CHAIN)
        small.assert_close(got.logits, node_scores(built, CHAIN, held, block))
        taken = rng.integers(0, BLOCK + 1, ROWS)
        cache = built.keep(cache, None, jnp.asarray(taken, jnp.int32))
        held = [row + block[b, : taken[b]].tolist() for b, row in enumerate(held)]
        assert np.asarray(cache.length).tolist() == [len(row) for row in held]


@pytest.mark.parametrize("name, layout", others_slow(CASES, [("opt-350m", "stacked")]))
def test_random_trees_equal_one_path_at_a_time_and_their_paths_are_kept(name, layout):
    built = small.build(name, LAYOUTS[layout])
    rng = np.random.default_rng(len(name) + len(layout))
    held, out = start(built, [3, 7, 1, 5], seed=4)
    cache = out.cache
    for _ in range(3):
        tree = random_tree(rng, BLOCK)
        block = rng.integers(0, 71, (ROWS, tree.size)).astype(np.int32)
        got, cache = feed(built, cache, block, tree)
        small.assert_close(got.logits, node_scores(built, tree, held, block))
        ends = rng.integers(0, tree.size, ROWS)
        path, taken = tree.paths[ends], tree.depth[ends] + 1
        taken[int(rng.integers(ROWS))] = 0  # a row that has stopped
        path = np.pad(path, ((0, 0), (0, tree.size - path.shape[1])), mode="edge")  # one width: one compile
        cache = built.keep(cache, jnp.asarray(path), jnp.asarray(taken, jnp.int32))
        held = [row + block[b, path[b, : taken[b]]].tolist() for b, row in enumerate(held)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "llama"])
def test_a_tree_grown_level_by_level_equals_the_whole_block(name):
    built = small.build(name)
    tree = trees.regular((2, 2))
    held, out = start(built, [3, 7, 1, 5], seed=5)
    block = small.tokens(6, ROWS, tree.size)
    whole, _ = feed(built, out.cache, block, tree)
    cache, grown, first = out.cache, [], 0
    for width in (1, 2, 4):
        nodes = slice(first, first + width)
        got, cache = built.extend(
            built.params, jnp.asarray(block[:, nodes]), cache, jnp.asarray(tree.mask[nodes, : first + width]),
            jnp.asarray(tree.depth[nodes]), offset=first,
        )  # fmt: skip
        grown.append(np.asarray(got.logits))
        first += width
    small.assert_close(np.concatenate(grown, 1), whole.logits)
    path = np.tile(np.asarray([[0, 2, 6]], np.int32), (ROWS, 1))
    cache = built.keep(cache, jnp.asarray(path), jnp.full((ROWS,), 3, jnp.int32))
    held = [row + block[b, path[b]].tolist() for b, row in enumerate(held)]
    more = small.tokens(7, ROWS, BLOCK)
    small.assert_close(feed(built, cache, more, CHAIN)[0].logits, node_scores(built, CHAIN, held, more))


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_slots_past_a_prompt_are_never_read(name):
    built = small.build(name)
    lengths, prompt = jnp.asarray([3, 7, 1, 5], jnp.int32), small.tokens(8, ROWS, 7)
    other = np.where(np.arange(7)[None] < np.asarray(lengths)[:, None], prompt, (prompt + 13) % 71).astype(np.int32)
    assert (other != prompt).any()
    block, seen = small.tokens(9, ROWS, BLOCK), []
    for text in (prompt, other):
        out = built.prefill(built.params, jnp.asarray(text), lengths, cache_len=SLOTS)
        seen.append((out.pending, feed(built, out.cache, block, CHAIN)[0].logits))
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["separate", "stacked"])
def test_stacked_layers_and_captured_streams_equal_separate_ones(layout):
    built, plain = small.build("llama", LAYOUTS[layout], (0, 1, 2)), small.build("llama")
    _, out = start(built, [3, 7, 1, 5], seed=10)
    _, want = start(plain, [3, 7, 1, 5], seed=10)
    block = small.tokens(11, ROWS, BLOCK)
    got, cache = feed(built, out.cache, block, CHAIN)
    expected, kept = feed(plain, want.cache, block, CHAIN)
    small.assert_close(got.logits, expected.logits)
    small.assert_close(got.features, expected.features)
    small.assert_close(got.hiddens[0], built.params["embed"]["tokens"]["table"][block])
    last = np.asarray(got.hiddens[2], np.float64)
    normed = last / np.sqrt((last**2).mean(-1, keepdims=True) + built.config.eps)
    small.assert_close(normed * np.asarray(built.params["final_norm"]["scale"]), got.features)
    for layer, one in enumerate(kept.layers):
        mine = jax.tree.map(lambda a: a[layer], cache.layers) if layout == "stacked" else cache.layers[layer]  # noqa: B023
        small.assert_close(mine.k, one.k)
        small.assert_close(mine.v, one.v)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("layer", [None, 1])
def test_a_window_that_does_not_fit_leaves_its_row_alone(rows, layer):
    rng = np.random.default_rng(0)
    buffer = rng.normal(size=(3, rows, 2, 8, 5) if layer is not None else (rows, 2, 8, 5)).astype(np.float32)
    new = rng.normal(size=(rows, 2, 3, 5)).astype(np.float32)
    for first in ([0, 5, 6, 9], [6, 2, 5, 8], [5, 7, 0, 100], [9, 9, 9, 9], [8, 1, 1, 1]):
        begin = np.asarray(first[:rows], np.int32)
        want = buffer.copy()
        target = want[layer] if layer is not None else want
        for row, at in enumerate(begin):
            if at + 3 <= 8:
                target[row, :, at : at + 3] = new[row]
        index = None if layer is None else jnp.int32(layer)
        got = jax.jit(caches.put_windows)(jnp.asarray(buffer), jnp.asarray(new), jnp.asarray(begin), index)
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["separate", "stacked"])
def test_a_full_row_keeps_its_slots_through_extend_and_keep(layout):
    built = small.build("llama", LAYOUTS[layout])
    _, out = start(built, [3, 7, 1, 5], seed=12)
    noise = jax.tree.map(lambda a: jax.random.normal(jax.random.key(3), a.shape), out.cache.layers)
    full = Cache(noise, jnp.asarray([SLOTS - 2, 4, SLOTS, 5], jnp.int32))
    tree = trees.Tree((trees.ROOT, 0, 0, 2))
    _, cache = feed(built, full, small.tokens(13, ROWS, 4), tree)
    kept = built.keep(cache, jnp.asarray([[0, 2, 3]] * ROWS, jnp.int32), jnp.asarray([0, 3, 0, 2], jnp.int32))
    for before, after in zip(jax.tree.leaves(noise), jax.tree.leaves(kept.layers), strict=True):
        before, after = np.asarray(before), np.asarray(after)
        rows = np.moveaxis(after, -4, 0), np.moveaxis(before, -4, 0)
        for row in (0, 2):
            np.testing.assert_array_equal(rows[0][row], rows[1][row])
        for row in (1, 3):
            assert (rows[0][row] != rows[1][row]).any()


@pytest.mark.slow
def test_min_rows_pads_without_changing_a_number():
    plain, wide = small.build("llama"), small.build("llama", Format(products=TPUProducts()))
    logits = []
    for built in (plain, wide):
        _, out = start(built, [5], seed=14)
        logits.append(feed(built, out.cache, small.tokens(15, 1, 1), trees.chain(0))[0].logits)
    small.assert_close(logits[1], logits[0], bound=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dtype, bound",
    [("opt", "bfloat16", 0.04), ("llama", "bfloat16", 0.04), ("llama-tied", "float16", 0.005)],
)
def test_half_precision_runs_the_same_code_within_a_bound(name, dtype, bound):
    """The bound is ten roundings (2^-8, 2^-11) of the logits' scale; the cached run obeys it against its own scores."""
    plain, half = small.build(name), small.build(name, default_format(dtype, platform="cpu"))
    held, out = start(half, [3, 7, 1, 5], seed=16)
    block = small.tokens(17, ROWS, BLOCK)
    got, _ = feed(half, out.cache, block, CHAIN)
    assert got.logits.dtype == jnp.float32
    small.assert_close(got.logits, node_scores(plain, CHAIN, held, block), bound)
    small.assert_close(got.logits, node_scores(half, CHAIN, held, block), bound)


# What the compiled loop does. Shapes are those of opt-125m, opt-350m and SmolLM2-135M, two layers of them: compiled,
# never run.
WIDE = {
    "opt": (opt.FAMILY, dataclasses.replace(opt.sizes()["125m"], layers=2, vocab_size=2048)),
    "llama": (llama.FAMILY, dataclasses.replace(llama.sizes()["smollm2-135m"], layers=2, vocab_size=2048)),
    "opt-350m": (opt.FAMILY, dataclasses.replace(opt.sizes()["350m"], layers=2, vocab_size=2048)),
}


def looped(model, width: int, path):
    """Repeated extends of `width` tokens; `path` names the kept nodes, None a chain of which one token is kept."""
    tree = trees.chain(width - 1)

    def run(params, cache, pending):
        def body(carry):
            index, cache, pending = carry
            block = jnp.repeat(pending[:, None], width, axis=1)
            out, cache = model.extend(params, block, cache, jnp.asarray(tree.mask), jnp.asarray(tree.depth))
            best = out.logits.argmax(-1).astype(jnp.int32)
            cache = model.keep(cache, best % width if path else None, jnp.ones_like(cache.length))
            return index + 1, cache, best[:, 0]

        return jax.lax.while_loop(lambda carry: carry[0] < 50, body, (jnp.int32(0), cache, pending))

    return run


def compiled_loop(name: str, fmt: Format, rows: int, width: int = 1, *, path: bool = False, wrap=lambda run: run):
    """(text of the compiled loop, elements of one layer's keys, elements of the smallest kernel)."""
    module, config = WIDE[name]
    model = module.language_model(config, fmt)
    params = jax.eval_shape(lambda key: module.init(key, config, fmt), jax.random.key(0))
    ids, lengths = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, 8), (rows,)))
    ready = jax.eval_shape(lambda p, t, n: model.prefill(p, t, n, 1152), params, ids, lengths)
    run = jax.jit(wrap(looped(model, width, path)), donate_argnums=(1, 2))
    text = run.lower(params, ready.cache, ready.pending).compile().as_text()
    kernels = [leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    return text, ready.cache.layers[0].k.size, min(kernels)


@pytest.mark.parametrize(
    "rows, width, path",
    others_slow([(1, 1, False), (4, 1, False), (1, 4, True), (4, 4, True)], [(1, 1, False), (4, 4, True)]),
)
@pytest.mark.parametrize(
    "name, dtype",
    others_slow(
        [*itertools.product(["opt", "llama"], ["float32", "bfloat16"]), ("opt-350m", "bfloat16")],
        [("opt-350m", "bfloat16")],
    ),
)
def test_the_loop_copies_no_cache_and_converts_no_weight(name, dtype, rows, width, path):
    text, cache, kernel = compiled_loop(name, default_format(dtype, platform="cpu"), rows, width, path=path)
    body = hlo.while_body(text)
    assert hlo.copies(body, cache) == [] and hlo.copies(body, kernel, axes=2) == []
    assert hlo.converts(hlo.program(text), kernel) == []  # nor hoisted: the loop would then read twice the bytes


@pytest.mark.slow
def test_the_check_sees_copies_and_converts_where_there_are_some(monkeypatch):
    """Controls: a cache that is written by a slice of slots and read transposed, and bfloat16 dots of a single row."""

    def one_window(buffer, new, start, layer=None):
        del layer
        return jax.lax.dynamic_update_slice(buffer.swapaxes(1, 2), new.swapaxes(1, 2), (0, start[0], 0, 0)).swapaxes(
            1, 2
        )

    one_row = default_format("bfloat16", platform="cpu")
    one_row = dataclasses.replace(one_row, products=dataclasses.replace(one_row.products, min_rows=1))
    text, cache, kernel = compiled_loop("llama", one_row, 1)
    assert hlo.converts(hlo.program(text), kernel)
    assert not hlo.copies(hlo.while_body(text), cache)
    monkeypatch.setattr(caches, "put_windows", one_window)
    text, cache, _ = compiled_loop("llama", default_format("float32", platform="cpu"), 1)
    assert hlo.copies(hlo.while_body(text), cache)


def test_visibility_is_the_committed_slots_and_the_mask():
    mask = np.asarray([[[True, False], [True, True]]])
    got = caches.visibility(jnp.asarray([0, 2, 3], jnp.int32), jnp.asarray(mask), 4, 3)
    want = np.zeros((3, 2, 4), bool)
    want[0, :, :2] = mask[0]
    want[1, :, :2], want[1, :, 2:] = True, mask[0]
    want[2, :, :3] = True  # no room for the block: only what is committed
    np.testing.assert_array_equal(got, want)


def test_slots_are_counted_in_both_layouts():
    assert caches.slots(Cache(caches.allocate(2, 3, 17, 4, 2, Format()), jnp.zeros((2,), jnp.int32))) == 17
    stacked = caches.allocate(2, 3, 17, 4, 2, STACKED)
    assert isinstance(stacked, KV) and stacked.k.shape == (2, 2, 3, 17, 4)
    assert caches.slots(Cache(stacked, jnp.zeros((2,), jnp.int32))) == 17
