"""A model family is its own file and one record: here a toy that nothing else knows of."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import specjax as sj
from specjax import drafters, sharding
from specjax.models.decoder import CausalLM
from specjax.models.families import FAMILIES
from specjax.models.family import COLUMNS, EMBEDDING_RULE, Family, NameTable, Rule, Rules
from specjax.models.format import default_format
from specjax.models.layers import Linear, Table, make_layers
from tests import battery


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """Shape of a model whose next token depends on the last one alone."""

    vocab_size: int = 24
    width: int = 16
    layers: int = 3
    heads: int = 4
    kv_heads: int = 4
    head_width: int = 4
    positions: int | None = None


class ToyBlock(nnx.Module):
    """One linear map."""

    def __init__(self, config, fmt, *, rngs):
        self.mix = Linear(config.width, config.width, fmt, bias=False, std=0.5, rngs=rngs)

    def __call__(self, x, visible, layers, index, start):
        del visible, index, start
        return x + jnp.tanh(self.mix(x)), layers


class Toy(CausalLM):
    """An embedding, layers of linear maps, a tied head."""

    def __init__(self, config, fmt=None, *, rngs):
        self.config, self.fmt = config, fmt or default_format()
        self.embed = nnx.Dict(tokens=Table(config.vocab_size, config.width, self.fmt, std=1.0, rngs=rngs))
        block = lambda rngs: ToyBlock(config, self.fmt, rngs=rngs)
        self.layers = make_layers(block, rngs, config.layers, self.fmt.stacked)

    def enter(self, tokens, positions):
        del positions
        return self.embed.tokens(tokens)

    def leave(self, x):
        return x

    def unembed(self, features):
        return self.embed.tokens.logits(features)


NAMES = NameTable((("word.weight", "embed.tokens.table"), ("block.{i}.weight", "layers.{i}.mix.kernel")))
TOY = Family(
    name="toy",
    model=Toy,
    model_types=("toy", "toy2"),
    from_published=lambda published: ToyConfig(layers=published["depth"]),
    to_published=lambda config: {"model_type": "toy", "depth": config.layers},
    names=lambda published: NAMES,
    rules=Rules((EMBEDDING_RULE, Rule(r"layers\.mix\.kernel", (COLUMNS,)))),
)


@pytest.mark.parametrize("stacked", battery.others_slow([False, True], [True]))
def test_a_record_is_all_that_loading_saving_sharding_and_decoding_need(stacked, tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    fmt = default_format(stacked=stacked)
    params = TOY.init(jax.random.key(0), ToyConfig(), fmt)
    sj.Model("toy", TOY, ToyConfig(), fmt, params).save_pretrained(tmp_path)
    model = sj.load(tmp_path, stacked=stacked)
    chex.assert_trees_all_equal(model.params, params)

    mesh = sharding.make_mesh(2, 4)
    split = sj.load(tmp_path, mesh=mesh, stacked=stacked)
    assert split.params["embed"]["tokens"]["table"].sharding.spec == P("model", None)
    prompts = [[1, 2, 3], [4, 5]]
    np.testing.assert_allclose(split.score([[1, 2, 3]]), model.score([[1, 2, 3]]), rtol=1e-5, atol=1e-5)

    plain = sj.generate(model, prompts, max_new_tokens=8, temperature=0.0)
    for target in (model, split):
        out = sj.generate(target, prompts, drafter=drafters.model(model, gamma=2), max_new_tokens=8, temperature=0.0)
        assert out.tokens == plain.tokens and out.lossless


def test_an_unknown_model_type_names_the_known_ones(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="bert"):
        sj.load(tmp_path)
