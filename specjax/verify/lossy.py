"""Lossy verifiers: they accept more than the target's law allows, and say so in name, docstring and report.

Each constructor is cached: the same parameters give the same function, so that nothing compiles twice.
"""

import math

import jax.numpy as jnp

from specjax.base import VerifyFn
from specjax.categorical import argmax, draw, uniforms
from specjax.programs import memoize
from specjax.trees import Tree
from specjax.trees.dynamic import layout_of
from specjax.verify.criterion import Criterion, entropy, longest
from specjax.verify.token import law_after
from specjax.verify.walk import Walk, along, verdict_at, verdict_of


@memoize
def lossy_typical(epsilon: float = 0.09, delta: float = 0.3) -> VerifyFn:
    """LOSSY: typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774), on any tree, however it was drafted.

    A token passes if p(x) > min(epsilon, delta exp(-H(p))): where the target is unsure, less is asked. The longest
    path that passes is accepted, of equals the likeliest; the token after it is drawn from p. At temperature 0 that is
    greedy decoding, exactly, for epsilon below 1.

    Args:
      epsilon: a token above this always passes, in (0, 1).
      delta: the share of exp(-H) that passes, above 0; Medusa takes the root of epsilon.
    """
    _between("epsilon", epsilon, 0.0, 1.0, top=False)
    _between("delta", delta, 0.0, math.inf, top=False)
    return _drawing(Criterion(lambda log_p: jnp.minimum(delta * jnp.exp(-entropy(log_p)), epsilon), strict=True))


@memoize
def lossy_threshold(least: float = 0.3) -> VerifyFn:
    """LOSSY: a token passes if p(x) >= least, on any tree, however it was drafted.

    The longest path that passes is accepted, of equals the likeliest; the token after it is drawn from p.

    Args:
      least: a probability in (0, 1].
    """
    _between("least", least, 0.0, 1.0)
    return _drawing(Criterion(lambda log_p: jnp.full(log_p.shape[:2], least, log_p.dtype), strict=False))


@memoize
def lossy_lenient(lenience: float = 0.8) -> VerifyFn:
    """LOSSY: lenience l (Leviathan et al. 2023, arXiv 2211.17192, appendix A.5), on a chain: out(x) <= p(x) / l.

    A token passes with probability min(1, p(x) / (l q(x))); the first that is refused is replaced by a draw from
    norm(max(0, p - q)). Lenience 1 is `token_level`. At temperature 0 lenience has no effect: see
    `lossy_lenient_greedy`.

    Args:
      lenience: l in (0, 1].
    """
    walk = lenient_walk(lenience)

    def verify(key, tree, draft, log_p):
        """Lossy: lenience on a chain; see `lossy_lenient`."""
        return verdict_of(walk, key, tree, draft, log_p)

    return verify


@memoize
def lossy_lenient_greedy(lenience: float = 0.8) -> VerifyFn:
    """LOSSY: lenience l for greedy decoding, on any tree: a token passes if p(x) >= l max p.

    The token after the longest path that passes is the argmax, so nothing is drawn and lenience 1 is greedy decoding
    (but for exact ties). p must be the law at temperature 1, not the one-hot of temperature 0: sample at temperature 1
    with this verifier.

    Args:
      lenience: l in (0, 1].
    """
    _between("lenience", lenience, 0.0, 1.0)
    criterion = Criterion(lambda log_p: lenience * jnp.exp(jnp.max(log_p, axis=-1)), strict=False)

    def verify(key, tree, draft, log_p):
        """Lossy: lenience for greedy decoding; see `lossy_lenient_greedy`."""
        del key
        node = longest(criterion, tree, draft, log_p)
        return verdict_at(layout_of(tree, draft.parents, node.shape[0]), node, argmax(law_after(log_p, node)))

    return verify


@memoize
def lenient_walk(lenience: float) -> Walk:
    """`lossy_lenient` on given uniforms."""
    _between("lenience", lenience, 0.0, 1.0)

    def walk(u, tree: Tree, draft, log_p):
        if not tree.is_chain:
            raise ValueError(f"lossy-lenient needs a chain, got a tree with parents {tree.parents}: "
                             "use lossy-typical or lossy-threshold")  # fmt: skip
        return along(u, tree, draft, log_p, lenience=lenience)

    return walk


def _drawing(criterion: Criterion) -> VerifyFn:
    """Accepts the longest path that meets a criterion, and draws the token after it from p."""

    def verify(key, tree, draft, log_p):
        """Lossy: the longest path that meets a criterion, and a draw from p; see the constructors."""
        node = longest(criterion, tree, draft, log_p)
        token = draw(uniforms(key, (2,), log_p.dtype), jnp.exp(law_after(log_p, node)))
        return verdict_at(layout_of(tree, draft.parents, node.shape[0]), node, token)

    return verify


def _between(name: str, value: float, low: float, high: float, *, top: bool = True) -> None:
    if not (low < value < high or (top and value == high)):
        raise ValueError(f"{name} must lie in ({low:g}, {high:g}{']' if top else ')'}, got {value}")
