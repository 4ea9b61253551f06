"""Requests: loading, text in and out, streaming, statistics, and one-line errors for bad input."""

import inspect
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specjax as sj
from specjax import config, decoding, defaults, metrics
from specjax.request import prepare
from specjax.totals import Totals
from tests import battery
from tests.cli import toys

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = ["Once upon a time", "The old man said", "Naïve 狐 – “quote”"]


@pytest.fixture(scope="module")
def target():
    return sj.load("bundled/opt-target")


@pytest.fixture(scope="module")
def draft():
    return sj.load("bundled/opt-draft")


GOLDEN_NAMES = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())
QUICK = ("t5-gated-untied",)


@pytest.mark.slow
@pytest.mark.parametrize("name", battery.others_slow(GOLDEN_NAMES, QUICK))
def test_golden_checkpoints_load_and_generate(name):
    model = sj.load(GOLDEN / name)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    plain = sj.generate(model, prompts, max_new_tokens=8, temperature=0.0, ignore_eos=True)
    drafted = sj.generate(
        model, prompts, drafter=sj.drafters.model(model, gamma=3), max_new_tokens=8, temperature=0.0, ignore_eos=True
    )
    assert drafted.tokens == plain.tokens and [len(row) for row in plain.tokens] == [8, 8]
    assert drafted.stats.accepted_per_tested == 1.0 and drafted.stats.tokens_per_call == 4.0
    assert plain.texts is None and plain.lossless


# Two greedy rows and a sampled one. The tests share the programs of these options: another stop string of about this
# length has none of its own.
OPTIONS = {"max_new_tokens": 24, "temperature": [0.0, 0.9, 0.0], "seed": 3, "stop": "zebra zoos"}
SCORED = 40  # width of scored rows, at least that of a prompt and its new tokens


@pytest.fixture(scope="module")
def whole(target, draft):
    return sj.generate(target, PROMPTS, drafter=sj.drafters.model(draft, gamma=4), **OPTIONS)


def test_text_prompts_and_texts(target, whole):
    assert whole.texts is not None and target.text is not None
    assert whole.texts == [target.text.decode(row) for row in whole.tokens]
    row = [*target.text.encode(PROMPTS[0]), *whole.tokens[0]]
    best = target.score(row + [0] * (SCORED - len(row)))[0].argmax(-1).tolist()
    assert len(whole.tokens[0]) == 24 and whole.tokens[0] == best[len(row) - 25 : len(row) - 1]  # a greedy row


