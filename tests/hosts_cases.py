"""What is decoded by several processes, and by one with as many devices: cases by name, each a function of a mesh."""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import specjax
from specjax import drafters, hosts, policies, sharding, trees
from specjax.convert.sources import TensorSource
from specjax.model import Model
from specjax.models import llama, opt, t5
from specjax.models.format import default_format
from specjax.training import lm, recipe, tasks
from tests.models.small import noisy

VOCAB, NEW, DRAFT = 24, 16, 0.3
FMT = default_format("float32", platform="cpu", sharded=True)
FAMILIES: dict[str, tuple[Any, Any]] = {
    "opt": (opt.FAMILY, opt.OPTConfig(VOCAB, width=16, embed_width=16, layers=2, heads=4, mlp_width=32,
                                      max_positions=64)),
    "llama": (llama.FAMILY, llama.LlamaConfig(VOCAB, width=16, layers=2, heads=8, kv_heads=4, head_width=4,
                                              mlp_width=24, max_positions=64)),
    "t5": (t5.FAMILY, t5.T5Config(VOCAB, width=16, head_width=4, heads=4, mlp_width=24, encoder_layers=1,
                                  decoder_layers=2)),
}  # fmt: skip
PROMPTS = [[5, 6, 7], [3, 4, 3, 4, 3], [9, 8, 7, 6, 5, 4, 3], [11, 12]]


@functools.cache
def weights(family: str, noise: float) -> Any:
    """Host arrays; the draft is the target with `noise`."""
    module, config = FAMILIES[family]
    params = noisy(module.init(jax.random.key(0), config, FMT), 1, lambda leaf: 0.6)
    if noise:
        params = noisy(params, 9, lambda leaf: noise * float(np.std(leaf)))
    return jax.device_get(params)


@functools.cache
def model(family: str, mesh: Mesh | None, noise: float = 0.0) -> Model:
    """A model on the mesh; without one, on the first device of this process."""
    module, config = FAMILIES[family]
    params = weights(family, noise)
    if mesh is None:
        return Model(family, module, config, FMT, jax.device_put(params), eos=(1,))
    params = sharding.place(params, mesh, module.rules, FMT, kv_heads=config.kv_heads)
    return Model(family, module, config, FMT, params, eos=(1,), mesh=mesh, rules=module.rules)


def decode(
    mesh: Mesh, family: str, make: Callable[[str, Mesh], Any], *, streamed: bool = False, **options: Any
) -> dict[str, Any]:
    """Tokens, stop reasons and counts of a request."""
    given = {"drafter": make(family, mesh), "max_new_tokens": NEW, "temperature": 0.8, "seed": 3} | options
    if streamed:
        stream = specjax.stream(model(family, mesh), PROMPTS, **given)
        parts = [event.tokens for event in stream]
        out = stream.result()
        assert [list(itertools.chain(*rows)) for rows in zip(*parts, strict=True)] == out.tokens
    else:
        out = specjax.generate(model(family, mesh), PROMPTS, **given)
    counts = {"drafted": out.stats.drafted, "accepted": out.stats.accepted, "by_row": dict(out.stats.by_row)}
    counts["by_row"].pop("overlap", None)
    return {"tokens": out.tokens, "stop": out.stop_reasons, **counts}


def chain(family: str, mesh: Mesh) -> Any:
    del mesh
    return drafters.model(model(family, None, DRAFT), gamma=3)


def split_chain(family: str, mesh: Mesh) -> Any:
    return drafters.model(model(family, mesh, DRAFT), gamma=3)


def tree(family: str, mesh: Mesh) -> Any:
    del mesh
    return drafters.tree(model(family, None, DRAFT), trees.regular((2, 2)))


def cascade(family: str, mesh: Mesh) -> Any:
    del mesh
    return drafters.cascade(
        model(family, None, DRAFT), drafters.model(model(family, None, 2 * DRAFT), gamma=2), gamma=4
    )


def ngram(family: str, mesh: Mesh) -> Any:
    del family, mesh
    return drafters.ngram(gamma=3)


def plain(family: str, mesh: Mesh) -> Any:
    del family, mesh
    return drafters.plain()


OTHERS: dict[str, Callable[[Model], Any]] = {
    "suffix-tree": lambda draft: drafters.suffix_tree(size=6, depth=3),
    "lookahead": lambda draft: drafters.lookahead(window=3, ngram=3, guesses=2),
    "table": lambda draft: drafters.table(drafters.fitting.fit([PROMPTS[1]], vocab_size=VOCAB), gamma=3),
    "dynamic-tree": lambda draft: drafters.dynamic_tree(draft, size=6, depth=3, width=2),
    "heuristic": lambda draft: drafters.model(draft, policy=policies.heuristic(gamma_max=4)),
    "bounded": lambda draft: drafters.model(drafters.bounded(draft, budget=16, slack=8, block=8), gamma=3),
}
OF_TARGET: dict[str, Callable[[Model], Any]] = {
    "small-kv": lambda target: drafters.small_kv(target, gamma=3, budget=8),
    "layer-skip": lambda target: drafters.layer_skip(target, layers=(0,), gamma=3),
    "quantized": lambda target: drafters.quantized(target, gamma=3),
}


def other(family: str, mesh: Mesh, *, name: str) -> Any:
    if name in OF_TARGET:
        return OF_TARGET[name](model(family, mesh))
    return OTHERS[name](model(family, None, DRAFT))


