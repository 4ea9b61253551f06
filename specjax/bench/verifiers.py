"""What a verifier of chains costs beside the pass of the target that it judges."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees, verify
from specjax.bench.decode import Row, interleave, random_model
from specjax.types import Draft

PROMPT, SLOTS = 64, 128


def cost(
    size: str = "125m", *, rows: int = 8, gamma: int = 8, repeats: int = 5, names: tuple[str, ...] = tuple(verify.TABLE)
) -> Iterator[Row]:
    """Milliseconds of each verifier on a chain, and its share of one verify pass of an OPT shape, run in turns.

    Args:
      size: of the target, from `opt.sizes()`; its vocabulary is the laws'.
      rows: B. gamma: draft tokens of a row.
      repeats: rounds of all programs in turns; medians are told.
      names: from `verify.TABLE`. Those of point masses get the same draft without its laws.
    """
    model = random_model(size, "float32")
    tree = trees.chain(gamma)
    vocab = model.vocab_size
    read = jax.jit(model.lm.prefill, static_argnums=3)(
        model.params, jnp.ones((rows, PROMPT), jnp.int32), jnp.full((rows,), PROMPT, jnp.int32), SLOTS
    )
    draft, log_p = _round(rows, gamma, vocab)
    extend = jax.jit(
        lambda params, cache, block: model.lm.extend(params, block, cache, tree.mask, tree.depth)[0].logits
    )
    keys = jax.random.split(jax.random.key(1), rows)

    def call(name: str):
        points = verify.TABLE[name].drafts is verify.DraftKind.POINTS
        run = jax.jit(lambda keys, draft, log_p: verify.TABLE[name].fn(keys, tree, draft, log_p))
        given = draft._replace(log_q=None) if points else draft
        return lambda: jax.block_until_ready(run(keys, given, log_p))

    programs = {name: call(name) for name in names}
    programs["pass"] = lambda: jax.block_until_ready(extend(model.params, read.cache, draft.tokens))
    with jax.debug_key_reuse(False):  # a timed call draws the same numbers every time, on purpose
        times, load = interleave(programs, repeats)
    for name in names:
        yield {
            "bench": "verifiers", "verifier": name, "target": size, "rows": rows, "gamma": gamma, "vocab": vocab,
            "ms": 1e3 * times[name].median, "pass_ms": 1e3 * times["pass"].median,
            "share": times[name].median / times["pass"].median, "load": load[name],
        }  # fmt: skip


def _round(rows: int, gamma: int, vocab: int) -> tuple[Draft, jax.Array]:
    """A draft from laws that are close to the target's, so that most of its tokens pass."""
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(rows, gamma + 1, vocab)) - 1.2 * np.log1p(rng.permutation(vocab))).astype(np.float32)
    noise = 0.3 * rng.normal(size=base.shape).astype(np.float32)
    log_p, log_q = (jax.nn.log_softmax(jnp.asarray(x), axis=-1) for x in (base, base + noise))
    drawn = jax.random.categorical(jax.random.key(0), log_q[:, :-1])
    tokens = jnp.concatenate([jnp.zeros((rows, 1), jnp.int32), drawn.astype(jnp.int32)], axis=1)
    return Draft(tokens, jnp.ones_like(tokens, dtype=bool), log_q), log_p
