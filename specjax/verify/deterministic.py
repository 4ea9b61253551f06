"""Trees of point masses: sample from the target, and follow the branch that has the token."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import draw, uniforms
from specjax.trees import ROOT, Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import law_after
from specjax.verify.walk import usable, verdict_at


def deterministic(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: any tree of point masses, tokens that were chosen without chance: n-grams, greedy and top-k drafts.

    One token is drawn from p at the root; where a child has it, the walk goes on there, and ends at the first token
    that no child has. Every emitted token is so a draw of the target's own. Siblings may have equal tokens, as branches
    that share a beginning do: the walk goes on below all of them.

    Args:
      key: [B] typed keys, one for the whole round, consumed once.
      tree: any; a row's own where the draft carries parents.
      draft: log_q is None. A node that is not valid ends its branch; what is valid may depend on anything that was
        known before the target was asked.
      log_p: [B, N, V], the target's law after every node.

    Raises:
      ValueError: the draft has laws: its tokens were drawn, and then they are no point masses.
    """
    if draft.log_q is not None:
        raise ValueError("deterministic serves point masses, and this draft was drawn from laws: "
                         "use token_level, block, multiround or traversal")  # fmt: skip
    numbers = uniforms(key, (tree.width, 2), log_p.dtype)
    shape = layout_of(tree, draft.parents, key.shape[0])
    proposed = usable(tree, draft, in_order=False)

    def level(carry):
        depth, here, node, token, moving = carry
        drawn = draw(numbers[:, depth], jnp.exp(law_after(log_p, node)))
        token = jnp.where(moving, drawn, token)
        below = follow(shape.parents, draft.tokens, proposed, here, token)
        found = moving & jnp.any(below, axis=1)
        oldest = jnp.argmax(below, axis=1).astype(jnp.int32)  # the laws after equal paths are equal
        return depth + 1, jnp.where(found[:, None], below, here), jnp.where(found, oldest, node), token, found

    zero = jnp.zeros(key.shape, jnp.int32)
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
    """The proposed children, of any of the nodes that a row stands at, that have its token."""
    above = jnp.take_along_axis(here, jnp.maximum(parents, 0), axis=1) & (parents >= 0)
    return above & (tokens == token[:, None]) & proposed
