"""A trained head drafts from the target's hidden states: chains, static trees and dynamic trees.

eagle, eagle3, spire   token by token (`head_writer`)
peagle, dflash         all positions in one forward pass (`one_pass`), so no dynamic trees
medusa, mlp            one stage per token (`staged_writer`)
falcon                 k tokens in one forward pass (`passes_writer`), experimental
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax import checks, defaults, programs, trees
from specjax.drafters.block_writer import block_writer
from specjax.drafters.chain import chain
from specjax.drafters.head_writer import HeadParams, head_writer
from specjax.drafters.loaded import LoadedDrafter
from specjax.drafters.model import MODEL_GAMMA
from specjax.drafters.passes_writer import passes_writer
from specjax.drafters.staged_writer import staged_writer
from specjax.drafters.token_tree import check_size, grown_tree, static_tree
from specjax.drafters.writer import Writer
from specjax.heads.dflash import DFlashConfig
from specjax.heads.falcon import FalconConfig
from specjax.heads.head import Head, places
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp import MLPConfig
from specjax.heads.peagle import PEagleConfig
from specjax.model import Model
from specjax.trees import Tree
from specjax.types import Commit, Siblings

STAGED = (MedusaConfig, MLPConfig)
BY_LEVEL = (*STAGED, FalconConfig)  # which read a chain as a tree
LIMITED = (*STAGED, DFlashConfig)  # which draft no more levels than they were trained for
ONE_PASS = (MedusaConfig, PEagleConfig, DFlashConfig)  # in which no level depends on the tokens of those above


def head(
    head: Head,
    *,
    gamma: int | None = None,
    tree: Tree | None = None,
    dynamic: int | None = None,
    depth: int = 4,
    width: int = 4,
    siblings: Siblings = Siblings.POINTS,
) -> LoadedDrafter:
    """A trained head drafts a chain, a tree of one shape, or each row's own tree of its most probable paths.

    Lossless with the verifiers that suit what it drafts: of chains, any lossless one; of trees, as `drafters.tree` and
    `drafters.dynamic_tree`. Tokens outside the head's draft vocabulary have draft probability 0.

    EAGLE, Li et al. 2024, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858; EAGLE-3, arXiv 2503.01840; HASS, Zhang et al.
    2024, arXiv 2408.15766; P-EAGLE, arXiv 2602.01469; DFlash, Chen et al. 2026, arXiv 2602.06036; Medusa, Cai et al.
    2024, arXiv 2401.10774; MLP speculator, Wertheimer et al. 2024, arXiv 2404.19124; Falcon, experimental, Gao et al.
    2024, arXiv 2412.12639; SPIRe, experimental, Neelam et al. 2025, arXiv 2504.06419.

    Args:
      head: from `specjax.load_head`.
      gamma: draft tokens per round of a chain, at least 1. If nothing else is given: 5; of P-EAGLE, what its file
        names; of DFlash, Medusa and MLP speculators, the most that they draft.
      tree: a tree of `specjax.trees`. P-EAGLE, DFlash and Medusa draft each level's tokens independently of those
        above.
      dynamic: nodes of a dynamic tree that the target verifies, the root included. Not with P-EAGLE, DFlash and Medusa,
        which draft all levels in one forward pass.
      depth: levels of a dynamic tree, or fewer if the head drafts fewer.
      width: of a dynamic tree: nodes per level that the head reads, and tokens that each of them proposes.
      siblings: how the children of a static tree's nodes are chosen: the most probable tokens, or distinct samples
        (WITHOUT_REPLACEMENT), or independent ones.

    Returns:
      The drafter.

    Raises:
      ValueError: more than one of gamma, tree and dynamic, numbers out of range, or more levels than the head drafts.
    """
    if not isinstance(head, Head):
        raise ValueError(f"head must be one from specjax.load_head, got {type(head).__name__}")
    given = [name for name, value in {"gamma": gamma, "tree": tree, "dynamic": dynamic}.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"a head drafts one of gamma, tree and dynamic, got {' and '.join(given)}")
    if tree is not None:
        checks.integer("depth of the tree", tree.width - 1, least=0, most=most_drafted(head))
        drafter, name = (
            static_tree(writer(head, tree.width, tree.size), tree, siblings),
            f"{head.name} tree of {tree.size}",
        )
    elif dynamic is not None:
        if isinstance(head.config, ONE_PASS):
            raise ValueError(
                f"a {head.kind.name} head drafts all levels in one forward pass, so it grows no dynamic tree: "
                "pass gamma or tree"
            )
        depth = min(depth, most_drafted(head))
        check_size(dynamic, depth, width)
        checks.integer("width", width, least=1, most=head.target.vocab_size)
        drafter, name = (
            grown_tree(writer(head, depth + 1, depth * width), dynamic, depth, width),
            f"{head.name} dynamic of {dynamic}",
        )
    else:
        gamma = default_gamma(head) if gamma is None else gamma
        gamma = checks.integer("gamma", gamma, least=1, most=most_drafted(head))
        own, name = writer(head, gamma + 1), f"{head.name} x{gamma}"
        by_level = isinstance(head.config, BY_LEVEL)
        drafter = static_tree(own, trees.chain(gamma), Siblings.WITH_REPLACEMENT) if by_level else chain(own, gamma)
    drafter = drafter._replace(capture=head.config.taps)
    family, params = head.target.family, head.target.params
    return LoadedDrafter(name, drafter, HeadParams(head.params, family.without_layers(params), places(head)), head=head)


def default_gamma(head: Head) -> int:
    """Draft tokens per round of a chain."""
    if isinstance(head.config, PEagleConfig):
        return head.config.tokens
    return head.config.most if isinstance(head.config, LIMITED) else MODEL_GAMMA


def most_drafted(head: Head) -> int:
    """Most levels that the head drafts."""
    return head.config.most if isinstance(head.config, LIMITED) else defaults.LARGEST_TREE - 1


def writer(head: Head, width: int, nodes: int | None = None) -> Writer:
    """The head as a writer of drafts of which a round commits at most `width` tokens.

    Args:
      nodes: most nodes that it reads in a round; None: those of a chain.
    """
    of, restricted = (head.target.family, head.target.config, head.target.fmt), head.draft_tokens is not None
    if isinstance(head.config, STAGED):
        return staged_writer(head.kind.model, head.config, head.fmt, of, restricted)
    if isinstance(head.config, FalconConfig):
        nodes = width if nodes is None else nodes
        return passes_writer(head.kind.model, head.config, head.fmt, nodes, of, restricted)
    if isinstance(head.config, DFlashConfig):
        return block_writer(head.kind.model, head.config, head.fmt, width, of, restricted)
    nodes = width if nodes is None else nodes
    return head_writer(head.kind.model, head.config, head.fmt, width, nodes, of, restricted)


def draft_logits(
    target: Model, prompt_tokens: Sequence[int] | np.ndarray, drafter: LoadedDrafter, steps: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """The greedy chain that a head drafts after a prompt, and the raw logits behind it: to compare implementations.

    Args:
      target: the model that the drafter was built for.
      prompt_tokens: token ids, at least two: the head reads the feature before the last one. Of an encoder-decoder, the
        chain follows the first token that the target writes.
      drafter: from `drafters.head`.
      steps: tokens to draft, at most what the head drafts in a round.

    Returns:
      Tokens [steps] int32 and logits [steps, V] float32 over the target's vocabulary, -inf for tokens that the head
      does not draft.

    Raises:
      ValueError: a drafter without a head, too short a prompt, or too many steps.
    """
    if drafter.head is None:
        raise ValueError(f"drafter {drafter.name!r} has no head: build it with specjax.drafters.head")
    drafter.check(target)
    prompt = np.asarray(prompt_tokens, np.int32)[None]
    checks.integer("prompt_tokens", prompt.shape[1], least=2)
    checks.integer("steps", steps, least=1, most=most_drafted(drafter.head))
    lm, own = target.variant(capture=drafter.drafter.capture), writer(drafter.head, steps + 1)
    tokens, logits = _greedy(target.params, drafter.params, prompt, lm=lm, writer=own, steps=steps)
    return np.asarray(tokens[0]), np.asarray(logits[0])


@functools.partial(programs.jit, static=("lm", "writer", "steps"))
def _greedy(target_params, params, prompt, *, lm, writer, steps):
    length = jnp.full((1,), prompt.shape[1], jnp.int32)
    slots = prompt.shape[1] + steps + 1
    read = lm.prefill(target_params, prompt, length, slots)
    memory, pending = writer.init(params, prompt, length, slots, read), read.pending
    if lm.encoder_decoder:  # there is no feature before the start token
        one = trees.chain(0)
        out, _ = lm.extend(target_params, pending[:, None], read.cache, one.mask, one.depth)
        tokens = jnp.argmax(out.logits, -1).astype(jnp.int32)
        committed = Commit(tokens, jnp.ones_like(length), out.features, tokens, out.hiddens)
        memory, pending = writer.commit(params, memory, None, None, 0, committed), tokens[:, 0]
    logits, memory = writer.root(params, memory, pending)
    cache, found = memory.cache, [logits]
    for step in range(steps - 1):
        token = jnp.argmax(found[-1], -1)[:, None].astype(jnp.int32)
        above, depth = np.ones((1, step + 1), bool), np.full((1,), step, np.int32)
        out, cache = writer.lm.extend(params, token, cache, above, depth, offset=step)
        found.append(out.logits[:, 0])
    every = jnp.stack(found, 1)
    return jnp.argmax(every, -1).astype(jnp.int32), every
