"""Pictures: what is written in them, the same file every time, whole or not at all."""

import xml.etree.ElementTree as ElementTree
from functools import partial

import pytest

from specjax import plotting
from specjax.trace import pictures
from specjax.trace.lanes import Call, Kind, Lane
from specjax.trace.rounds import Depth
from specjax.trace.strip import Cell, Line, Mark

LINES = [
    Line(1, "Once $x$", (Cell(Mark.ACCEPTED, " a$"), Cell(Mark.REJECTED, " b$"), Cell(Mark.UNTESTED, "漢"),
                         Cell(Mark.CORRECTION, "<c>")), 1, 3),
    Line(2, "Once $x$ a$<c>", (Cell(Mark.ACCEPTED, "\u23ce"), Cell(Mark.BONUS, "d")), 1, 1),
]  # fmt: skip
LANES = [
    Lane("\u03b3 = 2", (Call(Kind.TARGET_PROMPT, 0, 0.02), Call(Kind.DRAFT_PROMPT, 0.02, 0.01),
                        Call(Kind.DRAFT, 0.03, 0.01), Call(Kind.DRAFT, 0.04, 0.01), Call(Kind.TARGET, 0.05, 0.03)), 3),
    Lane("plain", (Call(Kind.TARGET_PROMPT, 0, 0.02), Call(Kind.TARGET, 0.02, 0.1)), 1),
]  # fmt: skip
DEPTHS = [Depth(1, 8, 6, 10), Depth(2, 6, 6, 10), Depth(3, 0, 0, 10)]
DRAWN = {
    "strip": partial(pictures.strip, lines=LINES, title="The $strip", note="the first 2 of 9 rounds"),
    "walltime": partial(pictures.walltime, lanes=LANES, title="The time"),
    "depth": partial(pictures.depths, found=DEPTHS, title="By depth"),
}
SAID = {
    "strip": {"The $strip", "round", "Once $x$", " a$", " b$", "<c>", "1 / 3", "the first 2 of 9 rounds", "d",
              *(mark.value for mark in Mark if mark is not Mark.REJECTED), "drafted, rejected (struck through)"},
    "walltime": {"The time", "\u03b3 = 2", "plain", "walltime (ms)", *(kind.value for kind in Kind),
                 "3 tokens, 1 target call, 80 ms", "1 tokens, 1 target call, 120 ms"},
    "depth": {"By depth", "depth: place of the token in the draft", "share", "6 of 8", "6 of 6",
              "accepted / tested, with its 95 % interval"},
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_says_everything_and_is_the_same_every_time(name, tmp_path):
    one, again = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (one, again):
        plotting.save(path, DRAWN[name])
    assert one.read_bytes() == again.read_bytes()
    words = {"".join(e.itertext()).strip("\n") for e in ElementTree.parse(one).iter() if e.tag.endswith("text")}
    stripped = {word.strip() for word in words}
    assert {word.strip() for word in SAID[name]} <= stripped


def test_depths_of_a_drafter_that_found_nothing(tmp_path):
    plotting.save(tmp_path / "a.svg", partial(pictures.depths, found=[Depth(1, 0, 0, 4)], title="Nothing"))
    assert "Nothing" in (tmp_path / "a.svg").read_text()


def test_a_bitmap_is_wide_enough_to_read(tmp_path):
    for name, draw in DRAWN.items():
        path = tmp_path / f"{name}.png"
        plotting.save(path, draw)
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG") and int.from_bytes(head[16:20], "big") >= 900


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 5), (3, 10), (300, 1000)])
def test_wilsons_interval_against_its_definition(counts):
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


def test_blocks_that_touch_differ_in_lightness():
    color = {kind: color for kind, (color, _) in pictures.BARS.items()}
    for one, other in [(Kind.TARGET_PROMPT, Kind.DRAFT_PROMPT), (Kind.DRAFT, Kind.TARGET)]:
        assert contrast(color[one], color[other]) > 1.5
    assert pictures.BARS[Kind.DRAFT][1] < pictures.BARS[Kind.TARGET][1]


def test_tokens_can_be_read_on_their_boxes():
    for mark, style in pictures.STYLES.items():
        if mark not in (Mark.CONTEXT, Mark.UNTESTED):
            assert contrast(style.text, style.fill) > 4.5
