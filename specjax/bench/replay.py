"""What chains of several lengths draft greedily, from one run instead of a compiled program and a run for each."""

from collections.abc import Iterator, Sequence
from typing import Any

from specjax.bench.grid import Workload, counted
from specjax.bench.record import Row


def greedy_chains(work: Workload, drafter: Any, gammas: Sequence[int]) -> dict[int, Row]:
    """For each draft length the row of `grid.acceptance` at temperature 0.

    One run drafts before every token of the text and accepts nothing. From it follows what any chain would draft and
    accept at any place, where drafts depend on the text alone and a shorter chain is the beginning of a longer one, as
    with trained heads.

    Args:
      drafter: of the longest chain.
    """
    most = work.settings["max_new_tokens"]
    ends = () if work.settings["ignore_eos"] else work.target.eos
    texts, counts = [], {gamma: [] for gamma in gammas}
    for written, drafts in recorded(work, drafter, most + max(gammas)):
        length = next((at + 1 for at, token in enumerate(written[:most]) if token in ends), most)
        texts.append(written[:length])
        for gamma in gammas:
            counts[gamma].append(replayed(written, drafts, length, gamma))
    return {
        gamma: counted({name: [row[name] for row in each] for name in each[0]}, texts, work.prompts)
        for gamma, each in counts.items()
    }


def recorded(work: Workload, drafter: Any, most: int) -> Iterator[tuple[list[int], list[list[int]]]]:
    """The text of each prompt, past its end, and the tokens that were drafted before each token of it."""
    from specjax import verify
    from specjax.trace import rounds

    nothing = verify.TABLE["simulated"]._replace(fn=verify.simulated(0.0))
    options = work.settings | {"temperature": 0.0, "verifier": nothing, "max_new_tokens": most, "ignore_eos": True}
    for start in range(0, len(work.prompts), work.batch):
        part = work.prompts[start : start + work.batch]
        trace = rounds.record(work.target, part, drafter, options)
        for number in range(len(part)):
            row = trace.row(number)
            drafts = [[node.token for node in one.nodes if node.valid] for one in row]
            yield [token for one in row for token in one.tokens], drafts


def replayed(written: Sequence[int], drafts: Sequence[Sequence[int]], length: int, gamma: int) -> dict[str, int]:
    """The counts of one prompt, by the names of `Stats.by_row`, with chains of `gamma` tokens.

    Args:
      written: tokens of the target, more than `length`: those after the end count as accepted too.
      drafts: what was drafted before each of them.
    """
    drafted: list[int] = []  # in each round; none after a prompt of one token, where no features are known
    accepted: list[int] = []
    at = 0
    while at < length:
        drafted.append(min(gamma, len(drafts[at])))
        pairs = zip(drafts[at][:gamma], written[at:], strict=False)
        accepted.append(next((place for place, (one, other) in enumerate(pairs) if one != other), drafted[-1]))
        at += accepted[-1] + 1
    total = sum(accepted)
    return {
        "rounds": len(accepted), "drafted": sum(drafted), "accepted": total, "overlap": total,
        "tested": sum(map(min, (count + 1 for count in accepted), drafted)), "tokens": length,
        **{f"reached {place}": sum(count >= place for count in accepted) for place in range(gamma + 1)},
    }  # fmt: skip
