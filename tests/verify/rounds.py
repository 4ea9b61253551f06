"""Rounds of any verifier on trees of a Markov draft model, jitted, in float32: the samples of the chi-square tests."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax.categorical import categorical
from specjax.decoding import committed_block
from specjax.trees import Tree
from specjax.types import Draft, Siblings


def fork(key, count: int) -> list:
    """`count` keys from each row's key."""
    forks = jax.vmap(lambda k: jax.random.split(k, count))(key)
    return [forks[:, i] for i in range(count)]


def drafted(key, tree: Tree, siblings: Siblings, root, log_q_after) -> Draft:
    """A tree sampled from log_q_after(previous token [B]) -> [B, V], with siblings of one kind."""
    tokens, log_qs = [root], [log_q_after(root)]
    for node in range(1, tree.size):
        key, now = fork(key, 2)
        parent = tree.parents[node]
        older = [n for n in range(1, node) if tree.parents[n] == parent]
        log_q = log_qs[parent]
        if siblings is Siblings.POINTS:
            token = lax.top_k(log_q, len(older) + 1)[1][:, -1]
        else:
            if siblings is Siblings.WITHOUT_REPLACEMENT:
                for n in older:
                    gone = lax.broadcasted_iota(jnp.int32, log_q.shape, 1) == tokens[n][:, None]
                    log_q = jnp.where(gone, -jnp.inf, log_q)
                exhausted = jnp.max(log_q, axis=-1, keepdims=True) == -jnp.inf  # any token: a point mass
                log_q = jnp.where(exhausted, jnp.zeros_like(log_q), log_q)
            token = categorical(now, log_q)
        tokens.append(token)
        log_qs.append(log_q_after(token))
    drawn = jnp.stack(tokens, 1)
    log_q = None if siblings is Siblings.POINTS else jnp.stack(log_qs, 1)
    return Draft(drawn, jnp.ones_like(drawn, dtype=bool), log_q)


def one_round(verify, key, tree: Tree, siblings: Siblings, root, log_p_after, log_q_after):
    """(tokens [B, W], length [B]) of one round."""
    drafting, verifying = fork(key, 2)
    draft = drafted(drafting, tree, siblings, root, log_q_after)
    log_p = jnp.stack([log_p_after(draft.tokens[:, n]) for n in range(tree.size)], 1)
    verdict = verify(verifying, tree, draft, log_p)
    return committed_block(tree, draft, verdict), verdict.accepted + 1


def continued(key, block, length, count: int, log_p_after):
    """The first `count` tokens [B, count]: those of the block, then samples of the target."""
    out = []
    for w in range(count):
        key, now = fork(key, 2)
        fresh = categorical(now, log_p_after(out[-1])) if out else block[:, 0]
        out.append(jnp.where(w < length, block[:, min(w, block.shape[1] - 1)], fresh))
    return jnp.stack(out, 1)


def large_probs(size: int, contexts: int) -> np.ndarray:
    """[target and draft, context, V]: noisy Zipf distributions, with some tokens of zero mass."""
    rng = np.random.default_rng(1)
    logits = 2.0 * rng.normal(size=(2, contexts, size)) - 1.1 * np.log1p(rng.permuted(np.arange(size)))
    mass = np.exp(logits)
    mass[:, :, 7::50] = 0.0
    return mass / mass.sum(-1, keepdims=True)
