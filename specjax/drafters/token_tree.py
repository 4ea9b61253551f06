"""Trees of tokens that a draft model or a head writes: a static one, or one a row, grown by path probability.

    static    any `trees.Tree`; children of a node are drawn with or without replacement, or are the most probable
              (SpecInfer, arXiv 2305.09781; Sequoia, arXiv 2402.12374)
    dynamic   each row's most probable paths, expanded and reranked every round (EAGLE-2, arXiv 2406.16858)

A level is read in one forward pass, and only its nodes that have children. The part of the accepted path that a draft
model has read stays in its cache:

    slots     0 ....... length-1 | length ........ | ...
    content   committed tokens,  | nodes read below the root, level by level, at their `slot`
              the root the last  |
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax import checks
from specjax.base import Drafter, Warp
from specjax.categorical import draw, largest, perturbed, uniforms
from specjax.drafters.chain import without_empty
from specjax.drafters.loaded import LoadedDrafter, check_model
from specjax.drafters.writer import Memory, Writer, model_writer
from specjax.programs import memoize
from specjax.trees import NO_CHILD, Tree, dynamic
from specjax.trees.dynamic import NOT_FED, layout_of
from specjax.types import Commit, Draft, PositionKeys, Siblings
from specjax.verify.walk import is_token


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
    check_model("draft", draft)
    if not isinstance(shape, Tree):
        raise ValueError(f"the shape must be a tree of specjax.trees, such as trees.regular((3, 2)), got {shape!r}")
    if not isinstance(siblings, Siblings):
        raise ValueError(f"siblings must be one of {', '.join(map(str, Siblings))}, got {siblings!r}")
    kind = siblings.name.lower().replace("_", " ")
    drafter = static_tree(model_writer(draft.lm), shape, siblings)
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
    check_model("draft", draft)
    check_size(size, depth, width)
    checks.integer("width", width, least=1, most=draft.vocab_size)
    drafter = grown_tree(model_writer(draft.lm), size, depth, width)
    return LoadedDrafter(f"{draft.name} dynamic tree of {size}", drafter, draft.params, draft)


Born = list[tuple[Int[Array, "B _"], Bool[Array, "B _"]]]  # of each rank: the children, and whether they are proposed


class TreeDraft(NamedTuple):
    """State of a writer of trees."""

    memory: Memory
    tokens: Int[Array, "B N"]  # the last tree
    parents: Int[Array, "B N"] | None = None  # of a dynamic tree: its shape, and the places of its nodes in the cache
    slot: Int[Array, "B N"] | None = None


class Level(NamedTuple):
    """The nodes of one depth that have children, which one forward pass reads."""

    nodes: np.ndarray  # [n]
    depth: np.ndarray  # [n], counted from the children of the root
    mask: np.ndarray  # [n, offset + n]
    offset: int  # nodes read before, the root apart
    ranks: tuple[tuple[np.ndarray, np.ndarray], ...]  # a rank: places in `nodes` with such a child, and the children


@memoize
def static_tree(writer: Writer, tree: Tree, siblings: Siblings = Siblings.WITHOUT_REPLACEMENT) -> Drafter:
    """A tree of one shape, with children drawn from the writer's warped distribution, or its most probable tokens.

    WITH_REPLACEMENT: independent draws. WITHOUT_REPLACEMENT: each drawn token is removed and the rest renormalized, in
    the order of the children: the distribution of Gumbel top-k without a random number for every entry of the
    vocabulary; a child past the last token that has mass is not proposed, except at temperature 0, where the children
    are the most probable tokens, the limit of these draws. `log_q` is the distribution of the first draw in both.
    POINTS: the most probable tokens; `log_q` is None.

    Raises:
      ValueError: a bare root, scratch nodes, or more children at a node than tokens, where they must differ.
    """
    if tree.size == 1:
        raise ValueError("a tree to draft has a node below its root; for plain decoding use drafters.plain()")
    if tree.scratch.any():
        raise ValueError(f"a draft model writes no scratch nodes, and nodes {np.flatnonzero(tree.scratch)} are scratch")
    lm, widest = writer.lm, tree.children.shape[1]
    if widest > lm.vocab_size and siblings is not Siblings.WITH_REPLACEMENT:
        raise ValueError(f"a node has {widest} children, and only {lm.vocab_size} tokens exist: they must differ")
    levels, slots = plan(tree)
    chosen = siblings is Siblings.POINTS

    def init(params, prompt, length, cache_len, prefilled):
        memory = writer.init(params, prompt, length, cache_len, prefilled)
        return TreeDraft(memory, jnp.broadcast_to(prefilled.pending[:, None], (prompt.shape[0], tree.size)))

    def propose(params, key, state: TreeDraft, pending, warp):
        logits, memory = writer.root(params, state.memory, pending)
        logits, cache = logits[:, None], memory.cache
        tokens = jnp.broadcast_to(pending[:, None], (pending.shape[0], tree.size))
        valid = writer.proposable(params, memory, tree.depth)
        all_log_q = None if chosen else jnp.zeros((*tokens.shape, lm.vocab_size), jnp.float32)
        # All of the round's randomness at once.
        numbers = None if chosen or isinstance(key, PositionKeys) else uniforms(key, (tree.size, 2))
        for level in levels:
            if level.nodes[0]:  # the root has been read
                given = tokens[:, level.nodes]
                out, cache = lm.extend(params, given, cache, level.mask, level.depth, offset=level.offset)
                logits = out.logits
            log_q, empty = _warped(writer, warp, logits, tokens[:, tree.paths[level.nodes]])
            if all_log_q is None:
                born = _most_probable(level, jnp.where(empty[..., None], -jnp.inf, ranking(logits, log_q)))
            elif numbers is None:
                # One noise for a position: equal draws are useless siblings, so the next largest follow (Gumbel top-k).
                all_log_q = all_log_q.at[:, level.nodes].set(log_q)
                depth = int(tree.depth[level.nodes[0]])
                drawn = jnp.stack([perturbed(key, depth, one) for one in _columns(log_q)], 1)
                born = _most_probable(level, jnp.where(one_hot(log_q)[..., None], ranking(logits, log_q), drawn))
            else:
                all_log_q = all_log_q.at[:, level.nodes].set(log_q)
                leave = siblings is Siblings.WITHOUT_REPLACEMENT
                born = _drawn(level, numbers, log_q, leave=leave)
                if leave and len(level.ranks) > 1:
                    born = _or_most_probable(level, logits, log_q, born)
            for (places, children), (token, proposed) in zip(level.ranks, born, strict=True):
                tokens = tokens.at[:, children].set(token)
                proposed = proposed & ~empty[:, places]
                valid = valid.at[:, children].set(proposed & valid[:, children] & valid[:, level.nodes[places]])
        return Draft(tokens, valid, all_log_q), TreeDraft(memory._replace(cache=cache), tokens)

    def commit(params, state: TreeDraft, committed: Commit):
        slot = jnp.broadcast_to(slots[None], state.tokens.shape)
        return _follow(writer, params, tree, state, slot, len(levels) - 1, committed)

    vocab_size = None if chosen else lm.vocab_size
    return Drafter(tree, init, propose, commit, vocab_size, siblings, rewind=functools.partial(_rewind, writer))


def check_size(size: int, depth: int, width: int) -> None:
    """Raises ValueError for a dynamic tree that no model can draft: the checks of `dynamic_tree` without a model."""
    checks.integer("depth", depth, least=1)
    checks.integer("width", width, least=1)
    checks.integer("size", size, least=depth + 1, most=dynamic.candidates(width, depth))


@memoize
def grown_tree(writer: Writer, size: int, depth: int, width: int) -> Drafter:
    """Each row's own tree of the `size` - 1 most probable paths below its root, as point masses.

    Level by level the `width` best nodes are read, each proposes its `width` most probable tokens; of all that was
    proposed the best are kept, whatever their level.
    """
    lm, tree = writer.lm, dynamic.envelope(size, depth)
    read_below = width * (depth - 1)

    def init(params, prompt, length, cache_len, prefilled):
        memory = writer.init(params, prompt, length, cache_len + max(0, read_below + 1 - size), prefilled)
        shape = (prompt.shape[0], size)
        tokens = jnp.broadcast_to(prefilled.pending[:, None], shape)
        bare = jnp.broadcast_to(jnp.asarray(np.array(tree.parents, np.int32))[None], shape)
        return TreeDraft(memory, tokens, bare, jnp.full(shape, NOT_FED, jnp.int32))

    def propose(params, key, state: TreeDraft, pending, warp):
        del key  # nothing is drawn
        logits, memory = writer.root(params, state.memory, pending)
        logits, cache = logits[:, None], memory.cache
        growth = dynamic.start(pending)
        ancestors = read = pending[:, None]
        ancestors = ancestors[:, None]
        for level in range(depth):
            if level:
                fed = growth.frontier_tokens
                at = np.full((width,), level - 1, np.int32)
                out, cache = lm.extend(params, fed, cache, growth.sees, at, offset=width * (level - 1))
                read = fed if level == 1 else jnp.concatenate([read, fed], 1)
                ancestors = jnp.where(growth.sees, read[:, None], pending[:, None, None])
                logits = out.logits
            log_q, empty = _warped(writer, warp, logits, ancestors)
            score = jnp.where(empty[..., None], -jnp.inf, ranking(logits, log_q))
            growth = dynamic.expand(growth, score, width=width)
        nodes = dynamic.rerank(growth, size=size)
        whole = writer.proposable(params, memory, np.minimum(np.arange(size), 1) * depth)
        draft = Draft(nodes.tokens, nodes.valid & whole, None, nodes.parents)
        return draft, TreeDraft(memory._replace(cache=cache), nodes.tokens, nodes.parents, nodes.slot)

    def commit(params, state: TreeDraft, committed: Commit):
        assert state.slot is not None  # `init` gave it
        return _follow(writer, params, tree, state, state.slot, depth - 1, committed)

    rewind = functools.partial(_rewind, writer)
    return Drafter(tree, init, propose, commit, None, Siblings.POINTS, dynamic=True, rewind=rewind)


def plan(tree: Tree) -> tuple[tuple[Level, ...], np.ndarray]:
    """The forward passes that read a tree, the root's first, and each node's index among those read below the root."""
    counts = (tree.children != NO_CHILD).sum(1)
    inner = np.flatnonzero(counts)
    inner = inner[np.argsort(tree.depth[inner], kind="stable")]
    below = inner[1:]
    slots = np.full((tree.size,), NOT_FED, np.int32)
    slots[below] = np.arange(len(below), dtype=np.int32)
    levels = []
    for depth in range(int(tree.depth[inner].max()) + 1):
        nodes = inner[tree.depth[inner] == depth]
        offset = int((tree.depth[below] < depth).sum())
        ranks = []
        for rank in range(int(counts[nodes].max())):
            places = np.flatnonzero(counts[nodes] > rank)
            ranks.append((places, tree.children[nodes[places], rank]))
        seen = below[: offset + len(nodes)] if depth else inner[:0]
        levels.append(
            Level(nodes, tree.depth[nodes] - np.int32(1), tree.mask[np.ix_(nodes, seen)], offset, tuple(ranks))
        )
    return tuple(levels), slots


def _warped(
    writer: Writer, warp: Warp, logits: Float[Array, "B S V"], ancestors: Int[Array, "B S A"]
) -> tuple[Float[Array, "B S V"], Bool[Array, "B S"]]:
    """Warped distributions, and the nodes at which nothing can be proposed."""
    log_q = warp(logits, ancestors)
    return without_empty(logits, log_q) if writer.restricted else (log_q, jnp.zeros(log_q.shape[:2], bool))


def ranking(logits: Float[Array, "B S V"], log_q: Float[Array, "B S V"]) -> Float[Array, "B S V"]:
    """Log-probabilities that rank point masses: the warped ones, or the model's own where the warped are one-hot.

    A one-hot distribution does not rank the alternatives; its own token stays first.
    """
    plain = jax.nn.log_softmax(logits.astype(jnp.float32))
    certain = log_q == 0
    best = jnp.max(plain, axis=-1, keepdims=True)
    greedy = jnp.where(certain, jnp.broadcast_to(best, plain.shape), plain)
    return jnp.where(jnp.any(certain, axis=-1, keepdims=True), greedy, log_q)


def _columns(log_q: Float[Array, "B S V"]) -> list[Float[Array, "B V"]]:
    """The distributions of each node."""
    return [log_q[:, i] for i in range(log_q.shape[1])]


def accepted_slots(
    shape: dynamic.Layout, tokens: Int[Array, "B N"], slot: Int[Array, "B N"], depth: int, committed: Commit
) -> tuple[Int[Array, "B D"], Int[Array, "B"]]:
    """Where the model has read the tokens that were accepted: a slot for each level below the root, and how many.

    Found by tokens: nodes whose paths have the same tokens have the same keys and values, so any of them will do.

    Args:
      depth: D, the deepest level that is read.
    """
    levels = jnp.arange(1, shape.paths.shape[2], dtype=jnp.int32)[None, None]
    route = jax.vmap(lambda line, paths: line[paths])(tokens, shape.paths)[:, :, 1:]
    wanted = committed.tokens[:, None, : route.shape[2]]
    agrees = jnp.all((route == wanted) | (levels > shape.depth[..., None]), axis=-1)
    agrees = agrees & (shape.depth < committed.length[:, None]) & (slot != NOT_FED)
    here = agrees[..., None] & (shape.depth[..., None] == levels[..., :depth])
    found = jnp.max(jnp.where(here, slot[..., None], NOT_FED), axis=1)
    read = jnp.sum(jnp.cumprod(found != NOT_FED, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    return jnp.maximum(found, 0), read


def _most_probable(level: Level, log_q: Float[Array, "B S V"]) -> Born:
    """A rank: the children's tokens, and whether they have any probability. Equals prefer the smaller token."""
    most = min(len(level.ranks), log_q.shape[-1])
    score, tokens = largest(log_q, most)
    pick = lambda table, places, rank: table[:, places, min(rank, most - 1)]
    return [
        (pick(tokens, places, rank).astype(jnp.int32), pick(score, places, rank) > -jnp.inf)
        for rank, (places, _) in enumerate(level.ranks)
    ]


