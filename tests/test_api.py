"""The user's face: loading, text in and out, streaming, statistics, and bad input in one line."""

from pathlib import Path

import numpy as np
import pytest

import specjax as sj
from specjax import text
from specjax.decoding import Totals
from specjax.metrics import stats
from tests import battery

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = ["Once upon a time", "The old man said", "Naïve 狐 – “quote”"]


@pytest.fixture(scope="module")
def target():
    return sj.load("bundled/opt-target")


@pytest.fixture(scope="module")
def draft():
    return sj.load("bundled/opt-draft")


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file()))
def test_golden_checkpoints_load_and_speak(name):
    model = sj.load(GOLDEN / name)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    plain = sj.generate(model, prompts, max_new_tokens=8, temperature=0.0, ignore_eos=True)
    guided = sj.generate(
        model, prompts, drafter=sj.drafters.model(model, gamma=3), max_new_tokens=8, temperature=0.0, ignore_eos=True
    )
    assert guided.tokens == plain.tokens and [len(row) for row in plain.tokens] == [8, 8]
    assert guided.stats.accepted_per_tested == 1.0 and guided.stats.tokens_per_call == 4.0
    assert plain.texts is None and plain.lossless


def test_text_goes_in_and_comes_out(target, draft):
    out = sj.generate(target, PROMPTS, drafter=sj.drafters.model(draft, gamma=4), max_new_tokens=24, temperature=0.0)
    assert out.texts is not None and target.text is not None
    assert out.texts == [target.text.decode(row) for row in out.tokens]
    assert out.tokens == sj.generate(target, PROMPTS, max_new_tokens=24, temperature=0.0).tokens


def test_stream_is_generate_and_its_pieces_are_the_text(target, draft):
    options = {"drafter": sj.drafters.model(draft, gamma=4), "max_new_tokens": 24, "temperature": [0.0, 0.9, 1.2]}
    whole = sj.generate(target, PROMPTS, seed=3, **options)
    stream = sj.stream(target, PROMPTS, seed=3, **options)
    pieces = ["", "", ""]
    for event in stream:
        pieces = [a + b for a, b in zip(pieces, event.texts, strict=True)]
    result = stream.result()
    assert result.tokens == whole.tokens and result.stop_reasons == whole.stop_reasons
    for piece, full in zip(pieces, result.texts or (), strict=True):
        assert full.startswith(piece)  # at most the bytes of an unfinished character are held back


def test_an_interrupted_stream_keeps_what_it_had(target, draft):
    options = {"drafter": sj.drafters.model(draft, gamma=4), "max_new_tokens": 24, "temperature": 0.0}
    stream = sj.stream(target, PROMPTS, **options)
    for _ in zip(range(3), stream, strict=False):
        pass
    result = stream.result()
    assert result.stop_reasons == ["interrupted"] * 3
    whole = sj.generate(target, PROMPTS, **options)
    for part, row in zip(result.tokens, whole.tokens, strict=True):
        assert 3 <= len(part) < 24 and part == row[: len(part)]


def test_a_stop_string_cuts_the_text_before_it(target, draft):
    plain = sj.generate(target, PROMPTS[0], max_new_tokens=24, temperature=0.0)
    assert plain.texts is not None
    stop = plain.texts[0][9:13]
    out = sj.generate(
        target, PROMPTS[0], drafter=sj.drafters.model(draft, gamma=5), max_new_tokens=24, temperature=0.0, stop=[stop]
    )
    assert out.texts == [plain.texts[0][: plain.texts[0].index(stop)]]
    assert out.stop_reasons == ["stop_string"]
    assert out.tokens[0] == plain.tokens[0][: len(out.tokens[0])]


def test_a_second_call_compiles_nothing(target, draft):
    options = {"drafter": sj.drafters.model(draft, gamma=4), "max_new_tokens": 24, "temperature": 0.0}
    sj.generate(target, PROMPTS, **options)
    options["drafter"] = sj.drafters.model(draft, gamma=4)
    assert sj.generate(target, [p + " and" for p in PROMPTS], seed=5, **options).stats.compiles == 0


