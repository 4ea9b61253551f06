"""The record of a model family, and what it consists of: names of stored tensors, and partition rules.

A family is its own file with a Flax module, a configuration and one `Family`, listed in `models/families.py`.
"""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from specjax.base import LanguageModel
from specjax.models import cache as caches
from specjax.models.format import Format
from specjax.models.layers import merge_layers
from specjax.types import Params

# --- Names of stored tensors -----------------------------------------------------------------------------------------

LAYER = "{i}"  # placeholder for the layer index in names and paths
MEDUSA = "medusa_head."  # begins the names of heads that are stored together with their target


@dataclasses.dataclass(frozen=True)
class NameTable:
    """Which Hugging Face tensor is which parameter, in both directions. Paths are those of separate layers
    ("layers.3.attn.q.kernel").

    Attributes:
      entries: (Hugging Face name after the prefix, parameter path).
      prefixes: possible prefixes of a name in a file, longest first; the first is written.
      bare: names without a prefix.
      aliases: other names of a parameter, used if its own name is absent.
      ignored: patterns of names in files that are not parameters.
    """

    entries: tuple[tuple[str, str], ...]
    prefixes: tuple[str, ...] = ("",)
    bare: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    def candidates(self, name: str) -> Iterator[tuple[int, str]]:
        """(rank, path) of every parameter that the tensor `name` may be; lower ranks are preferred."""
        for rank, (pattern, path) in enumerate(self._patterns):
            match = pattern.fullmatch(name)
            if match:
                yield rank, path.replace(LAYER, match["i"] if LAYER in path else "")

    def is_ignored(self, name: str) -> bool:
        return name.startswith(MEDUSA) or any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def name(self, path: str) -> str:
        """The name under which the parameter at `path` is written.

        Raises:
          ValueError: no entry has this path.
        """
        numbered = re.search(r"\blayers\.(\d+)\.", path)
        template = re.sub(r"\blayers\.\d+\.", f"layers.{LAYER}.", path)
        for name, entry in self.entries:
            if entry == template:
                name = name.replace(LAYER, numbered[1] if numbered else "")
                return name if name in self.bare else self.prefixes[0] + name
        raise ValueError(f"parameter {path} has no Hugging Face name")

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        prefix = "(?:" + "|".join(map(re.escape, self.prefixes)) + ")"

        def pattern(name: str) -> re.Pattern[str]:
            return re.compile(prefix + re.escape(name).replace(re.escape(LAYER), r"(?P<i>\d+)"))

        return tuple((pattern(name), path) for name, path in (*self.entries, *self.aliases))


# --- Partition rules -------------------------------------------------------------------------------------------------

MODEL = "model"  # mesh axis of heads, feed-forward and vocabulary
WIDE = "wide"  # splits them again, apart from keys and values


