"""Figures of a trace: their text, reproducible files, legible colors."""

import xml.etree.ElementTree as ElementTree
from functools import partial

import pytest

from specjax import plotting
from specjax.trace import pictures
from specjax.trace.lanes import Activity, Lane, Span
from specjax.trace.rounds import DepthCount
from specjax.trace.strip import Mark, StripCell, StripLine

LINES = [
    StripLine(1, "Once $x$", (
        StripCell(Mark.ACCEPTED, " a$"), StripCell(Mark.REJECTED, " b$"), StripCell(Mark.UNTESTED, "漢"),
        StripCell(Mark.CORRECTION, "<c>"),
    ), 1, 3),
    StripLine(2, "Once $x$ a$<c>", (StripCell(Mark.ACCEPTED, "\u23ce"), StripCell(Mark.BONUS, "d")), 1, 1),
]  # fmt: skip
LANES = [
    Lane("\u03b3 = 2", (
        Span(Activity.TARGET_PROMPT, 0, 0.02), Span(Activity.DRAFT_PROMPT, 0.02, 0.01),
        Span(Activity.DRAFT, 0.03, 0.01), Span(Activity.DRAFT, 0.04, 0.01), Span(Activity.TARGET, 0.05, 0.03),
    ), 3),
    Lane("plain", (Span(Activity.TARGET_PROMPT, 0, 0.02), Span(Activity.TARGET, 0.02, 0.1)), 1),
]  # fmt: skip
DEPTHS = [DepthCount(1, 8, 6, 10), DepthCount(2, 6, 6, 10), DepthCount(3, 0, 0, 10)]
DRAWN = {
    "strip": partial(pictures.strip, lines=LINES, title="The $strip", note="the first 2 of 9 rounds"),
    "walltime": partial(pictures.walltime, lanes=LANES, title="The time"),
    "depth": partial(pictures.depths, found=DEPTHS, title="By depth"),
}
TEXTS = {
    "strip": {"The $strip", "round", "Once $x$", " a$", " b$", "<c>", "1 / 3", "the first 2 of 9 rounds", "d",
              *(mark.value for mark in Mark if mark is not Mark.REJECTED), "drafted, rejected (struck through)"},
    "walltime": {"The time", "\u03b3 = 2", "plain", "walltime (ms)", *(kind.value for kind in Activity),
                 "3 tokens, 1 target pass, 80 ms", "1 tokens, 1 target pass, 120 ms"},
    "depth": {"By depth", "depth: position of the token in the draft", "share", "6 of 8", "6 of 6",
              "accepted / tested, with 95 % interval"},
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_complete_and_reproducible(name, tmp_path):
    one, again = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (one, again):
        plotting.save(path, DRAWN[name])
    assert one.read_bytes() == again.read_bytes()
    words = {"".join(e.itertext()).strip("\n") for e in ElementTree.parse(one).iter() if e.tag.endswith("text")}
    stripped = {word.strip() for word in words}
    assert {word.strip() for word in TEXTS[name]} <= stripped


def test_depths_without_tested_tokens(tmp_path):
    plotting.save(tmp_path / "a.svg", partial(pictures.depths, found=[DepthCount(1, 0, 0, 4)], title="Nothing"))
    assert "Nothing" in (tmp_path / "a.svg").read_text()


def test_bitmaps_are_wide_enough(tmp_path):
    for name, draw in DRAWN.items():
        path = tmp_path / f"{name}.png"
        plotting.save(path, draw)
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG") and int.from_bytes(head[16:20], "big") >= 900


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 5), (3, 10), (300, 1000)])
def test_wilson_interval_against_its_definition(counts):
    """The ends are the rates r at which |accepted/tested - r| is 1.96 standard errors of r."""
    accepted, tested = counts
    low, high = pictures.wilson(accepted, tested)
    assert 0 <= low <= high <= 1
    if not tested:
        assert (low, high) == (0, 1)
        return
    rate = accepted / tested
    for end in {low, high} - {0.0, 1.0}:
        assert abs(rate - end) == pytest.approx(1.96 * (end * (1 - end) / tested) ** 0.5, rel=1e-6)
    assert (low == 0) == (accepted == 0) and (high == 1) == (accepted == tested)


def light(color: str) -> float:
    """Relative luminance."""
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, bright = sorted([light(one), light(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_adjacent_spans_differ_in_lightness():
    color = {kind: color for kind, (color, _) in pictures.BARS.items()}
    for one, other in [(Activity.TARGET_PROMPT, Activity.DRAFT_PROMPT), (Activity.DRAFT, Activity.TARGET)]:
        assert contrast(color[one], color[other]) > 1.5
    assert pictures.BARS[Activity.DRAFT][1] < pictures.BARS[Activity.TARGET][1]


def test_tokens_are_legible_on_their_boxes():
    for mark, style in pictures.STYLES.items():
        if mark not in (Mark.CONTEXT, Mark.UNTESTED):
            assert contrast(style.text, style.fill) > 4.5
