"""Ways to guess what the target will say: pure functions with explicit state, joined to their weights.

Here are the user's constructors; each returns a `Guide` for `specjax.generate(..., drafter=...)`. The `base.Drafter`s
behind them are in the modules of this folder.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.base import Drafter, LanguageModel
from specjax.drafters import bridge as _bridge
from specjax.drafters import chain
from specjax.drafters import ngram as _ngram
from specjax.drafters import plain as _plain
from specjax.drafters import vocabulary as _vocabulary
from specjax.types import Params


class Guide(NamedTuple):
    """A drafter with its weights and its name.

    Attributes:
      name: for reports.
      drafter: pure functions.
      params: what they read.
      source: the model that it runs, None where it has none.
      positions: positions that it can draft at; None where they are unbounded.
      serves: the target that a bridge between vocabularies was built for; None for all other drafters.
    """

    name: str
    drafter: Drafter
    params: Params = ()
    source: Any = None
    positions: int | None = None
    serves: Any = None

    def check(self, target: Any) -> None:
        """Raises ValueError where this drafter cannot serve the target; names both."""
        if self.source is None:
            return
        if self.serves is not None:
            if not _same_tokens(self.serves, target):
                raise ValueError(
                    f"drafter {self.name!r} is a bridge to the tokens of {self.serves.name}, and the target "
                    f"{target.name} has others: build one for {target.name}"
                )
        elif self.source.vocab_size != target.vocab_size:
            raise ValueError(
                f"draft {self.source.name} has a vocabulary of {self.source.vocab_size} tokens and target "
                f"{target.name} one of {target.vocab_size}: their laws are compared token by token, so use models "
                "that share a tokenizer, or drafters.bridge(draft, target) between two tokenizers"
            )
        if self.source.encoder_decoder != target.encoder_decoder:
            kinds = {True: "encoder-decoder", False: "decoder-only"}
            raise ValueError(
                f"draft {self.source.name} is {kinds[self.source.encoder_decoder]} and target {target.name} is "
                f"{kinds[target.encoder_decoder]}: use two models of one kind"
            )


def plain() -> Guide:
    """No draft: plain autoregressive decoding, by the same loop. The baseline."""
    return Guide("plain", _plain.plain())


def model(draft: Any, *, gamma: int = 5) -> Guide:
    """A smaller model writes a chain of gamma tokens (Leviathan et al. 2023).

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      gamma: draft tokens a round, at least 1.
    """
    positions = getattr(draft.config, "max_positions", None)
    return Guide(f"{draft.name} x{gamma}", chain.chain(draft.lm, gamma), draft.params, draft, positions)


def ngram(*, gamma: int = 8, longest: int = 3, shortest: int = 1) -> Guide:
    """Prompt lookup: copies what followed the last few tokens where they occurred before."""
    return Guide(f"ngram x{gamma}", _ngram.ngram(gamma, longest, shortest))


def bridge(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> Guide:
    """A smaller model with another tokenizer, restricted to the tokens that both share (TLI, Timor et al. 2025).

    Args:
      draft, target: models from `specjax.load`, with their tokenizers.
      gamma: draft tokens a round, at least 1.
      width: draft tokens in which one target token is told to the draft, at the most; of longer ones it hears the end.
      stretch: draft tokens for each target token that the draft has room for; a row that needs more decodes plainly.

    Raises:
      ValueError: something that is no model, one without a tokenizer, or tokenizers that share nothing.
    """
    ours, theirs, found, spelled = _compared(draft, target, gamma=gamma, width=width, stretch=stretch)
    reading = _vocabulary.reading(ours, theirs, spelled, width=width)
    positions = getattr(draft.config, "max_positions", None)
    made = _bridge.intersection(draft.lm, target.vocab_size, gamma, stretch=stretch, positions=positions)
    tables = jax.tree.map(jnp.asarray, (reading, _vocabulary.shared(found, theirs)))
    name = f"{draft.name} x{gamma} by shared tokens"
    return Guide(name, made, _bridge.BridgeParams(draft.params, *tables), draft, serves=target)


def reencode(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> Guide:
    """A smaller model with another tokenizer writes greedily; its text is proposed in the target's tokens.

    Args, Raises: as `bridge`; width limits the target tokens in which one draft token is told, too.
    """
    ours, theirs, found, spelled = _compared(draft, target, gamma=gamma, width=width, stretch=stretch)
    reading = _vocabulary.reading(ours, theirs, spelled, width=width)
    writing = _vocabulary.writing(ours, theirs, spelled, found, width=width)
    positions = getattr(draft.config, "max_positions", None)
    made = _bridge.reencoding(draft.lm, gamma, stretch=stretch, positions=positions)
    tables = jax.tree.map(jnp.asarray, (reading, writing))
    return Guide(
        f"{draft.name} x{gamma} re-encoded", made, _bridge.BridgeParams(draft.params, *tables), draft, serves=target
    )


def _compared(draft: Any, target: Any, **numbers: int):
    """Both vocabularies, their pairs, and the target's tokens in the draft's, after checks of what was asked."""
    for name, value in numbers.items():
        checks.whole(name, value, least=1)
    for role, given in (("draft", draft), ("target", target)):
        if not isinstance(getattr(given, "lm", None), LanguageModel):
            raise ValueError(f"the {role} of a bridge must be a model from specjax.load, got {type(given).__name__}")
    ours, theirs = _vocabulary.vocabulary(draft), _vocabulary.vocabulary(target)
    found = _vocabulary.pairs(ours, theirs)
    return ours, theirs, found, _vocabulary.spellings(theirs, ours, found)


def _same_tokens(one: Any, other: Any) -> bool:
    if one.vocab_size != other.vocab_size or other.text is None:
        return False
    return one.text is other.text or one.text.pieces() == other.text.pieces()
