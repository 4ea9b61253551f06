"""When a row ends: stop codes, stop tokens, stop strings as an automaton over tokens, and a cap on new tokens.

A stop inside an accepted block cuts the block at that token, exactly where plain decoding would have stopped.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class Stop(enum.IntEnum):
    """Why a row ended. RUNNING is 0, so that `stop != 0` reads "has ended"."""

    RUNNING = 0
    EOS = 1
    STOP_TOKEN = 2
    STOP_STRING = 3
    MAX_TOKENS = 4
    CACHE_FULL = 5
    NAN = 6  # the target's logits held a NaN: nothing of that round was committed
    INTERRUPTED = 7  # the caller went away between two rounds


class StopRules(NamedTuple):
    """What ends a row, as arrays.

    Attributes:
      codes: [V] the Stop code that each token gives, 0 for most.
      transitions: [Q,V] the automaton of the stop strings: state after a token; the last state has matched. None
        where there are no stop strings.
    """

    codes: Int[Array, "V"]
    transitions: Int[Array, "Q V"] | None


def rules(
    vocab_size: int,
    *,
    eos: Sequence[int] = (),
    stop_tokens: Sequence[int] = (),
    stop_strings: Sequence[str] = (),
    pieces: Sequence[bytes] | None = None,
) -> StopRules:
    """Stop rules for a vocabulary.

    Args:
      eos, stop_tokens: token ids; an id that is both counts as EOS.
      stop_strings: matched on the bytes of the generated tokens, across token borders.
      pieces: the bytes of every token, needed for stop strings.

    Raises:
      ValueError: a token outside the vocabulary, an empty stop string, or stop strings without `pieces`.
    """
    codes = np.zeros((vocab_size,), np.int32)
    for token in (*stop_tokens, *eos):
        if not 0 <= token < vocab_size:
            raise ValueError(f"stop token {token} lies outside the vocabulary of {vocab_size} tokens")
    codes[list(stop_tokens)] = Stop.STOP_TOKEN
    codes[list(eos)] = Stop.EOS
    if not stop_strings:
        return StopRules(jax.device_put(codes), None)
    if any(not s for s in stop_strings):
        raise ValueError("a stop string must not be empty: it would stop every row at once")
    if pieces is None:
        raise ValueError("stop strings need the bytes of every token: the model was loaded without a tokenizer")
    table = automaton([s.encode() for s in stop_strings], pieces, vocab_size)
    return jax.device_put(StopRules(codes, table))


def automaton(patterns: Sequence[bytes], pieces: Sequence[bytes], vocab_size: int) -> np.ndarray:
    """[Q, V] int32: Aho and Corasick's automaton of the patterns, run over each token's bytes from every state.

    State 0 is the start; the last state is "a pattern has been seen" and is never left.
    """
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
    width = max(map(len, pieces))
    states = np.tile(np.arange(done + 1)[:, None], (1, vocab_size))
    lengths = np.zeros((vocab_size,), np.int64)
    padded = np.zeros((vocab_size, width), np.int64)
    for token, piece in enumerate(pieces[:vocab_size]):
        lengths[token] = len(piece)
        padded[token, : len(piece)] = list(piece)
    for at in range(width):
        states = np.where(lengths > at, step[states, padded[:, at]], states)
    return states.astype(np.int32)


class Cut(NamedTuple):
    """Where a block of committed tokens ends for each row."""

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
    """Cuts each row's block after the first token that stops it.

    Args:
      tokens, length: the block; entries past `length` are ignored.
      room: tokens the row may still take, at least 1 for active rows; taking the last one gives `room_code`.
      automaton: state of the stop strings' automaton.
      active: rows that have stopped keep length 0, code 0 and their state.
    """
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    codes = rules.codes[tokens]
    states = None
    if rules.transitions is not None:
        table = rules.transitions

        def follow(state, token):
            state = table[state, token]
            return state, state

        _, states = jax.lax.scan(follow, automaton, tokens.T)
        states = states.T
        codes = jnp.where((codes == 0) & (states == table.shape[0] - 1), int(Stop.STOP_STRING), codes)
    codes = jnp.where((codes == 0) & (at + 1 >= room[:, None]), room_code[:, None], codes)
    stops = (codes != 0) & (at < length[:, None]) & active[:, None]
    ended = stops.any(1)
    first = jnp.argmax(stops, axis=1).astype(jnp.int32)
    length = jnp.where(active, jnp.where(ended, first + 1, length), 0)
    stop = jnp.where(ended, jnp.take_along_axis(codes, first[:, None], 1)[:, 0], 0)
    if states is not None:
        last = jnp.take_along_axis(states, jnp.maximum(length - 1, 0)[:, None], 1)[:, 0]
        automaton = jnp.where(active & (length > 0), last, automaton)
    return Cut(length, stop.astype(jnp.int32), automaton)
