"""The table of docs/results/plan.md is that of `specjax plan`; `python -m tests.planning.test_results` prints it."""

import importlib.util
import itertools
from pathlib import Path

import pytest

import specjax as sj

PAGE = Path(__file__).parents[2] / "docs/results/plan.md"
GIB = 2**30
PAIRS = (
    ("opt-13b", "opt-125m"), ("opt-66b", "opt-125m"), ("t5-v1_1-xxl", "t5-v1_1-small"), ("llama-2-7b", None),
    ("llama-3-8b", "llama-3.2-1b"), ("llama-3-70b", "llama-3.2-1b"),
)  # fmt: skip
SLICES = ("v5e-8", "v5e-16", "v5e-32", "v5p-8", "v5p-16", "v6e-8", "v6e-16")


def row_of(target: str, draft: str | None, topology: str) -> str:
    """A row of the table, in Markdown."""
    plan = sj.plan(target, draft, topology=topology, prompt=False)
    mesh = lambda request: "x".join(map(str, request.mesh))
    if plan.fits:
        fits = "yes" if plan.largest is None else f"yes, up to {plan.largest} rows"
    else:
        shown = {"mesh": mesh, "rows": lambda one: str(one.rows), "int8": mesh, "slice": lambda one: one.topology}
        fits = "no: " + "; ".join(f"{kind}: {shown[kind](one)}" for kind, one in plan.alternatives.items())
    gib = lambda bytes_: "" if bytes_ is None else f"{bytes_ / GIB:.2f}"
    speed, groups = plan.speed, plan.groups
    tokens = speed.tokens_per_second
    return "| " + " | ".join([
        target if draft is None else f"{target} + {draft}", topology, mesh(plan.request), str(plan.request.rows), fits,
        *(gib(groups[name]) for name in ("target", "draft", "caches")), gib(plan.temporaries),
        f"{gib(plan.needed)} of {gib(plan.memory)}", f"{1e3 * speed.plain.value:.1f}",
        f"{tokens.value:.0f} ({tokens.least:.0f} to {tokens.most:.0f})", f"{speed.speedup:.2f}",
    ]) + " |"  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu (of the test extra) is not installed")
@pytest.mark.parametrize("topology", SLICES)
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_the_page_has_the_row_of(target, draft, topology):
    assert row_of(target, draft, topology) in PAGE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for slice_, pair in itertools.product(SLICES, PAIRS):
        print(row_of(*pair, slice_), flush=True)
