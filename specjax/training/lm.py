"""The training loop of language models, drafts and heads: resumable at any step.

A run is one folder: `checkpoints/<step>`, `metrics.jsonl`, `curve.png` and, at the end, `model/` in Hugging Face's
layout. All inputs of a step are functions of (seed, step), so a stopped run resumes bit for bit.
"""

import collections
import contextlib
import dataclasses
import json
import math
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from specjax import checkpoint, convert, files, hosts, sharding, text
from specjax.models.family import Rules
from specjax.models.format import Format
from specjax.training.products import TrainingProducts
from specjax.training.recipe import Recipe
from specjax.types import Params, PyTree

KEPT = 2  # checkpoints kept on disk
FORMAT = Format(dtype="float32", products=TrainingProducts())
STOPPING = (signal.SIGTERM, signal.SIGINT)
MULTIPLIED = ("kernel", "tokens.table", "embed.table")  # what matrix products read, by the ends of paths
LOG_EVERY = 50  # steps between records in metrics.jsonl, evaluations apart
IN_FLIGHT = 2  # steps dispatched ahead of the device: it never idles, and a signal ends the run soon


class TrainState(NamedTuple):
    """The state carried between steps."""

    params: Params
    optimizer: PyTree
    step: Int[Array, ""]


class TrainingTask(NamedTuple):
    """A model and its data, as functions.

    Attributes:
      init: (key) -> params.
      loss: (params, fixed, batch, key) -> (loss, cross-entropy in nats per token): scalars. The key is for noise.
      measure: (params, fixed, batch) -> (name -> mean over the batch, number of tokens).
      batch: (step) -> a training batch of numpy arrays.
      held_out: batches for evaluation, of which every evaluation reads all.
      fixed: parameters that are not trained: those of a teacher, or of the target of a head. They are arguments of the
        step, so that they are not constants of its program.
      start: parameters to begin with instead of those of `init`; a run that begins overwrites them.
      mesh: what the rows of batches are split over; None: one device. `fixed` is on it.
      shardings: (shapes of the parameters) -> their shardings on the mesh.
      rate: path of a parameter -> its learning rate, relative to that of the recipe; None: 1.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Params, PyTree, jax.Array], tuple[Array, Array]]
    measure: Callable[[Params, Params, PyTree], tuple[dict[str, Array], Array]]
    batch: Callable[[int], PyTree]
    held_out: Iterable[PyTree]
    fixed: Params = ()
    start: Params | None = None
    mesh: Mesh | None = None
    shardings: Callable[[Params], PyTree] | None = None
    rate: Callable[[str], float] | None = None


def place(batch: PyTree, mesh: Mesh | None) -> PyTree:
    """A batch, its rows split over the mesh; whole on every device where they do not divide."""
    if mesh is None:
        return batch
    parts, rows, whole = mesh.shape[sharding.DATA], sharding.row_sharding(mesh), NamedSharding(mesh, P())
    return hosts.lay(
        batch, jax.tree.map(lambda leaf: whole if np.ndim(leaf) == 0 or len(leaf) % parts else rows, batch)
    )


def on_mesh(task: TrainingTask, mesh: Mesh | None, rules: Rules, kv_heads: int) -> TrainingTask:
    """The task with its rows and parameters split over a mesh; with None, as it is."""
    if mesh is None:
        return task
    return task._replace(
        mesh=mesh, shardings=lambda params: sharding.shardings(params, mesh, rules, FORMAT, kv_heads=kv_heads)
    )


def halved(params: Params, names: tuple[str, ...] = MULTIPLIED) -> Params:
    """Casts the parameters whose paths end with one of the names to bfloat16; the others keep their dtype."""

    def one(keys: tuple, leaf: Array) -> Array:
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        return leaf.astype(jnp.bfloat16) if path.endswith(names) else leaf

    return jax.tree_util.tree_map_with_path(one, params)


def make_step(task: TrainingTask, recipe: Recipe, like: TrainState | None = None) -> Callable:
    """Returns `step(state, fixed, *batches) -> (state, metrics)`, which donates the state.

    Args:
      like: a state, whose shardings those of the following ones are; None: one device.
    """
    optimizer = recipe.optimizer()
    places = None if like is None or task.mesh is None else jax.tree.map(lambda leaf: leaf.sharding, like)

    def gradient(params, fixed, batch, number):
        key = jax.random.fold_in(jax.random.key(recipe.seed), number)

        def loss(params):
            return task.loss(halved(params) if recipe.half else params, fixed, batch, key)

        return jax.value_and_grad(loss, has_aux=True)(params)

    def update(state: TrainState, found):
        (value, nats), grads = found
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, opt = optimizer.update(grads, state.optimizer, state.params)
        if (rate := task.rate) is not None:
            updates = jax.tree_util.tree_map_with_path(lambda keys, leaf: rate(sharding.path_of(keys)) * leaf, updates)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "nats": nats, "norm": optax.tree.norm(grads), "rate": recipe.schedule(state.step)}
        return TrainState(params, opt, state.step + 1), metrics

    def whole(state: TrainState, fixed, batch):
        return update(state, gradient(state.params, fixed, batch, state.step))

    if recipe.accumulate == 1:
        return jax.jit(whole, donate_argnums=0, out_shardings=None if places is None else (places, None))
    count = recipe.accumulate
    part, add = jax.jit(gradient), jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
    last = lambda state, total: update(state, jax.tree.map(lambda leaf: leaf / count, total))
    finish = jax.jit(last, donate_argnums=0, out_shardings=None if places is None else (places, None))

    def step(state: TrainState, fixed, *batches):
        total = None
        for number, batch in enumerate(batches):
            found = part(state.params, fixed, batch, state.step * count + number)
            total = found if total is None else add(total, found)
        return finish(state, total)

    return step


def make_evaluate(task: TrainingTask) -> Callable[[Params], dict[str, float]]:
    """Returns `evaluate(params)`: held-out means of `TrainingTask.measure`, and the perplexity."""
    one = jax.jit(task.measure)

    def evaluate(params: Params) -> dict[str, float]:
        sums: dict[str, float] = {}
        weight = 0
        for batch in task.held_out:
            found, count = hosts.fetch(one(params, task.fixed, place(batch, task.mesh)))
            weight += int(count)
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + float(value) * int(count)
        means = {f"held_out_{name}": value / weight for name, value in sums.items()}
        return means | {"held_out_perplexity": math.exp(min(means["held_out_nats"], 50.0))}

    return evaluate


def train(
    task: TrainingTask,
    recipe: Recipe,
    folder: Path,
    *,
    family: str,
    config: Any,
    report: Callable[[dict[str, Any]], None] = lambda record: None,
) -> TrainState:
    """Trains until `recipe.steps`, from the newest checkpoint in the folder if there is one.

    SIGTERM and Ctrl-C save a checkpoint and end the run, also of all processes if one receives the signal; another call
    resumes it. Steps are dispatched ahead of the device; metrics are fetched only for a record, every LOG_EVERY steps
    and at evaluations.

    Args:
      task: model and data.
      recipe: hyperparameters.
      folder: of the run, created if absent.
      family: of the model, stored with every checkpoint.
      config: of the model, stored with every checkpoint.
      report: called with every record that is written to metrics.jsonl, and with the metrics of the first step.

    Returns:
      The state after the last step.

    Raises:
      FloatingPointError: the loss is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with signals() as received:
        state = resume(task, recipe, folder)
        step, evaluate = make_step(task, recipe, state), make_evaluate(task)
        begun, since = time.perf_counter(), int(state.step)
        at = since  # on the host: reading state.step would wait for the device
        in_flight: collections.deque[Any] = collections.deque()
        if hosts.leader():
            forget_after(folder / "metrics.jsonl", since)
        stop = hosts.StopTogether(lambda: bool(received), ahead=IN_FLIGHT + 2)
        while at < recipe.steps and not stop(at):
            each = range(at * recipe.accumulate, (at + 1) * recipe.accumulate)
            state, metrics = step(state, task.fixed, *(place(task.batch(number), task.mesh) for number in each))
            at += 1
            in_flight.append(metrics)
            if len(in_flight) > IN_FLIGHT:
                jax.block_until_ready(in_flight.popleft())
            due = at % recipe.every == 0 or at >= recipe.steps
            recorded = due or at % LOG_EVERY == 0
            if not recorded and at > since + 1:
                continue
            shown = {"step": at} | {name: float(value) for name, value in hosts.fetch(metrics).items()}
            shown["seconds_per_step"] = (time.perf_counter() - begun) / (at - since)
            if not math.isfinite(shown["loss"]):
                raise FloatingPointError(f"the loss is {shown['loss']} at step {at}: lower the learning rate")
            if not recorded:  # the first step since the start: compiling is over
                report(shown)
                continue
            if due:
                shown |= evaluate(state.params)
            if hosts.leader():
                with (folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
                    log.write(json.dumps(shown) + "\n")
            if due:
                # After its record: a run that dies in between drops the record and writes it again.
                save(state, folder, family=family, config=config)
            report(shown)
        if stop.stopped and all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.params)):
            save(state, folder, family=family, config=config)
    return state


