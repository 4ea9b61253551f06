"""Memory that a request needs, from the compiled programs: nothing is read, decoded or allocated."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, defaults, drafters, placement, programs, sampling, stopping
from specjax import decoding as loop
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.prompts import prompt_width
from specjax.request import UNREAD, cache_size, check_parts, draft_rules
from specjax.types import PyTree
from specjax.verify import Verifier

TOKENIZER_BYTES = 2_300  # of each token, with what reading its file leaves behind: 1,800 to 2,700 were measured


class Memory(NamedTuple):
    """Bytes on each device.

    Attributes:
      target, draft: weights; those of a draft also hold its tables and heads. A self-drafter has the target's.
      cache: keys and values of the target.
      draft_state: caches and buffers of the drafter.
      other: tokens, keys, and counters of the rows; sampling parameters and stop rules.
      tokenizer: of the target, on the host; an estimate.
      prefill_temporaries, decode_temporaries: buffers that the programs allocate while they run.
      loading: largest sum while the target is loaded, with the copies of parameters that are being placed.
      prefill, decoding: largest sums while prompts are read, and while rounds run, without the tokenizer.
    """

    target: int
    draft: int
    cache: int
    draft_state: int
    other: int
    tokenizer: int
    prefill_temporaries: int
    decode_temporaries: int
    loading: int
    prefill: int
    decoding: int

    @property
    def peak(self) -> int:
        """The largest of the three sums."""
        return max(self.loading, self.prefill, self.decoding)

    def __str__(self) -> str:
        lines = (f"{name.replace('_', ' '):20} {size / 2**20:12,.1f} MiB" for name, size in self._asdict().items())
        return "\n".join(lines)


def memory(
    target: Model,
    drafter: LoadedDrafter | None = None,
    batch: int = 1,
    prompt: int = 32,
    new: int = defaults.MAX_NEW_TOKENS,
    *,
    verifier: str | Verifier | None = None,
    cache_len: int | None = None,
) -> Memory:
    """The memory that loading and a sampled request need, on each device.

    Compiles the programs of the request, as its first call does, and sums what the compiler assigns to them. The Python
    process, the compiler and compiled programs come on top, some hundreds of megabytes of host memory; so do, on a CPU,
    the pages of a checkpoint's file, which the system drops when memory is short.

    Args:
      target: a model from `specjax.load`.
      drafter: from `specjax.drafters`; None: plain decoding.
      batch: rows.
      prompt: tokens of the longest prompt.
      new: new tokens of a row.
      verifier, cache_len: as in `specjax.generate`.

    Raises:
      ValueError: parts that do not fit together, or a prompt that does not fit into the model's positions.

    >>> import specjax as sj
    >>> need = sj.memory(sj.load("bundled/opt-tiny"), batch=4, prompt=100, new=100)
    >>> need.target, need.cache, need.decoding > need.target + need.cache
    (998592, 405520, True)
    """
    drafter = drafters.plain() if drafter is None else drafter
    chosen = check_parts(target, drafter, verifier)
    for name, value in {"batch": batch, "prompt": prompt, "new": new}.items():
        checks.integer(name, value, least=1)
    slots, _ = cache_size(target, np.full(batch, prompt), np.full(batch, new), cache_len)
    width = programs.prompt_bucket(prompt) if target.encoder_decoder else prompt_width(prompt, slots)

    rows = jax.eval_shape(lambda: loop.row_keys(0, jnp.arange(batch)))
    number, count = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (batch,)))
    text = jax.ShapeDtypeStruct((batch, width), jnp.int32)
    warps = sampling.sampling_params(batch, target.vocab_size, temperature=defaults.TEMPERATURE)
    params = loop.DecodeParams(target.params, drafter.params, warps, stopping.rules(target.vocab_size, eos=target.eos))
    functions = drafter.drafter
    static = {"model": target.variant(capture=functions.capture), "drafter": functions}
    given = params._replace(sampling=UNREAD, stop=UNREAD), rows, text, count, count, number
    reading = loop.prefill.lower(*given, **static, cache_len=slots, max_new=slots)
    state = _placed(reading.out_info, target, drafter)
    rounds = loop.generate.lower(params, state, **static, verify=chosen.fn)

    shared = {id(leaf) for leaf in jax.tree.leaves(target.params)}  # a self-drafter reads the target's weights
    weights, draft = _bytes(target.params), _bytes([a for a in jax.tree.leaves(drafter.params) if id(a) not in shared])
    held = weights + draft + _bytes((params.sampling, params.stop))
    after, cache, draft_state = _bytes(state), _bytes(state.cache), _bytes(state.draft)
    tokenizer = 0 if target.text is None else TOKENIZER_BYTES * target.vocab_size
    temporaries = [program.compile().memory_analysis().temp_size_in_bytes for program in (reading, rounds)]
    return Memory(
        target=weights,
        draft=draft,
        cache=cache,
        draft_state=draft_state,
        other=after - cache - draft_state + held - weights - draft,
        tokenizer=tokenizer,
        prefill_temporaries=temporaries[0],
        decode_temporaries=temporaries[1],
        loading=_loading(target.params) + tokenizer,
        prefill=held + after + temporaries[0],
        decoding=held + after + temporaries[1],  # rounds write the state in place
    )


def _placed(state: loop.GenerationState, target: Model, drafter: LoadedDrafter) -> loop.GenerationState:
    """Shapes of the state, on a mesh with the shardings that rounds keep."""
    if target.mesh is None or target.rules is None:
        return state
    where = placement.state_shardings(state, target.mesh, target.rules, draft=draft_rules(drafter))
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), state, where)


def _bytes(tree: PyTree) -> int:
    """Bytes on one device."""

    def one(leaf) -> int:
        where = getattr(leaf, "sharding", None)
        shape = leaf.shape if where is None else where.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(one, jax.tree.leaves(tree)))


def _loading(params: PyTree) -> int:
    """Parameters are read one after another; of the current one and the one before, the host also holds the copies
    that are being placed."""
    sizes = [0, *(_bytes(leaf) for leaf in jax.tree.leaves(params))]
    return max(sum(sizes[: at + 1]) + sizes[at] + sizes[at - 1] for at in range(1, len(sizes)))
