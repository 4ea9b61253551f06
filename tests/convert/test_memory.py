"""Host memory: loading holds about one copy of the weights, saving and sharded loading about one tensor."""

import gc
import tracemalloc

import jax
import numpy as np
import pytest

from specjax.convert import load_params, open_source, save_pretrained
from specjax.models import opt
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from tests.convert.writers import names_of

CONFIG = opt.OPTConfig(vocab_size=512, width=256, embed_width=256, layers=6, heads=4, mlp_width=1024, max_positions=64)
LARGEST = 256 * 1024 * 4  # bytes of an up or down kernel
SLACK = 600_000  # names, headers, Python's own objects
PUBLISHED = {"model_type": "opt"}


def peak(run) -> int:
    """Bytes that `run` held at its height, numpy's buffers included, beyond what was held before."""
    gc.freeze()  # what other tests left: the collector need not walk through it while memory is traced
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def abstract(fmt: Format):
    return jax.eval_shape(lambda key: opt.FAMILY.init(key, CONFIG, fmt), jax.random.key(0))


def size(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), abstract(Format()))
    save_pretrained(folder, params, PUBLISHED, fmt=Format())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt", [Format(), Format(dtype="bfloat16", products=CPUProducts())], ids=["float32", "bfloat16"]
)
def test_loading_holds_one_copy(checkpoint, fmt):
    shapes, table = abstract(fmt), names_of(PUBLISHED)
    total = size(shapes)

    def load():
        with open_source(checkpoint) as source:
            return load_params(source, table, shapes, fmt=fmt)

    assert peak(load) < total + LARGEST + SLACK < 1.5 * size(abstract(Format()))


@pytest.mark.slow
def test_reading_everything_first_would_show(checkpoint):
    """The negative control: the same measure sees a loader that holds the file's tensors beside the parameters."""

    def careless():
        with open_source(checkpoint) as source:
            held = {name: np.array(source.read(name)) for name in source.names()}
            return held, {name: np.ascontiguousarray(value.T) for name, value in held.items()}

    assert peak(careless) > size(abstract(Format())) + LARGEST + SLACK


@pytest.mark.slow
def test_saving_holds_one_tensor(tmp_path):
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), abstract(Format()))
    assert peak(lambda: save_pretrained(tmp_path, params, PUBLISHED, fmt=Format())) < 2 * LARGEST + SLACK