BAD = {
    "no prompt": ({"prompts": []}, "there is no prompt"),
    "empty prompt": ({"prompts": [[1], []]}, "prompt 1 is empty"),
    "token outside": ({"prompts": [[99]]}, "prompt 0 holds token 99, outside opt's 13 tokens"),
    "no tokenizer": ({"prompts": "text"}, "opt has no tokenizer"),
    "too long": ({"prompts": [[1] * 70]}, "the longest prompt has 70 tokens and does not fit into the model's 64"),
    "cache too small": ({"prompts": [[1] * 9], "cache_len": 8}, "does not fit into cache_len=8"),
    "temperature": ({"prompts": [[1]], "temperature": -1.0}, "temperature must be at least 0"),
    "top_p": ({"prompts": [[1]], "top_p": 0.0}, "top_p must be above 0"),
    "lengths": ({"prompts": [[1]], "temperature": [0.0, 1.0]}, "temperature has shape"),
    "verifier": ({"prompts": [[1]], "verifier": "tokne"}, "no verifier is named 'tokne'"),
    "no tokens": ({"prompts": [[1]], "max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    "rows": ({"prompts": [[1]], "rows": [0, 1]}, "1 prompts need 1 numbers"),
    "stop string": ({"prompts": [[1]], "stop": ["x"]}, "without a tokenizer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    options, message = BAD[case]
    options = dict(options)
    with pytest.raises(ValueError, match=message) as raised:
        sj.generate(battery.target("opt"), options.pop("prompts"), **options)
    assert "\n" not in str(raised.value)


def test_bad_drafters(target):
    with pytest.raises(ValueError, match="gamma must be at least 1, got 0"):
        sj.drafters.model(target, gamma=0)
    with pytest.raises(ValueError, match="gamma must be at least 1, got 0"):
        sj.drafters.ngram(gamma=0)
    with pytest.raises(
        ValueError, match=r"draft bundled/opt-target has a vocabulary of 8192 tokens and target\s+opt one of 13"
    ):
        sj.generate(battery.target("opt"), [[1]], drafter=sj.drafters.model(target))
    with pytest.raises(ValueError, match="draft t5 is encoder-decoder and target opt is decoder-only"):
        sj.generate(battery.target("opt"), [[1]], drafter=sj.drafters.model(battery.target("t5")))


def test_scores_are_checked(target):
    with pytest.raises(ValueError, match="scores 1 array"):
        target.score([[1]], [[2]])
    with pytest.raises(ValueError, match=r"lie in 0\.\.8191"):
        target.score([[8192]])
    assert target.score([1, 2, 3]).shape == (1, 3, 8192)


def test_statistics_of_a_hand_made_run():
    totals = Totals(
        np.array([2, 3]), np.array([4, 6]), np.array([3, 4]), np.array([2, 1]), np.array([1.5, 2.0]),
        np.array([[2, 1, 0], [3, 1, 0]]), np.array([[1, 1, 0], [1, 0, 0]]),
    )  # fmt: skip
    found = stats(totals, np.array([4, 4]), {"decode": 2.0}, compiles=0)
    assert (found.rounds, found.drafted, found.tested, found.accepted, found.tokens) == (5, 10, 7, 3, 8)
    assert found.accepted_per_tested == 3 / 7 and found.accepted_per_drafted == 0.3
    assert found.overlap == 0.5 and found.tokens_per_call == 1.6
    assert found.by_depth == (0.4, 0.5)
    assert found.tokens_per_second == 4.0


def test_characters_split_between_tokens_come_out_whole():
    pieces = ["é".encode()[:1], "é".encode()[1:], "狐".encode()[:2], "狐".encode()[2:], b"a"]
    held = text.Text(lambda s: [], lambda ids: "", lambda: pieces, len(pieces))
    streamer = text.Streamer(held)
    assert [streamer.add([t]) for t in (4, 0, 1, 2, 3)] == ["a", "", "é", "", "狐"]
    streamer = text.Streamer(held)
    assert streamer.add([0]) == "" and streamer.end() == "\ufffd"


def test_entries_are_spelt_by_the_kind_of_their_vocabulary():
    assert text.spell(["Ġthe", "Ã¼", "für", None, "</s>"], {4}) == [b" the", "ü".encode(), b"f\xfcr", b"", b""]
    names = ["▁the", "für", "ü", "<0x0A>", "</s>"]
    assert text.spell(names, {4}) == [b" the", "für".encode(), "ü".encode(), b"\n", b""]
