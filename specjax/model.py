"""A loaded model: parameters, their layout, pure functions over them, and a tokenizer."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from specjax import convert, hosts, programs, sharding
from specjax.base import LanguageModel
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.text import Text
from specjax.types import Params


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """What `specjax.load` returns.

    Attributes:
      name: what it was loaded as.
      family: of `specjax.models.families`.
      config, fmt: shape of the model, layout of its weights.
      params: nested dict of arrays.
      text: its tokenizer; None where the checkpoint has none, and then prompts are token ids.
      eos: tokens that end a row.
      mesh, rules: where the parameters lie; None on one device.
      published: contents of the config.json that it was loaded with; None for a model that was made by hand.
    """

    name: str
    family: Family
    config: Any
    fmt: Format
    params: Params
    text: Text | None = None
    eos: tuple[int, ...] = ()
    mesh: Mesh | None = None
    rules: sharding.Rules | None = None
    published: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.family.name}, {self.size:,} parameters, {self.fmt.label})"

    @functools.cached_property
    def lm(self) -> LanguageModel:
        """Pure functions for the decoding loop; one object a (config, fmt), so equal models share compiled code."""
        return self.variant()

    def variant(
        self, *, fmt: Format | None = None, chosen: tuple[int, ...] | None = None, capture: tuple[int, ...] = ()
    ) -> LanguageModel:
        """Pure functions over the same caches.

        Args:
          fmt: another format of the weights. chosen: run these layers alone.
          capture: residual streams to return in `hiddens`, see `Drafter.capture`.
        """
        plain = _language_model(self.family, self.config, fmt or self.fmt, chosen, capture)
        if self.mesh is None or self.rules is None:
            return plain
        return sharding.on_mesh(plain, self.mesh, self.rules)

    def module(self) -> Any:
        """The model as a Flax module (`specjax.models.OPT`, `Llama` or `T5`) that holds the same arrays."""
        return self.family.module(self.params, self.config, self.fmt)

    def with_module(self, module: Any) -> "Model":
        """This model with the parameters of a module: the inverse of `module()`, after training.

        Args:
          module: of the same family and configuration.

        Raises:
          ValueError: parameters of another structure or other shapes.

        >>> import specjax as sj
        >>> draft = sj.load("bundled/opt-tiny")
        >>> module = draft.module()  # train it here
        >>> sj.drafters.model(draft.with_module(module), gamma=4).name
        'bundled/opt-tiny x4'
        """
        params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        shapes, given = (
            {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
            for tree in (self.params, params)
        )
        if shapes != given:
            name = min(name for name in shapes | given if shapes.get(name) != given.get(name))
            raise ValueError(
                f"parameter {name} of the module has shape {given.get(name)}, and {self.name} has {shapes.get(name)}: "
                "the module must have the configuration and the layout (`fmt`) of the model"
            )
        return dataclasses.replace(self, params=params)

    @property
    def encoder_decoder(self) -> bool:
        return self.lm.encoder_decoder

    @property
    def vocab_size(self) -> int:
        return self.lm.vocab_size

    @property
    def positions(self) -> int | None:
        """Size of its table of positions; None where there is none (rotary and relative positions)."""
        return self.lm.positions

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    def score(self, *tokens: ArrayLike) -> Float[Array, "B S V"]:
        """Logits [B,S,V] of left-aligned tokens [B,S] (or [S]: one row), float32, before any warp.

        Decoder-only: `score(tokens)`. T5: `score(encoder_tokens, decoder_tokens)`; encoder rows end at their first
        padding token.

        Raises:
          ValueError: a wrong number of arrays, no token ids, tokens outside the vocabulary, or more of them than the
            model has positions.
        """
        wanted = 2 if self.encoder_decoder else 1
        if len(tokens) != wanted:
            raise ValueError(f"{self.name} scores {wanted} array(s) of tokens, got {len(tokens)}")
        arrays = [self._to_score(one) for one in tokens]
        if len({len(array) for array in arrays}) > 1:
            raise ValueError(f"{len(arrays[0])} encoder rows and {len(arrays[1])} decoder rows: score as many of both")
        arrays, given = [array.astype(np.int32) for array in arrays], {}
        if self.encoder_decoder:
            padding = np.pad(arrays[0] == self.config.pad_token, ((0, 0), (0, 1)), constant_values=True)
            lengths = padding.argmax(1).astype(np.int32)
            if not lengths.all():
                raise ValueError(f"encoder row {int(lengths.argmin())} begins with padding: give at least one token")
            given = {"encoder_length": lengths}
        out = _score(self.params, *arrays, **given, family=self.family, config=self.config, fmt=self.fmt)
        return hosts.replicate(out)  # each process can read all of it

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> str:
        """The prompt for the next message of a conversation, by the model's own chat template.

        Args:
          messages: a user message, or messages `{"role": "user", "content": ...}` of the roles that the template knows.

        Returns:
          A prompt for `generate`.

        Raises:
          ValueError: a model without a chat template.

        >>> import specjax as sj
        >>> try:
        ...     sj.load("bundled/opt-tiny").chat("Hello")
        ... except ValueError as error:
        ...     print(error)
        bundled/opt-tiny has no chat template: it continues text
        """
        if self.text is None or self.text.chat is None:
            raise ValueError(f"{self.name} has no chat template: it continues text")
        return self.text.chat([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)

    def save_pretrained(self, folder: str | os.PathLike[str], *, shard_bytes: int = convert.SHARD_BYTES) -> None:
        """Writes a folder in Hugging Face's layout: config.json, safetensors in the parameters' dtypes, the tokenizer.
        transformers and `specjax.load` read it as it is.

        Args:
          folder: made if absent; files of an earlier save are replaced when all new ones are whole.
          shard_bytes: weights above this are cut into several files.

        Raises:
          ValueError: int8 weights, parameters that lie on other hosts, or that have no name in that layout.
        """
        if self.fmt.int8_weights:
            raise ValueError(
                f"{self.name} has int8 weights, which this layout cannot describe: load it without weights='int8' to "
                "save it, or use specjax.checkpoint"
            )
        known = self.described()
        ends = {"eos_token_id": self.eos[0] if len(self.eos) == 1 else list(self.eos)} if self.eos else {}
        tokenizer = self.text if self.text is not None and self.text.save_pretrained is not None else None
        convert.save_pretrained(
            folder, self.params, {**known, **ends}, fmt=self.fmt, tokenizer=tokenizer, shard_bytes=shard_bytes
        )

    def described(self) -> Mapping[str, Any]:
        """Contents of a config.json: as loaded, else from the configuration.

        Raises:
          ValueError: a model made by hand, of a shape that no config.json describes.
        """
        return self.family.to_published(self.config) if self.published is None else self.published

    def _to_score(self, tokens: ArrayLike) -> np.ndarray:
        """[B,S] integers."""
        try:
            array = np.asarray(tokens)
        except ValueError:
            raise ValueError("rows to score must be of one length: pad them at the end") from None
        if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"tokens to score are token ids [B,S], or [S] of one row, got shape {array.shape} of {array.dtype}"
            )
        array = np.atleast_2d(array)
        if array.size == 0 or array.min() < 0 or array.max() >= self.vocab_size:
            raise ValueError(f"tokens to score must be some, and lie in 0..{self.vocab_size - 1}")
        if self.positions is not None and array.shape[1] > self.positions:
            raise ValueError(
                f"{array.shape[1]} tokens to score are more than the {self.positions} positions of {self.name}"
            )
        return array


@programs.memoize
def _language_model(family, config, fmt, chosen, capture) -> LanguageModel:
    return family.language_model(config, fmt, chosen=chosen, capture=capture)


@functools.partial(programs.jit, static=("family", "config", "fmt"))
def _score(params, *arrays, family, config, fmt, **lengths):
    return family.score(params, config, fmt, *arrays, **lengths)
