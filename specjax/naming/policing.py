"""Policies of draft length by name, for the drafter "model": `--policy heuristic`, `--policy threshold:theta=0.3`.

The oracle is not here: it needs the answer. Nothing here imports jax before a policy is made.
"""

from typing import Any

from specjax.naming import grammar
from specjax.naming.grammar import Key, Kind, Spec, real, reals, whole, write_reals

Settings = dict[str, Any]
GAMMA_MAX = Key("the longest draft", whole(1), 16)
NUMBERS = "seconds a cached token, a fed token, a pass: as theory.fit_step_time finds them"


def _make(name: str, **settings: Any) -> Any:
    from specjax import policies

    return getattr(policies, name)(**settings)


def _best(**settings: Any) -> Any:
    return _make("best", **settings)


def _disco(file: str, **settings: Any) -> Any:
    from specjax.training import disco

    return _make("disco", params=disco.load(file), **settings)


def _goodput(target: tuple[float, ...], draft: tuple[float, ...] | None = None, **settings: Any) -> Any:
    from specjax.theory import StepTime

    times = {"target": StepTime(*target), "draft": None if draft is None else StepTime(*draft)}
    return _make("goodput", **times, **settings)


def _wants(policy: str, *keys: str):
    """Refuses settings without some keys."""

    def check(settings: Settings) -> None:
        missing = [key for key in keys if key not in settings]
        if missing:
            raise ValueError(f"the policy {policy!r} needs {' and '.join(missing)}, such as {EXAMPLES[policy]}")

    return check


EXAMPLES = {
    "fixed": "fixed:gamma=4",
    "best": "best:alpha=0.7,c=0.1",
    "disco": "disco:pair.disco.safetensors",
    "goodput": "goodput:target=0/2e-4/0.03,draft=0/1e-4/0.005",
}

POLICIES: dict[str, Kind] = {
    "fixed": Kind(
        "the same length always; 0 is plain decoding",
        lambda gamma: _make("fixed", gamma=gamma),
        {"gamma": Key("draft tokens a round", whole(0))},
        bare="gamma",
        check=_wants("fixed", "gamma"),
    ),
    "best": Kind(
        "the best fixed length for measured acceptance and cost; plain decoding where nothing pays",
        _best,
        {
            "alpha": Key("accepted / tested", real(0, 1)),
            "c": Key("a draft step over a step of the target", real(0)),
            "gamma_max": Key("the longest draft", whole(0), 16),
            "verify_cost": Key(
                "passes over 1, 2, ... tokens over the pass over one", reals(), "all 1", write_reals
            ),
            "overhead": Key("what else a round takes", real(0), 0.0),
        },
        check=_wants("best", "alpha", "c"),
    ),
    "heuristic": Kind(
        "two tokens more after a round that passed whole, else one less; by row",
        lambda **settings: _make("heuristic", **settings),
        {"gamma_max": GAMMA_MAX, "start": Key("length of the first round", whole(1), "5, or gamma_max")},
    ),
    "threshold": Kind(
        "drafts until the draft model is less sure of its token than theta",
        lambda **settings: _make("threshold", **settings),
        {"theta": Key("probability of the token", real(0, 1), 0.4), "gamma_max": GAMMA_MAX},
        bare="theta",
    ),
    "disco": Kind(
        "a trained classifier says after each token whether another pays",
        _disco,
        {
            "file": Key("as training.disco.save wrote it", grammar.path, names_file=True),
            "gamma_max": GAMMA_MAX,
        },
        bare="file",
        check=_wants("disco", "file"),
    ),
    "goodput": Kind(
        "one length for the batch, by each row's acceptance so far and a fitted model of time",
        _goodput,
        {
            "target": Key(NUMBERS, reals(3), None, write_reals),
            "draft": Key(NUMBERS, reals(3), "drafting is free", write_reals),
            "gamma_max": Key("the longest draft", whole(1), 8),
            "prior": Key("acceptance before anything was seen", real(0, 1), 0.7),
            "weight": Key("tests that the prior is worth", real(0), 2.0),
            "decay": Key("what a round leaves of the ones before", real(0, 1), 0.9),
        },
        check=_wants("goodput", "target"),
    ),
}  # fmt: skip
OTHER_NAMES = {"confidence": "threshold"}


def parse(text: str) -> Spec:
    """The policy that a text names.

    Raises:
      ValueError: no such policy or key, or a bad value; in one line.
    """
    name, colon, rest = text.strip().partition(":")
    return grammar.parse(OTHER_NAMES.get(name, name) + colon + rest, POLICIES, "policy")


def label(spec: Spec) -> str:
    """The canonical text."""
    return grammar.label(spec, POLICIES)


def make(spec: Spec) -> Any:
    """The `policies.Rule`."""
    return POLICIES[spec.name].make(**spec.settings)
