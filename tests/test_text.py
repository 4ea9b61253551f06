"""Bytes of tokens become text: characters that tokens share, and the spellings of vocabularies."""

from specjax import text


def test_characters_split_between_tokens_are_joined():
    pieces = ["é".encode()[:1], "é".encode()[1:], "狐".encode()[:2], "狐".encode()[2:], b"a"]
    held = text.Text(lambda s: [], lambda ids: "", lambda: pieces, len(pieces))
    streamer = text.Streamer(held)
    assert [streamer.add([t]) for t in (4, 0, 1, 2, 3)] == ["a", "", "é", "", "狐"]
    streamer = text.Streamer(held)
    assert streamer.add([0]) == "" and streamer.end() == "\ufffd"


def test_bytes_of_vocabulary_entries():
    assert text.spell(["Ġthe", "Ã¼", "für", None, "</s>"], {4}) == [b" the", "ü".encode(), b"f\xfcr", b"", b""]
    names = ["▁the", "für", "ü", "<0x0A>", "</s>"]
    assert text.spell(names, {4}) == [b" the", "für".encode(), "ü".encode(), b"\n", b""]
