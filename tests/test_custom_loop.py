"""A decoding loop of one's own, from `make_init` and `make_step`: greedy speculation that records every round."""

import chex
import jax
import jax.numpy as jnp

from specjax import decoding, drafters, sampling, stopping, verify
from tests import battery


def test_a_custom_loop_equals_generate():
    target, drafter = battery.target("opt"), drafters.model(battery.draft("opt"), gamma=3)
    tokens, length = jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS)

    warp = sampling.sampling_params(len(length), target.vocab_size, temperature=0.0)
    params = decoding.DecodeParams(target.params, drafter.params, warp, stopping.rules(target.vocab_size))
    init = decoding.make_init(target.lm, drafter.drafter, cache_len=60, max_new=24)
    step = decoding.make_step(target.lm, drafter.drafter, verify.TABLE["token"].fn)
    step = jax.jit(chex.assert_max_traces(step, n=1), donate_argnums=1)

    keys = decoding.row_keys(0, jnp.arange(len(length)))
    state = jax.jit(init)(params, keys, tokens, length, jnp.full(length.shape, 24, jnp.int32))
    accepted = []
    while (state.stop == stopping.Stop.RUNNING).any():
        state, info = step(params, state)
        accepted.append(info.accepted)

    chex.assert_trees_all_equal(jnp.stack(accepted).sum(0), state.totals.accepted)
    assert battery.texts(state) == battery.texts(battery.run("opt", drafters.plain()))
