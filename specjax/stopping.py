"""When a row ends: stop codes, stop tokens, stop strings as an automaton over tokens, and a limit on new tokens.

A stop inside an accepted block truncates the block at that token, exactly where plain decoding would have stopped.
"""

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer

CHUNK = 2**22  # entries of the transition table that are computed at a time
STATES, CLASSES = 64, 128  # smallest transition table; larger ones are compiled apart
UNROLLED = 16  # steps of the automaton without a loop around them


class Stop(enum.IntEnum):
    """Why a row ended. RUNNING is 0, so `stop != 0` means that the row has ended."""

    RUNNING = 0
    EOS = 1
    STOP_TOKEN = 2
    STOP_STRING = 3
    MAX_TOKENS = 4
    CACHE_FULL = 5
    NAN = 6  # the target's logits contained NaN: nothing of that round was committed
    INTERRUPTED = 7  # the caller stopped between two rounds


class StopAutomaton(NamedTuple):
    """A deterministic automaton over tokens, with the tokens grouped into classes of equal transitions.

    Attributes:
      classes: [V] int32, the class of each token.
      table: [Q, K] int16 (int32 above 32,767 states), the state after a token of each class. State 0 is the start;
        state Q - 1 means that a stop string was generated, and is never left. Q and K are padded to `STATES` and
        `CLASSES`, and above to powers of two, so that nearly all stop strings, and none, share one compiled program.
    """

    classes: Int[Array | np.ndarray, "V"]
    table: Integer[Array | np.ndarray, "Q K"]


class StopRules(NamedTuple):
    """The conditions that end a row, as arrays.

    Attributes:
      codes: [V] int32, the Stop code of each token, RUNNING for most.
      automaton: the automaton of the stop strings; without any, it stays in its start state.
      chosen: [B] int32, the rules of each row, if all other arrays have a leading axis of rules (`choice_of`).
    """

    codes: Int[Array, "V"]
    automaton: StopAutomaton
    chosen: Int[Array, "B"] | None = None


def rules(
    vocab_size: int,
    *,
    eos: Sequence[int] = (),
    stop_tokens: Sequence[int] = (),
    stop_strings: Sequence[str] = (),
    pieces: Sequence[bytes] | None = None,
) -> StopRules:
    """Builds the stop rules of a request.

    Args:
      vocab_size: V.
      eos: end-of-text token ids.
      stop_tokens: further token ids that end a row; an id in both counts as EOS.
      stop_strings: matched against the bytes of the generated tokens, across token boundaries.
      pieces: the bytes of every token, required for stop strings.

    Raises:
      ValueError: a token outside the vocabulary, an empty stop string, or stop strings without `pieces`.

    >>> from specjax import stopping
    >>> stopping.rules(5, eos=[2], stop_tokens=[4]).codes.tolist()
    [0, 0, 1, 0, 2]
    """
    codes = np.zeros((vocab_size,), np.int32)
    for token in (*stop_tokens, *eos):
        if not 0 <= token < vocab_size:
            raise ValueError(f"stop token {token} is outside the vocabulary of {vocab_size} tokens")
    codes[list(stop_tokens)] = Stop.STOP_TOKEN
    codes[list(eos)] = Stop.EOS
    if any(not s for s in stop_strings):
        raise ValueError("stop_strings must not contain an empty string, which would end every row at once")
    if stop_strings and pieces is None:
        raise ValueError("stop_strings require the bytes of every token, but the model was loaded without a tokenizer")
    table = automaton([s.encode() for s in stop_strings], pieces or (), vocab_size)
    return StopRules(*jax.device_put((codes, table)))


def choice_of(sets: Sequence[StopRules], chosen: np.ndarray) -> StopRules:
    """Several sets of rules as one, of which each row has its own.

    Args:
      sets: from `rules`, of one vocabulary.
      chosen: [B] int32, the index of each row's rules.
    """
    given = [jax.device_get(one) for one in sets]
    states, kinds = np.max([one.automaton.table.shape for one in given], axis=0)
    tables = np.full((len(given), states, kinds), states - 1, np.int32 if states > 2**15 else np.int16)
    for table, one in zip(tables, given, strict=True):  # the matched state is the last one of each table
        own = one.automaton.table
        rows, columns = own.shape
        table[: rows - 1, :columns] = np.where(own == rows - 1, states - 1, own)[:-1]
    classes = np.stack([one.automaton.classes for one in given])
    return StopRules(np.stack([one.codes for one in given]), StopAutomaton(classes, tables), chosen)  # type: ignore


