"""A drafter with its weights and its name: what the constructors of this folder return."""

from typing import Any, NamedTuple

from specjax.base import Drafter, LanguageModel
from specjax.types import Params


class LoadedDrafter(NamedTuple):
    """A drafter with its weights and its name: the `drafter` argument of `specjax.generate`.

    Attributes:
      name: for reports.
      drafter: pure functions.
      params: arrays that they read.
      source: the model that it runs; None if it runs none.
      largest: largest token id of its corpus; None without one.
      target: the target that a bridge between vocabularies was built for; None for all other drafters.
      head: the trained head that it runs; None if it runs none.

    >>> import specjax as sj
    >>> sj.drafters.LoadedDrafter("none", sj.drafters.plain().drafter).params
    ()
    """

    name: str
    drafter: Drafter
    params: Params = ()
    source: Any = None
    largest: int | None = None
    target: Any = None
    head: Any = None

    def __repr__(self) -> str:
        return f"LoadedDrafter({self.name!r})"

    def check(self, target: Any) -> None:
        """Raises ValueError if this drafter cannot draft for the target."""
        if self.largest is not None and self.largest >= target.vocab_size:
            raise ValueError(
                f"the corpus of {self.name} contains token {self.largest}, but target {target.name} has "
                f"{target.vocab_size} tokens: use outputs of models that share its tokenizer"
            )
        if self.head is not None:
            self.head.check(target)
        if self.source is None:
            return
        if self.target is not None:
            if not _same_tokens(self.target, target):
                raise ValueError(
                    f"drafter {self.name!r} is a bridge to the tokens of {self.target.name}, but the target is "
                    f"{target.name} with another vocabulary: build a bridge for {target.name}"
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
                f"drafter {self.name!r} works on the cache of {self.source.name}, but target {target.name} has another "
                "shape, format or cache: build the drafter from the target itself"
            )


def check_model(argument: str, given: Any, *, bounded: bool = True) -> None:
    """Raises ValueError unless it is a model from `specjax.load`, or if `bounded`, one from `drafters.bounded`."""
    lm = getattr(given, "lm", None)
    if not isinstance(lm, LanguageModel) or (lm.rollback is not None and not bounded):
        raise ValueError(f"{argument} must be a model from specjax.load, got {type(given).__name__}: load it first")


def layer_count(target: Any) -> int:
    """Number of its layers that decode."""
    return target.config.decoder_layers if target.encoder_decoder else target.config.layers


def _same_tokens(one: Any, other: Any) -> bool:
    if one.vocab_size != other.vocab_size or other.text is None:
        return False
    return one.text is other.text or one.text.pieces() == other.text.pieces()