class Rule(NamedTuple):
    """Parameters whose whole path matches `pattern` take the first of `specs` that divides their shape.

    Paths are dotted and without layer numbers ("layers.attn.q.kernel"); specs are for one layer's array, kernels as
    (in, out). A second spec is a fallback; with one spec, a shape that does not divide is an error.
    """

    pattern: str
    specs: tuple[P, ...]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Partition rules of one family; hashable, so a static argument.

    Attributes:
      table: every parameter must match one of these; the first match counts. No catch-all, so that a new parameter
        is placed by decision and not by accident.
      heads: mesh axis of the attention heads, which keys and values in the caches follow; None: not split.
      vocabulary: mesh axis of the logits' last axis; None: not split.
      attention: pattern of parameters that are whole where `heads` does not divide the heads.
      narrow: pattern of parameters that the axis `wide` does not split: those of keys and values.
    """

    table: tuple[Rule, ...]
    heads: str | None = MODEL
    vocabulary: str | None = MODEL
    attention: str = r"\b(attn|cross)\.[qkvo]\.|\brelative_bias\."
    narrow: str = r"\b(attn|cross)\.[kv]\.|\brelative_bias\."


COLUMNS, ROWS, ALONG, VECTOR, WHOLE = P(None, MODEL), P(MODEL, None), P(MODEL), P(None), P(None, None)
# A vocabulary that the axis does not divide: the width is split instead, at the price of an all-reduce of the logits.
EMBEDDING_RULE = Rule(r"embed\.tokens\.table", (ROWS, COLUMNS))
HEAD_RULE = Rule(r"head\.kernel", (COLUMNS, ROWS))


def kernel_rules(prefix: str = "layers", attention: str = "attn", mlp: str = "up") -> tuple[Rule, ...]:
    """Rules of a layer's kernels; `attention` and `mlp` are alternatives of the modules' names."""
    return (
        Rule(rf"{prefix}\.({attention})\.[qkv]\.kernel", (COLUMNS,)),
        Rule(rf"{prefix}\.({attention})\.o\.kernel", (ROWS,)),
        Rule(rf"{prefix}\.mlp\.({mlp})\.kernel", (COLUMNS,)),
        Rule(rf"{prefix}\.mlp\.down\.kernel", (ROWS,)),
    )


def bias_rules(mlp: str = "up") -> tuple[Rule, ...]:
    """Rules of a layer's biases: added after an all-reduce, whole everywhere; before it, split like the columns."""
    return (
        Rule(r"layers\.attn\.[qkv]\.bias", (ALONG,)),
        Rule(rf"layers\.mlp\.({mlp})\.bias", (ALONG,)),
        Rule(r"layers\.(attn\.o|mlp\.down)\.bias", (VECTOR,)),
    )


# --- The record ------------------------------------------------------------------------------------------------------


