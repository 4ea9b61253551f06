"""`train answers` and `train head`, killed at random moments and started again, end as uninterrupted runs."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specjax.training import answers

PROMPTS = [f"Once upon a time there was a {word}" for word in ("fox", "king", "boat", "tree", "girl", "hen", "cat")]


def run(args: list[str], *, kill_after: float | None = None) -> bool:
    """Whether the command ended by itself."""
    process = subprocess.Popen([sys.executable, "-m", "specjax.cli", *args], stderr=subprocess.DEVNULL)
    try:
        assert process.wait(timeout=kill_after) == 0
    except subprocess.TimeoutExpired:
        process.kill()  # SIGKILL
        process.wait()
        return False
    return True


def killed(args: list[str], whole: float, seed: int) -> int:
    """Runs a command that takes `whole` seconds, killed at random moments, until it ends; returns how often it was."""
    rng, kills = random.Random(seed), 0
    while not run(args, kill_after=rng.uniform(0.3, 1.0) * whole if kills < 4 else None):
        kills += 1
    return kills


def test_answers_go_on_at_a_group(tmp_path):
    """Cut off in the midst of a line: the file is that of an uninterrupted run, and prompts are read in its groups."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS * 3) + "\n")
    given = {"target": "bundled/opt-tiny", "prompts": (tmp_path / "prompts.txt",), "rows": 16, "max_new_tokens": 6}
    run_of = lambda out: answers.AnswersRun(**given, out=out)
    whole = run_of(tmp_path / "one.jsonl").train().read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 3 * len(PROMPTS)
    other = tmp_path / "other.jsonl"
    other.write_bytes(b"".join(lines[:6]) + lines[6][:20])  # five answers, and part of another one
    assert answers.begin(other, json.loads(lines[0])) == 4
    assert run_of(other).train().read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_runs_end_bit_for_bit(tmp_path, seed):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS * 8) + "\n")
    written = lambda out: [
        "train", "answers", "--target", "bundled/opt-tiny", "--prompts", str(tmp_path / "prompts.txt"),
        "--out", str(out), "--rows", "4", "--max-new-tokens", "12",
    ]  # fmt: skip
    head = lambda out: [
        "train", "head", "eagle3", "--target", "bundled/opt-tiny", "--data", str(tmp_path / "one.jsonl"),
        "--out", str(out), "--taps", "0", "1", "--mlp-width", "32", "--unroll", "2", "--tokens", "64", "--widths", "32",
        "--held-out", "0.2", "--steps", "40", "--every", "5",
    ]  # fmt: skip
    kills = 0
    for command, names in ((written, ("one.jsonl", "other.jsonl")), (head, ("one", "other"))):
        one, other = (tmp_path / name for name in names)
        run(command(tmp_path / "compiled" / names[0]))  # so that the time below is that of a warm run
        start = time.perf_counter()
        assert run(command(one))
        kills += killed(command(other), time.perf_counter() - start, seed)
        if one.is_file():
            assert one.read_bytes() == other.read_bytes()
            continue
        for file in sorted((one / "head").iterdir()):
            assert file.read_bytes() == (other / "head" / file.name).read_bytes(), file.name
        assert records(one) == records(other)
    assert kills


def records(folder: Path) -> list[dict]:
    """The metrics, apart from times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds_per_step"} for line in lines]
