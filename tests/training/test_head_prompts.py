"""`configs/train/head_prompts.py`: prompts for the answers that heads are trained on."""

import gzip
import importlib.util
import json
import lzma
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "configs" / "train" / "head_prompts.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("head_prompts", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_beginnings_open_a_turn_of_the_user(script, tmp_path):
    script.openings(tmp_path / "openings.jsonl", count=40)
    lines = read(tmp_path / "openings.jsonl")
    assert len(lines) == 40 and len({line["prompt"] for line in lines}) > 20
    assert all(line["prompt"].split("<|im_start|>user\n")[-1] in script.REQUESTS for line in lines)


def test_prompts_are_those_of_the_model_and_of_the_data(script, tmp_path):
    sources = {
        "self-instruct-seeds/seed_tasks.jsonl": {"instruction": "Name three colors.", "instances": [{"input": "warm"}]},
        "self-instruct-seeds/user_oriented_instructions.jsonl": {
            "instruction": "Make this sentence shorter.", "instances": [{"input": ""}],
        },
        "gsm8k/train.jsonl.gz": {"question": "How many apples are three apples?", "answer": "3"},
        "scitldr/A_train.jsonl.gz": {"source": ["We study trees.", "They grow."]},
        "chitchat/chitchat.jsonl.xz": {"turns": ["Hello, how are you?", "Well"]},
    }  # fmt: skip
    texts = {name: json.dumps(entry) for name, entry in sources.items()}
    texts["tatoeba-en-de/deu.txt.gz"] = "The weather is nice today, is it not?\tDas Wetter ist schön."
    for name, text in texts.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        opened = {".gz": gzip.open, ".xz": lzma.open}.get(file.suffix, open)
        with opened(file, "wt") as stream:
            stream.write(text + "\n")
    answers = [
        {"kind": "specjax answers"},
        {"prompt": f"{script.SYSTEM}<|im_start|>user\nWhy do", "answer": " cats purr at night?", "stop": "eos"},
        {"prompt": f"{script.SYSTEM}<|im_start|>user\nWhy do", "answer": " cats purr at night?", "stop": "eos"},
        {"prompt": f"{script.SYSTEM}<|im_start|>user\nWhy do", "answer": " dogs bark at every", "stop": "length"},
    ]
    (tmp_path / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers))
    script.own(tmp_path / "messages.jsonl", tmp_path / "own.jsonl")
    assert [line["prompt"] for line in read(tmp_path / "own.jsonl")] == ["Why do cats purr at night?"]
    script.others(tmp_path, tmp_path / "others.jsonl")
    assert sorted(line["prompt"] for line in read(tmp_path / "others.jsonl")) == sorted([
        "Name three colors.\n\nwarm", "Make this sentence shorter.", "How many apples are three apples?",
        "Summarize this text in two sentences:\n\nWe study trees. They grow.", "Hello, how are you?",
        "Translate into German: The weather is nice today, is it not?",
    ])  # fmt: skip
