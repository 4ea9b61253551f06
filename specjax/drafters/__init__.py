"""Drafters: pure functions with explicit state, and constructors that join them to their weights.

Each constructor returns a `LoadedDrafter` for `specjax.generate(..., drafter=...)`. The `base.Drafter`s behind them are
in the modules of this folder.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks
from specjax import verify as _verify
from specjax.base import Drafter
from specjax.defaults import LONGEST_MATCH
from specjax.drafters import adaptive, chain, model_tree
from specjax.drafters import cascade as _cascade
from specjax.drafters import fitting as fitting
from specjax.drafters import lookahead as _lookahead
from specjax.drafters import ngram as _ngram
from specjax.drafters import suffix as _suffix
from specjax.drafters import table as _table
from specjax.drafters.bounded import bounded as bounded
from specjax.drafters.bridge import bridge as bridge
from specjax.drafters.bridge import reencode as reencode
from specjax.drafters.corpus import Corpus as Corpus
from specjax.drafters.corpus import corpus as corpus
from specjax.drafters.corpus import load_corpus as load_corpus
from specjax.drafters.corpus import read_corpus as read_corpus
from specjax.drafters.corpus import save_corpus as save_corpus
from specjax.drafters.loaded import LoadedDrafter as LoadedDrafter
from specjax.drafters.loaded import check_model as _check_model
from specjax.drafters.select import Retrieval as Retrieval
from specjax.drafters.select import Sinks as Sinks
from specjax.drafters.select import SnapKV as SnapKV
from specjax.drafters.self_speculation import layer_skip as layer_skip
from specjax.drafters.self_speculation import quantized as quantized
from specjax.drafters.small_kv import small_kv as small_kv
from specjax.policies.policy import Rule, check_buckets, ladder
from specjax.trees import Tree
from specjax.types import Siblings as Siblings

MODEL_GAMMA = 5  # draft tokens per round by default


def plain() -> LoadedDrafter:
    """No draft: plain autoregressive decoding in the same loop, the baseline of all speed-ups.

    Returns:
      A drafter for any target; one token per target forward pass.

    >>> import specjax as sj
    >>> sj.drafters.plain().name
    'plain'
    """
    return LoadedDrafter("plain", chain.plain())


def model(
    draft: Any, *, gamma: int | None = None, policy: Any = None, buckets: tuple[int, ...] | None = None
) -> LoadedDrafter:
    """A smaller model drafts a chain of tokens, each sampled from its own distribution.

    Lossless with any lossless verifier of chains. Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al.
    2023, arXiv 2302.01318.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer, or one from `drafters.bounded`.
      gamma: draft tokens per round, at least 1. None: 5, or up to the policy's gamma_max.
      policy: from `specjax.policies`; each row then drafts its own number of tokens, at most the policy's gamma_max.
      buckets: draft lengths for which a target forward pass is compiled, if the policy varies the length. None: those
        of `policies.ladder`; (): gamma_max alone.

    Returns:
      The drafter.

    Raises:
      ValueError: gamma and policy together, not a policy, or buckets that do not fit it.

    >>> import specjax as sj
    >>> draft = sj.load("bundled/opt-draft")
    >>> sj.drafters.model(draft, gamma=3).name
    'bundled/opt-draft x3'
    >>> sj.drafters.model(draft, policy=sj.policies.heuristic(gamma_max=8)).name
    'bundled/opt-draft heuristic up to 8'
    """
    _check_model("draft", draft)
    if policy is None:
        if buckets is not None:
            raise ValueError(f"buckets={buckets} are for a policy of varying length: give policy=, or leave them out")
        gamma = checks.integer("gamma", MODEL_GAMMA if gamma is None else gamma, least=1)
        draft.lm.check_rollback(gamma, f"a draft of {gamma}")
        return LoadedDrafter(f"{draft.name} x{gamma}", chain.chain(draft.lm, gamma), draft.params, draft)
    if not isinstance(policy, Rule):
        raise ValueError(f"policy must be one from specjax.policies, got {type(policy).__name__}")
    if gamma is not None:
        raise ValueError(f"pass either gamma={gamma} or policy={policy.name!r}, not both")
    most = policy.gamma_max
    if policy.policy.constant:
        check_buckets(buckets or (), most)
        return plain() if most == 0 else model(draft, gamma=most)
    draft.lm.check_rollback(most, f"a draft of {most}")
    chosen = ladder(most) if buckets is None else check_buckets(buckets, most)
    drafter = adaptive.adaptive(draft.lm, policy.policy, chosen)
    params = adaptive.AdaptiveParams(draft.params, policy.params)
    return LoadedDrafter(f"{draft.name} {policy.name}", drafter, params, draft)


def tree(draft: Any, shape: Tree, *, siblings: Siblings = Siblings.WITHOUT_REPLACEMENT) -> LoadedDrafter:
    """A smaller model drafts a static tree of tokens, one draft forward pass per level.

    Lossless with the verifiers named below. SpecInfer, Miao et al. 2023, arXiv 2305.09781, section 4; Sequoia, Chen et
    al. 2024, arXiv 2402.12374, section 3.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      shape: a tree of `specjax.trees`: regular((3, 2)), best_tree(...), sequoia(...).
      siblings: how the children of a node are chosen, which determines the verifiers. WITHOUT_REPLACEMENT, distinct
        samples: "multiround-without" or "traversal-without". WITH_REPLACEMENT, independent samples: "multiround",
        "traversal" or "kseq". POINTS, the most probable tokens: "deterministic", "multiround" or "traversal".

    Returns:
      The drafter.

    Raises:
      ValueError: an argument of another type.

    >>> import specjax as sj
    >>> sj.drafters.tree(sj.load("bundled/opt-draft"), sj.trees.regular((3, 2))).name
    'bundled/opt-draft tree of 10, without replacement'
    """
    _check_model("draft", draft)
    if not isinstance(shape, Tree):
        raise ValueError(f"the shape must be a tree of specjax.trees, such as trees.regular((3, 2)), got {shape!r}")
    if not isinstance(siblings, Siblings):
        raise ValueError(f"siblings must be one of {', '.join(map(str, Siblings))}, got {siblings!r}")
    kind = siblings.name.lower().replace("_", " ")
    drafter = model_tree.model_tree(draft.lm, shape, siblings)
    return LoadedDrafter(f"{draft.name} tree of {shape.size}, {kind}", drafter, draft.params, draft)


def dynamic_tree(draft: Any, *, size: int = 16, depth: int = 4, width: int = 4) -> LoadedDrafter:
    """A smaller model grows a tree in every row and round, along its most probable paths.

    Verifier: "deterministic", lossless. EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4, with any draft model.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      size: nodes that the target verifies, the root included.
      depth: levels below the root, one draft forward pass each.
      width: nodes per level that the draft reads, and tokens that each of them proposes.

    Returns:
      The drafter.

    Raises:
      ValueError: a size that the depth and width cannot fill, or numbers below 1.

    >>> import specjax as sj
    >>> sj.drafters.dynamic_tree(sj.load("bundled/opt-draft"), size=12, depth=3, width=3).name
    'bundled/opt-draft dynamic tree of 12'
    """
    _check_model("draft", draft)
    drafter = model_tree.dynamic_tree(draft.lm, size, depth, width)
    return LoadedDrafter(f"{draft.name} dynamic tree of {size}", drafter, draft.params, draft)


def ngram(*, gamma: int = 8, longest: int = 3, shortest: int = 1) -> LoadedDrafter:
    """Prompt lookup: copies what followed the last few tokens where they occurred before in the row.

    The longest match wins, then the latest. Lossless with any lossless verifier of chains. Prompt lookup decoding,
    Saxena 2023; LLMA, Yang et al. 2023, arXiv 2304.04487, section 3.

    Args:
      gamma: draft tokens per round, at least 1.
      longest: tokens of the longest match that is tried, at most 64.
      shortest: tokens of the shortest match, at least 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.ngram(gamma=6).name
    'ngram x6'
    """
    checks.integer("gamma", gamma, least=1)
    _check_matches(longest, shortest)
    return LoadedDrafter(f"ngram x{gamma}", _ngram.ngram(gamma, longest, shortest))


def lookahead(*, window: int = 7, ngram: int = 5, guesses: int = 7) -> LoadedDrafter:
    """The target drafts for itself by Jacobi iteration while it verifies, in one forward pass.

    Verifier: "deterministic", lossless. Lookahead decoding, Fu et al. 2024, arXiv 2402.02057, sections 3.1 and 3.2.

    Args:
      window: W, columns of the Jacobi window, at least 1.
      ngram: N, tokens of an n-gram, at least 2; a round commits at most N.
      guesses: G, n-grams that are verified per round, at least 1.

    Returns:
      The drafter; a forward pass reads (W + G)(N - 1) nodes.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.lookahead(window=5, ngram=3, guesses=5).drafter.tree.size
    20
    """
    return LoadedDrafter(f"lookahead {window},{ngram},{guesses}", _lookahead.lookahead(window, ngram, guesses))


def suffix(
    past: Corpus | None = None, *, gamma: int = 8, longest: int = 16, shortest: int = 1, confidence: float = 0.1
) -> LoadedDrafter:
    """Copies what most often followed the longest match of the last tokens, in the row and in past outputs.

    Lossless with any lossless verifier of chains. SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, section 3;
    REST, He et al. 2023, arXiv 2311.08252.

    Args:
      past: from `drafters.corpus(documents)`, lists of token ids such as `Generation.tokens`. None: the row alone.
      gamma: draft tokens per round, at least 1.
      longest: tokens of the longest match, at most 64 and at most the depth of the corpus.
      shortest: tokens of the shortest match, at least 1.
      confidence: share of the matches that must continue with a token for it to be proposed, 0 to 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> past = sj.drafters.corpus([[5, 6, 7, 8], [6, 7, 9]])
    >>> sj.drafters.suffix(past, gamma=4).name
    'suffix x4, corpus'
    """
    checks.integer("gamma", gamma, least=1)
    _check_matches(longest, shortest, confidence)
    drafter = _suffix.suffix(gamma, longest, shortest, confidence)
    return _of_corpus(f"suffix x{gamma}", drafter, past, longest)


def suffix_tree(
    past: Corpus | None = None,
    *,
    size: int = 16,
    depth: int = 8,
    longest: int = 16,
    shortest: int = 1,
    confidence: float = 0.1,
) -> LoadedDrafter:
    """As `suffix`, but proposes the most frequent continuations side by side, as a tree in every row and round.

    Verifier: "deterministic", lossless.

    Args:
      past: from `drafters.corpus(documents)`, lists of token ids such as `Generation.tokens`. None: the row alone.
      size: nodes that the target verifies, the root included.
      depth: tokens of the longest continuation.
      longest: tokens of the longest match, at most 64 and at most the depth of the corpus.
      shortest: tokens of the shortest match, at least 1.
      confidence: share of the matches that must continue with a token for it to be proposed, 0 to 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.suffix_tree(size=12, depth=4).name
    'suffix tree of 12'
    """
    checks.integer("size", size, least=1)
    checks.integer("depth", depth, least=1)
    _check_matches(longest, shortest, confidence)
    drafter = _suffix.suffix_tree(size, depth, longest, shortest, confidence)
    return _of_corpus(f"suffix tree of {size}", drafter, past, longest)


def _check_matches(longest: int, shortest: int, confidence: float = 0.0) -> None:
    checks.integer("longest", longest, least=1, most=LONGEST_MATCH)
    checks.integer("shortest", shortest, least=1, most=longest)
    checks.number("confidence", confidence, least=0, most=1)


def _of_corpus(name: str, drafter: Drafter, past: Corpus | None, longest: int) -> LoadedDrafter:
    if past is None:
        return LoadedDrafter(name, drafter)
    if longest > int(past.depth):
        raise ValueError(
            f"matches of {longest} tokens are asked for, and the corpus was sorted by {int(past.depth)}: "
            f"pass longest={int(past.depth)}, or build it with depth={longest}"
        )
    return LoadedDrafter(f"{name}, corpus", drafter, past, largest=int(past.text.max()))


def table(fitted: Any, *, gamma: int = 5) -> LoadedDrafter:
    """A unigram, bigram, or n-gram table drafts a chain at almost no cost.

    Lossless with any lossless verifier of chains. Leviathan et al. 2023, arXiv 2211.17192, section 3.6 and table 3.

    Args:
      fitted: from `fitting.fit`, `fitting.fit_texts` or `training.table.fit_samples`, or the path of a file that
        `fitting.save` wrote.
      gamma: draft tokens per round, at least 1.

    Returns:
      The drafter.

    Raises:
      ValueError: not a table, or distributions that do not sum to 1.

    >>> import specjax as sj
    >>> fitted = sj.drafters.fitting.fit([[1, 2, 3, 1, 2]], vocab_size=8)
    >>> sj.drafters.table(fitted, gamma=3).name
    'bigram x3'
    """
    checks.integer("gamma", gamma, least=1)
    if isinstance(fitted, str | os.PathLike):
        fitted = fitting.load(fitted)
    elif not isinstance(fitted, _table.Table):
        raise ValueError(
            f"a table comes from drafters.fitting, or is the path of a saved one; got {type(fitted).__name__}"
        )
    else:
        fitting.check(fitted)
    kind = {1: "unigram", 2: "bigram"}.get(fitted.order, f"{fitted.order}-gram table")
    made = _table.table(fitted.order, fitted.vocab_size, gamma)
    return LoadedDrafter(f"{kind} x{gamma}", made, jax.tree.map(jnp.asarray, fitted))


def cascade(
    draft: Any, drafter: Any, *, gamma: int = 6, verifier: str | _verify.Verifier | None = None
) -> LoadedDrafter:
    """A smaller model drafts a chain, itself sped up by a drafter: speculation of three levels or more.

    `cascade(middle, model(small))` under a target is the hierarchy target > middle > small; the drafter may be a
    cascade again. Lossless with any lossless verifier of chains. Staged speculative decoding, Spector and Re 2023,
    arXiv 2308.04623; TriForce, Sun et al. 2024, arXiv 2404.11912, section 4.2.

    Args:
      draft: a model from `specjax.load` or `drafters.bounded` that shares the target's tokenizer.
      drafter: a `LoadedDrafter` that drafts for it.
      gamma: draft tokens per round of the target, at least 1; more than a round of the inner levels yields.
      verifier: verifier of the inner rounds, a lossless one: a name of `specjax.verify.TABLE`, or a `Verifier`. None:
        the default for the drafter.

    Returns:
      The drafter.

    Raises:
      ValueError: parts that do not fit together, a lossy verifier, or a drafter without `rewind`.

    >>> import specjax as sj
    >>> middle, small = sj.load("bundled/opt-draft"), sj.load("bundled/opt-tiny")
    >>> sj.drafters.cascade(middle, sj.drafters.model(small, gamma=3), gamma=6).name
    'bundled/opt-draft x6 (bundled/opt-tiny x3)'
    """
    checks.integer("gamma", gamma, least=1)
    _check_model("draft", draft)
    if not isinstance(drafter, LoadedDrafter):
        raise ValueError(
            f"the inner drafter must be one from specjax.drafters, got {type(drafter).__name__}: for a draft model "
            "write specjax.drafters.model(draft)"
        )
    part = drafter.drafter
    if verifier is None:
        chosen = _verify.default(part.tree, part.siblings, part.dynamic)
    else:
        chosen = _verify.get(verifier) if isinstance(verifier, str) else verifier
    chosen.require_lossless()
    drafter.check(draft)
    chosen.check(part.tree, part.siblings, f"inner drafter {drafter.name!r}", dynamic=part.dynamic)
    if part.rewind is None:
        raise ValueError(
            f"drafter {drafter.name!r} cannot roll tokens back (it has no `rewind`), so a cascade cannot use it: "
            "use one that shares the middle model's tokenizer, or looks tokens up"
        )
    over = gamma - 1 + part.tree.width  # tokens that the last inner round may end at
    draft.lm.check_rollback(over, f"a cascade of gamma={gamma}")
    if drafter.source is not None:
        drafter.source.lm.check_rollback(over + part.tree.size - 1, f"a cascade of gamma={gamma}")
    return LoadedDrafter(
        f"{draft.name} x{gamma} ({drafter.name})",
        _cascade.cascade(draft.variant(capture=part.capture), part, chosen.fn, gamma),
        _cascade.CascadeParams(draft.params, drafter.params),
        draft,
    )
