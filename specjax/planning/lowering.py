"""The programs of a request, lowered for a slice: reading the prompt, and the whole loop."""

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
from specjax.planning.request import PlanRequest, shape_named
from specjax.types import PyTree
from specjax.verify.token import token_level

TEMPERATURE = 0.8


class Programs(NamedTuple):
    """Shapes of what a request's programs read, with their shardings where the mesh has devices.

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
    family, config = shape_named(request.target)
    target, params = _model(request.target, request.fmt, mesh, family.rules)
    whole = sharding.replicated(family.rules)
    draft_params: PyTree = None
    functions = chain.no_draft()
    if request.draft is not None:
        draft, draft_params = _model(
            request.draft, request.draft_fmt, mesh, sharding.replicated(shape_named(request.draft)[0].rules)
        )
        functions = chain.chain(model_writer(draft), request.gamma)
    rows, cache_len = request.rows, request.cache_len()
    sharding.check_rows(rows, mesh)
    warps = sampling.sampling_params(rows, config.vocab_size, temperature=TEMPERATURE)
    given = decoding.DecodeParams(params, draft_params, warps, stopping.rules(config.vocab_size, eos=[2]))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    numbers = jax.ShapeDtypeStruct((rows,), jnp.int32)
    prompt = (keys, jax.ShapeDtypeStruct((rows, request.prompt_width()), jnp.int32), numbers, numbers)
    init = decoding.make_init(target, functions, cache_len=cache_len, max_new=request.max_new_tokens)
    state = jax.eval_shape(init, given, *prompt)
    state = _like(state, placement.state_shardings(state, mesh, family.rules, draft=whole))
    everywhere, by_row = NamedSharding(mesh, P()), sharding.row_sharding(mesh)
    given = given._replace(
        sampling=_like(given.sampling, jax.tree.map(lambda a: by_row if a.ndim else everywhere, given.sampling)),
        stop=_like(given.stop, jax.tree.map(lambda _: everywhere, given.stop)),
    )
    prompt = _like(prompt, jax.tree.map(lambda _: by_row, prompt))
    return Programs(target, functions, given, state, prompt, cache_len, request.max_new_tokens)


def _like(tree: PyTree, shardings: PyTree) -> PyTree:
    return checkpoint.like(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree), shardings)


def _model(name: str, fmt, mesh: Any, rules: sharding.Rules) -> tuple[LanguageModel, PyTree]:
    family, config = shape_named(name)
    shapes = family.abstract(config, fmt)
    placed = sharding.shardings(shapes, mesh, rules, fmt, kv_heads=config.kv_heads)
    return sharding.on_mesh(family.language_model(config, fmt), mesh, rules), checkpoint.like(shapes, placed)


def lower_loop(programs: Programs) -> jax.stages.Lowered:
    """The whole loop, in the layouts that the compiler prefers for parameters and state: see `lower_in_layouts`."""
    return lower_in_layouts(
        programs.params, programs.state, model=programs.target, drafter=programs.drafter, verify=token_level
    )


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
