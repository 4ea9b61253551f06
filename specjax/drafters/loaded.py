"""A drafter with its weights and its name: what the constructors of this folder return."""

from typing import Any, NamedTuple

from specjax.base import Drafter
from specjax.types import Params


class LoadedDrafter(NamedTuple):
    """A drafter with its weights and its name.

    Attributes:
      name: for reports.
      drafter: pure functions.
      params: arrays that they read.
      source: the model that it runs, None where it has none.
      largest: largest token id of the corpus; None without one.
      serves: target that a bridge between vocabularies was built for; None for all other drafters.
    """

    name: str
    drafter: Drafter
    params: Params = ()
    source: Any = None
    largest: int | None = None
    serves: Any = None

    def check(self, target: Any) -> None:
        """Raises ValueError where this drafter cannot draft for the target."""
        if self.largest is not None and self.largest >= target.vocab_size:
            raise ValueError(
                f"the corpus of {self.name} holds token {self.largest}, and target {target.name} has "
                f"{target.vocab_size} tokens: use outputs of models that share its tokenizer"
            )
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
                f"{target.name} one of {target.vocab_size}: distributions are compared token by token, so use models "
                "that share a tokenizer, or drafters.bridge(draft, target) between two tokenizers"
            )
        if self.source.encoder_decoder != target.encoder_decoder:
            kinds = {True: "encoder-decoder", False: "decoder-only"}
            raise ValueError(
                f"draft {self.source.name} is {kinds[self.source.encoder_decoder]} and target {target.name} is "
                f"{kinds[target.encoder_decoder]}: use two models of one kind"
            )
        if not self.drafter.borrows:
            return
        if target.lm.rollback is not None or (self.source.config, self.source.fmt) != (target.config, target.fmt):
            raise ValueError(
                f"drafter {self.name!r} works on the cache of the model that it was made of, {self.source.name}, and "
                f"target {target.name} has another shape, format or cache: make the drafter of the target itself"
            )


def _same_tokens(one: Any, other: Any) -> bool:
    if one.vocab_size != other.vocab_size or other.text is None:
        return False
    return one.text is other.text or one.text.pieces() == other.text.pieces()