def automaton(patterns: Sequence[bytes], pieces: Sequence[bytes], vocab_size: int) -> StopAutomaton:
    """The Aho-Corasick automaton of the patterns, composed over each token's bytes (numpy arrays).

    Memory is O(V + Q K) instead of O(Q V): bytes that occur in no pattern are interchangeable, so most tokens of a
    large vocabulary have equal transitions.

    Args:
      patterns: nonempty byte strings; none gives an automaton that stays in its start state.
      pieces: the bytes of every token; tokens beyond the end of the sequence have none.
      vocab_size: V.
    """
    if not patterns:
        return StopAutomaton(np.zeros((vocab_size,), np.int32), np.zeros((STATES, CLASSES), np.int16))
    step = _byte_steps(patterns)
    states = len(step)
    rows = _bucket(states, STATES)
    step = step.astype(np.int16 if rows <= 2**15 else np.int32)

    # Bytes of no pattern are interchangeable, and a run of them leads to state 0 like a single one.
    known = set(b"".join(patterns))
    others = bytes(byte for byte in range(256) if byte not in known)
    other = others[:1]
    translation = bytes.maketrans(others, other * len(others))
    collapse = re.compile(re.escape(other) + b"+") if other else None
    spellings: dict[bytes, list[int]] = {}
    for token in range(vocab_size):
        piece = (pieces[token] if token < len(pieces) else b"").translate(translation)
        spellings.setdefault(collapse.sub(other, piece) if collapse else piece, []).append(token)

    columns: dict[bytes, int] = {}
    classes = np.zeros((vocab_size,), np.int32)
    ordered = sorted(spellings, key=len)
    size = max(1, CHUNK // states)
    for start in range(0, len(ordered), size):
        chunk = ordered[start : start + size]
        lengths = np.array([len(piece) for piece in chunk])
        text = np.zeros((len(chunk), lengths[-1]), np.uint8)
        for row, piece in enumerate(chunk):
            text[row, : len(piece)] = np.frombuffer(piece, np.uint8)
        reached = np.broadcast_to(np.arange(states, dtype=step.dtype), (len(chunk), states)).copy()
        for at in range(lengths[-1]):
            longer = slice(int(np.searchsorted(lengths, at, side="right")), None)
            reached[longer] = step[reached[longer], text[longer, at, None]]
        for piece, column in zip(chunk, reached, strict=True):
            classes[spellings[piece]] = columns.setdefault(column.tobytes(), len(columns))
    found = np.frombuffer(b"".join(columns), step.dtype).reshape(-1, states)
    # The matched state is the last one of the padded table.
    table = np.full((rows, _bucket(len(columns), CLASSES)), rows - 1, step.dtype)
    table[: states - 1, : len(columns)] = np.where(found == states - 1, rows - 1, found).T[:-1]
    return StopAutomaton(classes, table)


def _byte_steps(patterns: Sequence[bytes]) -> np.ndarray:
    """[Q, 256]: the Aho-Corasick automaton over bytes. State Q - 1 means "matched" and is never left."""
    goto: list[dict[int, int]] = [{}]
    matched = [False]
    for pattern in patterns:
        state = 0
        for byte in pattern:
            if byte not in goto[state]:
                goto[state][byte] = len(goto)
                goto.append({})
                matched.append(False)
            state = goto[state][byte]
        matched[state] = True
    step = np.zeros((len(goto), 256), np.int64)
    fail = [0] * len(goto)
    queue = []
    for byte, state in goto[0].items():
        step[0, byte] = state
        queue.append(state)
    while queue:
        state = queue.pop(0)
        matched[state] = matched[state] or matched[fail[state]]
        step[state] = step[fail[state]]
        for byte, child in goto[state].items():
            fail[child] = int(step[fail[state], byte])
            step[state, byte] = child
            queue.append(child)
    done = len(goto)
    step = np.vstack([step, np.full((1, 256), done)])
    step[np.isin(step, [s for s, hit in enumerate(matched) if hit])] = done
    return step


def _bucket(size: int, least: int) -> int:
    """The smallest power of two that is at least `size`, and at least `least`."""
    return max(least, 1 << (size - 1).bit_length())


class Cut(NamedTuple):
    """Where a block of committed tokens ends in each row."""

    length: Int[Array, "B"]
    stop: Int[Array, "B"]
    automaton: Int[Array, "B"]


def cut(
    rules: StopRules,
    tokens: Int[Array, "B W"],
    length: Int[Array, "B"],
    room: Int[Array, "B"],
    room_code: Int[Array, "B"],
    automaton: Int[Array, "B"],
    active: Bool[Array, "B"],
) -> Cut:
    """Truncates each row's block after the first token that stops it.

    Args:
      rules: from `rules`.
      tokens: [B, W] int32, the block.
      length: [B] int32, its length; later entries are ignored.
      room: [B] int32, number of tokens that the row may still take, at least 1 for active rows.
      room_code: [B] int32, the code of a row that takes the last of them.
      automaton: [B] int32, state of the stop-string automaton.
      active: [B] bool; other rows return length 0, code 0 and their state.
    """
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    classes, table = rules.automaton
    row = () if rules.chosen is None else (rules.chosen,)
    rows = () if rules.chosen is None else (rules.chosen[:, None],)
    codes = rules.codes[(*rows, tokens)]

    def follow(state, kind):
        state = table[(*row, state, kind)].astype(jnp.int32)
        return state, state

    _, states = jax.lax.scan(follow, automaton, classes[(*rows, tokens)].T, unroll=min(UNROLLED, tokens.shape[1]))
    states = states.T
    codes = jnp.where((codes == 0) & (states == table.shape[-2] - 1), int(Stop.STOP_STRING), codes)
    codes = jnp.where((codes == 0) & (at + 1 >= room[:, None]), room_code[:, None], codes)
    stops = (codes != 0) & (at < length[:, None]) & active[:, None]
    ended = stops.any(1)
    first = jnp.argmax(stops, axis=1).astype(jnp.int32)
    length = jnp.where(active, jnp.where(ended, first + 1, length), 0)
    stop = jnp.where(ended, jnp.take_along_axis(codes, first[:, None], 1)[:, 0], 0)
    last = jnp.take_along_axis(states, jnp.maximum(length - 1, 0)[:, None], 1)[:, 0]
    automaton = jnp.where(active & (length > 0), last, automaton)
    return Cut(length, stop.astype(jnp.int32), automaton)
