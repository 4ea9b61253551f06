"""Lossy verifiers accept more than the target distribution allows; names, docstrings and reports state it.

Constructors are cached: equal parameters return the same function, so nothing compiles twice.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax import checks
from specjax.base import VerifyFn
from specjax.categorical import argmax, draw, total, uniforms
from specjax.programs import memoize
from specjax.trees import NO_CHILD, Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft
from specjax.verify.token import at_node
from specjax.verify.walk import Walk, along, usable, verdict_at, verdict_of


@memoize
def lossy_typical(epsilon: float = 0.09, delta: float = 0.3) -> VerifyFn:
    """LOSSY: typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774, section 2.3.1) on any tree.

    A token passes if p(x) > min(epsilon, delta exp(-H(p))): the threshold is lower where the target is uncertain. The
    longest path that passes is accepted (the most probable one among equals) and the next token is sampled from p. At
    temperature 0 this is exactly greedy decoding, for epsilon below 1.

    Args:
      epsilon: probability above which a token always passes, in (0, 1).
      delta: factor of exp(-H), above 0; Medusa uses sqrt(epsilon).

    Returns:
      A verifier for any draft.

    Raises:
      ValueError: an argument out of range.

    >>> from specjax import verify
    >>> strict = verify.TABLE["lossy-typical"]._replace(fn=verify.lossy_typical(epsilon=0.3, delta=0.5))
    >>> strict.lossless
    False
    """
    checks.number("epsilon", epsilon, least=checks.POSITIVE, most=checks.BELOW_ONE)
    checks.number("delta", delta, least=checks.POSITIVE)
    return _sampling(Criterion(lambda log_p: jnp.minimum(delta * jnp.exp(-entropy(log_p)), epsilon), strict=True))


@memoize
def lossy_threshold(least: float = 0.3) -> VerifyFn:
    """LOSSY: a token passes if p(x) >= least, on any tree.

    The longest path that passes is accepted (the most probable one among equals) and the next token is sampled from p.

    Args:
      least: a probability in (0, 1].

    Returns:
      A verifier for any draft.

    Raises:
      ValueError: an argument out of range.

    >>> from specjax import verify
    >>> verify.TABLE["lossy-threshold"]._replace(fn=verify.lossy_threshold(0.5)).lossless
    False
    """
    checks.number("least", least, least=checks.POSITIVE, most=1)
    return _sampling(Criterion(lambda log_p: jnp.full(log_p.shape[:2], least, log_p.dtype), strict=False))


@memoize
def lossy_lenient(lenience: float = 0.8) -> VerifyFn:
    """LOSSY: lenience l (Leviathan et al. 2023, arXiv 2211.17192, appendix A.5) on a chain: out(x) <= p(x) / l.

    A token passes with probability min(1, p(x) / (l q(x))); the first rejected one is replaced by a sample from
    norm(max(0, p - q)). Lenience 1 is `token_level`. At temperature 0 lenience has no effect: see
    `lossy_lenient_greedy`.

    Args:
      lenience: l in (0, 1].

    Returns:
      A verifier for chains.

    Raises:
      ValueError: an argument out of range.

    >>> from specjax import verify
    >>> verify.TABLE["lossy-lenient"]._replace(fn=verify.lossy_lenient(0.5)).lossless
    False
    """
    walk = lenient_walk(lenience)

    def verify(key, tree, draft, log_p):
        """Lossy: lenience on a chain; see `lossy_lenient`."""
        return verdict_of(walk, key, tree, draft, log_p)

    return verify


@memoize
def lossy_lenient_greedy(lenience: float = 0.8) -> VerifyFn:
    """LOSSY: lenience l for greedy decoding, on any tree: a token passes if p(x) >= l max p.

    The token after the longest path that passes is the argmax: nothing is sampled, and lenience 1 is greedy decoding
    (up to exact ties). p must be the distribution at temperature 1, not the one-hot of temperature 0: use this
    verifier with temperature 1. Leviathan et al. 2023, appendix A.5.

    Args:
      lenience: l in (0, 1].

    Returns:
      A verifier for any draft.

    Raises:
      ValueError: an argument out of range.

    >>> from specjax import verify
    >>> verify.TABLE["lossy-lenient-greedy"]._replace(fn=verify.lossy_lenient_greedy(0.5)).lossless
    False
    """
    checks.number("lenience", lenience, least=checks.POSITIVE, most=1)
    criterion = Criterion(lambda log_p: lenience * jnp.exp(jnp.max(log_p, axis=-1)), strict=False)

    def verify(key, tree, draft, log_p):
        """Lossy: lenience for greedy decoding; see `lossy_lenient_greedy`."""
        del key
        node = longest(criterion, tree, draft, log_p)
        return verdict_at(layout_of(tree, draft.parents, node.shape[0]), node, argmax(at_node(log_p, node)))

    return verify


@memoize
def lenient_walk(lenience: float) -> Walk:
    """`lossy_lenient` with given uniforms."""
    checks.number("lenience", lenience, least=checks.POSITIVE, most=1)

    def walk(u, tree: Tree, draft, log_p):
        if not tree.is_chain:
            raise ValueError(f"lossy-lenient requires a chain, got a tree with parents {tree.parents}: "
                             "use lossy-typical or lossy-threshold")  # fmt: skip
        return along(u, tree, draft, log_p, lenience=lenience)

    return walk


class Criterion(NamedTuple):
    """A test of draft tokens against a threshold that depends on the target distribution alone.

    Attributes:
      floor: log_p [B, n, V] -> [B, n], the probability that a token is compared with.
      strict: whether a token must exceed the floor or may equal it.
    """

    floor: Callable[[Float[Array, "B n V"]], Float[Array, "B n"]]
    strict: bool


def longest(criterion: Criterion, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Int[Array, "B"]:
    """The deepest node per row that meets the criterion with all its ancestors; ties go to the most probable path."""
    if tree.size == 1:
        return jnp.zeros(log_p.shape[:1], jnp.int32)
    if draft.parents is None:  # drop the trailing leaves: only distributions after inner nodes are read
        log_p = log_p[:, : int(np.flatnonzero((tree.children != NO_CHILD).any(-1)).max()) + 1]
    shape = layout_of(tree, draft.parents, log_p.shape[0])
    above = jnp.maximum(shape.parents[:, 1:], 0)
    floor = jnp.take_along_axis(criterion.floor(log_p), above, axis=1)
    log_x = log_p[jnp.arange(log_p.shape[0], dtype=jnp.int32)[:, None], above, draft.tokens[:, 1:]]
    met = jnp.exp(log_x) > floor if criterion.strict else jnp.exp(log_x) >= floor
    met = jnp.pad(met & (log_x > -jnp.inf), ((0, 0), (1, 0)), constant_values=True)
    met = met & usable(tree, draft, in_order=False)
    passed = ~jnp.any(~met[:, None, :] & shape.mask, axis=-1)
    score = jnp.pad(jnp.where(met[:, 1:], log_x, jnp.zeros_like(log_x)), ((0, 0), (1, 0)))
    score = jnp.sum(jnp.where(shape.mask, score[:, None, :], jnp.zeros_like(score[:, None, :])), axis=-1)
    depth = jnp.where(passed, shape.depth, -1)
    deepest = depth == jnp.max(depth, axis=-1, keepdims=True)
    return jnp.argmax(jnp.where(deepest, score, -jnp.inf), axis=-1).astype(jnp.int32)


def entropy(log_p: Float[Array, "B n V"]) -> Float[Array, "B n"]:
    """H = - sum p log p, in nats; tokens with zero mass contribute 0."""
    p = jnp.exp(log_p)
    return -total(jnp.where(p > 0, p * log_p, jnp.zeros_like(p)))


def _sampling(criterion: Criterion) -> VerifyFn:
    """Accepts the longest path that meets a criterion and samples the next token from p."""

    def verify(key, tree, draft, log_p):
        """Lossy: the longest path that meets a criterion, and a sample from p; see the constructors."""
        node = longest(criterion, tree, draft, log_p)
        token = draw(uniforms(key, (2,), log_p.dtype), jnp.exp(at_node(log_p, node)))
        return verdict_at(layout_of(tree, draft.parents, node.shape[0]), node, token)

    return verify
