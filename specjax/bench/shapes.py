"""Speculative decoding of published shapes: random weights, simulated acceptance, and the closed form beside it."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, measuring, theory
from specjax import decoding as loop
from specjax.api import Generation
from specjax.base import LanguageModel
from specjax.bench.decode import random_prompts
from specjax.bench.record import Row, free_memory
from specjax.bench.rounds import load_free
from specjax.calibration import round_seconds
from specjax.checks import lookup
from specjax.drafters import LoadedDrafter
from specjax.drafters.cascade import CascadeParams, cascade_drafter
from specjax.estimates import Estimate, median
from specjax.heads.head import Head
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format
from specjax.models.shapes import cache_bytes, published_shapes, random_like, random_params, weight_bytes
from specjax.programs import cache_bucket, memoize, prompt_bucket
from specjax.strategy import Strategy, evaluate
from specjax.trees import Tree
from specjax.types import Siblings
from specjax.verify import TABLE, Verifier, simulated

STREAMS = 1024  # random streams of which those of typical acceptance are taken
HEADS = ("eagle", "eagle3", "medusa", "mlp", "peagle", "dflash", "falcon")  # kinds of random heads
FULL = ("model", "tree", "head", "layer-skip", "quantized", "small-kv")  # drafters whose drafts are never shorter
DRAFT_VOCABULARY = 32_000  # of published heads that have one
TEMPORARIES, LOGITS = 1.2e9, 8  # bytes of the process, and copies of a round's logits, beside weights and caches
MOST_TURNS, MINUTE = 15, 60.0


@dataclasses.dataclass(frozen=True)
class ShapeRun:
    """A target and its drafts.

    Attributes:
      target, drafts: names of published shapes.
      strategy: drafter with its draft length.
      alpha: acceptance probability of a tested token, for each depth or, if one, for all.
      inner_alpha: that of the inner rounds of a cascade.
      dtype: of all weights.
      rows: batch size.
      temperature: of target and draft.
      prompt, new: tokens of each row; new ones are rounded to the expectation of whole rounds.
    """

    target: str
    drafts: tuple[str, ...]
    strategy: Strategy
    alpha: tuple[float, ...] = (0.75,)
    inner_alpha: float = 0.75
    dtype: str = "bfloat16"
    rows: int = 1
    temperature: float = 0.0
    prompt: int = 64
    new: int = 128

    @property
    def key(self) -> Row:
        """Everything that its row depends on, as JSON."""
        return {**dataclasses.asdict(self), "strategy": self.strategy.text}

    @property
    def head(self) -> str:
        """Kind of a random head; "" for other drafters, and for heads from files."""
        folder = self.strategy.get("folder") if self.strategy.name == "head" else None
        return folder if folder in HEADS else ""

    @property
    def title(self) -> str:
        alpha = "/".join(f"{alpha:g}" for alpha in self.alpha)
        models = " > ".join((self.target, *self.drafts))
        return f"{models}, {self.strategy.text}, α {alpha}, {self.dtype}, {self.rows} rows"


# --- memory ----------------------------------------------------------------------------------------------------------


def bytes_needed(run: ShapeRun) -> float:
    """Bytes of weights, caches and temporary arrays."""
    fmt, known, nodes = default_format(run.dtype), published_shapes(), run.strategy.nodes
    slots = run.rows * (prompt_bucket(run.prompt) + cache_bucket(run.prompt + run.new) + nodes)
    models = [known[name] for name in {run.target, *run.drafts}]
    held = sum(weight_bytes(*model, fmt) + cache_bytes(*model, fmt, slots) for model in models)
    if run.head:
        family, config = known[run.target]
        head = new_head(run.head, Model(run.target, family, config, fmt, family.abstract(config, fmt)))
        held += sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(head.params))
    return held + LOGITS * 4 * run.rows * nodes * known[run.target][1].vocab_size + TEMPORARIES


def check_run(run: ShapeRun) -> None:
    """Checks a run before anything is allocated.

    Raises:
      ValueError: an unknown shape, models that cannot work together, too few or too many drafts, or shapes that do not
        fit into memory; names the largest target of the family that fits.
    """
    known = published_shapes()
    family, config = lookup(run.target, known, "target")
    for name in run.drafts:
        other, draft = lookup(name, known, "draft")
        if draft.vocab_size != config.vocab_size or other.model.encoder_decoder != family.model.encoder_decoder:
            raise ValueError(f"draft {name} has another vocabulary than {run.target}, or is another kind of model")
    for name in (run.target, *run.drafts):
        positions = Model(name, *known[name], default_format(), {}).positions
        if positions is not None and run.prompt + run.new > positions:
            raise ValueError(
                f"{run.prompt} prompt and {run.new} new tokens do not fit into the {positions} positions of {name}"
            )
    if len(run.drafts) != run.strategy.needs:
        raise ValueError(f"drafter {run.strategy.text!r} requires {run.strategy.needs} draft(s), got {len(run.drafts)}")
    if run.strategy.name == "cascade" and len(run.alpha) > 1:
        raise ValueError("alpha must be one number for a cascade, not one for each depth")
    needed, free = bytes_needed(run), free_memory()
    if free is None or needed <= free:
        return
    largest = max((weight_bytes(*known[name], default_format()) for name in run.drafts), default=0)
    sizes = {
        name: bytes_needed(dataclasses.replace(run, target=name))
        for name, (other, shape) in known.items()
        if other is family and shape.vocab_size == config.vocab_size
        and weight_bytes(other, shape, default_format()) > largest
    }  # fmt: skip
    fits = [name for name, size in sizes.items() if size <= free]
    best = max(fits, key=lambda name: (sizes[name], _common_start(name, run.target)), default=None)
    remedy = f"the largest target that fits is {best} ({sizes[best] / 1e9:.1f} GB)" if best else "no other target fits"
    beside = f" with {', '.join(run.drafts)}" if run.drafts else ""
    raise ValueError(
        f"{run.target}{beside} takes {needed / 1e9:.1f} GB in {run.dtype}, and {free / 1e9:.1f} GB are free: {remedy}"
    )


def _common_start(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# --- random heads ----------------------------------------------------------------------------------------------------


def new_head(kind: str, target: Model) -> Head:
    """A head of the usual shape, with the shapes and dtypes of its parameters.

    As `specjax train head` makes it, but with the target's MLP width, a draft vocabulary where published heads have
    one, and an output matrix for each Medusa head.
    """
    from specjax.training.head_kinds import TRAINED
    from specjax.training.head_run import HeadRun

    restricted = kind in ("eagle3", "peagle") and target.vocab_size > DRAFT_VOCABULARY
    width = 0 if kind == "mlp" else target.config.mlp_width
    options = HeadRun(
        kind=kind, target=target.name, data=(), out=Path("random"), mlp_width=width, own_matrices=True,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    head = TRAINED[kind].new(options, target, np.arange(DRAFT_VOCABULARY) if restricted else None)
    fmt = dataclasses.replace(target.fmt, stacked=False, int8_weights=False)
    params = jax.eval_shape(lambda: head.kind.init(jax.random.key(0), head.config, fmt))
    return dataclasses.replace(head, name=f"random {kind}", fmt=fmt, params=params)


def build_head(run: ShapeRun, target: Model) -> LoadedDrafter:
    """The drafter of a random head."""
    head, call = new_head(run.head, target), run.strategy.call()
    head = dataclasses.replace(head, params=random_like(head.params))
    return evaluate(call._replace(options=call.options | {"head": head}))


# --- the closed form -------------------------------------------------------------------------------------------------


def expected_tokens(tree: Tree, alpha: Sequence[float]) -> float:
    """Expected tokens per round with `simulated`: children are tested in order, each with the alpha of its depth."""
    by_depth = np.asarray(alpha)[np.minimum(np.arange(tree.width - 1), len(alpha) - 1), None]
    if tree.is_chain:
        return float(theory.expected_tokens_by_position(by_depth[:, 0]))
    ranks = np.arange(tree.children.shape[1])
    return float(theory.tree_tokens(tree.parents, by_depth * (1 - by_depth) ** ranks))


def has_closed_form(strategy: Strategy) -> bool:
    """Whether every round proposes the same number of tokens, and, in a cascade, every inner round."""
    if strategy.name == "cascade":
        return strategy["inner"].name == "model" and strategy["inner"].gamma is not None
    return strategy.name in FULL and (strategy.gamma is not None or strategy.tree is not None)


def closed_form(run: ShapeRun, tree: Tree, drafting: float, verify: float, middle: float = 0.0) -> float:
    """Speed-up over plain decoding with measured costs, relative to a step of the target.

    Args:
      drafting: of a round; of a cascade, of an inner round. verify: of a round.
      middle: the verification of an inner round of a cascade.
    """
    if run.strategy.name == "cascade":
        gammas = (run.strategy.gamma, run.strategy["inner"].gamma)
        costs = [middle / verify, drafting / gammas[1] / verify]
        return float(theory.cascade_factor_whole_rounds((run.alpha[0], run.inner_alpha), costs, gammas)) / verify
    return expected_tokens(tree, run.alpha) / (drafting + verify)


# --- measuring -------------------------------------------------------------------------------------------------------


def verifier(alpha: tuple[float, ...]) -> Verifier:
    return TABLE["simulated"]._replace(fn=simulated(alpha))


def build(run: ShapeRun, target: Model, drafts: Sequence[Model]) -> LoadedDrafter:
    """The drafter of a run; acceptance in the inner rounds of a cascade is simulated as well."""
    if run.head:
        return build_head(run, target)
    if run.strategy.name == "tree" and run.temperature == 0:  # of a one-hot distribution only one sibling is drawn
        return run.strategy.replace_settings(siblings=Siblings.POINTS).build(target, drafts)
    if run.strategy.name != "cascade":
        return run.strategy.build(target, drafts)
    middle, *rest = drafts
    inner = run.strategy["inner"].build(middle, rest)
    lm = middle.variant(capture=inner.drafter.capture)
    made = cascade_drafter(lm, inner.drafter, simulated(run.inner_alpha), run.strategy.gamma)
    return LoadedDrafter(run.strategy.text, made, CascadeParams(middle.params, inner.params), middle)


@memoize
def costless(lm: LanguageModel) -> LanguageModel:
    """The model with forward passes that compute nothing: their logits, features and hidden states are zeros."""

    def extend(params, tokens, cache, mask, depth):
        out, _ = jax.eval_shape(lm.extend, params, tokens, cache, mask, depth)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), out), cache

    return lm._replace(extend=extend)


def whole_rounds(tree: Tree, alpha: Sequence[float], new: int) -> int:
    """About `new` tokens: the expectation of a whole number of rounds, since a run has no fraction of a round.

    Of the numbers of rounds within a tenth of that of `new`, the one whose expected counts of accepted and, in a chain,
    tested tokens, at each depth if alpha has several, are closest to whole ones: 20 of 43 is an acceptance of 0.465,
    and no number of 44 is.
    """
    each = expected_tokens(tree, alpha)
    near = max(round(new / each), 1)
    counted = [each - 1]
    if tree.is_chain and len(alpha) > 1:
        counted += np.cumprod([alpha[min(depth, len(alpha) - 1)] for depth in range(tree.width - 1)]).tolist()
    elif tree.is_chain and alpha[0] > 0:
        counted += [(each - 1) / alpha[0]]
    off = lambda rounds: sum(abs(round(rounds * one) / (rounds * one) - 1) for one in counted if one > 0)
    rounds = min(range(near - near // 10, near + near // 10 + 1), key=lambda rounds: (off(rounds), abs(rounds - near)))
    return round(rounds * each)


@memoize
def typical_streams(
    tree: Tree, alpha: tuple[float, ...], new: int, rows: int, cascade: ShapeRun | None = None
) -> tuple[int, ...]:
    """Numbers of random streams in which `simulated` accepts close to its expectation.

    What is accepted depends on the stream alone: a model of almost no cost tells it for all of them. Tokens per round
    count; in a chain also the acceptance, of each depth if alpha has several; and that of a cascade's inner rounds.
    """
    config = opt.OPTConfig(vocab_size=16, width=8, embed_width=8, layers=1, heads=1, mlp_width=8, max_positions=2 * new)
    fmt = default_format()
    tiny = Model("tiny", opt.FAMILY, config, fmt, random_params(opt.FAMILY, config, fmt))
    drafter = load_free(tree) if cascade is None else build(cascade, tiny, [tiny] * len(cascade.drafts))
    settings = {"drafter": drafter, "verifier": verifier(alpha), "max_new_tokens": new, "temperature": 0.0}
    job = api.prepare(tiny, [[5]] * STREAMS, **settings).begin()
    out = loop.generate(job.params, job.state, **job.static)
    totals, inner = jax.device_get((out.totals, None if cascade is None else out.draft.tally))
    apart = lambda accepted, tested, wanted: abs(accepted / np.maximum(tested, 1) / wanted - 1)
    off = abs(new / totals.rounds / expected_tokens(tree, alpha) - 1)
    if tree.is_chain and len(alpha) == 1 and alpha[0] > 0:
        off = off + apart(totals.accepted, totals.tested, alpha[0])
    elif tree.is_chain:
        for depth in range(tree.width - 1):
            if (wanted := alpha[min(depth, len(alpha) - 1)]) > 0:
                off = off + apart(totals.depth_accepted[:, depth], totals.depth_tested[:, depth], wanted)
    if inner is not None and cascade is not None and cascade.inner_alpha > 0:
        off = off + apart(inner.accepted, inner.tested, cascade.inner_alpha)
    return tuple(map(int, np.argsort(off, kind="stable")[:rows]))


def measure(
    run: ShapeRun,
    model: Callable[[str], Model],
    *,
    repeats: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Row:
    """Costs and speed of a run, interleaved with plain decoding of its target.

    Args:
      model: name of a shape -> the model, with random weights in the dtype of the run.
      repeats: turns; ratios are medians of the ratios within a turn. None: as many as fit into a minute, 3 to 15.
      progress: receives the number of requests done and of all requests.
    """
    target, drafts = model(run.target), [model(name) for name in run.drafts]
    drafter = build(run, target, drafts)
    tree, rows, new = drafter.drafter.tree, tuple(range(run.rows)), run.new
    if not drafter.drafter.dynamic:
        new = whole_rounds(tree, run.alpha, run.new)
        rows = typical_streams(tree, run.alpha, new, run.rows, run if run.strategy.name == "cascade" else None)
    prompts = random_prompts(run.rows, target.vocab_size, run.prompt)
    settings: dict[str, Any] = {"max_new_tokens": new, "temperature": run.temperature, "rows": rows}

    def request(decoder: Model, drafter: LoadedDrafter | None, *alpha: float) -> Callable[[], Generation]:
        chosen = verifier(alpha) if drafter else None
        return lambda: api.generate(decoder, prompts, drafter=drafter, verifier=chosen, **settings)

    def without_target(decoder: Model, drafter: LoadedDrafter, *alpha: float) -> Callable[[], float]:
        job = api.prepare(decoder, prompts, drafter=drafter, verifier=verifier(alpha), **settings).begin()
        return lambda: round_seconds(job, model=costless(job.static["model"]))

    programs: dict[str, Callable[[], Any]] = {
        "plain": request(target, None),
        "verify": request(target, load_free(tree), *run.alpha),
        "round": request(target, drafter, *run.alpha),
    }
    closed, cascade = has_closed_form(run.strategy), run.strategy.name == "cascade"
    if closed:
        drafted: tuple[Model, LoadedDrafter, tuple[float, ...]] = (target, drafter, run.alpha)
        if cascade:
            inner = run.strategy["inner"].build(drafts[0], drafts[1:])
            drafted = drafts[0], inner, (run.inner_alpha,)
            programs["middle"] = request(drafts[0], load_free(inner.drafter.tree), run.inner_alpha)
        decoder, writer, alpha = drafted
        programs["drafting"] = without_target(decoder, writer, *alpha)
        programs["no drafting"] = without_target(decoder, load_free(writer.drafter.tree), *alpha)
    runs = measuring.interleave(programs, repeats or MOST_TURNS, within=None if repeats else MINUTE, progress=progress)

    steps = runs["plain"].each(_round_seconds)
    relative = {name: _ratios(one.each(_round_seconds), steps) for name, one in runs.items()}
    seconds = {name: runs[name].each(lambda out: out.stats.seconds["decode"]) for name in ("plain", "round")}
    whole = {name: runs[name].each(_request_seconds) for name in ("plain", "round")}
    turns = {
        "verify": relative["verify"], "round": relative["round"],
        "speedup": _ratios(seconds["plain"], seconds["round"]),
        "speedup_with_prompt": _ratios(whole["plain"], whole["round"]),
    }  # fmt: skip
    if closed:
        costs = _differences(relative["drafting"], relative["no drafting"])
        depth, name = drafted[1].drafter.tree.width - 1, run.drafts[-1] if run.drafts else run.strategy.name
        if cascade:
            turns[f"c {run.drafts[0]} x{depth + 1}"] = relative["middle"]
        turns[f"c {name}"] = [one / depth for one in costs]
        every = [costs, relative["verify"], *([relative["middle"]] if cascade else [])]
        turns["closed_form"] = [closed_form(run, tree, *one) for one in zip(*every, strict=True)]
        if not cascade:
            turns["overhead"] = _differences(_differences(turns["round"], costs), turns["verify"])
    stats, tokens = runs["round"].values[-1].stats, run.rows * new
    row: Row = {
        "bench": "shapes", "target": run.target, "draft": " > ".join(run.drafts), "drafter": run.strategy.text,
        "alpha": "/".join(f"{alpha:g}" for alpha in run.alpha), "dtype": run.dtype, "rows": run.rows,
        "temperature": run.temperature, "step_ms": 1e3 * statistics.median(steps),
        "tokens_per_second": tokens / statistics.median(seconds["round"]),
        "plain_tokens_per_second": tokens / statistics.median(seconds["plain"]),
        "tokens_per_round": stats.tokens_per_call, "accepted_per_tested": stats.accepted_per_tested,
    }  # fmt: skip
    if run.strategy.name == "cascade":
        row["inner_alpha"] = run.inner_alpha
    row |= {name: statistics.median(values) for name, values in turns.items()}
    return row | {"turns": turns, "load": max(one.load for one in runs.values())}


def over_turns(row: Row, name: str) -> Estimate:
    """A number of a row with its standard error over turns; numbers of one row are paired."""
    return median(row["turns"][name], sample=("turns", tuple(row["turns"]["speedup"])))


def _ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(own, base, strict=True)]


def _differences(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(own, other, strict=True)]


def _round_seconds(out: Generation | float) -> float:
    """Seconds of a round; the rows of a batch share their rounds."""
    return out.stats.seconds["decode"] / max(out.stats.by_row["rounds"]) if isinstance(out, Generation) else out


def _request_seconds(out: Generation) -> float:
    return out.stats.seconds["prefill"] + out.stats.seconds["decode"]
