"""Ways to guess what the target will say: pure functions with explicit state, joined to their weights.

Here are the user's constructors; each returns a `Guide` for `specjax.generate(..., drafter=...)`. The `base.Drafter`s
behind them are in the modules of this folder.
"""

from typing import Any, NamedTuple

from specjax.base import Drafter
from specjax.drafters import adaptive, chain
from specjax.drafters import ngram as _ngram
from specjax.drafters import plain as _plain
from specjax.policies.policy import Rule, check_buckets, ladder
from specjax.types import Params

MODEL_GAMMA = 5  # draft tokens a round where nothing else is said


class Guide(NamedTuple):
    """A drafter with its weights and its name.

    Attributes:
      name: for reports.
      drafter: pure functions.
      params: what they read.
      source: the model that it runs, None where it has none.
      positions: positions that it can draft at; None where they are unbounded.
    """

    name: str
    drafter: Drafter
    params: Params = ()
    source: Any = None
    positions: int | None = None

    def check(self, target: Any) -> None:
        """Raises ValueError where this drafter cannot serve the target; names both."""
        if self.source is None:
            return
        if self.source.vocab_size != target.vocab_size:
            raise ValueError(
                f"draft {self.source.name} has a vocabulary of {self.source.vocab_size} tokens and target "
                f"{target.name} one of {target.vocab_size}: their laws are compared token by token, so use models "
                "that share a tokenizer"
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


def model(
    draft: Any, *, gamma: int | None = None, policy: Rule | None = None, buckets: tuple[int, ...] | None = None
) -> Guide:
    """A smaller model writes a chain of gamma tokens (Leviathan et al. 2023), or as many as a policy says.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      gamma: draft tokens a round, at least 1; None: 5, or what the policy says.
      policy: from `specjax.policies`; each row drafts as many tokens as it wants, up to its gamma_max.
      buckets: draft lengths that the target's call is compiled at, for a policy that varies; None: those of
        `policies.ladder`, (): gamma_max alone.

    Raises:
      ValueError: gamma beside a policy, something that is no policy, or buckets that do not fit it.
    """
    positions = getattr(draft.config, "max_positions", None)
    if policy is None:
        if buckets is not None:
            raise ValueError(f"buckets={buckets} are for a policy of varying length: give policy=, or leave them out")
        gamma = MODEL_GAMMA if gamma is None else gamma
        return Guide(f"{draft.name} x{gamma}", chain.chain(draft.lm, gamma), draft.params, draft, positions)
    if not isinstance(policy, Rule):
        raise ValueError(f"policy must be one from specjax.policies, got {type(policy).__name__}")
    if gamma is not None:
        raise ValueError(f"gamma={gamma} beside a policy: the policy {policy.name!r} says how long to draft")
    most = policy.gamma_max
    if policy.policy.constant:
        check_buckets(buckets or (), most)
        return plain() if most == 0 else model(draft, gamma=most)
    chosen = ladder(most) if buckets is None else check_buckets(buckets, most)
    drafter = adaptive.adaptive(draft.lm, policy.policy, chosen)
    params = adaptive.AdaptiveParams(draft.params, policy.params)
    return Guide(f"{draft.name} {policy.name}", drafter, params, draft, positions)


def ngram(*, gamma: int = 8, longest: int = 3, shortest: int = 1) -> Guide:
    """Prompt lookup: copies what followed the last few tokens where they occurred before."""
    return Guide(f"ngram x{gamma}", _ngram.ngram(gamma, longest, shortest))
