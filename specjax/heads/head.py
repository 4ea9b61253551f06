"""A trained draft head: what is read from a published checkpoint, and written back.

A kind of head is a Flax module, a configuration and its file formats, listed in `heads/kinds.py`. A format says how its
config.json is recognized and read, and under which names it stores the tensors.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax import convert
from specjax.checks import check_name
from specjax.model import Model
from specjax.models.family import NameTable, Rules
from specjax.models.format import Format
from specjax.types import Params

OFFSETS, MEMBERS = "d2t", "t2d"  # tensors of a draft vocabulary
TOKEN_MAP = "token_map"  # of Medusa heads: its tokens, in any order


class Stored(NamedTuple):
    """A head's files as a format reads them, before any tensor.

    Attributes:
      config: contents of config.json.
      names: its tensors, by the names of the kind's table.
      shape: name -> shape.
      tokens: target ids of its draft vocabulary; None: all.
      target: the model that it drafts for.
    """

    config: Mapping[str, Any]
    names: Collection[str]
    shape: Callable[[str], tuple[int, ...]]
    tokens: np.ndarray | None
    target: Model


def vocabulary_tensors(head: "Head") -> dict[str, np.ndarray]:
    """The draft vocabulary as most formats store it."""
    if head.draft_tokens is None:
        return {}
    members = np.zeros((head.target.vocab_size,), bool)
    members[head.draft_tokens] = True
    return {OFFSETS: head.draft_tokens.astype(np.int64) - np.arange(len(head.draft_tokens)), MEMBERS: members}


@dataclasses.dataclass(frozen=True)
class HeadFormat:
    """A file format of a kind of head.

    Attributes:
      name: "original" or "speculators", or another. Of two formats with one name, the last one is written.
      recognizes: (contents of config.json, names of its tensors) -> whether the files have this format.
      read: files -> configuration. Raises ValueError.
      publish: head -> contents of config.json.
      prefixes: (name or beginning of a name in the file, that in the table). A beginning that the table lacks is not
        written.
      table: configuration -> names of the stored tensors; None: those of the kind.
      more: head -> tensors to write that are not parameters, by name.
      cut: pattern of names. Of tensors with these names only the rows of the draft vocabulary are read.
    """

    name: str
    recognizes: Callable[[Mapping[str, Any], Collection[str]], bool]
    read: Callable[[Stored], Any]
    publish: Callable[["Head"], dict[str, Any]]
    prefixes: tuple[tuple[str, str], ...] = ()
    table: Callable[[Any], NameTable] | None = None
    more: Callable[["Head"], dict[str, np.ndarray]] = vocabulary_tensors
    cut: str | None = None

    def to_table(self, name: str) -> str:
        """The name in the table of a name in the file."""
        return _replaced(name, self.prefixes)

    def to_file(self, name: str) -> str:
        """The name in the file of a name in the table."""
        return _replaced(name, tuple((new, old) for old, new in self.prefixes if new))


def _replaced(name: str, prefixes: tuple[tuple[str, str], ...]) -> str:
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """A kind of head.

    Attributes:
      name: of `Head.kind`.
      model: the Flax module, `model(config, fmt, rngs=...)`.
      names: of its stored tensors; None: each format has its own table.
      formats: in the order in which they are tried; the first is written by default.
      rules: partition rules.
      encoder_decoder: whether it drafts for encoder-decoders too.
    """

    name: str
    model: Any
    names: NameTable | None
    formats: tuple[HeadFormat, ...]
    rules: Rules
    encoder_decoder: bool = False

    def table(self, form: HeadFormat, config: Any) -> NameTable:
        """Names of the tensors that a format stores."""
        found = self.names if form.table is None else form.table(config)
        assert found is not None
        return found

    def init(self, key: jax.Array, config: Any, fmt: Format) -> Params:
        """Freshly drawn parameters as a nested dict."""
        return nnx.to_pure_dict(nnx.state(self.model(config, fmt, rngs=nnx.Rngs(params=key)), nnx.Param))


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """What `specjax.load_head` returns.

    Attributes:
      name: the folder or id that it was loaded from.
      kind: name of its kind: "eagle" (also HASS), "eagle3", "medusa", "mlp", "peagle", "dflash", "falcon" or
        "spire".
      config, fmt: shape of the head, layout of its weights.
      params: nested dict of arrays.
      target: the model that it drafts for.
      draft_tokens: target ids of its draft vocabulary [N] int32, in the order of its logits; None: it drafts all
        tokens.
      format: name of the file format that it was read from.
    """

    name: str
    kind: Kind
    config: Any
    fmt: Format
    params: Params
    target: Model
    draft_tokens: np.ndarray | None = None
    format: str = ""

    def __repr__(self) -> str:
        return f"Head({self.name!r}, {self.kind.name}, {self.size:,} parameters, for {self.target.name!r})"

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    def module(self, params: Params | None = None) -> Any:
        """The head as a Flax module that holds its arrays, or other ones of the same structure."""
        return nnx.merge(structure(self.kind.model, self.config, self.fmt), self.params if params is None else params)

    def check(self, target: Any) -> None:
        """Raises ValueError if the head does not draft for a target of this shape."""
        own, other = fits(self.target), fits(target)
        for name, wanted in own.items():
            if other[name] != wanted:
                raise ValueError(
                    f"head {self.name} drafts for {self.target.name} with {name} {wanted}, and target {target.name} "
                    f"has {other[name]}: load the head for this target"
                )

    def save_pretrained(self, folder: str | os.PathLike[str], *, format: str | None = None) -> None:
        """Writes config.json and model.safetensors.

        Args:
          folder: created if absent.
          format: a file format of its kind: "original" (of Medusa, under the names of its first version), or the one
            that vLLM serves: "speculators", for Medusa "vllm". None: the one that it was read from.

        Raises:
          ValueError: an unknown format, or one that cannot express the head.
        """
        formats = {form.name: form for form in self.kind.formats}
        name = format or self.format or next(iter(formats))
        check_name(name, formats, f"format of {self.kind.name} heads")
        form = formats[name]
        convert.save_pretrained(
            folder, self.params, form.publish(self), fmt=self.fmt, table=self.kind.table(form, self.config),
            rename=form.to_file, more=form.more(self),
        )  # fmt: skip


def fits(target: Model) -> dict[str, int]:
    """What a head and its target must agree on."""
    config = target.config
    return {"vocabulary": target.vocab_size, "hidden size": config.width, "layers": layers_of(target)}


def layers_of(target: Model) -> int:
    """Layers that decode."""
    return target.config.decoder_layers if target.encoder_decoder else target.config.layers


@functools.cache
def structure(model: Any, config: Any, fmt: Format) -> Any:
    """The graph of a head's module, without parameters."""
    return nnx.graphdef(nnx.eval_shape(lambda: model(config, fmt, rngs=nnx.Rngs(0))))


def places(head: Head) -> jax.Array | None:
    """Target token -> its place in the draft vocabulary, or -1; None: the head drafts all tokens."""
    if head.draft_tokens is None:
        return None
    found = np.full((head.target.vocab_size,), -1, np.int32)
    found[head.draft_tokens] = np.arange(len(head.draft_tokens))
    return jnp.asarray(found)