def test_stream_is_generate_and_its_pieces_are_the_text(target, draft, whole):
    stream = sj.stream(target, PROMPTS, drafter=sj.drafters.model(draft, gamma=4), **OPTIONS)
    pieces = ["", "", ""]
    for event in stream:
        pieces = [a + b for a, b in zip(pieces, event.texts, strict=True)]
    result = stream.result()
    assert result.tokens == whole.tokens and result.stop_reasons == whole.stop_reasons
    assert pieces == result.texts == whole.texts


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A byte-level model of random weights: most of its output is not valid UTF-8."""
    return sj.load(toys.write_model(tmp_path_factory.mktemp("toy") / "model"))


BYTES = {"drafter": sj.drafters.ngram(gamma=3), "max_new_tokens": 40, "temperature": 1.5, "ignore_eos": True}


@pytest.mark.slow
def test_streamed_bytes_are_the_whole_text(toy):
    """Eight rows of random bytes: some end within a character; all are shown whole, as `generate` returns them."""
    prompts, stream, shown, held = ["Once"] * 8, sj.stream(toy, ["Once"] * 8, **BYTES), [""] * 8, 0
    for event in stream:
        shown = [a + b for a, b in zip(shown, event.texts, strict=True)]
        for before, row in zip(shown, stream.result().texts or (), strict=True):
            assert row.startswith(before)
            held += row != before
    result = stream.result()
    assert shown == result.texts == sj.generate(toy, prompts, **BYTES).texts
    assert toy.text is not None and result.texts == [toy.text.decode(row) for row in result.tokens]
    assert held > 0 and any(row.endswith("\ufffd") for row in shown)  # the case that this is about occurs


@pytest.fixture
def interrupt_in_round(monkeypatch):
    """`interrupt_in_round(n)`: Ctrl-C in the worst moment of round n, when the state is given away and none is back."""

    def arm(number: int, *, before: bool = False) -> None:
        calls, one_round = [0], decoding.one_round

        def interrupted(*args, **options):
            calls[0] += 1
            if before and calls[0] == number:
                signal.raise_signal(signal.SIGINT)
            out = one_round(*args, **options)
            if calls[0] == number:
                signal.raise_signal(signal.SIGINT)
            return out

        monkeypatch.setattr(decoding, "one_round", interrupted)

    return arm


@pytest.mark.parametrize("before", [pytest.param(False, marks=pytest.mark.slow), True])
def test_stream_continues_after_ctrl_c_in_a_round(toy, interrupt_in_round, before):
    """The round is not counted and is computed later, with the rounds before it if it had taken the state."""
    prompts = ["Once"] * 8
    whole = sj.generate(toy, prompts, **BYTES)
    stream, shown, handler = sj.stream(toy, prompts, **BYTES), [""] * 8, signal.getsignal(signal.SIGINT)
    interrupt_in_round(3, before=before)
    with pytest.raises(KeyboardInterrupt):
        for event in stream:
            shown = [a + b for a, b in zip(shown, event.texts, strict=True)]
    assert signal.getsignal(signal.SIGINT) is handler
    assert stream.rounds == 2 and stream.in_round == (not before)
    part = stream.result()
    assert part.stop_reasons == ["interrupted"] * 8 and part.stats.rounds == 8 * stream.rounds
    for some, row in zip(part.tokens, whole.tokens, strict=True):
        assert stream.rounds <= len(some) < 40 and some == row[: len(some)]
    for event in stream:
        shown = [a + b for a, b in zip(shown, event.texts, strict=True)]
    result = stream.result()
    assert result.tokens == whole.tokens and shown == whole.texts and result.stop_reasons == whole.stop_reasons
    assert result.stats.rounds == whole.stats.rounds


def test_interrupted_stream_keeps_its_rounds(target, draft, whole):
    stream = sj.stream(target, PROMPTS, drafter=sj.drafters.model(draft, gamma=4), **OPTIONS)
    for _ in zip(range(3), stream, strict=False):
        pass
    result = stream.result()
    assert result.stop_reasons == ["interrupted"] * 3
    for part, row in zip(result.tokens, whole.tokens, strict=True):
        assert 3 <= len(part) < 24 and part == row[: len(part)]


@pytest.mark.slow
def test_a_stop_string_cuts_the_text_before_it(target, draft, whole):
    """A stream never shows text of the stop string, whose tokens are several, or after it."""
    text, stop = whole.texts[0], whole.texts[0][9:19]
    options = OPTIONS | {"drafter": sj.drafters.model(draft, gamma=4), "stop": stop}
    stream, shown, before = sj.stream(target, PROMPTS, **options), "", text[: text.index(stop)]
    for event in stream:
        shown += event.texts[0]
        assert before.startswith(shown)
    for out in (stream.result(), sj.generate(target, PROMPTS, **options)):
        assert out.texts is not None and out.texts[0] == shown == before
        assert out.stop_reasons[0] == "stop_string"
        assert out.tokens[0] == whole.tokens[0][: len(out.tokens[0])]


def test_a_second_call_compiles_nothing(target, draft, whole):
    assert len(whole.tokens) == 3
    options = OPTIONS | {"drafter": sj.drafters.model(draft, gamma=4), "seed": 5}
    assert sj.generate(target, [p + " and" for p in PROMPTS], **options).stats.compiles == 0


@pytest.mark.slow
def test_compiling_is_timed_apart(monkeypatch):
    """Tracing, a part of compiling, is made to take 0.7 s: all of it is found under "compile", once."""

    def slow():
        traced.append(time.sleep(0.7))

    traced: list[None] = []
    monkeypatch.setattr(decoding, "count_trace", slow)
    model, options = battery.target("opt"), {"max_new_tokens": 7, "min_p": 0.04, "repetition_penalty": 1.04}
    cold = sj.generate(model, [[1, 2]], **options).stats.seconds
    assert len(traced) == 2 and cold["compile"] >= 1.4 and max(cold["prefill"], cold["decode"]) < 0.7
    assert sj.generate(model, [[1, 3]], **options).stats.seconds["compile"] == 0.0
    stream = sj.stream(model, [[1, 2]], **options)
    list(stream)
    seconds = stream.result().stats.seconds
    assert len(traced) == 3 and seconds["compile"] >= 0.7 and seconds["decode"] < 0.7
    again = sj.stream(model, [[1, 3]], **options)
    list(again)
    assert len(traced) == 3 and again.result().stats.seconds["compile"] == 0.0


def test_start_of_a_program_is_not_decoding_time():
    assert metrics.steady([0.5, 0.1, 0.125], compiled=True) == pytest.approx((0.3375, 0.3875))
    assert metrics.steady([0.1, 0.2, 0.2], compiled=True) == pytest.approx((0.5, 0.0))
    assert metrics.steady([0.5, 0.1], compiled=False) == pytest.approx((0.6, 0.0))
    assert metrics.steady([0.5], compiled=True) == (0.5, 0.0) and metrics.steady([], compiled=True) == (0, 0.0)


def test_defaults_are_the_same_everywhere():
    expected = inspect.signature(prepare).parameters
    for name, value in (("temperature", 0.8), ("max_new_tokens", 64), ("seed", 0)):
        assert expected[name].default == getattr(config.RunConfig(), name) == value
        assert getattr(defaults, name.upper()) == value


@pytest.mark.slow
def test_the_package_is_lazy_and_exports_its_names():
    code = """
