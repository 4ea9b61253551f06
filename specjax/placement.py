"""Placement of everything that a round reads or carries on a mesh, once, before the first round.

    rows          prompts, lengths, keys, sampling parameters, the state: split over `data`
    replicated    stop rules, and what the draft reads that was loaded without a mesh: weights, corpora, tables
    as loaded     the target's weights, and those of a draft that was loaded with the mesh

`specjax.sharding` has the rules of models; this module knows the decoding state.
"""

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import hosts
from specjax.decoding import DecodeParams, GenerationState
from specjax.sharding import AnyMesh, Rules, cache_shardings, check_rows, replicated, row_sharding
from specjax.types import PyTree


def state_shardings(
    state: GenerationState, mesh: AnyMesh, rules: Rules, *, draft: Rules | None = None
) -> GenerationState:
    """Shardings of a generation state: rows on data, the target's heads by `rules`, the draft's by `draft`.

    Place the state that `prefill` returned by these (`hosts.lay`): a round then returns it with the same shardings.

    Args:
      draft: rules of a draft model on the same mesh; None: its caches are split by rows alone.
    """
    check_rows(state.stop.shape[0], mesh)
    placed = cache_shardings(state, mesh, rules)
    return placed._replace(draft=cache_shardings(state.draft, mesh, replicated(rules) if draft is None else draft))


def place_params(params: DecodeParams, mesh: Mesh) -> DecodeParams:
    """Places what rounds read: sampling parameters by rows, the rest whole on every device unless it is on the mesh."""
    check_rows(params.sampling.top_k.shape[0], mesh)
    whole = NamedSharding(mesh, P())

    def on_mesh(leaf) -> jax.Array:
        there = isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
        return leaf if there else hosts.lay(leaf, whole)

    return DecodeParams(
        target=jax.tree.map(on_mesh, params.target),
        draft=jax.tree.map(on_mesh, params.draft),
        sampling=place_rows(params.sampling, mesh),
        stop=jax.tree.map(on_mesh, params.stop),
    )


def place_rows(arrays: PyTree, mesh: Mesh) -> PyTree:
    """Places arrays [B, ...] by rows, scalars whole: prompts, lengths, budgets and keys."""
    rows, whole = row_sharding(mesh), NamedSharding(mesh, P())
    return hosts.lay(arrays, jax.tree.map(lambda leaf: rows if leaf.ndim else whole, arrays))
