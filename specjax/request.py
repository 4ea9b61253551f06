"""A request: its arguments, checked once, as the arrays and static choices that the decoding loop takes."""

import functools
import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import checks, defaults, drafters, hosts, placement, programs, sampling, stopping, verify
from specjax import decoding as loop
from specjax.base import Known
from specjax.drafters import LoadedDrafter
from specjax.measuring import timed
from specjax.model import Model
from specjax.prompts import Prefix, Prompts, prompt_width, tokenize
from specjax.sampling import LogitBias
from specjax.sharding import Rules
from specjax.verify import Verifier

UNREAD: Any = None  # in place of arrays that a program does not read
PerRow = float | int | Sequence[float] | Sequence[int]


class Prompt(NamedTuple):
    """Arguments of prefill.

    Attributes:
      tokens: [B, P] int32, left-aligned; P is a bucket.
      length: [B] int32.
      key: [B] typed keys, one random stream per row.
      budget: [B] int32, largest number of new tokens of each row.
      limit: int32, largest number of tokens of a row, prompt and new.
      shared: int32, number of first tokens of every row that are those of the prefix.
      seed: uint32, as long as `key` has the numbers of the streams [B] uint32 in place of keys.
    """

    tokens: Any
    length: Any
    key: Any
    budget: Any
    limit: Any
    shared: Any = None
    seed: Any = None


class Job(NamedTuple):
    """A checked request: static choices and arrays.

    `cache_len` is the number of cache slots for committed tokens, a bucket. `state` is the state after prefill; the
    first round takes it. `prefix` was read before.
    """

    target: Model
    drafter: LoadedDrafter
    verifier: Verifier
    params: loop.DecodeParams
    prompt: Prompt
    cache_len: int
    stops: tuple[str, ...]
    traces: int
    prefix: Prefix | None = None
    state: Any = None
    seconds: dict[str, float] = {}  # noqa: RUF012

    @property
    def static(self) -> dict[str, Any]:
        """Static arguments of a round."""
        functions = self.drafter.drafter
        model = self.target.variant(capture=functions.capture)
        return {"model": model, "drafter": functions, "verify": self.verifier.fn}

    def begin(self) -> "Job":
        """The job with its arrays on the devices and its prompts read."""
        # numpy arrays are put on the device without compiling a program for each shape
        given, mesh = jax.device_put(self.prompt), self.target.mesh
        prompt, params = given._replace(key=_row_keys(given.seed, given.key), seed=None), self.params
        if mesh is not None:
            params, prompt = placement.place_params(params, mesh), placement.place_rows(prompt, mesh)
        job = self._replace(params=params, prompt=jax.block_until_ready(prompt))
        state, run, compiling = timed(job.prefill)
        return job._replace(state=state, seconds={"prefill": run, "compile": compiling})

    def prefill(self) -> loop.GenerationState:
        """Reads the prompts and returns the state before the first round, placed as rounds keep it."""
        static = {name: value for name, value in self.static.items() if name != "verify"}
        given, slots = self.prompt, self.cache_len
        weights = self.params._replace(sampling=UNREAD, stop=UNREAD)  # so that all of them share one program
        known = None
        if self.prefix is not None and given.shared is not None:
            known = Known(self.prefix.read(self.drafter.drafter.capture), given.shared)
        state = loop.prefill(
            weights, given.key, given.tokens, given.length, given.budget, given.limit, known, **static, cache_len=slots,
            max_new=slots,
        )  # fmt: skip
        target = self.target
        if target.mesh is None or target.rules is None:
            return state
        draft = draft_rules(self.drafter)
        return hosts.lay(state, placement.state_shardings(state, target.mesh, target.rules, draft=draft))


