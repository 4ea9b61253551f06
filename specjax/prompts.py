"""Prompts: text and token ids as arrays, and a prefix that many of them share, which is read once."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from specjax import checks, placement, programs
from specjax.base import Prefilled
from specjax.model import Model
from specjax.models.format import NARROW
from specjax.sharding import data_size

Prompts = str | Sequence[str | Sequence[int]]


def tokenize(target: Model, prompts: Prompts, prefix: "Prefix | None" = None) -> tuple[np.ndarray, np.ndarray]:
    """Left-aligned prompts [B,P] int32, as wide as the longest, and their lengths [B]; each begins with the prefix.

    Raises:
      ValueError: no prompt, an empty one, an object of another type, text without a tokenizer, or a token outside the
        vocabulary.
    """
    ids: list[list[int]] = []
    for row, prompt in enumerate(checks.prompt_rows(prompts)):
        prompt = prompt if prefix is None else prefix.join(prompt)
        if isinstance(prompt, str):
            if target.text is None:
                raise ValueError(f"{target.name} has no tokenizer: pass prompts as lists of token ids")
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise ValueError(f"prompt {row} is not valid Unicode: it has half of a surrogate pair") from None
            prompt = target.text.encode(prompt) if prompt else []  # not a start token alone
        ids.append(prompt)
        if not ids[-1]:
            raise ValueError(f"prompt {row} is empty: pass at least one token")
        worst = max(ids[-1], key=lambda t: abs(t - target.vocab_size / 2))
        if not 0 <= worst < target.vocab_size:
            raise ValueError(f"prompt {row} has token {worst}, outside the {target.vocab_size} tokens of {target.name}")
    length = np.array([len(p) for p in ids], np.int32)
    padded = np.zeros((len(ids), length.max()), np.int32)
    for row, prompt in enumerate(ids):
        padded[row, : len(prompt)] = prompt
    return padded, length


def prompt_width(longest: int, slots: int) -> int:
    """Width of the array of a decoder's prompts. As many blocks are read as the prompts need (`Format.prompt_blocks`),
    so that two programs serve each cache size."""
    return min(slots, NARROW) if longest <= NARROW else slots


class Prefix:
    """What `specjax.prefix` returns, for `generate(..., prefix=...)` with the same target.

    Attributes:
      target: the model that read it.
      text: the prefix as text; None for token ids.
      tokens: its token ids.
    """

    def __init__(self, target: Model, text: str | None, tokens: Sequence[int]):
        self.target, self.text, self.tokens = target, text, tuple(tokens)
        self._read: dict[tuple[int, ...], Prefilled] = {}

    def __repr__(self) -> str:
        return f"Prefix({self.target.name!r}, {len(self.tokens)} tokens)"

    def join(self, prompt: str | Sequence[int]) -> str | list[int]:
        """The whole prompt."""
        if isinstance(prompt, str) and self.text is not None:
            return self.text + prompt
        if isinstance(prompt, str):
            raise ValueError(f"{self!r} was given as token ids: pass prompts as token ids")
        return [*self.tokens, *prompt]

    def shared(self, prompts: np.ndarray, length: np.ndarray) -> int:
        """The number of first tokens that all prompts [B,P] of `length` [B] share with the prefix.

        Fewer than its tokens where the tokenizer joins the end of the prefix with the prompt.
        """
        width = min(len(self.tokens), prompts.shape[1])
        same = prompts[:, :width] == np.asarray(self.tokens[:width])[None]
        same &= np.arange(width)[None] < length[:, None]
        return int(np.cumprod(same, axis=1).sum(1).min())

    def read(self, capture: tuple[int, ...] = ()) -> Prefilled:
        """The caches and streams of the prefix, [1, ...]; computed once for each `capture`."""
        if capture not in self._read:
            target, count = self.target, len(self.tokens)
            slots = programs.cache_bucket(count, target.positions)
            width = prompt_width(count, slots)
            # A mesh splits rows over its data axis: each part reads the prefix.
            rows = data_size(target.mesh)
            tokens = np.zeros((rows, width), np.int32)
            tokens[:, :count] = self.tokens
            given = tokens, np.full((rows,), count, np.int32)
            if target.mesh is not None:
                given = placement.place_rows(given, target.mesh)
            self._read[capture] = _first_row(target.params, *given, model=target.variant(capture=capture), slots=slots)
        return self._read[capture]


def prefix(target: Model, tokens: str | Sequence[int]) -> Prefix:
    """Reads a prefix that many prompts share, such as a system prompt or few-shot examples, once.

    `generate(target, prompts, prefix=prefix)` continues prefix + prompt for every prompt, and reads only what follows
    the prefix. Exact: the request is that of the whole prompts, tokenized as a whole, and numbers differ by no more
    than rounding. A draft model reads whole prompts.

    Args:
      target: a decoder-only model from `specjax.load`.
      tokens: text, or token ids.

    Returns:
      The prefix, which holds its keys, values and features on the device.

    Raises:
      ValueError: an encoder-decoder model, an empty prefix, or one that does not fit into the model's positions.

    >>> import specjax as sj
    >>> target = sj.load("bundled/opt-target")
    >>> story = sj.prefix(target, "Once upon a time there was a dog.")
    >>> out = sj.generate(target, [" It", " He was"], prefix=story, max_new_tokens=8, temperature=0)
    >>> again = sj.generate(target, [story.text + " It", story.text + " He was"], max_new_tokens=8, temperature=0)
    >>> out.tokens == again.tokens
    True
    """
    if target.encoder_decoder:
        raise ValueError(f"{target.name} reads a prompt with an encoder, in which every token depends on all others")
    text = tokens if isinstance(tokens, str) else None
    rows, length = tokenize(target, [tokens])
    if target.positions is not None and length[0] > target.positions:
        raise ValueError(f"a prefix of {length[0]} tokens exceeds the {target.positions} positions of {target.name}")
    made = Prefix(target, text, rows[0].tolist())
    jax.block_until_ready(made.read())
    return made


@functools.partial(programs.jit, static=("model", "slots"))
def _first_row(params, tokens, length, *, model, slots) -> Prefilled:
    read = model.prefill(params, tokens, length, slots)
    layers = jax.tree.map(lambda a: a[..., :1, :, :, :], read.cache.layers)
    cache = read.cache._replace(layers=layers, length=read.cache.length[:1])
    return Prefilled(cache, read.pending[:1], *jax.tree.map(lambda a: a[:1], (read.features, read.hiddens)))