def one_hot(log_q: Float[Array, "B S V"]) -> Bool[Array, "B S"]:
    """Nodes whose distribution has a single token."""
    return jnp.sum(jnp.exp(log_q) > 0, axis=-1) == 1


def _or_most_probable(level: Level, logits: Float[Array, "B S V"], log_q: Float[Array, "B S V"], born: Born) -> Born:
    """`born`, or where a distribution is one-hot, the most probable tokens. Without such rows nothing is ranked."""
    certain = one_hot(log_q)

    def ranked() -> Born:
        best = _most_probable(level, ranking(logits, log_q))
        pick = lambda places, one, other: jnp.where(certain[:, places], one, other)
        return [
            (pick(places, token, drawn), pick(places, proposed, was))
            for (places, _), (token, proposed), (drawn, was) in zip(level.ranks, best, born, strict=True)
        ]

    return lax.cond(jnp.any(certain), ranked, lambda: born)


def _drawn(level: Level, numbers: Float[Array, "B N 2"], log_q: Float[Array, "B S V"], *, leave: bool) -> Born:
    """A rank: the children's tokens, and whether anything was left to draw them from.

    Args:
      numbers: two uniforms for every node of the tree, whose child's draw they are.
      leave: a drawn token is removed for its younger siblings.
    """
    mass, born = jnp.exp(log_q), []
    for places, children in level.ranks:
        left = mass[:, places]
        token = draw(numbers[:, children], left)
        born.append((token, jnp.any(left > 0, axis=-1)))
        if leave:
            gone = is_token(token.reshape(-1), left.reshape(-1, left.shape[-1])).reshape(left.shape)
            mass = mass.at[:, places].set(jnp.where(gone, jnp.zeros_like(left), left))
    return born


def _follow(
    writer: Writer, params, tree: Tree, state: TreeDraft, slot: Int[Array, "B N"], depth: int, committed: Commit
) -> TreeDraft:
    """Commits, with the slots of what was read of the accepted path."""
    shape = layout_of(tree, state.parents, state.tokens.shape[0])
    if depth:
        path, read = accepted_slots(shape, state.tokens, slot, depth, committed)
    else:  # nothing below the root is ever read
        path, read = None, jnp.zeros_like(committed.length)
    return state._replace(memory=writer.commit(params, state.memory, path, read, 0, committed))


def _rewind(writer: Writer, params, state: TreeDraft, back: Int[Array, "B"], token: Int[Array, "B"]) -> TreeDraft:
    return state._replace(memory=writer.rewind(params, state.memory, back, token))