def prepare(
    target: Model,
    prompts: Prompts,
    *,
    prefix: Prefix | None = None,
    drafter: LoadedDrafter | None = None,
    verifier: str | Verifier | None = None,
    lossless: bool = False,
    max_new_tokens: int | Sequence[int] = defaults.MAX_NEW_TOKENS,
    temperature: PerRow = defaults.TEMPERATURE,
    top_k: int | Sequence[int] = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    repetition_penalty: PerRow = 1.0,
    logit_bias: LogitBias | None = None,
    seed: int = defaults.SEED,
    rows: Sequence[int] | None = None,
    stop: Sequence[str] | str = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
) -> Job:
    """Checks a request; `Job.begin` reads its prompts. See `generate` for the arguments.

    The arrays of the prompts are still numpy's, with `seed` and stream numbers in place of keys.
    """
    traces = loop.trace_count()
    drafter = drafters.plain() if drafter is None else drafter
    chosen = check_parts(target, drafter, verifier)
    if checks.flag("lossless", lossless):
        chosen.require_lossless()
    if prefix is not None:
        check_prefix(prefix, target)
    tokens, length = tokenize(target, prompts, prefix)
    batch = len(length)
    budget = checks.integer_rows("max_new_tokens", max_new_tokens, batch, least=1, most=defaults.LARGEST_NEW)
    if cache_len is not None:
        checks.integer("cache_len", cache_len, least=1)
    slots, limit = cache_size(target, length, budget, cache_len)
    shared = None if prefix is None else np.int32(prefix.shared(tokens, length))
    longest = tokens.shape[1]
    width = programs.prompt_bucket(longest) if target.encoder_decoder else prompt_width(longest, slots)
    tokens = np.pad(tokens, ((0, 0), (0, width - longest)))
    settings = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    checks.numbers(**settings)
    checks.flag("ignore_eos", ignore_eos)
    checks.biases(logit_bias)
    params = sampling.sampling_params(batch, target.vocab_size, **settings, logit_bias=logit_bias)
    stops = checks.stop_strings(stop)
    rules = stop_rules(target, stops, stop_tokens, ignore_eos=ignore_eos)
    seed = checks.integer("seed", seed, least=0, most=defaults.LARGEST_SEED)
    streams = np.asarray(row_numbers(rows, batch), np.uint32)
    if target.mesh is not None and hosts.spans_processes(target.mesh):
        # A difference would hang the program, or mix the texts of two requests.
        hosts.check_mesh(target.mesh)
        hosts.agree(
            target=repr(target), drafter=drafter.name, verifier=chosen.name, prompts=[tokens, length], rows=streams,
            seed=seed, max_new_tokens=budget, sampling=settings, logit_bias=logit_bias, eos=target.eos, stop=stops,
            stop_tokens=list(stop_tokens), ignore_eos=ignore_eos, cache_len=[slots, limit],
        )  # fmt: skip
    prompt = Prompt(tokens, length, streams, budget.astype(np.int32), np.int32(limit), shared, np.uint32(seed))
    decode = loop.DecodeParams(target.params, drafter.params, params, rules)
    return Job(target, drafter, chosen, decode, prompt, slots, stops, traces, prefix)


def stop_rules(
    target: Model, stops: tuple[str, ...], stop_tokens: Sequence[int], *, ignore_eos: bool
) -> stopping.StopRules:
    """The stop rules of checked stop strings and of stop tokens."""
    return stopping.rules(
        target.vocab_size,
        eos=() if ignore_eos else target.eos,
        stop_tokens=checks.token_ids("stop_tokens", stop_tokens),
        stop_strings=stops,
        pieces=target.text.pieces() if target.text and stops else None,
    )


@functools.partial(programs.jit, static=())
def _row_keys(seed, rows):
    return loop.row_keys(jax.random.key(seed), rows)


def check_parts(target: Model, drafter: LoadedDrafter, verifier: str | Verifier | None) -> Verifier:
    """Checks that target, drafter and verifier fit together, and returns the verifier.

    Raises:
      ValueError: an object of another type, or parts that do not fit.
    """
    if not isinstance(target, Model):
        raise ValueError(f"target must be a model from specjax.load, got {type(target).__name__}")
    if not isinstance(drafter, LoadedDrafter):
        raise ValueError(
            f"drafter must be one from specjax.drafters, got {type(drafter).__name__}: for a draft model, pass "
            "drafter=specjax.drafters.model(draft)"
        )
    chosen = named_verifier(drafter, verifier)
    drafter.check(target)
    functions = drafter.drafter
    chosen.check(functions.tree, functions.siblings, f"drafter {drafter.name!r}", dynamic=functions.dynamic)
    check_mesh(target, drafter)
    return chosen


