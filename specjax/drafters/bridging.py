"""Constructors of bridges between vocabularies: a draft model with another tokenizer than the target's."""

from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.base import LanguageModel
from specjax.drafters import bridge as _bridge
from specjax.drafters import vocabulary as _vocabulary
from specjax.drafters.loaded import LoadedDrafter


def bridge(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> LoadedDrafter:
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
    made = _bridge.intersection(draft.lm, target.vocab_size, gamma, stretch=stretch)
    tables = jax.tree.map(jnp.asarray, (reading, _vocabulary.shared(found, theirs)))
    name = f"{draft.name} x{gamma} by shared tokens"
    return LoadedDrafter(name, made, _bridge.BridgeParams(draft.params, *tables), draft, serves=target)


def reencode(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> LoadedDrafter:
    """A smaller model with another tokenizer writes greedily; its text is proposed in the target's tokens.

    Args, Raises: as `bridge`; width limits the target tokens in which one draft token is told, too.
    """
    ours, theirs, found, spelled = _compared(draft, target, gamma=gamma, width=width, stretch=stretch)
    reading = _vocabulary.reading(ours, theirs, spelled, width=width)
    writing = _vocabulary.writing(ours, theirs, spelled, found, width=width)
    made = _bridge.reencoding(draft.lm, gamma, stretch=stretch)
    tables = jax.tree.map(jnp.asarray, (reading, writing))
    return LoadedDrafter(
        f"{draft.name} x{gamma} re-encoded", made, _bridge.BridgeParams(draft.params, *tables), draft, serves=target
    )


def _compared(draft: Any, target: Any, **numbers: int):
    """Both vocabularies, their pairs, and the target's tokens in the draft's, after checks of what was asked."""
    for name, value in numbers.items():
        checks.integer(name, value, least=1)
    for role, given in (("draft", draft), ("target", target)):
        if not isinstance(getattr(given, "lm", None), LanguageModel):
            raise ValueError(f"the {role} of a bridge must be a model from specjax.load, got {type(given).__name__}")
    ours, theirs = _vocabulary.vocabulary(draft), _vocabulary.vocabulary(target)
    found = _vocabulary.pairs(ours, theirs)
    return ours, theirs, found, _vocabulary.spellings(theirs, ours, found)
