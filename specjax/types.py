"""Records that pass between the parts of a round, and the alphabet of their shapes.

B batch - P prompt - S block of new positions - N tree nodes, root included - W = depth + 1, tokens that one round
can commit - T cache slots - V vocabulary - D model width - L layers - H heads - K key-value heads.
"""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PyTree = Any
Params = PyTree  # plain nested dict of arrays with stable string paths
KeyArray = jax.Array  # typed PRNG keys, [B]: one stream a row


class PositionKeys(NamedTuple):
    """Random streams by row and position: the noise of a token depends on nothing else, whatever round draws it.

    What drafter and verifier receive in place of keys of the round if the verifier is `by_position`.
    """

    key: KeyArray  # [B], the row's own; never advanced
    position: Int[Array, "B"]  # of the token after `pending`, counted from the start of the prompt

    def at(self, ahead: int | Int[Array, "..."]) -> KeyArray:
        """Keys [B] of the tokens that many positions further; `ahead` is one number, or one per row."""
        return jax.vmap(jax.random.fold_in)(self.key, self.position + ahead)

    def moved(self, ahead: int | Int[Array, "..."]) -> "PositionKeys":
        """The same streams, seen from a token that many positions further."""
        return self._replace(position=self.position + jnp.asarray(ahead, jnp.int32))


class Shared(NamedTuple):
    """A part of a drafter's state that all rows share, such as a table [V]: replicated on a mesh.

    All other leaves of a state, scalars apart, are led by rows [B, ...] and are split over the data axis.
    """

    value: PyTree


class Output(NamedTuple):
    """Output of a language model for a block of S new positions."""

    logits: Float[Array, "B S V"]  # float32, before any warp
    features: Float[Array, "B S D"]  # last hidden state after the final norm: what the head reads
    hiddens: tuple[Float[Array, "B S D"], ...] = ()  # residual streams entering the chosen layers, in their order


class Siblings(enum.Enum):
    """How the children of a node are chosen, which determines the verifiers that support the tree.

    In a chain every node has one child, so that WITH_REPLACEMENT and WITHOUT_REPLACEMENT are the same.
    """

    WITH_REPLACEMENT = "independent draws"
    WITHOUT_REPLACEMENT = "draws without replacement, oldest first"
    POINTS = "point masses"


class Draft(NamedTuple):
    """Proposal of a drafter: tokens at the nodes of a tree, whose root, node 0, is `pending`."""

    tokens: Int[Array, "B N"]
    valid: Bool[Array, "B N"]  # False: this node was not proposed. Static shape, dynamic content
    log_q: Float[Array, "B N V"] | None  # distribution that node i's children were drawn from; None: point masses
    parents: Int[Array, "B N"] | None = None  # of a dynamic tree: one tree a row; None: the drafter's own tree


class Verdict(NamedTuple):
    """The accepted path of the tree, and the token that the verifier appends."""

    path: Int[Array, "B W"]  # nodes, root first; entries past `accepted` repeat the last one
    accepted: Int[Array, "B"]  # nodes accepted below the root: 0 .. W-1
    token: Int[Array, "B"]  # correction or bonus token; always emitted


class Commit(NamedTuple):
    """Tokens committed by one round, left-aligned, with the target's hidden states that predicted them.

    The round feeds `pending` (node 0 of the tree) and the draft; the accepted path is `pending`, d1, ..., da, and the
    verifier appends one token x. Column w of `features` and `hiddens` belongs to the w-th node of that path:

        position          n        n+1      ...   n+a          n = position of `pending`, which was committed before
        fed token         pending  d1       ...   da
        features, hiddens [:, 0]   [:, 1]   ...   [:, a]
        tokens            d1       d2       ...   x            the token at the next position

    Over all rounds, each position from the one of the first `pending` on appears exactly once: together with
    `Prefilled.features` of the positions before it, a drafter receives the features of all committed tokens but the
    current `pending`, which the target has not read yet.
    """

    tokens: Int[Array, "B W"]  # accepted tokens, then `Verdict.token`; entries past `length` are undefined
    length: Int[Array, "B"]  # 0 for a row that has stopped, else accepted + 1 (less where a stop cut the block)
    features: Float[Array, "B W D"]  # last hidden state, after the final norm; undefined past `length`
    argmax: Int[Array, "B N"]  # argmax of the target distribution at every fed node
    hiddens: tuple[Float[Array, "B W D"], ...] = ()  # the residual streams of `Drafter.capture`, in its order


class Info(NamedTuple):
    """Diagnostics of one round, zero for rows that had stopped. XLA removes the fields that nothing reads."""

    active: Bool[Array, "B"]
    drafted: Int[Array, "B"]  # nodes proposed (valid, root apart)
    tested: Int[Array, "B"]  # nodes that were accepted or rejected
    accepted: Int[Array, "B"]
    emitted: Int[Array, "B"]  # tokens committed: accepted + 1, or fewer where the row stopped inside the block
    overlap: Float[Array, "B"]  # sum over tested nodes of sum_x min(p, q)
    depth_tested: Int[Array, "B W"]  # [:, d]: 1 where a node at depth d + 1 was tested (the last column is always 0)
    depth_accepted: Int[Array, "B W"]
    proposed: Int[Array, "B N"]  # tokens and parents of the draft, and which nodes were proposed
    parents: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    committed: Int[Array, "B W"]
