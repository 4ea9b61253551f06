"""Maps between tokenizers: the bundled byte-level BPE, SentencePiece BPE with byte tokens, Unigram without, bytes."""

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from specjax import text
from specjax.convert.gguf_config import merges_from_scores
from specjax.convert.locate import BUNDLED_FOLDER
from specjax.drafters import vocabulary as v
from specjax.drafters.vocabulary import NONE, Vocabulary
from tests.cli import toys

SPACE = "\u2581"
WORDS = [
    SPACE, *"abcdefghijklmnopqrstuvwxyzTO,.é", "he", "th", SPACE + "t", SPACE + "th", SPACE + "the", "in", "ing",
    SPACE + "o", SPACE + "on", SPACE + "once", "ce", "nce", SPACE + "a", "re", SPACE + "the" + "re", SPACE * 2,
]  # fmt: skip
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_like() -> Tokenizer:
    """A Llama vocabulary in small: specials, byte tokens, pieces; "a" is a piece and a byte token."""
    names = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    scores = [0.0] * 259 + [-float(i) for i in range(len(WORDS))]
    made = Tokenizer(models.BPE(
        vocab={name: i for i, name in enumerate(names)}, merges=merges_from_scores(names, scores), unk_token="<unk>",
        fuse_unk=True, byte_fallback=True,
    ))  # fmt: skip
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def unigram() -> Tokenizer:
    """A T5 vocabulary in small: no byte tokens, whitespace normalized away, the end of text appended."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), *((word, -1.0 - i) for i, word in enumerate(WORDS[:-1]))]
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


@functools.cache
def of(kind: str) -> Vocabulary:
    if kind == "bundled":
        return vocabulary(text.from_folder(BUNDLED_FOLDER / "opt-tiny"), (2,), extra=0, name=kind)
    made, eos = {"sentencepiece": (sentencepiece_like, 2), "unigram": (unigram, 1), "bytes": (toys.tokenizer, 0)}[kind]
    return vocabulary(text.from_tokenizer(made()), (eos,), extra=5, name=kind)


def vocabulary(tokens, ends, *, extra, name="model") -> Vocabulary:
    """As of a model whose logits have `extra` entries that are no tokens."""
    size = None if tokens is None else tokens.vocab_size + extra
    return v.vocabulary(SimpleNamespace(name=name, text=tokens, vocab_size=size, eos=ends))


KINDS = ("bundled", "sentencepiece", "unigram", "bytes")
PAIRS = [(one, other) for one in KINDS for other in KINDS]


@functools.cache
def spelled(source: str, into: str) -> list[list[int]]:
    """`source` as the target, `into` as the draft."""
    return v.spellings(of(source), of(into), v.pairs(of(into), of(source)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_maps_to_itself(kind):
    """But for tokens that its tokenizer never writes: byte tokens of characters that have pieces."""
    own = of(kind)
    found = v.pairs(own, own)
    assert all(ours == theirs for theirs, ours in found.items())
    tokens = [t for t, piece in enumerate(own.pieces) if piece or t in own.special]
    never = {"sentencepiece": [3 + ord(c) for c in "abcdefghijklmnopqrstuvwxyzTO,. "]}.get(kind, [])
    assert sorted(set(tokens) - set(found)) == sorted(never)
    assert all(spelled(kind, kind)[t] == [t] for t in found)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_pairs_mean_the_same_and_are_one_to_one(target, draft):
    found = v.pairs(of(draft), of(target))
    assert len(set(found.values())) == len(found)
    assert found.pop(of(target).ends[0]) == of(draft).ends[0]
    for theirs, ours in found.items():
        if of(target).pieces[theirs]:
            assert of(target).pieces[theirs] == of(draft).pieces[ours]
        else:
            assert of(target).special[theirs] == of(draft).special[ours]
    source = v.shared(found, of(target))
    assert source.shape == (of(target).size,)
    assert (source != NONE).sum() == len(found)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_spellings_have_the_bytes_of_their_token(target, draft):
    known = {piece for piece in of(draft).pieces if piece}
    for token, ids in enumerate(spelled(target, draft)):
        piece = of(target).pieces[token]
        if piece and token not in of(target).ends:
            written = b"".join(of(draft).pieces[i] for i in ids)
            if draft == "unigram":  # it has no bytes, and normalizes: what it cannot write is left out whole
                assert written in (piece, b"")
                assert written == piece or any(bytes([byte]) not in known for byte in piece)
            else:
                assert written == piece


def test_by_hand():
    llama, bundled = of("sentencepiece"), of("bundled")
    ids = {name: i for i, name in enumerate(["<unk>", "<s>", "</s>", *BYTES, *WORDS])}
    named = {piece: token for token, piece in enumerate(bundled.pieces) if piece}
    found = v.pairs(llama, bundled)
    assert found[named[b" the"]] == ids[SPACE + "the"]
    assert found[named[b"a"]] == ids["a"]  # the piece, not <0x61>
    assert found[named[b"\n"]] == ids["<0x0A>"]  # a byte token is all that there is
    assert found[named[b"\xc3"]] == ids["<0xC3>"]  # half a character
    assert found[2] == 2 and found[0] == 1 and found[3] == 0  # </s> by role, <s> and <unk> by name
    assert 1 not in found  # <pad>
    words = spelled("bundled", "sentencepiece")
    assert words[named[b" there"]] == [ids[SPACE + "there"]]
    assert words[named[b"ence"]] == [ids["e"], ids["nce"]]
    assert words[named[b"thing"]] == [ids["th"], ids["ing"]]
    assert words[1] == []
    back = spelled("sentencepiece", "bundled")
    assert back[ids["<0x61>"]] == [named[b"a"]]
    assert back[ids["é"]] == bundled.encode("\né")[2:]  # after the opening and the line


def test_a_spelling_is_the_tokenizers_own_amid_a_text():
    """Of words, alone or after a space, which no normalizer changes; the fewest tokens are often others."""
    llama, bundled = of("sentencepiece"), of("bundled")
    known, differ = v.by_bytes(llama), 0
    for token, ids in enumerate(spelled("bundled", "sentencepiece")):
        piece = bundled.pieces[token]
        if piece.strip(b" ").isalpha() and len(piece) > 1:
            whole = llama.encode("," + piece.decode())
            assert ids == whole[-len(ids) :]
            differ += ids != v.cover(known, piece, 16)
    assert differ > 10


def test_the_fewest_tokens():
    known = {b"a": 0, b"b": 1, b"ab": 2, b"ba": 3, b"bab": 4}
    assert v.cover(known, b"abab", 3) == [2, 2]
    assert v.cover(known, b"abba", 3) == [2, 3]
    assert v.cover(known, b"babab", 3) == [4, 2]
    assert v.cover(known, b"ac", 3) == []
    assert v.cover(known, b"", 3) == []


def test_ends_of_text_are_a_pair_whatever_their_names():
    one = of("bytes")._replace(special={0: "<|endoftext|>"})
    found = v.pairs(one, of("bundled"))
    assert found[2] == 0
    assert v.spellings(of("bundled"), one, found)[2] == [0]
    several = of("bundled")._replace(ends=(2, 3))  # the second end becomes the only end of the draft
    assert v.spellings(several, one, v.pairs(one, several))[3] == [0]
    assert 3 not in v.pairs(one, several)


def test_special_tokens_are_not_their_letters():
    """The piece "</s>" as text is not the end of text."""
    literal = of("bytes")._replace(pieces=[b"", *of("bytes").pieces[1:], b"</s>"], size=of("bytes").size + 1)
    found = v.pairs(literal, of("bundled"))
    assert found[2] == 0
    assert literal.size - 1 not in found.values()


def test_opening_tokens():
    reading = v.reading(of("sentencepiece"), of("bundled"), spelled("bundled", "sentencepiece"), width=4)
    assert (int(reading.skip), reading.opening.tolist()) == (2, [1])
    none = v.reading(of("bytes"), of("unigram"), spelled("unigram", "bytes"), width=2)
    assert (int(none.skip), none.opening.tolist()) == (NONE, [])


def test_long_spellings_keep_their_end():
    words = spelled("bundled", "bytes")
    reading = v.reading(of("bytes"), of("bundled"), words, width=3)
    assert reading.spelling.tokens.shape == (of("bundled").size, 3)
    for token in (5, 300, 4000):
        kept = reading.spelling.tokens[token, : reading.spelling.count[token]]
        assert kept.tolist() == words[token][-3:]
    assert reading.spelling.count.max() == 3


def test_runs_lead_to_the_token_that_they_spell():
    """Bytes as the draft's tokens: every token of the target of up to four bytes is a run, and no longer one."""
    target, draft = of("bundled"), of("bytes")
    writing = v.writing(draft, target, spelled("bundled", "bytes"), v.pairs(draft, target), width=4)
    reached = {int(token) for token in writing.joins.gives if token != NONE}
    short = {token for token, piece in enumerate(target.pieces) if 0 < len(piece) <= 4}
    assert reached == short | {2}
    first, label, gives = writing.joins
    for token in sorted(short)[::400]:
        run, state = spelled("bundled", "bytes")[token], 0
        for symbol in run:
            edges = range(first[state], first[state + 1])
            (state,) = (edge + 1 for edge in edges if label[edge] == symbol)
        assert gives[state] == token
    assert all(np.all(np.diff(label[a:b]) > 0) for a, b in itertools.pairwise(first))


def test_draft_tokens_in_the_targets():
    """The other way: one token of the draft is up to four of the target's; longer ones are left out."""
    target, draft = of("bytes"), of("bundled")
    writing = v.writing(draft, target, spelled("bytes", "bundled"), v.pairs(draft, target), width=4)
    for token, piece in enumerate(draft.pieces):
        count = writing.spelling.count[token]
        assert count == (len(piece) if len(piece) <= 4 else 0) + (token == 2)
        written = b"".join(target.pieces[t] for t in writing.spelling.tokens[token, :count])
        assert written == piece[: len(written)]


def test_disjoint_vocabularies_and_missing_tokenizers_raise():
    alone = of("bytes")._replace(pieces=[b""] * of("bytes").size, special={}, ends=(), name="mute")
    with pytest.raises(ValueError, match=r"mute.*bundled"):
        v.pairs(alone, of("bundled"))
    with pytest.raises(ValueError, match="small has no tokenizer"):
        vocabulary(None, (), extra=0, name="small")