import sys, specjax as sj
assert "jax" not in sys.modules
import specjax.loading, specjax.config
assert callable(sj.load) and sj.load.__name__ == "load" and sj.load is sys.modules["specjax.loading"].load
assert all(getattr(sj, name) is not None for name in sj.__all__)
assert sj.api.Stream is sj.Stream and sj.sharding.make_mesh and set(sj.__all__) <= set(dir(sj))
from specjax import load, generate
assert load is sj.load and generate is sj.api.generate
try: sj.laod
except AttributeError: print("whole")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "whole\n", ran.stderr


BAD = {
    "no prompt": ({"prompts": []}, "prompt"),
    "empty prompt": ({"prompts": [[1], []]}, "prompt 1"),
    "token outside": ({"prompts": [[99]]}, "prompt 0 .* 99"),
    "no tokenizer": ({"prompts": "text"}, "tokenizer"),
    "too long": ({"prompts": [[1] * 70]}, "prompt .* 70 .* 64"),
    "one too long": ({"prompts": [[1], [1] * 70, [1] * 9]}, "prompt 1 .* 70"),
    "cache too small": ({"prompts": [[1] * 9], "cache_len": 8}, "cache_len=8"),
    "temperature": ({"prompts": [[1]], "temperature": -1.0}, "temperature"),
    "top_p": ({"prompts": [[1]], "top_p": 0.0}, "top_p"),
    "lengths": ({"prompts": [[1]], "temperature": [0.0, 1.0]}, "temperature"),
    "verifier": ({"prompts": [[1]], "verifier": "tokne"}, "'tokne'.*'token'"),
    "lossy": ({"prompts": [[1]], "verifier": "lossy-typical", "lossless": True}, "lossy-typical"),
    "no tokens": ({"prompts": [[1]], "max_new_tokens": 0}, "max_new_tokens"),
    "rows": ({"prompts": [[1]], "rows": [0, 1]}, "rows"),
    "new tokens of rows": ({"prompts": [[1]], "max_new_tokens": [3, 4]}, "max_new_tokens"),
    "too many new tokens": ({"prompts": [[1]], "max_new_tokens": 2**40}, "max_new_tokens"),
    "rows negative": ({"prompts": [[1]], "rows": [-1]}, "rows"),
    "temperature nan": ({"prompts": [[1]], "temperature": float("nan")}, "temperature.* nan"),
    "temperature inf": ({"prompts": [[1]], "temperature": float("inf")}, "temperature.* inf"),
    "seed negative": ({"prompts": [[1]], "seed": -1}, "seed"),
    "seed large": ({"prompts": [[1]], "seed": 2**32}, "seed"),
    "empty stop": ({"prompts": [[1]], "stop": ["a", ""]}, "stop"),
    "repetition penalty": ({"prompts": [[1]], "repetition_penalty": 1e-300}, "repetition_penalty"),
    "temperature large": ({"prompts": [[1]], "temperature": 1e39}, "temperature"),
    "bias large": ({"prompts": [[1]], "logit_bias": {1: 1e39}}, "bias"),
    "long stop": ({"prompts": [[1]], "stop": ["x" * 1025]}, "stop"),
    "cache 0": ({"prompts": [[1]], "cache_len": 0}, "cache_len"),
    "stop string": ({"prompts": [[1]], "stop": ["x"]}, "tokenizer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_one_line_error(case, monkeypatch):
    def touched(*_, **__):
        raise AssertionError("weights were touched")

    monkeypatch.setattr(decoding, "prefill", touched)
    options, name = BAD[case]
    options = dict(options)
    with pytest.raises(ValueError, match=name) as raised:
        sj.generate(battery.target("opt"), options.pop("prompts"), **options)
    assert "\n" not in str(raised.value)


WRONG_KINDS = {
    "prompt None": ({"prompts": None}, "prompts"),
    "prompt bytes": ({"prompts": b"text"}, "prompts.* bytes"),
    "prompt number": ({"prompts": 3}, "prompts.* int"),
    "row None": ({"prompts": [[1], None]}, "prompt 1"),
    "row bytes": ({"prompts": [b"text"]}, "prompt 0.* bytes"),
    "one list": ({"prompts": [1, 2]}, "prompt 0"),
    "fraction of a token": ({"prompts": [[1, 1.7]]}, r"prompt 0.* 1\.7"),
    "token in float": ({"prompts": np.ones((1, 2))}, "prompt 0"),
    "token True": ({"prompts": [[True]]}, "prompt 0.* True"),
    "new tokens in float": ({"prompts": [[1]], "max_new_tokens": 2.5}, r"max_new_tokens.* 2\.5"),
    "new tokens in text": ({"prompts": [[1]], "max_new_tokens": "3"}, "max_new_tokens.* '3'"),
    "new tokens True": ({"prompts": [[1]], "max_new_tokens": True}, "max_new_tokens.* True"),
    "rows in float": ({"prompts": [[1]], "rows": [0.5]}, "rows"),
    "rows one number": ({"prompts": [[1]], "rows": 3}, "rows"),
    "temperature text": ({"prompts": [[1]], "temperature": "hot"}, "temperature.* 'hot'"),
    "temperature None": ({"prompts": [[1]], "temperature": [None]}, "temperature"),
    "seed in float": ({"prompts": [[1]], "seed": 0.0}, r"seed.* 0\.0"),
    "seed None": ({"prompts": [[1]], "seed": None}, "seed.* None"),
    "stop bytes": ({"prompts": [[1]], "stop": [b"a"]}, "stop"),
    "stop None": ({"prompts": [[1]], "stop": None}, "stop.* None"),
    "stop token": ({"prompts": [[1]], "stop_tokens": [1.5]}, "stop_tokens"),
    "cache in float": ({"prompts": [[1]], "cache_len": 64.0}, "cache_len"),
    "bias token": ({"prompts": [[1]], "logit_bias": {1.5: 1.0}}, "logit_bias"),
    "bias a number": ({"prompts": [[1]], "logit_bias": 5}, "logit_bias.* 5"),
    "bias of texts": ({"prompts": [[1]], "logit_bias": np.array(["a"] * 13)}, "logit_bias"),
    "ignore_eos": ({"prompts": [[1]], "ignore_eos": "no"}, "ignore_eos.* 'no'"),
    "lossless": ({"prompts": [[1]], "lossless": "yes"}, "lossless.* 'yes'"),
    "draft model": ({"prompts": [[1]], "drafter": battery.target("opt")}, r"specjax\.drafters\.model"),
    "verifier a number": ({"prompts": [[1]], "verifier": 3}, "verifier"),
    "name of a model": ({"target": "bundled/opt-target", "prompts": "x"}, "target.* str"),
}


WRONG_DRAFTERS: dict[str, tuple[Callable[[], object], str]] = {
    "siblings": (
        lambda: sj.drafters.tree(battery.draft("opt"), sj.trees.chain(2), siblings="points"),  # pyright: ignore
        "siblings.* 'points'",
    ),
    "large token": (lambda: sj.drafters.corpus([[2**40]]), "document 0.* 1099511627776"),
    "half a token": (lambda: sj.drafters.corpus([[1.5]]), "document 0.* float64"),  # pyright: ignore
    "nodes": (lambda: sj.drafters.suffix_tree(size=10**30), "size"),
    "half a match": (lambda: sj.drafters.ngram(longest=1.5), "longest"),  # pyright: ignore
    "long match": (lambda: sj.drafters.suffix(longest=65), "longest.* 65"),
    "gamma True": (lambda: sj.drafters.ngram(gamma=True), "gamma.* True"),
}


def print_errors() -> None:
    """Prints the errors of WRONG_KINDS and WRONG_DRAFTERS as JSON."""

    def touched(*_, **__):
        raise AssertionError("weights were touched")

    decoding.prefill, errors = touched, {}
    for case, (options, _) in WRONG_KINDS.items():
        try:
            sj.generate(**{"target": battery.target("opt"), **options})
        except ValueError as error:
            errors[case] = str(error)
    for case, (make, _) in WRONG_DRAFTERS.items():
        try:
            make()
        except ValueError as error:
            errors[case] = str(error)
    print(json.dumps(errors))


@pytest.mark.slow
def test_wrong_types_are_one_line_errors():
    """In a process of its own: in this one annotations are checked, and no argument of a wrong kind comes past them."""
    code = "from tests import test_api; test_api.print_errors()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    errors = json.loads(ran.stdout)
    for case, (_, message) in (WRONG_KINDS | WRONG_DRAFTERS).items():
        assert re.search(message, errors[case]) and "\n" not in errors[case], case


def test_signatures_are_explicit():
    """help() lists every argument; an unknown one is a TypeError that names it."""
    given = inspect.signature(prepare).parameters
    for function, more in ((sj.generate, {"profile"}), (sj.stream, set())):
        own = inspect.signature(function).parameters
        assert {name: str(one) for name, one in own.items() if name not in more} == {
            name: str(one) for name, one in given.items()
        }
        assert set(own) == set(given) | more and all(name in (sj.generate.__doc__ or "") for name in own)
        assert not {"VAR_KEYWORD", "VAR_POSITIONAL"} & {one.kind.name for one in own.values()}
        with pytest.raises(TypeError, match="max_tokens"):
            function(battery.target("opt"), [[1]], max_tokens=3)


def test_prompts_are_unicode(toy):
    with pytest.raises(ValueError, match=r"prompt 0.*Unicode"):
        sj.generate(toy, "\udcff")


@pytest.mark.slow
def test_bad_drafters(target):
    with pytest.raises(ValueError, match="gamma"):
        sj.drafters.model(target, gamma=0)
    with pytest.raises(ValueError, match="gamma"):
        sj.drafters.ngram(gamma=0)
    with pytest.raises(ValueError, match=rf"draft bundled/opt-target .* {target.vocab_size} .* opt .* 13"):
        sj.generate(battery.target("opt"), [[1]], drafter=sj.drafters.model(target))
    with pytest.raises(ValueError, match=r"draft t5 is encoder-decoder .* opt"):
        sj.generate(battery.target("opt"), [[1]], drafter=sj.drafters.model(battery.target("t5")))
    with pytest.raises((ValueError, TypeError), match="BoundedDraft"):
        sj.generate(sj.drafters.bounded(battery.target("opt"), budget=8), [[1]])


def test_scores_are_checked(target):
    with pytest.raises(ValueError, match="1 array"):
        target.score([[1]], [[2]])
    size = target.vocab_size
    with pytest.raises(ValueError, match=rf"0\.\.{size - 1}"):
        target.score([[size]])
    for tokens, name in (
        ([[5] * 513], "513 .* 512"), ([[2.7, 5.2]], "token"), ([[[2, 5]]], "token"), ([[2, 5], [2]], "rows"),
        ([[2**40]], str(size - 1)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            target.score(tokens)
    assert target.score(range(SCORED)).shape == (1, SCORED, size)


@pytest.mark.slow
def test_encoder_rows_that_are_scored_end_at_their_first_padding():
    model = battery.target("t5")
    alone, padded = (model.score([row], [[0, 3]]) for row in ([5], [5, 0, 7, 0]))
    np.testing.assert_allclose(alone, padded, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="encoder row 0"):
        model.score([[0, 5]], [[0]])
    with pytest.raises(ValueError, match="2 encoder rows"):
        model.score([[5], [6]], [[0]])


@pytest.mark.parametrize("gamma", battery.others_slow([0, 2], [2]))
@pytest.mark.parametrize(("prompt", "room"), battery.others_slow([(5, 6), (20, 20), (40, 45)], [(5, 6), (40, 45)]))
def test_a_cache_may_be_narrower_than_the_padded_prompt(prompt, room, gamma):
    model = battery.target("opt")
    drafter = sj.drafters.ngram(gamma=gamma) if gamma else None
    prompts = [[1 + i % 7 for i in range(prompt)], [3, 1]]
    options = {"max_new_tokens": 12, "temperature": 0, "drafter": drafter, "ignore_eos": True}
    with pytest.warns(UserWarning, match=f"row 0.*cache_len={room} .* of the 12"):
        short = sj.generate(model, prompts, **options, cache_len=room)
    long = sj.generate(model, prompts, **options)
    assert short.stop_reasons[0] == "cache_full" and len(short.tokens[0]) == min(12, room - prompt + 1)
    assert all(a == b[: len(a)] for a, b in zip(short.tokens, long.tokens, strict=True))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda model: sj.drafters.model("bundled/opt-draft"), "draft"),
        (lambda model: sj.drafters.model(model, gamma=100_000), "gamma"),
        (lambda model: sj.drafters.lookahead(window=1000, ngram=9), "1024"),
    ],
)
def test_wrong_drafters_raise(make, name):
    with pytest.raises(ValueError, match=name):
        make(battery.target("opt"))


def test_empty_prompt_raises(target):
    with pytest.raises(ValueError, match="prompt 0"):
        sj.generate(target, "")


def test_statistics_of_a_hand_made_run():
    totals = Totals(
        np.array([2, 3]), np.array([4, 6]), np.array([3, 4]), np.array([2, 1]), np.array([1.5, 2.0]),
        np.array([[2, 1, 0], [3, 1, 0]]), np.array([[1, 1, 0], [1, 0, 0]]),
    )  # fmt: skip
    found = metrics.stats(totals, np.array([4, 4]), {"decode": 2.0}, compiles=0)
    assert (found.rounds, found.drafted, found.tested, found.accepted, found.tokens) == (5, 10, 7, 3, 8)
    assert found.accepted_per_tested == 3 / 7 and found.accepted_per_drafted == 0.3
    assert found.overlap == 0.5 and found.tokens_per_call == 1.6
    assert found.by_depth == (0.4, 0.5)
    assert found.tokens_per_second == 4.0


def test_sampling_parameters_and_stop_strings_share_one_program():
    """Greedy batches, a logit bias and long stop strings compile apart, each once."""
    model = sj.load("bundled/opt-tiny")
    compiles = lambda **options: sj.generate(model, ["a", "b", "c", "d"], max_new_tokens=4, **options).stats.compiles
    assert compiles(temperature=0.8) > 0
    sampled = [
        {"temperature": 0.3}, {"temperature": [0.0, 1.0, 0.5, 0.0]}, {"top_k": 5}, {"top_p": 0.9, "top_k": 9},
        {"min_p": 0.1}, {"repetition_penalty": 1.3}, {"temperature": 0.0, "repetition_penalty": 1.3},
        {"stop": ["once upon a time", "\n\n"]}, {"stop_tokens": [7], "ignore_eos": True, "seed": 5},
    ]  # fmt: skip
    assert [compiles(**options) for options in sampled] == [0] * len(sampled)
    apart = [{"temperature": 0.0}, {"logit_bias": {5: 1.0}}, {"stop": ["ab" * 40]}]
    assert [compiles(**options) for options in apart] == [1] * len(apart)  # the loop, and not the prefill
    assert [compiles(**options) for options in apart] == [0] * len(apart)


@pytest.mark.slow
def test_results_are_json_and_rows_of_a_table():
    out = sj.generate(battery.target("opt"), [[1, 2], [3]], drafter=sj.drafters.ngram(gamma=2), max_new_tokens=4)
    kept = json.loads(out.to_json())
    assert kept == out.to_dict() and kept["tokens"] == out.tokens and kept["stats"]["overlap"] is None
    row = out.stats.to_row()
    assert all(value is None or isinstance(value, int | float) for value in row.values())
    assert row["tokens"] == out.stats.tokens and row["decode_seconds"] == out.stats.seconds["decode"]


def test_models_and_drafters_are_one_line():
    model = battery.target("opt")
    for drafter in (sj.drafters.model(model), sj.drafters.small_kv(model, budget=16), sj.drafters.plain()):
        assert len(repr(drafter)) < 100 and drafter.name in repr(drafter)
    for loaded in (model, sj.drafters.bounded(model, budget=16)):
        assert len(repr(loaded)) < 100 and loaded.name in repr(loaded)
