"""`configs/train/write_stories.py`: prompts, resumption and filter."""

import importlib.util
import json
import re
import signal
from pathlib import Path

import pytest

import specjax as sj
from specjax.training.data import documents

FILE = Path(__file__).parents[2] / "configs" / "train" / "write_stories.py"
STORY = (
    "Once upon a time, there was a kind bat named Amina who lived under the roof of an old barn. One evening she heard "
    "a mouse cry in the straw. \u201cI lost my way,\u201d said the mouse. Amina flew up, saw the light of its house "
    "beyond the field, and led it home. Since then the two have shared every supper."
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("write_stories", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(text, ended=True):
    return {"prompt": "", "text": text, "seed": 0, "tokens": 80, "ended": ended}


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_depend_on_seed_and_row_alone(script):
    prompts = [script.compose(0, row) for row in range(500)]
    assert prompts == [script.compose(0, row) for row in range(500)]
    assert prompts != [script.compose(1, row) for row in range(500)]
    assert len(set(prompts)) > 490
    stories = sum(prompt.message.startswith("Write a short story") for prompt in prompts)
    assert 0.7 < stories / 500 < 0.86


def test_prompts_have_every_field_filled_and_the_right_article(script):
    for row in range(500):
        text = " ".join(script.compose(3, row)).lower()
        assert "{" not in text and "  " not in text
        assert not re.search(r"\ba [aeiou]", text), text


def test_openings_are_one_a_line(script, tmp_path):
    file = tmp_path / "openings.txt"
    script.main(file, openings=50, seed=1)
    lines = file.read_text().splitlines()
    assert len(lines) == 50 and all(lines)
    assert lines[0] in {script.compose(1, row).opening for row in range(5)}


def test_openings_of_another_file_are_left_out(script, tmp_path):
    script.main(tmp_path / "some.txt", openings=400, seed=1)
    some = set((tmp_path / "some.txt").read_text().splitlines())
    script.main(tmp_path / "all.txt", openings=100, seed=2)
    script.main(tmp_path / "others.txt", openings=90, seed=2, exclude=tmp_path / "some.txt")
    every, others = ((tmp_path / name).read_text().splitlines() for name in ("all.txt", "others.txt"))
    assert some & set(every) and others == [line for line in every if line not in some][:90]


# --- decoding --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(script):
    """Writes 6 or more rows of 8 tokens, all counted as kept."""
    model = sj.load("bundled/opt-tiny")

    def run(out, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(script, "reason", lambda text: None)
            script.write(model, out, **{"tokens": 41, "rows": 3, "seed": 0, "new_tokens": 8} | options)
        return out.read_bytes()

    return run


def test_a_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    whole = run(tmp_path / "whole.jsonl")
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["seed"] for line in lines] == [*range(6)]
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[:4]) + lines[4][:20])  # killed in the middle of a batch and of a line
    assert run(cut) == whole
    assert run(cut) == whole  # finished: nothing is added


def test_a_signal_leaves_the_file_whole(run, tmp_path):
    assert run(tmp_path / "none.jsonl", stopped=[signal.SIGTERM]) == b""


def test_file_of_another_seed_raises(run, tmp_path):
    run(tmp_path / "some.jsonl", tokens=1)
    with pytest.raises(ValueError, match="--seed 1"):
        run(tmp_path / "some.jsonl", seed=1)


# --- filter ----------------------------------------------------------------------------------------------------------


def test_clean_text_is_ascii_and_ends_with_a_sentence(script):
    text = script.clean(record(STORY + " And then they went to"))
    assert script.reason(text) == "unfinished"
    text = script.clean(record(STORY + " And then they went to", ended=False))
    assert text.endswith("every supper.") and '"I lost my way," said' in text and text.isascii()
    assert script.clean(record("A fa\u00e7ade.")) == "A facade."
    assert script.reason(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The end.", "short"),
        (STORY + " \u7687.", "not ASCII"),
        (STORY + "\n\n**Moral:** share.", "markup"),
        (STORY + "\n\n1. Share.", "markup"),
        ("Sure! " + STORY, "assistant phrase"),
        (STORY + " I hope this helps.", "assistant phrase"),
        (STORY + " She was very happy with her big tree." * 4, "repetition"),
    ],
)
def test_unwanted_texts_are_dropped(script, text, reason):
    assert script.reason(script.clean(record(text))) == reason


def test_filter_writes_documents_and_counts_reasons(script, tmp_path, capsys):
    out, clean = tmp_path / "out.jsonl", tmp_path / "clean.txt"
    other = " ".join(reversed(STORY.rstrip(".").split())) + "."
    rows = [STORY, STORY.replace("Amina", "Nora"), "The end.", other]
    out.write_text("".join(json.dumps(record(text)) + "\n" for text in rows) + '{"text": "part')
    script.main(out, filter=clean)
    assert [text.strip() for text in documents(clean)] == [script.clean(record(text)) for text in (STORY, other)]
    counts = {tuple(line.split(maxsplit=1)) for line in capsys.readouterr().out.splitlines()}
    assert counts == {("2", "kept"), ("1", "near-duplicate"), ("1", "short"), ("160", "tokens kept")}
