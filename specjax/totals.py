"""What a round reports of itself, and the sums over rounds."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.trees import Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, Info, Verdict
from specjax.verify.token import tested


class Totals(NamedTuple):
    """Sums of `Info` over the rounds of each row; `rounds` counts target passes in which the row was active."""

    rounds: Int[Array, "B"]
    drafted: Int[Array, "B"]
    tested: Int[Array, "B"]
    accepted: Int[Array, "B"]
    overlap: Array
    depth_tested: Int[Array, "B W"]
    depth_accepted: Int[Array, "B W"]


def info_of(tree: Tree, draft: Draft, verdict: Verdict, shared, block, n, active) -> Info:
    """Diagnostics of a round. A node was tested if it is on the path, or if the path ends above it."""
    walked = tested(tree, draft, verdict)
    depth = jnp.arange(tree.width, dtype=jnp.int32)[None]
    on = lambda x: jnp.where(active, x, 0)
    return Info(
        active=active,
        drafted=on(draft.valid[:, 1:].sum(1, dtype=jnp.int32)),
        tested=on(walked),
        accepted=on(verdict.accepted),
        emitted=n,
        overlap=jnp.where(active, shared, 0.0),
        depth_tested=((depth < walked[:, None]) & active[:, None]).astype(jnp.int32),
        depth_accepted=((depth < verdict.accepted[:, None]) & active[:, None]).astype(jnp.int32),
        proposed=draft.tokens,
        parents=layout_of(tree, draft.parents, block.shape[0]).parents,
        valid=draft.valid,
        committed=block,
    )


def added(totals: Totals, info: Info) -> Totals:
    """The totals with those of one more round."""
    return Totals(
        totals.rounds + info.active.astype(jnp.int32),
        totals.drafted + info.drafted,
        totals.tested + info.tested,
        totals.accepted + info.accepted,
        totals.overlap + info.overlap,
        totals.depth_tested + info.depth_tested,
        totals.depth_accepted + info.depth_accepted,
    )