def serve(mesh: Mesh, family: str, make: Callable[[str, Mesh], Any], **options: Any) -> dict[str, Any]:
    """Tokens of more rows than there are slots."""
    budget = [3, NEW, 5, 9, 2, 7, NEW, 4, 6]
    serving = specjax.serve_batch(
        model(family, mesh), [*PROMPTS, *PROMPTS, [5, 9]], slots=4, drafter=make(family, mesh), max_new_tokens=budget,
        seed=3, **options,
    )  # fmt: skip
    order = [row for row, _ in serving]
    out = serving.result()
    return {"tokens": out.tokens, "stop": out.stop_reasons, "order": order, "rounds": serving.rounds}


def score(mesh: Mesh, family: str) -> Any:
    """Logits of some tokens."""
    tokens = np.arange(4 * 6).reshape(4, 6) % (VOCAB - 3) + 3
    given = (tokens, tokens[:, :3]) if family == "t5" else (tokens,)
    return np.asarray(model(family, mesh).score(*given)).round(5).tolist()


def train(mesh: Mesh, folder: Path) -> Any:
    """Losses, weights and files of a short run, in a folder that the processes share."""
    packed = np.random.default_rng(0).integers(0, VOCAB, 400).astype(np.uint16)
    config = FAMILIES["opt"][1]
    task = tasks.text_task(opt.FAMILY, config, packed, packed[:100], rows=4, length=8, evaluations=2)
    task = lm.on_mesh(task, mesh, opt.FAMILY.rules, config.kv_heads)
    run = recipe.Recipe(steps=20, every=10, warmup=2)
    state = lm.train(task, run, folder / "run", family="opt", config=config)
    hosts.agree()  # the leader has written everything
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    kept = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
    again = lm.resume(task, run, folder / "run")
    params, restored = (jax.tree.map(lambda a: hosts.fetch(a).tolist(), one.params) for one in (state, again))
    assert params == restored
    return {"rows": [[row["step"], row["loss"], row["held_out_nats"]] for row in rows], "kept": kept, "params": params}


def load(mesh: Mesh) -> Any:
    """Numbers that this process reads of a checkpoint, and those that its devices hold."""
    read = []
    plain = TensorSource.read

    def counted(self, name, index=None):
        found = plain(self, name, index)
        read.append(found.size)
        return found

    TensorSource.read = counted
    try:
        target = specjax.load("bundled/opt-draft", mesh=mesh)
    finally:
        TensorSource.read = plain
    held = sum(sum(shard.data.size for shard in leaf.addressable_shards) for leaf in jax.tree.leaves(target.params))
    return {"read": sum(read), "held": held, "size": target.size}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of a mesh of this shape, and with `files` of a folder that the processes share."""

    shape: tuple[int, int]
    function: Callable[..., Any]
    files: bool = False

    def run(self, folder: Path) -> Any:
        mesh = mesh_of(self.shape)
        return self.function(mesh, folder) if self.files else self.function(mesh)


def _case(shape: tuple[int, int], family: str, make: Callable, **options: Any) -> Case:
    return Case(shape, functools.partial(decode, family=family, make=make, **options))


CASES = {
    "chain": _case((2, 2), "opt", chain),
    "stream": _case((2, 2), "opt", chain, streamed=True, temperature=0.0),
    "ngram": _case((2, 2), "opt", ngram, repetition_penalty=1.3, logit_bias={5: -1.0}, temperature=0.0),
    "llama": _case((1, 2), "llama", split_chain),
    "t5": _case((2, 1), "t5", chain),
    "tree": _case((4, 1), "opt", tree),
    "serve": Case((2, 2), functools.partial(serve, family="opt", make=chain)),
    "score": Case((2, 2), functools.partial(score, family="opt")),
    "load": Case((1, 2), load),
    "train": Case((2, 2), train, files=True),
}
SLOW = {
    f"{family}-{data}x{parts}-{name}": _case((data, parts), family, make, temperature=warm)
    for data, parts, family, make, name, warm in [
        (1, 2, "opt", split_chain, "split", 0.0), (2, 1, "opt", cascade, "cascade", 0.8),
        (2, 2, "llama", tree, "tree", 0.8), (4, 1, "llama", chain, "chain", 0.0), (2, 2, "t5", tree, "tree", 0.8),
        (1, 2, "t5", split_chain, "split", 0.8), (1, 4, "opt", chain, "wide", 0.8), (2, 2, "t5", ngram, "ngram", 0.0),
        (2, 2, "llama", cascade, "cascade", 0.8), (2, 2, "opt", plain, "plain", 0.8),
        (4, 1, "opt", cascade, "cascade", 0.8),
    ]
}  # fmt: skip
SLOW |= {
    name: _case((2, 2), "opt", functools.partial(other, name=name), temperature=0.8) for name in (*OTHERS, *OF_TARGET)
}
SLOW |= {
    "serve-llama": Case((2, 1), functools.partial(serve, family="llama", make=chain, temperature=0.0)),
    "serve-t5": Case((1, 2), functools.partial(serve, family="t5", make=chain)),
}


def devices(shape: tuple[int, int]) -> list[Any]:
    """As many devices as the mesh takes, of as many processes as possible."""
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    wanted = shape[0] * shape[1]
    each = max(wanted // len(by_process), 1)
    return [device for own in by_process.values() for device in own[:each]][:wanted]


@functools.cache
def mesh_of(shape: tuple[int, int]) -> Mesh:
    """The mesh of a case, of all processes."""
    return sharding.make_mesh(*shape, devices=devices(shape))
