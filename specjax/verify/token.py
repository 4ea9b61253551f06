"""Token-level rejection sampling of a chain (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318)."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from specjax.categorical import argmax, draw, total, uniforms
from specjax.trees import Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, KeyArray, Verdict


def token_level(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: the tokens of a round have the joint law of the target, whatever the draft's law.

    Walks the chain from the root. A drafted token x is accepted with probability min(1, p(x) / q(x)); the first that
    is refused is replaced by a draw from norm(max(0, p - q)). Where nothing was refused (the draft ended, or never
    was), the token is drawn from p: plain decoding is the chain of gamma 0. Greedy decoding is the one-hot case.

    Args:
      key: [B] typed keys, one stream a row, consumed once.
      tree: a chain; node i + 1 continues node i.
      draft: tokens [B, N]; valid [B, N], whose first False below the root ends the row's draft; log_q [B, N, V],
        where log_q[:, i] is the law that node i + 1 was drawn from, or None for tokens chosen without chance. Whether
        a node is valid must not depend on its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    Raises:
      ValueError: the tree branches.
    """
    accept, correct = roles(key)
    return walk(
        uniforms(accept, (tree.size - 1,), log_p.dtype), uniforms(correct, (2,), log_p.dtype), tree, draft, log_p
    )


def walk(
    accept: Float[Array, "B gamma"],
    correct: Float[Array, "B 2"],
    tree: Tree,
    draft: Draft,
    log_p: Float[Array, "B N V"],
) -> Verdict:
    """`token_level` on given uniforms: accept[:, i] tests node i + 1, correct draws the last token."""
    if not tree.is_chain:
        raise ValueError(f"token-level rejection needs a chain, got a tree with parents {tree.parents}")
    p, q = chances(draft, log_p)
    passed = accepts(accept, p, q) & draft.valid[:, 1:]
    accepted = jnp.sum(jnp.cumprod(passed, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    path = jnp.minimum(_arange_like(draft.tokens), accepted[:, None])
    return Verdict(path, accepted, draw(correct, last_law(draft, log_p, accepted)))


def accepts(u: Float[Array, "*lead"], p: Float[Array, "*lead"], q: Float[Array, "*lead"]) -> Bool[Array, "*lead"]:
    """Whether a drafted token passes: with probability min(1, p / q) over u in [0, 1).

    Strict and without a division: u may be exactly 0, and a token of zero mass must not pass even then.
    """
    return u * q < p


def residual(p: Float[Array, "*lead V"], q: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Masses, not normalized, of the law max(0, p - q) of a token that replaces a refused one.

    No mass is left where p == q, or where rounding refused what could not be refused: then the law is p.
    """
    left = jnp.maximum(p - q, jnp.zeros_like(p))
    return jnp.where(jnp.any(left > 0, axis=-1, keepdims=True), left, p)


def tested(tree: Tree, draft: Draft, verdict: Verdict) -> Int[Array, "B"]:
    """Number of levels of each row that were tested: the accepted ones, and one more where a node was refused."""
    parents = layout_of(tree, draft.parents, draft.tokens.shape[0]).parents
    last = jnp.take_along_axis(verdict.path, verdict.accepted[:, None], axis=1)
    refused = jnp.any((parents == last) & draft.valid, axis=1)
    return verdict.accepted + refused.astype(jnp.int32)


def overlap(
    tree: Tree, draft: Draft, log_p: Float[Array, "B N V"], verdict: Verdict, *, one_hot: bool = False
) -> Float[Array, "B"]:
    """Sum over the nodes whose children were tested of sum_x min(p(x), q(x)): on a chain, the chance of acceptance
    that the laws alone give.

    Zeros for point masses, which have no law of the draft. Costs a pass over [B, W - 1, V].

    Args:
      one_hot: the caller knows that every p is one-hot, in which case the sum is what q says of its token.
    """
    if draft.log_q is None:
        return jnp.zeros(log_p.shape[0], log_p.dtype)
    if tree.is_chain:
        log_p, log_q = log_p[:, :-1], draft.log_q[:, :-1]
    else:
        along = jax.vmap(lambda laws, path: laws[path])
        log_p, log_q = along(log_p, verdict.path[:, :-1]), along(draft.log_q, verdict.path[:, :-1])
    shared = jnp.exp(law_of(log_q, argmax(log_p))) if one_hot else total(jnp.exp(jnp.minimum(log_p, log_q)))
    reached = _arange_like(shared) < tested(tree, draft, verdict)[:, None]
    return jnp.sum(jnp.where(reached, shared, jnp.zeros_like(shared)), axis=-1)


def last_law(draft: Draft, log_p: Float[Array, "B N V"], accepted: Int[Array, "B"]) -> Float[Array, "B V"]:
    """Masses of the token that follows the last accepted node: p, or where a node was refused, the residual.

    One law a row: the row's node is chosen first, so gamma nodes cost no more than one.
    """
    if draft.tokens.shape[1] == 1:  # plain decoding: nothing is ever refused, and the vocabulary is passed over once
        return jnp.exp(log_p[:, 0])
    return law_left(draft, log_p, accepted, _refused(draft, accepted))


def law_left(
    draft: Draft,
    log_p: Float[Array, "B N V"],
    node: Int[Array, "B"],
    refused: Bool[Array, "B"],
    weight: Float[Array, "B"] | None = None,
) -> Float[Array, "B V"]:
    """Masses of the token after a chain's node: max(0, weight p - q) where the next one was refused, else p."""
    p = jnp.exp(law_after(log_p, node))
    if draft.log_q is None:
        refused_token = jnp.take_along_axis(draft.tokens, _next(draft, node)[:, None], axis=1)
        q = (lax.broadcasted_iota(jnp.int32, p.shape, 1) == refused_token).astype(p.dtype)
    else:
        q = jnp.exp(law_after(draft.log_q, node))
    return jnp.where(refused[:, None], residual(p if weight is None else weight[:, None] * p, q), p)


def chances(draft: Draft, log_p: Float[Array, "B N V"]) -> tuple[Float[Array, "B gamma"], Float[Array, "B gamma"]]:
    """p and q of each token of a chain; q is 1 of point masses."""
    proposed = draft.tokens[:, 1:]
    p = jnp.exp(law_of(log_p[:, :-1], proposed))
    return p, jnp.ones_like(p) if draft.log_q is None else jnp.exp(law_of(draft.log_q[:, :-1], proposed))


def law_of(log_law: Float[Array, "B gamma V"], tokens: Int[Array, "B gamma"]) -> Float[Array, "B gamma"]:
    """What each law says of its token."""
    return jnp.take_along_axis(log_law, tokens[..., None], axis=-1)[..., 0]


def law_after(log_law: Float[Array, "B N V"], node: Int[Array, "B"]) -> Float[Array, "B V"]:
    """The law after one node of each row, as one slice a row."""
    return jax.vmap(lambda laws, at: lax.dynamic_index_in_dim(laws, at, keepdims=False))(log_law, node)


def roles(key: KeyArray) -> tuple[KeyArray, KeyArray]:
    """One key a role and row: accept, correct."""
    pair = jax.vmap(lambda k: jax.random.split(k, 2))(key)
    return pair[:, 0], pair[:, 1]


def _refused(draft: Draft, accepted: Int[Array, "B"]) -> Bool[Array, "B"]:
    """Whether the row stopped at a node that it tested: not at the end of the chain, nor at an invalid node."""
    following = jnp.take_along_axis(draft.valid, _next(draft, accepted)[:, None], axis=1)[:, 0]
    return (accepted < draft.tokens.shape[1] - 1) & following


def _next(draft: Draft, accepted: Int[Array, "B"]) -> Int[Array, "B"]:
    return jnp.minimum(accepted + 1, draft.tokens.shape[1] - 1)


def _arange_like(x: Shaped[Array, "B n"]) -> Int[Array, "B n"]:
    return lax.broadcasted_iota(jnp.int32, x.shape, 1)
