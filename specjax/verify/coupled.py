"""Gumbel coupling: draft and target choose tokens with the same noise (Daliri et al. 2024, arXiv 2408.07978)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.base import by_position
from specjax.categorical import argmax, perturbed
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, PositionKeys, Verdict
from specjax.verify.deterministic import walk_to


@by_position
def coupled(key: KeyArray | PositionKeys, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: the target's tokens are fixed by noise of their row and position, and a draft only finds them sooner.

    The token at a position is argmax(log p + Gumbel noise), which is a sample of p. The noise is a function of the
    row's stream and of the token's position in the row, so the text is a function of seed, row, target and sampling
    parameters: the same for every drafter, draft length, batch and restart. (Logits of blocks of other lengths may
    differ in their last bits; a token changes only where two candidates are that close.)

    Drafters that sample use the same noise, argmax(log q + noise), and a draft token is accepted if and only if it
    equals the target's: with probability at least (1 - TV) / (1 + TV), TV the total variation distance of p and q.
    Sharing the noise under the rule of Leviathan et al., u q < p, would bias the output.

    Drafter-invariant speculative decoding, Daliri et al. 2024, arXiv 2408.07978, algorithm 2.

    Args:
      key: `PositionKeys` of the rows, from the decoding loop; or typed keys [B], whose positions start at 0.
      tree: any tree; each row has its own if the draft carries parents.
      draft: any draft, drawn with whatever noise. log_q is not read.
      log_p: [B, N, V] float32, the target's log-probabilities after every node.

    Returns:
      The accepted path and one more token.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.eye(4)[None, jnp.array([2, 3, 1])])  # the target continues with 2, then 3
    >>> draft = Draft(tokens=jnp.array([[0, 2, 1]]), valid=jnp.ones((1, 3), bool), log_q=None)
    >>> verdict = verify.coupled(jax.random.split(jax.random.key(0), 1), trees.chain(2), draft, log_p)
    >>> int(verdict.accepted[0]), int(verdict.token[0])
    (1, 3)
    """
    keys = key if isinstance(key, PositionKeys) else PositionKeys(key, jnp.zeros(key.shape, jnp.int32))
    return walk_to(lambda depth, log_p: argmax(perturbed(keys, depth, log_p)), tree, draft, log_p)
