"""Texts of the target: how draft models score them, and rounds replayed on them without running a model.

Whether a draft token is accepted depends, given the text, on its place in the text alone, and not on the round that
drafts it: acceptance by token carries over to every draft length and tree.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from specjax.estimates import Estimate, ratio
from specjax.model import Model
from specjax.trees import Tree

RANKS, DEPTH = 4, 8  # of the trees considered: children of a node, levels
MISS = -1  # in place of a rank: the target's token is not among the draft's most probable ones
PAD = 32  # scored texts are padded to multiples of this


# --- scores ----------------------------------------------------------------------------------------------------------


def scored(
    draft: Model,
    target: Model,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
    """How a draft model scores the tokens that the target wrote after each prompt.

    Token-level verification accepts the draft of a token x of the text with probability min(1, q(x) / p(x)): the draft
    samples x with probability q(x) and has it accepted with min(1, p(x) / q(x)), and the text has it with p(x). At
    temperature 0 that is whether x is the draft's most probable token.

    Returns:
      For every token its rank among the most probable ones of the draft after the same prefix, MISS from `RANKS` on;
      and the probability that it is accepted. Tokens past the draft's positions are MISS and not accepted.
    """
    ranks, chances = [], []
    theirs = logits_of(target, prompts, texts) if temperature > 0 else iter(())
    for text, q in zip(texts, logits_of(draft, prompts, texts), strict=True):
        written = np.asarray(text, np.int64)[: len(q)]
        at = np.arange(len(written))
        own = q[at, written][:, None]
        earlier = np.arange(q.shape[1])[None] < written[:, None]  # tokens with equal logits are ranked by number
        place = ((q > own) | ((q == own) & earlier)).sum(1)
        chance = (place == 0).astype(float)
        if temperature > 0:
            log_p, log_q = (x - _log_total(x) for x in (next(theirs)[: len(q)] / temperature, q / temperature))
            chance = np.exp(np.minimum(log_q[at, written] - log_p[at, written], 0.0))
        beyond = len(text) - len(q)
        ranks.append((*np.where(place < RANKS, place, MISS).tolist(), *[MISS] * beyond))
        chances.append((*chance.tolist(), *[0.0] * beyond))
    return tuple(ranks), tuple(chances)


def logits_of(model: Model, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """For each text, [n, V] float64: the logits that each of its tokens follows, as far as the model has positions."""
    encoded = model.encoder_decoder
    before = [[model.config.start_token] if encoded else list(prompt) for prompt in prompts]
    whole = [[*prefix, *text][: model.positions] for prefix, text in zip(before, texts, strict=True)]
    filler = model.config.start_token if encoded else 0
    wide, long = (-(-max(map(len, rows)) // PAD) * PAD for rows in (prompts, whole))  # one program for all texts
    long = min(long, model.positions or long)
    pad = lambda row, width: np.pad(np.asarray(row, np.int32), (0, width - len(row)), constant_values=filler)
    for prompt, prefix, row in zip(prompts, before, whole, strict=True):
        given = [pad(prompt, wide)] if encoded else []
        logits = np.asarray(model.score(*given, pad(row, long)), np.float64)[0]
        yield logits[len(prefix) - 1 : len(row) - 1]


def _log_total(logits: np.ndarray) -> np.ndarray:
    """[n, 1]: the logarithm of the sum of exponentials."""
    top = logits.max(-1, keepdims=True)
    return top + np.log(np.exp(logits - top).sum(-1, keepdims=True))


# --- rounds ----------------------------------------------------------------------------------------------------------


def replay_chain(chances: Sequence[Sequence[float]], gamma: int) -> Estimate:
    """Tokens per round of chains with token-level verification on these texts, with their error over texts.

    Exact given the texts: acceptance of a token then depends on nothing but the token. Follows the probability that a
    round begins at each token.

    >>> replay_chain([[1.0, 1.0, 0.0, 1.0]], 2).value  # rounds of 3 tokens and of 1
    2.0

    Args:
      chances: for each text, the probability that each token is accepted where the draft reaches it.
    """
    rounds = []
    for text in chances:
        begins, count = np.zeros(len(text) + gamma + 1), 0.0
        begins[0] = 1.0
        for start in range(len(text)):
            left = begins[start]
            count += left
            for place, chance in enumerate(text[start : start + gamma], start=start):
                begins[place + 1] += left * (1 - chance)
                left *= chance
            begins[start + gamma + 1] += left
        rounds.append(count)
    return ratio([len(text) for text in chances], rounds) if sum(rounds) else Estimate(1.0)


def rank_table(rows: Sequence[Sequence[int]], *, depth: int = DEPTH, width: int = RANKS) -> np.ndarray:
    """[depth, width]: probability that the token of this rank is correct, given that all previous levels were.

    Only as deep as the texts reach.
    """
    right, tried = np.zeros((depth, width)), np.zeros(depth)
    for row in rows:
        for start in range(len(row)):
            for deep, found in enumerate(row[start : start + depth]):
                tried[deep] += 1
                if not 0 <= found < width:
                    break
                right[deep, found] += 1
    known = int((tried > 0).sum())
    return right[:known] / tried[:known, None]


def replay(shape: Tree, rows: Sequence[Sequence[int]]) -> Estimate:
    """Tokens per round with a tree of the most probable tokens on these texts, with their error over texts.

    Replays the rounds on the texts of the target instead of modeling them. The last token of a round comes from the
    target, whatever its rank.
    """
    below: list[dict[int, int]] = [{} for _ in shape.parents]  # per node: rank -> child
    for node, parent in enumerate(shape.parents[1:], start=1):
        below[parent][len(below[parent])] = node
    rounds = []
    for row in rows:
        at, count = 0, 0
        while at < len(row):
            node, count = 0, count + 1
            while at < len(row) and row[at] in below[node]:
                node, at = below[node][row[at]], at + 1
            at += 1
        rounds.append((at, count))
    tokens, counts = zip(*rounds, strict=True)
    return ratio(tokens, counts) if sum(counts) else Estimate(1.0)
