"""Between text and tokens: a tokenizer as functions, the bytes of every token, and streaming of text.

A `tokenizer.json` is read by the `tokenizers` package; other formats require transformers.
"""

import codecs
import functools
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
FILES = (
    "tokenizer*",
    "spiece.model",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*.j*",
)  # the files of a tokenizer in a checkpoint folder
SPACE = "\u2581"  # SentencePiece's symbol for a space


class Text(NamedTuple):
    """A tokenizer as functions.

    Attributes:
      encode: text -> token ids, including the special tokens that the model expects.
      decode: token ids -> text, without special tokens.
      pieces: the bytes of every token; empty for special tokens.
      vocab_size: number of tokens.
      special: names of the special tokens by id.
      save_pretrained: (folder) writes its files, for transformers and `from_folder`; None if there are none.
      chat: messages -> the prompt that asks for the next one, by the tokenizer's chat template; None without one.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    pieces: Callable[[], list[bytes]]
    vocab_size: int
    special: Callable[[], dict[int, str]] = dict
    save_pretrained: Callable[[Path], Any] | None = None
    chat: Callable[[Sequence[Mapping[str, str]]], str] | None = None


def from_folder(folder: Path | str) -> Text | None:
    """The tokenizer of a checkpoint folder, or None."""
    folder = Path(folder)
    file = folder / "tokenizer.json"
    if file.exists():
        import tokenizers

        try:
            found = from_tokenizer(tokenizers.Tokenizer.from_file(str(file)))
        except Exception as error:  # the package raises bare Exceptions
            raise ValueError(f"{file} is not a readable tokenizer: {error}") from None
        chat = _chat(functools.cache(lambda: _slow(folder)), found.encode) if _has_template(folder) else None
        return found._replace(save_pretrained=functools.partial(copy_files, folder), chat=chat)
    if any((folder / name).exists() for name in ("vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")):
        return from_transformers(_slow(folder))
    return None


def _slow(folder: Path) -> Any:
    """The tokenizer of a checkpoint folder as transformers reads it, which takes seconds to import."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _has_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    return any(folder.glob("chat_template*.j*")) or (config.is_file() and b'"chat_template"' in config.read_bytes())


def _chat(
    tokenizer: Callable[[], Any], encode: Callable[[str], list[int]]
) -> Callable[[Sequence[Mapping[str, str]]], str]:
    """`Text.chat` of a transformers tokenizer; a start token that `encode` adds itself is not repeated."""

    def prompt(messages: Sequence[Mapping[str, str]]) -> str:
        made = tokenizer().apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        start, ids = tokenizer().bos_token or "", encode(made)
        return made.removeprefix(start) if start and len(ids) > 1 and ids[0] == ids[1] else made

    return prompt


def copy_files(folder: Path, into: Path) -> None:
    """Copies the tokenizer files of a checkpoint folder."""
    for pattern in FILES:
        for file in folder.glob(pattern):
            shutil.copyfile(file, into / file.name)


def from_tokenizer(tokenizer: Any) -> Text:
    """Wraps a `tokenizers.Tokenizer`."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = {i: added.content for i, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    size = tokenizer.get_vocab_size(with_added_tokens=True)

    @functools.cache
    def pieces() -> list[bytes]:
        names = [tokenizer.id_to_token(i) for i in range(size)]
        return spell(names, special)

    return Text(
        encode=lambda text: tokenizer.encode(text).ids,
        decode=lambda ids: tokenizer.decode([int(i) for i in ids], skip_special_tokens=True),
        pieces=pieces,
        vocab_size=size,
        special=lambda: dict(special),
        save_pretrained=lambda folder: tokenizer.save(str(Path(folder) / "tokenizer.json")),
    )


def from_transformers(tokenizer: Any) -> Text:
    """Wraps a tokenizer of transformers, fast or slow."""
    if tokenizer.is_fast:  # decode omits all tokens marked special, not only those with a role
        special = {i: added.content for i, added in tokenizer.added_tokens_decoder.items() if added.special}
    else:
        special = {int(i): str(tokenizer.convert_ids_to_tokens(i)) for i in tokenizer.all_special_ids}

    @functools.cache
    def pieces() -> list[bytes]:
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return spell(names, special)

    encode = lambda text: tokenizer(text)["input_ids"]
    return Text(
        encode=encode,
        decode=lambda ids: tokenizer.decode([int(i) for i in ids], skip_special_tokens=True),
        pieces=pieces,
        vocab_size=len(tokenizer),
        special=lambda: dict(special),
        save_pretrained=tokenizer.save_pretrained,
        chat=_chat(lambda: tokenizer, encode) if tokenizer.chat_template else None,
    )


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The characters of bytes in byte-level vocabularies: printable bytes map to themselves, others from 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + n): b for n, b in enumerate(others)}}


def spell(names: Sequence[str | None], special: Collection[int]) -> list[bytes]:
    """The bytes of each vocabulary entry; empty for special tokens and gaps.

    The meaning of an entry depends on the kind of vocabulary: "für" is literal in SentencePiece and three other bytes
    in byte-level BPE. A vocabulary that marks spaces with U+2581 is SentencePiece's.

    >>> from specjax import text
    >>> text.spell(["▁the", "<0x41>", "</s>"], special={2})
    [b' the', b'A', b'']
    """
    sentencepiece = any(name is not None and SPACE in name for name in names)
    one = _sentencepiece if sentencepiece else _byte_level
    return [b"" if i in special or name is None else one(name) for i, name in enumerate(names)]


def _sentencepiece(name: str) -> bytes:
    fallback = BYTE_TOKEN.fullmatch(name)
    return bytes([int(fallback.group(1), 16)]) if fallback else name.replace(SPACE, " ").encode()


def _byte_level(name: str) -> bytes:
    alphabet = _byte_alphabet()
    if all(char in alphabet for char in name):
        return bytes(alphabet[char] for char in name)
    return name.encode()  # an added token, stored literally


class Streamer:
    """Decodes tokens as they arrive; holds bytes back until they form whole characters."""

    def __init__(self, text: Text):
        self._pieces = text.pieces()
        self._held = b""

    def copy(self) -> "Streamer":
        """A streamer at the same place; adding to either leaves the other as it is."""
        made = object.__new__(Streamer)  # of every row in every round, where `copy.copy` takes ten times as long
        made._pieces, made._held = self._pieces, self._held
        return made

    def add(self, tokens: Sequence[int]) -> str:
        """The text completed by these tokens."""
        data = self._held + b"".join(self._pieces[t] if t < len(self._pieces) else b"" for t in tokens)
        return self._decode(data, final=False)

    def end(self) -> str:
        """The rest: incomplete characters become U+FFFD."""
        return self._decode(self._held, final=True)

    def _decode(self, data: bytes, *, final: bool) -> str:
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._held = data[used:]
        return text


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first occurrence of a stop string.

    >>> from specjax import text
    >>> text.cut_at("one. two. three", [". "])
    'one'
    """
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text
