"""A target and a draft on given prompts: acceptance, tokens a call, speed against plain decoding, BLEU and chrF."""

from collections.abc import Iterator, Sequence
from typing import Any

from specjax import api, files
from specjax.bench.decode import Row, interleave
from specjax.loading import load
from specjax.naming import drafting

BATCH = 8  # prompts decoded together where acceptance is counted
TIMED = 8  # prompts that are timed, one after the other: speed is that of a single request


def measure(
    target: str,
    draft: str,
    dtype: str,
    prompts: str,
    gamma: Sequence[int],
    temperature: Sequence[float],
    new: int,
    repeats: int,
    drafter: str = "model",
) -> Iterator[Row]:
    """One row for each temperature and gamma.

    Args:
      drafter: as for `specjax generate --drafter`; gamma counts where it names none and has the choice.

    Acceptance is counted over all prompts in batches; the speed-up is that of the first prompts decoded alone,
    interleaved with plain decoding. With references (after a tab) the plain output is scored by sacrebleu.
    """
    given, references = read_prompts(prompts)
    big, small = load(target, dtype=dtype), load(draft, dtype=dtype)
    spec = drafting.parse(drafter)
    ways = {n: drafting.with_gamma(spec, n) for n in drafting.gammas(spec, gamma)} or {None: spec}
    for warmth in temperature:
        settings: dict[str, Any] = {"max_new_tokens": new, "temperature": warmth}
        scored = quality(big, given, references, settings) if references else {}
        for count, way in ways.items():
            guide = drafting.make(way, big, [small])
            row: Row = {
                "bench": "pair", "target": target, "draft": draft, "dtype": dtype, "drafter": drafting.label(spec),
                "temperature": warmth, "gamma": count, "prompts": len(given),
            }  # fmt: skip
            yield row | acceptance(big, given, guide, settings) | speed(big, given, guide, settings, repeats) | scored


def read_prompts(file: str) -> tuple[list[str], list[str] | None]:
    """One prompt a line, and the references where every line has one after a tab.

    Raises:
      ValueError: there is none, or a file that cannot be read.
    """
    lines = [line for _, line in files.filled(files.lines(file, "prompts"))]
    if not lines:
        raise ValueError(f"{file} holds no prompt: write one a line")
    references = [line.split("\t")[1] for line in lines] if all("\t" in line for line in lines) else None
    return [line.split("\t")[0] for line in lines], references


def acceptance(target, prompts: Sequence[str], guide, settings: dict[str, Any]) -> Row:
    """Rates over all prompts; the last batch is filled up with prompts that are not counted."""
    tested = accepted = rounds = tokens = 0
    for start in range(0, len(prompts), BATCH):
        part = list(prompts[start : start + BATCH])
        full = part + [prompts[0]] * (BATCH - len(part))
        stats = api.generate(target, full, drafter=guide, rows=range(start, start + BATCH), **settings).stats
        tested, accepted = tested + stats.tested, accepted + stats.accepted
        rounds += sum(stats.rounds_by_row[: len(part)])
        tokens += sum(stats.tokens_by_row[: len(part)])
    return {"accepted_per_tested": accepted / max(tested, 1), "tokens_per_call": tokens / max(rounds, 1)}


def speed(target, prompts: Sequence[str], guide, settings: dict[str, Any], repeats: int) -> Row:
    """Tokens a second of single requests, drafted and plain, interleaved."""
    tokens: dict[str, int] = {}

    def run(name: str, drafter) -> None:
        tokens[name] = 0
        for number, prompt in enumerate(prompts[:TIMED]):
            out = api.generate(target, [prompt], drafter=drafter, rows=[number], **settings)
            tokens[name] += out.stats.tokens

    times, load = interleave({"drafted": lambda: run("drafted", guide), "plain": lambda: run("plain", None)}, repeats)
    rate = {name: tokens[name] / times[name].median for name in tokens}
    return {
        "tokens_per_second": rate["drafted"], "plain_tokens_per_second": rate["plain"],
        "speedup": rate["drafted"] / rate["plain"], "load": load,
    }  # fmt: skip


def quality(target, prompts: Sequence[str], references: Sequence[str], settings: dict[str, Any]) -> Row:
    """Corpus BLEU and chrF of plain decoding."""
    import sacrebleu

    texts: list[str] = []
    for start in range(0, len(prompts), BATCH):
        part = list(prompts[start : start + BATCH])
        full = part + [prompts[0]] * (BATCH - len(part))
        out = api.generate(target, full, rows=range(start, start + BATCH), **settings)
        texts += (out.texts or [])[: len(part)]
    return {
        "bleu": sacrebleu.corpus_bleu(texts, [list(references)]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [list(references)]).score,
    }