def forget_after(file: Path, step: int) -> None:
    """Drops records after `step`, where the run resumes, and incomplete lines."""
    if not file.is_file():
        return

    def kept(line: str) -> bool:
        try:
            return json.loads(line)["step"] <= step
        except (ValueError, TypeError, KeyError):
            return False

    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    files.write_text(file, "".join(line + "\n" for line in lines if kept(line)))


def resume(task: TrainingTask, recipe: Recipe, folder: Path) -> TrainState:
    """Restores the newest readable checkpoint of the run, or initializes a new state.

    Newer damaged checkpoints are renamed to `<step>.damaged`, with a warning.

    Raises:
      ValueError: there are checkpoints but none is readable.
    """

    def fresh(key: jax.Array, start: Params | None) -> TrainState:
        params = task.init(key) if start is None else start
        return TrainState(params, recipe.optimizer().init(params), jnp.zeros((), jnp.int32))

    found, key = saved(folder), jax.random.key(recipe.seed)
    hosts.agree(checkpoints=[file.name for file in found])
    if task.mesh is not None:
        new = placed(task, recipe, key)
        wanted, places = new, jax.tree.map(lambda leaf: leaf.sharding, new)
    else:
        new, wanted = None, jax.eval_shape(fresh, key, task.start)
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        places = jax.tree.map(lambda _: device, wanted)
    if not found:
        return jax.jit(fresh)(key, task.start) if new is None else new
    damaged: list[tuple[Path, ValueError]] = []
    for file in reversed(found):
        try:
            state = TrainState(*restore_tuple(file, wanted, places))
        except ValueError as error:
            damaged.append((file, error))
            continue
        for other, error in damaged:  # only now: if none is readable, the checkpoints may not be at fault
            if hosts.leader():
                shutil.rmtree(aside := other.with_suffix(".damaged"), ignore_errors=True)
                other.rename(aside)
            warnings.warn(f"{error}; resuming from step {int(state.step)}", stacklevel=2)
        return state
    raise damaged[0][1]


