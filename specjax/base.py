"""The three seams: LanguageModel, Drafter, VerifyFn. Each is a NamedTuple of pure functions, or one function."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.trees import Tree
from specjax.types import Draft, Output, PyTree, Siblings, Verdict

Cache = PyTree  # private to the model, except `length`
DraftState = PyTree


class Prefilled(NamedTuple):
    """A model after its prompt: the cache holds everything except `pending`, the last committed token.

        decoder-only      prompt t0 .. t_{n-1}, n = length      features [:, i] of t_i; `pending` is t_{n-1}
        encoder-decoder   `pending` is the start token          features [:, 0] of the start token (P = 1)

    The features of `pending` itself, [:, n - 1] or [:, 0], appear again as `Commit.features[:, 0]` of the first round.
    """

    cache: Cache
    pending: Int[Array, "B"]
    features: Float[Array, "B P D"]  # last hidden state, after the final norm; undefined from `length` on
    hiddens: tuple[Float[Array, "B P D"], ...] = ()  # captured residual streams, in the order of `capture`


class Known(NamedTuple):
    """A prefix of every prompt that was read before.

    Attributes:
      read: of a single row; its slots and positions from `count` on are undefined.
      count: number of tokens that all prompts share with it.
    """

    read: Prefilled
    count: Int[Array, ""]


class LanguageModel(NamedTuple):
    """A language model as the decoding loop sees it.

    prefill: (params, prompt [B,P], length [B], cache_len, known=None) -> Prefilled. `prompt` is left-aligned; tokens
        past `length` are ignored. Decoder-only: the cache holds prompt[:length-1] and `pending` is the last prompt
        token; `known` is a prefix of all rows that was read before.
        Encoder-decoder: the encoder has run, cross keys and values are in the cache, `pending` is the start token.
    extend: (params, tokens [B,S], cache, mask [S,S] or [B,S,S] bool, depth [S] or [B,S], offset=0)
        -> (Output, Cache). Writes keys and values of the S tokens into slots length + offset + (0..S-1) and does not
        advance the length. `mask[i, j]`: block position i sees block position j, counted from `offset` 0, so its last
        axis is offset + S. Positions are length + depth.
    keep: (cache, path [B,W] or None, n [B]) -> Cache. Compacts the rows of `path` (block positions) to the front of
        the block and advances each row's own length by n. path None: a chain, which moves no data.
    vocab_size: V of the logits.
    encoder_decoder: whether the prompt is read by an encoder.
    positions: size of the table of positions; None where there is none (rotary and relative positions). Features and
        logits at a position past the table are finite but undefined: a draft proposes nothing there (`proposable`).
    rollback: tokens that `keep` can roll back; None: all of them.
    """

    prefill: Callable[..., Prefilled]
    extend: Callable[..., tuple[Output, Cache]]
    keep: Callable[[Cache, Int[Array, "B W"] | None, Int[Array, "B"]], Cache]
    vocab_size: int
    encoder_decoder: bool = False
    positions: int | None = None
    rollback: int | None = None

    def check_rollback(self, tokens: int, doing: str) -> None:
        """Raises ValueError where a round rolls back more tokens than `keep` can."""
        if self.rollback is not None and tokens > self.rollback:
            raise ValueError(f"slack={self.rollback} tokens can be rolled back, and {doing} rolls back up to {tokens}: "
                             f"pass slack={tokens} to drafters.bounded")  # fmt: skip

    def proposable(self, root: Int[Array, "B"], depth: Int[Array | np.ndarray, "N"]) -> Bool[Array, "B N"]:
        """Draft nodes that this model can propose: their parents' positions are within its table.

        Args:
          root: position of `pending` in each row.
          depth: of the nodes, 0 for the root, which is always valid.
        """
        depth = jnp.asarray(depth, jnp.int32)[None]
        inside = jnp.ones((), bool) if self.positions is None else root[:, None] + depth <= self.positions
        return jnp.broadcast_to((depth == 0) | inside, (root.shape[0], depth.shape[1]))


@runtime_checkable
class Warp(Protocol):
    """Logits to float32 log-probabilities under each row's sampling parameters.

    Args: logits [B,S,V]; ancestors [B,S,A]: tokens that precede each position within this round, itself included, in
    any order and with repeats (a repetition penalty counts them beside all that is committed); None where there are
    none.
    """

    def __call__(
        self, logits: Float[Array, "B S V"], ancestors: Int[Array, "B S A"] | None = None
    ) -> Float[Array, "B S V"]: ...


class Drafter(NamedTuple):
    """A drafter: pure functions with explicit state.

    Every leaf of a DraftState that is not a scalar is led by rows [B, ...]; what rows share is wrapped in `Shared`.

    tree: static shape of what is proposed.
    init: (params, prompt [B,P], length [B], cache_len, prefilled) -> DraftState. `prefilled` is the target after the
        prompt: its features, captured hidden states, and its cache, for drafters that borrow it.
    propose: (params, key [B], state, pending [B], warp) -> (Draft, DraftState). `warp` is the target's own: draft and
        target distributions are processed alike (invariant 4). `key` is fresh in every round; with a verifier that is
        `by_position`, it is `PositionKeys`, and tokens are drawn with the noise of their positions
        (`categorical.noise`).
    commit: (params, state, Commit) -> DraftState. Absorbs what was committed. `length` 0 leaves a row as it is.
    vocab_size: V of `log_q`; None for drafters that do not depend on the vocabulary.
    siblings: how the children of a node are chosen; POINTS goes with a `log_q` of None.
    dynamic: whether every row has its own tree, in `Draft.parents`; `tree` then gives only its size and width.
    borrows: whether it works on the target's cache. `commit` and `rewind` then take the cache as one more argument, to
        read; `propose` takes it and returns (Draft, DraftState, Cache): it may write slots from each row's length on,
        which the target overwrites, and must return the lengths unchanged.
    rewind: (params, state, back [B], token [B]) -> DraftState, between a commit and the next propose. Rolls back the
        last back[b] committed tokens and commits token[b] in their place; `back` 0 leaves a row as it is. Needed only
        by the inner drafter of a cascade, some of whose accepted tokens the outer target rejects; None if unsupported.
    buckets: of a chain whose rows draft fewer nodes than it has: ascending draft lengths, the last its own, for which
        the target forward pass is compiled. A round uses the least that holds the longest draft of its rows, chosen on
        the device. (): every round is verified whole.
    capture: residual streams of the target that the drafter reads: k is the stream entering layer k, k = L the stream
        leaving the last layer. The loop's `LanguageModel` must be built with the same tuple
        (`Model.variant(capture=...)`); `Prefilled.hiddens` and `Commit.hiddens` follow its order.
    by_row: whether a row's drafts depend on that row alone, as `Policy.by_row`.
    """

    tree: Tree
    init: Callable[..., DraftState]
    propose: Callable[..., Any]  # (Draft, DraftState), and the cache where it is borrowed
    commit: Callable[..., DraftState]  # (params, state, Commit), and the cache where it is borrowed
    vocab_size: int | None = None
    siblings: Siblings = Siblings.WITH_REPLACEMENT
    dynamic: bool = False
    borrows: bool = False
    rewind: Callable[..., DraftState] | None = None
    buckets: tuple[int, ...] = ()
    capture: tuple[int, ...] = ()
    by_row: bool = True


@runtime_checkable
class VerifyFn(Protocol):
    """Decides which path of the tree to accept, and what to append. Stateless, so a function.

    Args: key [B] typed keys, consumed once (`PositionKeys` if the verifier is `by_position`); tree; draft; log_p
    [B,N,V] warped target distribution at every node.
    """

    def __call__(self, key: Any, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict: ...


class by_position:
    """Decorator of a `VerifyFn` whose noise belongs to rows and positions instead of rounds.

    Drafter and verifier then receive the same `PositionKeys`. Only for verifiers that remain exact when the draft was
    drawn with their own noise.
    """

    def __init__(self, function: Callable[..., Verdict]):
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, key, tree: Tree, draft: Draft, log_p) -> Verdict:
        return self._function(key, tree, draft, log_p)
