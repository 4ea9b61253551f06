"""Verification of point-mass trees: sample from the target and follow the branch that contains the token."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import draw, uniforms
from specjax.trees import ROOT, Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import at_node
from specjax.verify.walk import usable, verdict_at


def deterministic(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: any tree of point masses (tokens chosen deterministically: n-grams, greedy and top-k drafts).

    Samples one token from p at the root. If a child holds this token, the walk continues there; it ends at the first
    token that no child holds. Every emitted token is therefore a sample from the target. Siblings may hold equal
    tokens, as branches with a common beginning do: the walk then continues below all of them. The verification of
    prompt lookup and of EAGLE-2's greedy trees, Li et al. 2024, arXiv 2406.16858, for any temperature.

    Args:
      key: [B] typed keys, one for the whole round, consumed once.
      tree: any tree; each row has its own if the draft carries parents.
      draft: log_q is None. A node that is not valid ends its branch; validity may depend on anything known before the
        target forward pass.
      log_p: [B, N, V] float32, the target's log-probabilities after every node.

    Returns:
      The accepted path and one more token.

    Raises:
      ValueError: the draft has log_q, so its tokens were sampled and are not point masses.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.eye(4)[None, jnp.array([2, 3, 1])])  # the target continues with 2, then 1
    >>> draft = Draft(tokens=jnp.array([[0, 3, 2]]), valid=jnp.ones((1, 3), bool), log_q=None)
    >>> verdict = verify.deterministic_tree(jax.random.split(jax.random.key(0), 1), trees.regular((2,)), draft, log_p)
    >>> verdict.path[0].tolist(), int(verdict.token[0])
    ([0, 2], 1)
    """
    if draft.log_q is not None:
        raise ValueError("deterministic requires point masses, but this draft has log_q: "
                         "use token_level, block, multiround or traversal")  # fmt: skip
    numbers = uniforms(key, (tree.width, 2), log_p.dtype)
    return walk_to(lambda depth, log_p: draw(numbers[:, depth], jnp.exp(log_p)), tree, draft, log_p)


def walk_to(
    sample: Callable[[Int[Array, ""], Float[Array, "B V"]], Int[Array, "B"]],
    tree: Tree,
    draft: Draft,
    log_p: Float[Array, "B N V"],
) -> Verdict:
    """Walks to the target's own tokens: (depth, log_p [B,V]) -> token [B] samples one, below the root first."""
    rows = draft.tokens.shape[0]
    shape = layout_of(tree, draft.parents, rows)
    proposed = usable(tree, draft, in_order=False)

    def level(carry):
        depth, here, node, token, moving = carry
        sampled = sample(depth, at_node(log_p, node))
        token = jnp.where(moving, sampled, token)
        below = follow(shape.parents, draft.tokens, proposed, here, token)
        found = moving & jnp.any(below, axis=1)
        oldest = jnp.argmax(below, axis=1).astype(jnp.int32)  # log_p is equal after equal paths
        return depth + 1, jnp.where(found[:, None], below, here), jnp.where(found, oldest, node), token, found

    zero = jnp.zeros((rows,), jnp.int32)
    start = (jnp.int32(0), shape.parents == ROOT, zero, zero, zero == 0)
    _, _, node, token, _ = lax.while_loop(lambda c: jnp.any(c[4]), level, start)
    return verdict_at(shape, node, token)


def follow(
    parents: Int[Array, "B N"],
    tokens: Int[Array, "B N"],
    proposed: Bool[Array, "B N"],
    here: Bool[Array, "B N"],
    token: Int[Array, "B"],
) -> Bool[Array, "B N"]:
    """The proposed children of the row's current nodes (`here`) that hold its token."""
    above = jnp.take_along_axis(here, jnp.maximum(parents, 0), axis=1) & (parents >= 0)
    return above & (tokens == token[:, None]) & proposed
