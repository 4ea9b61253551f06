"""Dynamic trees over real caches: the feeding contract of `dynamic` holds for models with ragged rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.trees import dynamic
from tests.models import small

ROWS, SLOTS, WIDTH, DEPTH, SIZE = 3, 48, 3, 3, 8
LENGTHS = [3, 7, 5]


def scores_after(built: small.Small, sequences: list[list[int]]) -> np.ndarray:
    """Cacheless logits at the last position of each sequence."""
    logits = built.score(built.params, jnp.asarray(small.padded(sequences, SLOTS)))
    return np.asarray(logits)[np.arange(len(sequences)), [len(s) - 1 for s in sequences]]


def routes(parents: np.ndarray, tokens: np.ndarray) -> list[list[int]]:
    """The tokens from the root to every node of one row, inclusive."""
    found: list[list[int]] = [[int(tokens[0])]]
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        found.append([*found[parent], int(token)])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "llama"])
def test_a_model_grows_and_checks_dynamic_trees(name):
    """Level by level with `sees` as mask, logits equal those of the plain sequence, as do the logits of the reranked
    tree under its per-row mask; keeping the accepted path by `slot` leaves the cache as if nothing else was fed."""
    built = small.build(name)
    prompt = small.tokens(11, ROWS, max(LENGTHS))
    read = built.prefill(built.params, jnp.asarray(prompt), jnp.asarray(LENGTHS, jnp.int32), cache_len=SLOTS)
    held = [prompt[row, : n - 1].tolist() for row, n in enumerate(LENGTHS)]
    one = jnp.ones((ROWS,), jnp.int32)

    growth = jax.jit(dynamic.start)(read.pending)
    out, cache = built.extend(
        built.params, read.pending[:, None], read.cache, jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32)
    )
    cache = built.keep(cache, None, one)  # the root is always committed
    for level in range(1, DEPTH + 1):
        log_q = jax.nn.log_softmax(out.logits)
        growth = jax.jit(dynamic.expand, static_argnames="width")(growth, log_q, width=WIDTH)
        if level == DEPTH:
            break
        depth = jnp.full((WIDTH,), level - 1, jnp.int32)
        offset = WIDTH * (level - 1)
        out, cache = built.extend(built.params, growth.frontier_tokens, cache, growth.sees, depth, offset=offset)
        for row in range(ROWS):
            all_routes = routes(np.asarray(growth.parent)[row], np.asarray(growth.tokens)[row])
            fed = [held[row] + all_routes[node] for node in np.asarray(growth.frontier)[row]]
            small.assert_close(out.logits[row], scores_after(built, fed))

    nodes = jax.jit(dynamic.rerank, static_argnames="size")(growth, size=SIZE)
    tables = jax.jit(dynamic.layout, static_argnames="width")(nodes.parents, width=DEPTH + 1)
    checked, _ = built.extend(built.params, nodes.tokens, read.cache, tables.mask, tables.depth)
    paths = [routes(np.asarray(nodes.parents)[row], np.asarray(nodes.tokens)[row]) for row in range(ROWS)]
    for row in range(ROWS):
        small.assert_close(checked.logits[row], scores_after(built, [held[row] + path for path in paths[row]]))

    # Accept the deepest fed node: only its path stays in the draft's cache.
    slot, depth = np.asarray(nodes.slot), np.asarray(tables.depth)
    best = np.argmax(np.where(slot != dynamic.NOT_FED, depth, -1), axis=1)
    assert (depth[np.arange(ROWS), best] >= 1).all()
    line = np.asarray(tables.paths)[np.arange(ROWS), best]  # root first
    kept = np.maximum(np.take_along_axis(slot, line[:, 1:], axis=1), 0).astype(np.int32)
    cache = built.keep(cache, jnp.asarray(kept), jnp.asarray(depth[np.arange(ROWS), best]))
    assert np.asarray(cache.length).tolist() == [
        len(held[row]) + len(paths[row][node]) for row, node in enumerate(best)
    ]
    more = small.tokens(12, ROWS, 1)
    after, _ = built.extend(built.params, jnp.asarray(more), cache, jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32))
    plain = [held[row] + paths[row][node] + more[row].tolist() for row, node in enumerate(best)]
    small.assert_close(after.logits[:, 0], scores_after(built, plain))
