"""What the tests of every verifier share: exact distributions by enumeration, and chi-square tests with a stated power.

A distribution of sequences is an array of shape [V] * length, float64. A model is a function from a prefix (a tuple of
tokens) to its next-token distribution, [V].
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from scipy import stats

Prefix = tuple[int, ...]
Model = Callable[[Prefix], np.ndarray]

ALPHA = 1e-4  # level of every chi-square test here; seeds are fixed, so a test that passes keeps passing


def random_model(seed: int, vocab: int, *, sharpness: float = 1.5, zeros: float = 0.0) -> Model:
    """A distribution for every prefix: softmax of normal logits; a share `zeros` of the tokens has no mass."""

    @functools.cache
    def probs(prefix: Prefix) -> np.ndarray:
        rng = np.random.default_rng((seed, len(prefix), *prefix))
        mass = np.exp(sharpness * rng.normal(size=vocab))
        mass[rng.random(vocab) < zeros] = 0.0
        mass[rng.integers(vocab)] += 0.5
        mass /= mass.sum()
        mass.flags.writeable = False  # shared by all calls
        return mass

    return probs


def one_hot_model(seed: int, vocab: int) -> Model:
    """A greedy model: all mass on one token, chosen by the prefix."""
    inner = random_model(seed, vocab)
    return lambda prefix: np.eye(vocab)[int(np.argmax(inner(prefix)))]


def joint(model: Model, length: int, prefix: Prefix = ()) -> np.ndarray:
    """The exact distribution of the next `length` tokens: [V] * length."""
    if length == 0:
        return np.ones(())
    probs = model(prefix)
    return np.stack([mass * joint(model, length - 1, (*prefix, token)) for token, mass in enumerate(probs)])


def completed(outcomes: Iterable[tuple[float, Prefix]], model: Model, vocab: int, length: int) -> np.ndarray:
    """Distribution of the first `length` tokens if `model` continues each outcome, (probability, tokens emitted).

    A lossless round gives joint(model, length): whole blocks are compared, not only marginals.
    """
    total = np.zeros((vocab,) * length)
    for mass, tokens in outcomes:
        kept = tokens[:length]
        total[kept] += mass * joint(model, length - len(kept), kept)
    return total


def drafts(model: Model, vocab: int, gamma: int) -> Iterator[tuple[float, Prefix]]:
    """Every chain of gamma tokens that the model can draft, with its probability."""
    for tokens in itertools.product(range(vocab), repeat=gamma):
        yield float(np.prod([model(tokens[:i])[token] for i, token in enumerate(tokens)])), tokens


def measure(passes: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], steps: int = 60) -> np.ndarray:
    """The measure of {u in [0, 1): passes(u)} for a test that passes below some u: bisection, entry by entry."""
    low, high = np.zeros(shape), np.ones(shape)
    for _ in range(steps):
        middle = (low + high) / 2
        passed = np.asarray(passes(middle))
        low, high = np.where(passed, middle, low), np.where(passed, high, middle)
    return low


def chi_square(counts: np.ndarray, probs: np.ndarray, *, least: float = 5.0) -> float:
    """p-value of counts under `probs`; cells that expect fewer than `least` are pooled. 0 at a token without mass."""
    counts, probs = np.ravel(counts).astype(float), np.ravel(probs)
    if np.any(counts[probs == 0] > 0):
        return 0.0
    observed, expected = _pool(counts, probs, counts.sum(), least)
    if len(expected) == 1:  # one token has all the mass, and has been all that was seen
        return 1.0
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1))


def power(probs: np.ndarray, other: np.ndarray, samples: int, *, least: float = 5.0) -> float:
    """The chance that `chi_square` rejects `distribution`, at level ALPHA, when samples come from `other`."""
    probs, other = np.ravel(probs), np.ravel(other)
    if np.any(other[probs == 0] > 0):
        return 1.0
    shifted, expected = _pool(samples * other, probs, samples, least)
    excess = ((shifted - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return float(stats.ncx2.sf(stats.chi2.isf(ALPHA, freedom), freedom, excess))


def histogram(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """Counts of rows of tokens, [n, length] -> [V] * length."""
    length = tokens.shape[1]
    flat = np.ravel_multi_index(tuple(tokens.T), (vocab,) * length)
    return np.bincount(flat, minlength=vocab**length).reshape((vocab,) * length)


def _pool(values: np.ndarray, probs: np.ndarray, samples: float, least: float):
    """Values and expectations with the rare cells as one."""
    rare = samples * probs < least
    expected = np.append(samples * probs[~rare], samples * probs[rare].sum())
    values = np.append(values[~rare], values[rare].sum())
    return values[expected > 0], expected[expected > 0]


P, Q, SPARSE_P, SPARSE_Q = (
    random_model(seed, 3, sharpness=sharpness, zeros=zeros)
    for seed, sharpness, zeros in ((1, 1.0, 0.0), (2, 2.0, 0.0), (3, 1.0, 0.5), (4, 1.0, 0.5))
)
GREEDY_P, GREEDY_Q = one_hot_model(5, 3), one_hot_model(6, 3)
PAIRS = {  # a target and a draft over three tokens
    "dense": (P, Q),
    "equal": (P, P),
    "zero masses": (SPARSE_P, SPARSE_Q),
    "draft surer": (P, SPARSE_Q),
    "greedy target": (GREEDY_P, Q),
    "greedy draft": (P, GREEDY_Q),
    "both greedy": (GREEDY_P, GREEDY_Q),
}
