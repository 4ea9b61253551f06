"""Prompts for the answers that heads of a chat model are trained on.

python configs/train/head_prompts.py openings --out openings.jsonl
specjax train answers --target MODEL --prompts openings.jsonl --style as-is --temperature 1.0 --max-new-tokens 64 \\
    --out messages.jsonl --rows 64
python configs/train/head_prompts.py own --messages messages.jsonl --out own.jsonl
python configs/train/head_prompts.py others --data DATA --out others.jsonl
specjax train answers --target MODEL --prompts own.jsonl others.jsonl --task chat --out answers.jsonl --rows 64

The model writes messages of users itself, as in Magpie (Xu et al. 2024, arXiv 2406.08464): after the mark that opens a
user's turn, and here the first words of a request. The others come from data sets whose licenses permit publishing
weights, a folder of DATA for each: instructions of Self-Instruct, GSM8K's training questions, abstracts of SciTLDR,
beginnings of chats, and sentences to translate. None is a test question of a benchmark.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import tyro

from specjax import files
from specjax.training.data import pairs

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
BEGINNINGS = """
Write a | Write a short | Write an email to | Write a Python function that | Write a program that | Compose a |
Draft a | Write a poem about | Write a blog post about | Write a review of | Write a dialogue between | Create a |
Design a | What is | What are the | What is the difference between | What would happen if | What should I | Why |
Why do | Who | How do I | How does | How can | How many | How would you | When | Where | Which | Can you |
Could you explain | Explain | Explain the concept of | Explain to a child | Describe | Describe a | Summarize |
Give me | List | List five | Give an example of | Suggest | Compare | Imagine you are | Pretend you are | You are a |
Act as a | Tell me about | Rewrite the following sentence: | Correct the grammar: | Translate into French: |
Classify the following: | Extract | Solve | Calculate | Find the | If a train | Prove that | Implement |
Fix this code: | def | I want to | I am | Do | Is it | Are | Should | Please | Help me | Edit the following paragraph:
| Given the | Read the following text
"""
REQUESTS = [" ".join(request.split()) for request in BEGINNINGS.split("|")]
COUNTS = {"gsm8k": 4000, "chitchat": 1500, "tatoeba": 800}
LONGEST = 600  # characters of a prompt: the cache of a batch has room for the longest one


def beginnings(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Beginnings of a user's turn, as prompts."""
    rng = random.Random(seed)
    for number in range(count):
        yield {"prompt": f"{SYSTEM}<|im_start|>user\n{rng.choice(REQUESTS)}", "id": str(number)}


def written(file: Path) -> Iterator[str]:
    """The messages that the model wrote, whole ones of a useful length."""
    seen = set()
    for line in file.read_text().splitlines()[1:]:
        entry = json.loads(line)
        message = (entry["prompt"].split("user\n")[-1] + entry["answer"]).strip()
        if entry["stop"] == "eos" and 15 <= len(message) <= LONGEST and message not in seen:
            seen.add(message)
            yield message


def of_data(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and messages of each data set."""

    def entries(file: str) -> list[dict]:
        return [json.loads(line) for _, line in files.lines(data / file) if line.strip()]

    tasks = entries("self-instruct-seeds/seed_tasks.jsonl")
    tasks += entries("self-instruct-seeds/user_oriented_instructions.jsonl")
    joined = lambda one: "\n\n".join(filter(None, (one["instruction"], one["instances"][0]["input"])))
    yield "self-instruct", [joined(one) for one in tasks]
    yield "gsm8k", [one["question"] for one in entries("gsm8k/train.jsonl.gz")]
    abstracts = [" ".join(one["source"]) for one in entries("scitldr/A_train.jsonl.gz")]
    yield "scitldr", [f"Summarize this text in two sentences:\n\n{text}" for text in abstracts]
    yield "chitchat", [one["turns"][0] for one in entries("chitchat/chitchat.jsonl.xz")]
    sentences = dict.fromkeys(source for source, _ in pairs(data / "tatoeba-en-de/deu.txt.gz"))
    yield "tatoeba", [f"Translate into German: {text}" for text in sentences if len(text) > 25]


def openings(out: Path, count: int = 5000, seed: int = 0) -> None:
    """Write beginnings of messages.

    Args:
      out: file, JSONL.
      count: how many.
      seed: of the choice.
    """
    write(out, list(beginnings(count, seed)))


def own(messages: Path, out: Path) -> None:
    """Write the messages that the model made of beginnings.

    Args:
      messages: what `specjax train answers` wrote.
      out: file of prompts, JSONL.
    """
    write(out, [{"prompt": text, "id": f"own {number}"} for number, text in enumerate(written(messages))])


def others(data: Path, out: Path, seed: int = 0) -> None:
    """Write prompts of data sets.

    Args:
      data: folder of data sets.
      out: file of prompts, JSONL.
      seed: of the choice.
    """
    rng, chosen = random.Random(seed), []
    for name, texts in of_data(data):
        whole = [text for text in texts if 15 <= len(text) <= LONGEST]
        some = rng.sample(whole, min(len(whole), COUNTS.get(name, len(whole))))
        chosen += [{"prompt": text, "id": f"{name} {number}"} for number, text in enumerate(some)]
        print(f"{len(some):>6}  {name}")
    rng.shuffle(chosen)
    write(out, chosen)


def write(file: Path, entries: list[dict[str, str]]) -> None:
    files.write_text(file, "".join(json.dumps(entry) + "\n" for entry in entries))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"openings": openings, "own": own, "others": others})