def named_verifier(drafter: LoadedDrafter, verifier: str | Verifier | None) -> Verifier:
    """The verifier of that name; for None, the default of the drafter.

    Raises:
      ValueError: an unknown name, or an object of another type.
    """
    functions = drafter.drafter
    if verifier is None:
        return verify.default(functions.tree, functions.siblings, functions.dynamic)
    chosen = verify.get(verifier) if isinstance(verifier, str) else verifier
    if not isinstance(chosen, Verifier):
        raise ValueError(f"verifier must be a name or a specjax.verify.Verifier, got {type(chosen).__name__}")
    return chosen


def row_numbers(rows: Sequence[int] | None, batch: int) -> np.ndarray:
    """[B] numbers of the rows' random streams.

    Raises:
      ValueError: not one number for each prompt, or a number that is not a uint32.
    """
    if rows is None:
        return np.arange(batch)
    given = checks.items(rows)
    if given is None or len(given) != batch:
        got = reprlib.repr(rows) if given is None else len(given)
        raise ValueError(f"rows must have one number for each of the {batch} prompts, got {got}")
    return checks.integer_rows("rows", given, batch, least=0, most=defaults.LARGEST_SEED)


def check_prefix(prefix: Prefix, target: Model) -> None:
    """Raises ValueError unless it is a prefix that the target has read."""
    if not isinstance(prefix, Prefix):
        raise ValueError(f"prefix must be one of specjax.prefix, got {type(prefix).__name__}")
    if prefix.target is not target:
        raise ValueError(f"{prefix!r} was not read by the target {target.name}: pass the same model to specjax.prefix")


def draft_rules(drafter: LoadedDrafter) -> Rules | None:
    """Partition rules of a draft model on a mesh."""
    source = drafter.source
    return None if source is None or source.mesh is None else source.rules


def check_mesh(target: Model, drafter: LoadedDrafter) -> None:
    """Raises ValueError if target and draft are on different meshes: a program runs on one."""
    source = drafter.source
    if source is not None and source.mesh not in (None, target.mesh):
        shapes = [None if mesh is None else dict(mesh.shape) for mesh in (source.mesh, target.mesh)]
        raise ValueError(
            f"draft {source.name} is on a mesh of {shapes[0]} and target {target.name} on {shapes[1]}: load both with "
            "the same mesh (replicate=True places the whole draft on every device)"
        )


def cache_size(target: Model, length: np.ndarray, budget: np.ndarray, wanted: int | None) -> tuple[int, int]:
    """Sizes of the caches, and the tokens that a row may hold.

    Args:
      length, budget: [B] tokens of each prompt, and new tokens of each row.
      wanted: the `cache_len` of the request.

    Returns:
      Cache slots for committed tokens, a bucket; and the largest number of tokens of a row, prompt included, which is
      not larger.

    Raises:
      ValueError: a prompt that does not fit.
    """
    limit = min((m for m in (wanted, target.positions) if m is not None), default=None)
    used = np.ones_like(length) if target.encoder_decoder else length
    need = int((used + budget).max()) - 1  # the last token never enters the cache
    if limit is not None:
        if used.max() > limit:
            what = f"cache_len={wanted}" if limit == wanted else f"the model's {limit} positions"
            which = "the prompt" if len(length) == 1 else f"prompt {int(length.argmax())} (counted from 0)"
            raise ValueError(
                f"{which} has {used.max()} tokens and does not fit into {what}: shorten it"
                + ("" if limit == target.positions else ", or raise cache_len")
            )
        need = min(need, limit)
    slots = programs.cache_bucket(need, target.positions)
    return slots, slots if limit is None else min(limit, slots)
