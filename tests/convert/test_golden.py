"""Golden checkpoints through the whole path, from file to logits, against the logits of transformers."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from specjax.convert import load_params, locate
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from tests import battery
from tests.convert.writers import GGUF_NAMES, GOLDEN, NAMES, WRITERS, names_of, write_gguf

TOLERANCE = 1e-4  # of the largest logit
FORMATS = {"separate": Format(), "stacked": Format(stacked=True, products=CPUProducts())}


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def score(family, params, config, fmt: Format, *inputs, **lengths) -> jax.Array:
    return family.score(params, config, fmt, *inputs, **lengths)


class Loaded(NamedTuple):
    """A checkpoint as a model runs it, and the golden inputs of the model that it should be."""

    family: Any
    config: Any
    fmt: Format
    params: dict
    golden: dict[str, np.ndarray]

    def fault(self, params: dict | None = None) -> float:
        """The largest difference from the golden logits at real positions, relative to the largest of them."""
        golden = self.golden
        real, inputs, lengths = golden["mask"].astype(bool), [golden["tokens"]], {}
        if "decoder" in golden:
            real, inputs = slice(None), [golden["tokens"], golden["decoder"]]
            lengths = {"encoder_length": golden["mask"].sum(1).astype(np.int32)}
        params = self.params if params is None else params
        got = score(self.family, params, self.config, self.fmt, *inputs, **lengths)
        return float(np.abs(got - golden["logits"])[real].max() / np.abs(golden["logits"][real]).max())


def load(path: Path, name: str, fmt: Format) -> Loaded:
    """The checkpoint at `path`, which should be the golden model `name`."""
    with (found := locate(path)).source as source:
        family = found.family
        config = family.from_published(found.config)
        abstract = jax.eval_shape(lambda key: family.init(key, config, fmt), jax.random.key(0))
        params = load_params(source, names_of(found.config), abstract, fmt=fmt)
    return Loaded(family, config, fmt, params, dict(np.load(GOLDEN / name / "logits.npz")))


@pytest.mark.parametrize("fmt", battery.others_slow(FORMATS, ["separate"]))
@pytest.mark.parametrize("name", NAMES)
def test_golden_logits(name, fmt):
    assert load(GOLDEN / name, name, FORMATS[fmt]).fault() <= TOLERANCE


@pytest.mark.parametrize("name", battery.others_slow(NAMES, NAMES[::3]))
def test_bfloat16_weights_are_near_but_show(name):
    """A negative control: rounded weights leave the tolerance, so a wrong dtype would be seen."""
    assert TOLERANCE < load(GOLDEN / name, name, Format(dtype="bfloat16", products=CPUProducts())).fault() < 0.1


@pytest.mark.parametrize("name", battery.others_slow(NAMES, NAMES[::3]))
def test_every_parameter_matters(name):
    """The other control: a change of any one parameter shows, so none is ignored or mistaken for another.

    Except the bias of the keys in OPT: without rotation it moves all scores of a query alike, which softmax undoes.
    """
    loaded = load(GOLDEN / name, name, FORMATS["stacked"])
    leaves, structure = jax.tree_util.tree_flatten_with_path(loaded.params)
    for number, (keys, _) in enumerate(leaves):
        changed = [value * (1.5 if i == number else 1.0) for i, (_, value) in enumerate(leaves)]
        error = loaded.fault(jax.tree_util.tree_unflatten(structure, changed))
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        assert (error > TOLERANCE) == (not (name.startswith("opt") and path.endswith("attn.k.bias"))), (path, error)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    "name",
    battery.others_slow(
        ["opt-post-norm-projected", "t5-gated-untied", "llama-grouped-untied"], ["opt-post-norm-projected"]
    ),
)
def test_golden_logits_from_every_file_format(name, writer, rewrite):
    assert load(rewrite(name, writer), name, FORMATS["stacked"]).fault() <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in GGUF_NAMES if "scaled" not in name])
def test_golden_logits_from_gguf(name, tmp_path):
    write_gguf(tmp_path / "model.gguf", name)
    assert load(tmp_path / "model.gguf", name, FORMATS["stacked"]).fault() <= TOLERANCE
