"""Token-level rejection sampling for chains (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318)."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from specjax.categorical import argmax, draw, total, uniforms
from specjax.trees import Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, KeyArray, Verdict


def token_level(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: the tokens of a round follow the target's joint distribution, for any draft distribution.

    Walks the chain from the root. A draft token x is accepted with probability min(1, p(x) / q(x)); the first
    rejected token is replaced by a sample from norm(max(0, p - q)). If no token was rejected (the draft ended, or was
    empty), the next token is sampled from p: plain decoding is the chain with gamma 0. Greedy decoding is the special
    case of one-hot distributions. Leviathan et al. 2023, arXiv 2211.17192, algorithm 1.

    Args:
      key: [B] typed keys, one stream per row, consumed once.
      tree: a chain; node i + 1 continues node i.
      draft: tokens [B, N] int32; valid [B, N] bool, whose first False below the root ends the row's draft; log_q
        [B, N, V] float32, where log_q[:, i] is the distribution that node i + 1 was sampled from, or None for tokens
        that were chosen deterministically. Whether a node is valid must not depend on its own token.
      log_p: [B, N, V] float32, the target's log-probabilities after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    Raises:
      ValueError: the tree branches.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.array([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]))
    >>> draft = Draft(tokens=jnp.array([[0, 1]]), valid=jnp.ones((1, 2), bool), log_q=log_p)
    >>> verdict = verify.token_level(jax.random.split(jax.random.key(0), 1), trees.chain(1), draft, log_p)
    >>> int(verdict.accepted[0]), int(verdict.token[0])  # p == q: the draft token is accepted, then p is sampled
    (1, 2)
    """
    accept, correct = split_roles(key)
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
    """`token_level` with given uniforms: accept[:, i] tests node i + 1, correct samples the last token."""
    if not tree.is_chain:
        raise ValueError(f"token-level rejection requires a chain, got a tree with parents {tree.parents}")
    p, q = token_probs(draft, log_p)
    passed = accepts(accept, p, q) & draft.valid[:, 1:]
    accepted = jnp.sum(jnp.cumprod(passed, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    path = jnp.minimum(_arange_like(draft.tokens), accepted[:, None])
    return Verdict(path, accepted, draw(correct, next_token_mass(draft, log_p, accepted)))


def accepts(u: Float[Array, "*lead"], p: Float[Array, "*lead"], q: Float[Array, "*lead"]) -> Bool[Array, "*lead"]:
    """Whether a draft token is accepted: true with probability min(1, p / q) for u uniform in [0, 1).

    Strict and without division: u may be exactly 0, and a token with zero mass must be rejected even then.
    """
    return u * q < p


def residual(p: Float[Array, "*lead V"], q: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Unnormalized residual max(0, p - q), from which the replacement of a rejected token is sampled.

    Falls back to p where the residual has no mass: p == q, or rounding rejected a token that cannot be rejected.
    """
    left = jnp.maximum(p - q, jnp.zeros_like(p))
    return jnp.where(jnp.any(left > 0, axis=-1, keepdims=True), left, p)


def tested(tree: Tree, draft: Draft, verdict: Verdict) -> Int[Array, "B"]:
    """Number of levels tested in each row: the accepted ones, plus one where a node was rejected."""
    parents = layout_of(tree, draft.parents, draft.tokens.shape[0]).parents
    last = jnp.take_along_axis(verdict.path, verdict.accepted[:, None], axis=1)
    rejected = jnp.any((parents == last) & draft.valid, axis=1)
    return verdict.accepted + rejected.astype(jnp.int32)


def overlap(
    tree: Tree, draft: Draft, log_p: Float[Array, "B N V"], verdict: Verdict, *, one_hot: bool = False
) -> Float[Array, "B"]:
    """Sum of sum_x min(p(x), q(x)) over the nodes whose children were tested.

    On a chain each term is the expected acceptance rate given the two distributions. Zeros for point masses, which
    have no draft distribution. Costs one pass over [B, W - 1, V].

    Args:
      one_hot: set if every p is one-hot; the term is then q at the token of p.
    """
    if draft.log_q is None:
        return jnp.zeros(log_p.shape[0], log_p.dtype)
    if tree.is_chain:
        log_p, log_q = log_p[:, :-1], draft.log_q[:, :-1]
    else:
        along = jax.vmap(lambda log_probs, path: log_probs[path])
        log_p, log_q = along(log_p, verdict.path[:, :-1]), along(draft.log_q, verdict.path[:, :-1])
    shared = jnp.exp(at_tokens(log_q, argmax(log_p))) if one_hot else total(jnp.exp(jnp.minimum(log_p, log_q)))
    reached = _arange_like(shared) < tested(tree, draft, verdict)[:, None]
    return jnp.sum(jnp.where(reached, shared, jnp.zeros_like(shared)), axis=-1)


def next_token_mass(draft: Draft, log_p: Float[Array, "B N V"], accepted: Int[Array, "B"]) -> Float[Array, "B V"]:
    """Unnormalized distribution of the token after the last accepted node: p, or the residual after a rejection.

    Each row's node is selected first, so the cost over the vocabulary does not depend on gamma.
    """
    if draft.tokens.shape[1] == 1:  # plain decoding rejects nothing and passes over the vocabulary once
        return jnp.exp(log_p[:, 0])
    return remaining_mass(draft, log_p, accepted, _rejected(draft, accepted))


def remaining_mass(
    draft: Draft,
    log_p: Float[Array, "B N V"],
    node: Int[Array, "B"],
    rejected: Bool[Array, "B"],
    weight: Float[Array, "B"] | None = None,
) -> Float[Array, "B V"]:
    """Unnormalized distribution after a node of a chain: max(0, weight p - q) where its child was rejected, else p."""
    p = jnp.exp(at_node(log_p, node))
    if draft.log_q is None:
        rejected_token = jnp.take_along_axis(draft.tokens, _next(draft, node)[:, None], axis=1)
        q = (lax.broadcasted_iota(jnp.int32, p.shape, 1) == rejected_token).astype(p.dtype)
    else:
        q = jnp.exp(at_node(draft.log_q, node))
    return jnp.where(rejected[:, None], residual(p if weight is None else weight[:, None] * p, q), p)


def token_probs(draft: Draft, log_p: Float[Array, "B N V"]) -> tuple[Float[Array, "B gamma"], Float[Array, "B gamma"]]:
    """(p, q) of each draft token of a chain; q is 1 for point masses."""
    proposed = draft.tokens[:, 1:]
    p = jnp.exp(at_tokens(log_p[:, :-1], proposed))
    return p, jnp.ones_like(p) if draft.log_q is None else jnp.exp(at_tokens(draft.log_q[:, :-1], proposed))


def at_tokens(log_probs: Float[Array, "B gamma V"], tokens: Int[Array, "B gamma"]) -> Float[Array, "B gamma"]:
    """The log-probability of one token per position."""
    return jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]


def at_node(log_probs: Float[Array, "B N V"], node: Int[Array, "B"]) -> Float[Array, "B V"]:
    """The log-probabilities after one node per row, read as one slice per row."""
    return jax.vmap(lambda row, at: lax.dynamic_index_in_dim(row, at, keepdims=False))(log_probs, node)


def split_roles(key: KeyArray) -> tuple[KeyArray, KeyArray]:
    """Splits each row's key by role: (accept, correct)."""
    pair = jax.vmap(lambda k: jax.random.split(k, 2))(key)
    return pair[:, 0], pair[:, 1]


def _rejected(draft: Draft, accepted: Int[Array, "B"]) -> Bool[Array, "B"]:
    """Whether the row stopped at a tested node, not at the end of the chain or at an invalid node."""
    following = jnp.take_along_axis(draft.valid, _next(draft, accepted)[:, None], axis=1)[:, 0]
    return (accepted < draft.tokens.shape[1] - 1) & following


def _next(draft: Draft, accepted: Int[Array, "B"]) -> Int[Array, "B"]:
    return jnp.minimum(accepted + 1, draft.tokens.shape[1] - 1)


def _arange_like(x: Shaped[Array, "B n"]) -> Int[Array, "B n"]:
    return lax.broadcasted_iota(jnp.int32, x.shape, 1)
