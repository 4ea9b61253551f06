"""The programs of a request, lowered for a slice: reading the prompt, and the whole loop."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format as Formatted
from jax.experimental.layout import Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import checkpoint, decoding, placement, sampling, sharding, stopping
from specjax.base import Drafter, LanguageModel
from specjax.drafters import chain
from specjax.drafters.writer import model_writer
from specjax.models.format import Format
from specjax.planning.request import PlanRequest, shape_named
from specjax.types import PyTree
from specjax.verify.token import token_level

TEMPERATURE = 0.8


class Programs(NamedTuple):
    """Shapes of what a request's programs read, with their shardings.

    Attributes:
      params, state: of the loop.
      prompt: key, prompt, length and budget, which `prefill` reads.
    """

    target: LanguageModel
    drafter: Drafter
    params: decoding.DecodeParams
    state: decoding.GenerationState
    prompt: tuple[Any, ...]
    cache_len: int
    max_new: int


def programs_of(request: PlanRequest, mesh: Any) -> Programs:
    """The shapes of a request on a mesh, which may be abstract.

    Raises:
      ValueError: models with different vocabularies, or sizes that do not divide over the mesh.
    """
    plain = unplaced(anywhere(request))
    family, config = shape_named(request.target)
    rules, whole = family.rules, sharding.replicated(family.rules)
    sharding.check_rows(request.rows, mesh)
    params = plain.params
    target = sharding.shardings(params.target, mesh, rules, request.fmt, kv_heads=config.kv_heads)
    everywhere, by_row = NamedSharding(mesh, P()), sharding.row_sharding(mesh)
    places = decoding.DecodeParams(
        target,
        jax.tree.map(lambda _: everywhere, params.draft),
        jax.tree.map(lambda leaf: by_row if leaf.ndim else everywhere, params.sampling),
        jax.tree.map(lambda _: everywhere, params.stop),
    )
    drafter = plain.drafter
    if request.draft is not None:
        lm = sharding.on_mesh(_language_model(request.draft, request.draft_fmt), mesh, whole)
        drafter = chain.chain(model_writer(lm), request.gamma)
    return plain._replace(
        target=sharding.on_mesh(plain.target, mesh, rules),
        drafter=drafter,
        params=_like(params, places),
        state=_like(plain.state, placement.state_shardings(plain.state, mesh, rules, draft=whole)),
        prompt=_like(plain.prompt, jax.tree.map(lambda _: by_row, plain.prompt)),
    )


def anywhere(request: PlanRequest) -> PlanRequest:
    """The same for requests that differ in their slice and mesh alone."""
    return dataclasses.replace(request, topology="v5e:2x4", slices=1, mesh=(1, 1))


@functools.lru_cache(maxsize=64)
def unplaced(request: PlanRequest) -> Programs:
    """The programs of a request on no mesh: their shapes take a while to trace, and are the same on every mesh."""
    family, config = shape_named(request.target)
    target, rows = _language_model(request.target, request.fmt), request.rows
    drafter, draft_params = chain.no_draft(), None
    if request.draft is not None:
        draft_family, draft_config = shape_named(request.draft)
        draft_params = draft_family.abstract(draft_config, request.draft_fmt)
        drafter = chain.chain(model_writer(_language_model(request.draft, request.draft_fmt)), request.gamma)
    warps = sampling.sampling_params(rows, config.vocab_size, temperature=TEMPERATURE)
    stops = stopping.rules(config.vocab_size, eos=[2])
    params = decoding.DecodeParams(family.abstract(config, request.fmt), draft_params, warps, stops)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    numbers = jax.ShapeDtypeStruct((rows,), jnp.int32)
    prompt = (keys, jax.ShapeDtypeStruct((rows, request.prompt_width()), jnp.int32), numbers, numbers)
    cache_len, max_new = request.cache_len(), request.max_new_tokens
    state = jax.eval_shape(
        decoding.make_init(target, drafter, cache_len=cache_len, max_new=max_new), params, *prompt
    )  # fmt: skip
    return Programs(target, drafter, params, state, prompt, cache_len, max_new)


def _like(tree: PyTree, shardings: PyTree) -> PyTree:
    return checkpoint.like(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree), shardings)


def _language_model(name: str, fmt: Format) -> LanguageModel:
    family, config = shape_named(name)
    return family.language_model(config, fmt)


def lower_loop(programs: Programs, *, compiler_layouts: bool) -> jax.stages.Lowered:
    """The whole loop: draft, verify and commit until every row has stopped."""
    lower = lower_in_layouts if compiler_layouts else decoding.generate.lower
    return lower(programs.params, programs.state, model=programs.target, drafter=programs.drafter, verify=token_level)


def lower_in_layouts(params, state, *, model, drafter, verify) -> jax.stages.Lowered:
    """`decoding.generate`, lowered with layouts that the compiler chooses, the state's the same before and after.

    In the default layouts, the caches and some kernels would be copied into others at the start of the loop, and back
    at its end: gigabytes of temporaries. Place the arguments by `compiled.input_formats`.

    Args:
      params, state: arrays, or their shapes with shardings.
    """
    auto = lambda tree: jax.tree.map(lambda leaf: Formatted(Layout.AUTO, leaf.sharding), tree)
    run = functools.partial(decoding.generate.__wrapped__, model=model, drafter=drafter, verify=verify)
    jitted = jax.jit(
        run, in_shardings=(auto(params), auto(state)), out_shardings=auto(state), donate_argnums=1
    )  # fmt: skip
    return jitted.lower(params, state)


def lower_prompt(programs: Programs) -> jax.stages.Lowered:
    """Reading the prompts."""
    return decoding.prefill.lower(
        programs.params, *programs.prompt, model=programs.target, drafter=programs.drafter,
        cache_len=programs.cache_len, max_new=programs.max_new,
    )  # fmt: skip


def groups(programs: Programs) -> dict[str, PyTree]:
    """What a chip holds, by what it is for."""
    state = programs.state
    return {
        "target": programs.params.target,
        "draft": programs.params.draft,
        "caches": (state.cache, state.draft),
        "other": (programs.params.sampling, programs.params.stop, state._replace(cache=None, draft=None)),
    }


def mesh_of(request: PlanRequest) -> Mesh:
    """The request's mesh of a slice's devices, for which programs can be compiled and not run."""
    from jax.experimental import topologies

    more = {"num_slices": request.slices} if request.slices > 1 else {}
    described = topologies.get_topology_desc(topology_name=request.place.topology, platform="tpu", **more)
    return sharding.make_mesh(*request.mesh, devices=described.devices)