def keep_ties(published: dict[str, Any], names: Collection[str], same: Callable[[str, str], bool]) -> dict[str, Any]:
    """For families whose config.json is always right about ties."""
    del names, same
    return published


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Everything that is specific to one model family. Compared by identity, so a static argument.

    Attributes:
      name: stored with checkpoints.
      model: the Flax module, `model(config, fmt, rngs=...)`: a subclass of `CausalLM`, or with the same methods.
      model_types: of config.json.
      from_published: contents of a config.json -> configuration. A configuration is a frozen dataclass with
        `vocab_size`, `heads`, `kv_heads`, `head_width`, the counts of layers, and `positions`, the size of its table
        of positions or None.
      names: contents of a config.json -> names of the stored tensors.
      rules: partition rules.
      to_published: the inverse of `from_published`; raises ValueError for shapes that no config.json describes.
      ties: (contents of config.json, stored names, whether two stored tensors are equal) -> the contents with ties as
        in the weights.
      stacks: dotted path of every stack of equal layers, and the field of the configuration that counts them.
    """

    name: str
    model: Any
    model_types: tuple[str, ...]
    from_published: Callable[[Mapping[str, Any]], Any]
    names: Callable[[Mapping[str, Any]], NameTable]
    rules: Rules
    to_published: Callable[[Any], dict[str, Any]]
    ties: Callable[..., dict[str, Any]] = keep_ties
    stacks: tuple[tuple[str, str], ...] = (("layers", "layers"),)

    def init(self, key: jax.Array, config: Any, fmt: Format) -> Params:
        """Freshly drawn parameters as a nested dict."""
        return nnx.to_pure_dict(nnx.state(self.model(config, fmt, rngs=nnx.Rngs(params=key)), nnx.Param))

    def abstract(self, config: Any, fmt: Format) -> Params:
        """`jax.eval_shape` of `init`, from one layer of each stack: of all, its time would grow with the square of
        their number."""
        params = jax.eval_shape(lambda key: self.init(key, self._one_layer(config), fmt), jax.random.key(0))
        for path, field in self.stacks:
            node, last, count = _node(params, path), path.rpartition(".")[2], getattr(config, field)
            if fmt.stacked:
                node[last] = jax.tree.map(
                    lambda leaf, count=count: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), node[last]
                )
            else:
                node[last] = {str(index): node[last]["0"] for index in range(count)}
        return params

    def merge(self, config: Any, fmt: Format) -> Callable[[Params], Any]:
        """The function from parameters to the module. The structure is that of one layer, whatever their number."""
        ends, blocks = self._graphs(config, fmt)

        def merged(params: Params) -> Any:
            module = nnx.merge(ends, self.without_layers(params))
            for path, block in blocks.items():
                layers = _node(params, path)[path.rpartition(".")[2]]
                setattr(*_holder(module, path), merge_layers(block, layers))
            return module

        return merged

    def ends(self, config: Any, fmt: Format) -> Callable[[Params], Any]:
        """The function from `without_layers` to the module without layers: its embedding and its `unembed`."""
        ends, _ = self._graphs(config, fmt)
        return lambda params: nnx.merge(ends, params)

    def without_layers(self, params: Params) -> Params:
        """The parameters of `ends`, which are not copied."""
        rest = jax.tree.map(lambda leaf: leaf, params)  # new dicts, from which the layers are taken
        for path, _ in self.stacks:
            _node(rest, path).pop(path.rpartition(".")[2])
        return rest

    def _graphs(self, config: Any, fmt: Format) -> tuple[Any, dict[str, Any]]:
        """The structures of the module without layers, and of a layer of each stack."""
        model = nnx.eval_shape(lambda: self.model(self._one_layer(config), fmt, rngs=nnx.Rngs(0)))
        blocks = {}
        for path, _ in self.stacks:
            holder, last = _holder(model, path)
            layers = getattr(holder, last)
            blocks[path] = nnx.graphdef(layers["0"] if isinstance(layers, nnx.Dict) else layers)
            setattr(holder, last, nnx.Dict({}))
        model.config = config
        return nnx.graphdef(model), blocks

    def _one_layer(self, config: Any) -> Any:
        return dataclasses.replace(config, **{field: 1 for _, field in self.stacks})

    def module(self, params: Params, config: Any, fmt: Format) -> Any:
        """The module with the given parameters."""
        return self.merge(config, fmt)(params)

    def score(
        self, params: Params, config: Any, fmt: Format, *tokens: Array, **lengths: Array
    ) -> Float[Array, "B S V"]:
        """The module's logits, without a cache: for training and scoring."""
        return self.module(params, config, fmt)(*tokens, **lengths)

    def language_model(
        self, config: Any, fmt: Format, *, capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None
    ) -> LanguageModel:
        """The module's `prefill` and `extend` as functions of a nested dict of arrays.

        Args:
          capture: layers whose entering residual stream both return in `hiddens`.
          chosen: run these layers alone; caches hold all of them, and those of the others stay as they are.
        """
        merged = self.merge(config, fmt)

        def prefill(params, prompt, length, cache_len, known=None):
            given = {} if known is None else {"known": known}  # of decoder-only models
            return merged(params).prefill(prompt, length, cache_len, capture=capture, chosen=chosen, **given)

        def extend(params, tokens, cache, mask, depth, offset=0):
            return merged(params).extend(tokens, cache, mask, depth, offset, capture=capture, chosen=chosen)

        return LanguageModel(
            prefill, extend, caches.keep, config.vocab_size,
            encoder_decoder=self.model.encoder_decoder, positions=config.positions,
        )  # fmt: skip

    def observer(self, config: Any, fmt: Format) -> Callable:
        """The module's `observe` as a function: (params, tokens [B,S], cache) -> queries. Decoder-only models."""
        merged = self.merge(config, fmt)
        return lambda params, tokens, cache: merged(params).observe(tokens, cache)


def _holder(model: Any, path: str) -> tuple[Any, str]:
    """The module that has the attribute at the end of a dotted path, and the attribute's name."""
    *holders, last = path.split(".")
    return functools.reduce(getattr, holders, model), last


def _node(params: Params, path: str) -> Params:
    """The dict that contains the last key of a dotted path."""
    return functools.reduce(operator.getitem, path.split(".")[:-1], params)