def placed(task: TrainingTask, recipe: Recipe, key: jax.Array) -> TrainState:
    """A new state on the mesh of the task: moments are placed as their parameters, counts are on every device."""
    assert task.mesh is not None and task.shardings is not None
    places = task.shardings(jax.eval_shape(task.init, key) if task.start is None else task.start)
    new = lambda: jax.jit(task.init, out_shardings=places)(key)
    params = new() if task.start is None else hosts.lay(task.start, places)
    state = TrainState(params, recipe.optimizer().init(params), jnp.zeros((), jnp.int32))
    whole = NamedSharding(task.mesh, P())
    on_mesh = lambda leaf: leaf if isinstance(leaf.sharding, NamedSharding) else hosts.lay(leaf, whole)
    return jax.tree.map(on_mesh, state)


def restore_tuple(file: Path, wanted: TrainState, places: TrainState) -> tuple:
    """A saved state; the optimizer state is stored as a list of leaves, and `wanted` gives its structure."""
    stored = {"params": wanted.params, "optimizer": dict(enumerate_leaves(wanted.optimizer)), "step": wanted.step}
    at = {"params": places.params, "optimizer": dict(enumerate_leaves(places.optimizer)), "step": places.step}
    tree = checkpoint.restore(file, checkpoint.like(stored, at))
    leaves = [tree["optimizer"][name] for name, _ in enumerate_leaves(wanted.optimizer)]
    return tree["params"], jax.tree.unflatten(jax.tree.structure(wanted.optimizer), leaves), tree["step"]


def enumerate_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """The leaves under stable names "000", "001", ..."""
    return [(f"{number:03d}", leaf) for number, leaf in enumerate(jax.tree.leaves(tree))]


def save(state: TrainState, folder: Path, *, family: str, config: Any) -> None:
    """Writes a checkpoint and removes all but the KEPT newest."""
    target = folder / "checkpoints" / f"{int(state.step):08d}"
    if not target.exists():
        stored = {"params": state.params, "optimizer": dict(enumerate_leaves(state.optimizer)), "step": state.step}
        checkpoint.save(target, stored, family=family, config=config, fmt=FORMAT)
    if hosts.leader():
        for old in saved(folder)[:-KEPT]:
            shutil.rmtree(old)


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in (folder / "checkpoints").glob("[0-9]" * 8) if path.is_dir())


def export(params: Params, folder: Path, published: Mapping[str, Any], *, dtype: str, tokenizer: Path) -> None:
    """Writes a Hugging Face folder: config.json, model.safetensors in `dtype`, and the tokenizer files. Of several
    processes, all must call it, and the leader writes."""
    fmt = dataclasses.replace(FORMAT, dtype=dtype)
    params = jax.tree.map(hosts.fetch, params) if hosts.count() > 1 else params
    if not hosts.leader():
        return
    if dtype == "bfloat16":
        params = halved(params, (*MULTIPLIED, "positions.table"))
    convert.save_pretrained(folder, params, published, fmt=fmt)
    text.copy_files(tokenizer, folder)


def draw_curve(folder: Path) -> Path | None:
    """Plots the loss of metrics.jsonl as curve.png; None without matplotlib or before the first record."""
    if not hosts.leader() or not (folder / "metrics.jsonl").is_file():
        return None
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([r["step"] for r in records], [r["nats"] for r in records], label="training", alpha=0.6)
    held = [(r["step"], r["held_out_nats"]) for r in records if "held_out_nats" in r]
    if held:
        axes.plot(*np.transpose(held), "o-", label="held out", markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "curve.png", dpi=120)
    pyplot.close(figure)
    return folder / "curve.png"


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Yields a list that receives SIGTERM and Ctrl-C, so that the current step can finish.

    Restores the previous handlers at the end.
    """
    received: list[int] = []
    before = {number: signal.signal(number, lambda n, frame: received.append(n)) for number in STOPPING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
