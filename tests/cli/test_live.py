"""The screen: colors, marks without color, rows in order, and no control characters."""

import io

import pytest
from rich.console import Console

from specjax.cli.live import Fate, InOrder, Panels, Segment, colored, printable, render

SEGMENTS = [
    Segment(Fate.ACCEPTED, "one "), Segment(Fate.REJECTED, "to\no"), Segment(Fate.OWN, "two"),
]  # fmt: skip


def console(**options) -> Console:
    return Console(file=io.StringIO(), width=60, **options)


def shown(c: Console) -> str:
    return c.file.getvalue()


def test_marks_without_color():
    assert render(SEGMENTS, colors=False, marks=True).plain == "one [-to⏎o-]{+two+}"
    assert render([SEGMENTS[0], SEGMENTS[2]], colors=False, marks=False).plain == "one two"


def test_colors_on_a_terminal():
    c = console(force_terminal=True, color_system="truecolor")
    c.print(render(SEGMENTS, colors=True, marks=True), end="")
    assert "\x1b[32mone \x1b[0m" in shown(c)
    assert "31mto⏎o\x1b[0m" in shown(c) and "34mtwo\x1b[0m" in shown(c)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"force_terminal": True, "color_system": "standard"}, True),
        ({"force_terminal": True, "color_system": "standard", "no_color": True}, False),
        ({"force_terminal": False, "color_system": "standard"}, False),
        ({"force_terminal": True, "color_system": None}, False),
    ],
)
def test_when_colors_are_used(options, expected):
    assert colored(console(**options)) is expected


def test_control_characters_are_replaced():
    assert printable("a\x1b[2Jb\r\x07\x7f\x9b") == "a␛[2Jb␍␇␡␛"
    assert printable("a\n\tb") == "a\n\tb"


def test_rows_are_printed_in_order():
    c = console()
    sink = InOrder(c, ["A:", "B:", "C:"], marks=False)
    sink.add(1, [Segment(Fate.OWN, "b1")])
    sink.add(0, [Segment(Fate.OWN, "a1")])
    assert shown(c).endswith("A:a1")  # the first row streams
    sink.end(1)
    sink.add(0, [Segment(Fate.OWN, "a2")])
    sink.end(0)
    sink.add(2, [Segment(Fate.OWN, "c1")])
    sink.close()
    texts = [line for line in shown(c).splitlines() if "of 3" not in line]
    assert texts == ["A:a1a2", "B:b1", "C:c1"]


def test_markup_in_text_is_printed_as_text():
    c = console()
    sink = InOrder(c, ["[red]x[/red] "], marks=False)
    sink.add(0, [Segment(Fate.OWN, "[bold] :smile:")])
    sink.close()
    sink.end(0)
    assert shown(c) == "[red]x[/red] [bold] :smile:\n"


def test_panels_print_the_whole_text_of_every_row():
    c = console(force_terminal=True, color_system="standard", height=8)
    sink = Panels(c, ["A ", "B "], marks=True)
    words = [f"w{n} " for n in range(60)]
    for word in words:
        sink.add(1, [Segment(Fate.ACCEPTED, word)])
    sink.close()
    final = shown(c)[shown(c).rindex("1 of 2") :]
    assert all(word.strip() in final for word in words)
