"""Streamed text is the final text, however the tokens arrive."""

import pytest

from specjax import text
from specjax.streaming import Writer, drops_first_space, safe_length, spelled

SENTENCES = [b"", *(bytes([b]) for b in range(256)), b" Das", b" ist"]  # as SentencePiece spells: a space is a piece's


def vocabulary(*, drops: bool) -> text.Text:
    def decode(ids):
        whole = b"".join(SENTENCES[i] for i in ids).decode(errors="replace")
        return whole.removeprefix(" ") if drops else whole

    return text.Text(lambda s: [1 + b for b in s.encode()], decode, lambda: SENTENCES, len(SENTENCES))


BYTES = vocabulary(drops=False)
CASES = {
    "plain": ("say it", []),
    "characters": ("naïve 狐 – “q” 🦊", []),
    "stop": ("say STOP now", ["STOP"]),
    "only begun": ("say ST", ["STOP"]),
    "nearly": ("a STORY STOP", ["STOP", "now"]),
    "stop after wide characters": ("狐狐狐é", ["狐é"]),
    "stop at once": ("STOP", ["STOP"]),
}


def test_a_copy_continues_in_the_middle_of_a_character_and_of_a_stop_string():
    tokens = BYTES.encode("a 狐 STOP b")
    for cut in range(len(tokens)):
        writer = Writer(BYTES, ["STOP"])
        begun = writer.add(tokens[:cut])
        other = writer.copy()
        for one in (other, writer):  # one after the other: neither reads what the other has added
            assert begun + one.add(tokens[cut:]) + one.end() == "a 狐 "


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("case", CASES)
def test_pieces_are_the_text_before_the_stop(case, size):
    whole, stops = CASES[case]
    tokens, writer, shown = BYTES.encode(whole), Writer(BYTES, stops), ""
    expected = text.cut_at(whole, stops)
    for at in range(0, len(tokens), size):
        shown += writer.add(tokens[at : at + size])
        assert expected.startswith(shown)  # nothing that would have to be taken back
    assert shown + writer.end() == expected == spelled(BYTES, tokens, stops)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bytes_of_no_character_come_out_at_the_end(size):
    tokens, writer = BYTES.encode("a狐")[:-1], Writer(BYTES, ["x"])
    shown = "".join(writer.add(tokens[at : at + size]) for at in range(0, len(tokens), size))
    assert shown == "a" and writer.end() == "\ufffd" and spelled(BYTES, tokens) == "a\ufffd" == BYTES.decode(tokens)


@pytest.mark.parametrize("drops", [True, False])
def test_the_first_space_is_dropped_as_decode_drops_it(drops):
    words, das, ist = vocabulary(drops=drops), 257, 258
    assert drops_first_space(words) is drops
    for tokens in ([das, ist], [0, das, ist], [1 + 32, das], [1 + ord("a"), ist]):
        writer = Writer(words, ["zz"])
        assert "".join(writer.add([t]) for t in tokens) + writer.end() == words.decode(tokens)
    assert spelled(words, [das, ist], [" ist"]) == ("Das" if drops else " Das")
    assert spelled(words, [das, ist], [" Das"]) == ""  # stop strings are matched before the space is dropped


def test_what_may_begin_a_stop_string_is_held():
    assert safe_length("a STO", ["STOP"]) == 2 and safe_length("a STO", []) == 5
    assert safe_length("a STOP b", ["STOP"]) == 2
    assert safe_length("abab", ["ababc", "bd"]) == 0
