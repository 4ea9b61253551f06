"""What a round costs: verifying several tokens, a round against its parts, and the overhead of the framework.

All are timed inside the loop that users run; the prompt's own reading is left out.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, drafters, measuring, trees
from specjax.base import Drafter
from specjax.bench import peer, rates
from specjax.bench.decode import NEW, agreeing, random_model, random_prompts
from specjax.bench.record import Row
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format
from specjax.programs import memoize
from specjax.types import Draft

WIDTHS = (1, 2, 4, 6, 8, 16)  # tokens that one target pass verifies
INNER = 9  # requests per turn of `overhead`: one takes some 50 ms, too short to refill the caches after the peer


@memoize
def free(tree: trees.Tree) -> Drafter:
    """A drafter without cost, which always proposes token 0: its rounds cost one verification."""

    def propose(params, key, state, pending, warp):
        del params, key, warp
        tokens = jnp.pad(pending[:, None], ((0, 0), (0, tree.size - 1)))
        return Draft(tokens, jnp.ones_like(tokens, bool), None), state

    return Drafter(tree, lambda *args: (), propose, lambda params, state, committed: state)


def load_free(tree: trees.Tree) -> LoadedDrafter:
    """`free` for `specjax.generate`."""
    return LoadedDrafter("free", free(tree))


def round_program(
    target: Model, prompts: Sequence[Any], drafter: LoadedDrafter | None, settings: dict[str, Any]
) -> Callable[[], float]:
    """A program that decodes the prompts one by one and returns the seconds of a round, prompts left out."""

    def run() -> float:
        every = [
            api.generate(target, [prompt], drafter=drafter, rows=[row], **settings).stats
            for row, prompt in enumerate(prompts)
        ]
        return sum(stats.seconds["decode"] for stats in every) / sum(stats.rounds for stats in every)

    return run


def _rounds(model: Model, drafter: LoadedDrafter | None, *, temperature: float = 0.0) -> Callable[[], float]:
    settings = {"max_new_tokens": NEW, "temperature": temperature}
    return round_program(model, random_prompts(1, model.vocab_size), drafter, settings)


def _milliseconds(runs: measuring.Runs) -> measuring.Spread:
    return measuring.spread([1e3 * seconds for seconds in runs.values])


def verify_cost(size: str, dtype: str, repeats: int) -> Iterator[Row]:
    """Rounds that verify 2 to 16 tokens, relative to a step of plain decoding; ratios are taken within a turn."""
    model = random_model(f"opt-{size}", dtype)
    programs = {width: _rounds(model, load_free(trees.chain(width - 1)) if width > 1 else None) for width in WIDTHS}
    runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
    for width, one in runs.items():
        low, median, high = _milliseconds(one)
        yield {
            "bench": "verify", "size": size, "dtype": dtype, "tokens": width, "load": one.load,
            "ms": median, "spread_ms": [low, high], "relative": measuring.ratio(one.values, runs[1].values),
        }  # fmt: skip


def composition(size: str, dtype: str, gammas: Sequence[int], repeats: int) -> Iterator[Row]:
    """A round with a draft model against gamma steps of the draft and one verification, each measured apart."""
    target, draft = agreeing(size, dtype)
    programs: dict[tuple[str, int], Callable[[], float]] = {("step", 0): _rounds(draft, None)}
    programs |= {("round", gamma): _rounds(target, drafters.model(draft, gamma=gamma)) for gamma in gammas}
    programs |= {("verify", gamma): _rounds(target, load_free(trees.chain(gamma))) for gamma in gammas}
    runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
    ms = {name: _milliseconds(one).median for name, one in runs.items()}
    for gamma in gammas:
        parts = gamma * ms["step", 0] + ms["verify", gamma]
        yield {
            "bench": "composition", "size": size, "dtype": dtype, "gamma": gamma, "load": runs["round", gamma].load,
            "round_ms": ms["round", gamma], "draft_step_ms": ms["step", 0], "verify_ms": ms["verify", gamma],
            "relative": ms["round", gamma] / parts,
        }  # fmt: skip


def overhead(vocab: int, gammas: Sequence[int], temperatures: Sequence[float], repeats: int) -> Iterator[Row]:
    """Microseconds of a round between models that cost almost nothing: what the framework itself takes.

    `round_us` is that of the decoding loop; `request_round_us` and `peer_round_us` are whole requests, prompt and
    dispatch included, divided by their rounds, and `ratio` is that of these two. The peer runs at both of its settings,
    and the faster counts.
    """
    config = opt.OPTConfig(
        vocab_size=vocab, width=16, embed_width=16, layers=1, heads=1, mlp_width=16, max_positions=512
    )
    model = Model(
        "tiny", opt.FAMILY, config, default_format(), opt.FAMILY.init(jax.random.key(0), config, default_format())
    )
    others = peer.make_peers(model, model)
    given = random_prompts(1, vocab)
    for gamma in gammas:
        for temperature in temperatures:
            settings = {"drafter": drafters.model(model, gamma=gamma), "temperature": temperature}
            ours = lambda settings=settings: [
                api.generate(model, given, max_new_tokens=NEW, **settings).stats for _ in range(INNER)
            ]
            programs: dict[str, Callable[[], Any]] = {"specjax": ours}
            for name, other in others.items():
                programs[name] = other.counted(other.assisted(gamma=gamma, new=NEW, temperature=temperature), given)
            runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
            own = runs["specjax"]
            loops = [s.seconds["decode"] / s.rounds for every in own.values for s in every]
            whole = [t / sum(s.rounds for s in every) for t, every in zip(own.seconds, own.values, strict=True)]
            row: Row = {"bench": "overhead", "vocab": vocab, "gamma": gamma, "temperature": temperature}
            row |= {"round_us": 1e6 * measuring.spread(loops).median, "load": {n: one.load for n, one in runs.items()}}
            row["request_round_us"] = 1e6 * measuring.spread(whole).median
            theirs = {
                name: measuring.spread([
                    1e6 * s / count for s, count in zip(runs[name].seconds, runs[name].values, strict=True)
                ]).median
                for name in others
            }  # fmt: skip
            if best := peer.fastest(theirs):
                row |= {"peer": best, "peer_round_us": theirs[best]}
                row["ratio"] = row["peer_round_us"] / row["request_round_us"]
                row["ratio_to_loop"] = row["peer_round_us"] / row["round_us"]
            yield row


# --- on given models and prompts -------------------------------------------------------------------------------------


def round_runs(
    programs: Mapping[str, tuple[Model, LoadedDrafter | None]],
    prompts: Sequence[Any],
    settings: dict[str, Any],
    repeats: int,
) -> Row:
    """Seconds of decoding and rounds of several programs, interleaved prompt by prompt: `rates.run_columns`."""
    generate = lambda number, model, drafter: api.generate(
        model, [prompts[number]], drafter=drafter, rows=[number], **settings
    ).stats  # fmt: skip
    each = {
        (number, name): functools.partial(generate, number, *program)
        for number in range(len(prompts))
        for name, program in programs.items()
    }
    found = measuring.interleave(each, repeats)
    by_turn = lambda name, of: np.transpose([found[n, name].each(of) for n in range(len(prompts))]).tolist()
    runs = {
        name: {
            "seconds": by_turn(name, lambda stats: stats.seconds["decode"]),
            "rounds": by_turn(name, lambda stats: float(stats.rounds)),
        }
        for name in programs
    }
    load = {name: max(found[n, name].load for n in range(len(prompts))) for name in programs}
    return rates.run_columns(runs, prompts) | {"load": load}


def round_costs(
    target: Model,
    prompts: Sequence[Any],
    drafter: Callable[[int], LoadedDrafter],
    gamma: int,
    settings: dict[str, Any],
    repeats: int,
    *,
    draft: Model | None,
) -> Row:
    """Runs of a step of plain decoding, of a round whose draft is free, of a round, and of what gives the draft's cost.

    Args:
      drafter: draft length -> drafter.
      draft: the draft model, whose own steps are measured; None: a draft of twice the length is measured instead.
    """
    programs: dict[str, tuple[Model, LoadedDrafter | None]] = {
        "step": (target, None), "verify": (target, load_free(trees.chain(gamma))), "round": (target, drafter(gamma)),
    }  # fmt: skip
    if draft is not None:
        programs["draft"] = draft, None
    else:
        longer = 2 * gamma
        programs |= {"long round": (target, drafter(longer)), "long verify": (target, load_free(trees.chain(longer)))}
    return round_runs(programs, prompts, settings, repeats) | {"gamma": gamma, "longer": 2 * gamma}
