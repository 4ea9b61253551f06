"""Simulated acceptance: what speculation would gain if the models agreed as often as given, without trained weights."""

import jax.numpy as jnp
import numpy as np

from specjax.base import VerifyFn
from specjax.checks import probability
from specjax.programs import memoize
from specjax.trees import ROOT, Tree
from specjax.trees.dynamic import layout_of
from specjax.verify.token import at_node
from specjax.verify.walk import Walk, Walked, usable, verdict_of


@memoize
def simulated(alpha: float | tuple[float, ...] = 0.8) -> VerifyFn:
    """LOSSY, for benchmarks only: accepts each draft token with a given probability, on any tree.

    Draft and target run in full, but neither decides what is accepted, so models with random weights decode as fast as
    trained ones that agree this often. The output is meaningless. Children of an accepted node are tested in order, the
    first that passes is accepted, and the next token is sampled from p. Tokens per round follow
    `theory.tokens_distribution` on a chain; on a tree, the child of rank r is accepted with probability
    alpha (1 - alpha)^r, see `theory.tree_tokens`.

    Args:
      alpha: acceptance probability of a tested token in 0..1: one for all depths, or one for each depth, of which the
        last also applies below.

    Returns:
      A verifier for any draft.

    Raises:
      ValueError: a probability outside 0..1.

    >>> from specjax import verify
    >>> half = verify.TABLE["simulated"]._replace(fn=verify.simulated(0.5))
    >>> half.lossless
    False
    """
    walk = simulated_walk(alpha)

    def verify(key, tree, draft, log_p):
        """Lossy: accepts with given probabilities; see `simulated`."""
        return verdict_of(walk, key, tree, draft, log_p)

    return verify


@memoize
def simulated_walk(alpha: float | tuple[float, ...]) -> Walk:
    """`simulated` with given uniforms."""
    by_depth = np.atleast_1d(probability("alpha", alpha))

    def walk(u, tree: Tree, draft, log_p):
        shape = layout_of(tree, draft.parents, len(u))
        chance = jnp.asarray(by_depth, u.dtype)[jnp.clip(shape.depth - 1, 0, len(by_depth) - 1)]
        proposed = usable(tree, draft, in_order=False)
        passed = proposed & (u < chance)
        older = (shape.parents[:, :, None] == shape.parents[:, None, :]) & np.tri(tree.size, k=-1, dtype=bool)[None]
        first = ~jnp.any(older & passed[:, None, :], axis=-1)  # no older sibling passed
        root = shape.parents == ROOT
        accepted = ~jnp.any(~(root | (passed & first))[:, None, :] & shape.mask, axis=-1)
        node = jnp.argmax(jnp.where(accepted, shape.depth, -1), axis=-1).astype(jnp.int32)
        reached = jnp.take_along_axis(accepted, jnp.maximum(shape.parents, 0), axis=1)
        tested = proposed & reached & first & ~root
        return Walked(node, jnp.exp(at_node(log_p, node)), tested, jnp.where(tested, chance, jnp.zeros_like(chance)))

    return walk
