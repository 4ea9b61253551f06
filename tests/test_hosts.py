"""Several processes: the tokens of one process with as many devices, differences reported, signals, and files."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from specjax import hosts
from tests import hosts_cases

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 600  # seconds, on a busy machine


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def environment(devices: int) -> dict[str, str]:
    return os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT), "SPECJAX_COMPILE_CACHE": "off"}


def start(*commands: list[str], devices: int = 1, cwd: Path = ROOT) -> list[subprocess.Popen]:
    """Processes of one program."""
    return [
        subprocess.Popen(
            [sys.executable, *command], cwd=cwd, env=environment(devices), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for command in commands
    ]  # fmt: skip


def finish(processes: list[subprocess.Popen], timeout: float = TIMEOUT) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    with ended(processes):
        found = [one.communicate(timeout=timeout) for one in processes]
        return [(one.returncode, *texts) for one, texts in zip(processes, found, strict=True)]


@contextlib.contextmanager
def ended(processes: list[subprocess.Popen]) -> Iterator[None]:
    """No process outlives the block."""
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.communicate()


def decoded(processes: int, devices: int, names: list[str], folder: Path) -> list[dict]:
    """What each process found."""
    where = f"localhost:{free_port()}"
    worker = lambda index: ["-m", "tests.hosts_worker", where, str(processes), str(index), str(folder), *names]
    for code, _, errors in finish(start(*map(worker, range(processes)), devices=devices)):
        assert code == 0, errors
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(processes)]


def alone(name: str, folder: Path):
    """The case in this process, with devices of its own."""
    return json.loads(json.dumps((hosts_cases.CASES | hosts_cases.SLOW)[name].run(folder)))


def assert_equal(name: str, found: list[dict], folder: Path) -> None:
    """What the processes found is what one process finds."""
    expected = alone(name, folder)
    for one in found:
        assert one[name] == expected
    if "drafted" in expected and all(kind not in name for kind in ("plain", "quantized")):  # none, or all accepted
        assert 0 < expected["accepted"] < expected["drafted"]


LATER = ("ngram", "llama", "t5", "tree")  # cases of no other kind of program than the rest: run with -m slow
QUICK = [name for name in hosts_cases.CASES if name not in LATER]
PARTS = 4  # a group of processes decodes a part of the others: all of them take longer than TIMEOUT


@pytest.fixture(scope="module")
def of_two(tmp_path_factory) -> list[dict]:
    """Every case of the default tier on 2 processes of 2 devices."""
    return decoded(2, 2, QUICK, tmp_path_factory.mktemp("two"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in QUICK if name not in ("load", "train")])
def test_two_processes_give_what_one_gives(of_two, name, tmp_path):
    assert_equal(name, of_two, tmp_path)


@pytest.mark.slow
def test_a_process_reads_its_own_shards_only(of_two):
    for one in of_two:
        found = one["load"]
        assert found["read"] <= 1.05 * found["held"] < 0.6 * found["size"]


@pytest.mark.slow
def test_training_takes_the_steps_of_one_process(of_two, tmp_path):
    expected, found = alone("train", tmp_path), [one["train"] for one in of_two]
    assert found[0] == found[1]
    assert [row[0] for row in found[0]["rows"]] == [10, 20] and found[0]["kept"] == expected["kept"]
    np.testing.assert_allclose(found[0]["rows"], expected["rows"], rtol=1e-6)
    for mine, theirs in zip(*map(jax.tree.leaves, (found[0]["params"], expected["params"])), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("processes, devices", [(2, 2), (4, 1)])
def test_more_models_drafters_and_processes(processes, devices, part, tmp_path):
    later = {name: hosts_cases.CASES[name] for name in LATER}
    every = later | hosts_cases.SLOW if processes == 2 else hosts_cases.CASES | hosts_cases.SLOW
    names = [name for name, case in every.items() if name != "train" and math.prod(case.shape) >= processes]
    names = names[part::PARTS]
    found = decoded(processes, devices, names, tmp_path)
    for name in names:
        assert_equal(name, found, tmp_path)


# --- commands --------------------------------------------------------------------------------------------------------


def command(words: list[str], count: int = 2) -> list[list[str]]:
    """The same command for each process."""
    where = f"localhost:{free_port()}"
    joined = lambda index: ["--coordinator", where, "--processes", str(count), "--index", str(index)]
    return [["-m", "specjax.cli", *words, *joined(index)] for index in range(count)]


GENERATE = ["generate", "--target", "bundled/opt-tiny", "--mesh", "2x1", "--ignore-eos"]


def test_different_prompts_are_one_line_on_all(tmp_path):
    for index, text in enumerate(("Once upon a time\nA dog\n", "Once upon a time\nA cat\n")):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "prompts.txt").write_text(text)
    pair = command([*GENERATE, "--prompts", "prompts.txt"])
    began = time.monotonic()
    started = [start(one, cwd=tmp_path / str(index))[0] for index, one in enumerate(pair)]
    for code, out, errors in finish(started):
        lines = [line for line in errors.splitlines() if not line.startswith("[Gloo]")]
        assert code == 2 and not out and len(lines) == 1 and "prompts" in lines[0]
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_after_the_same_round(tmp_path):
    file = tmp_path / "out.json"
    words = [*GENERATE, "Once upon", "The dog", "--max-new-tokens", "400", "--quiet", "--output", str(file)]
    processes = start(*command(words))
    with ended(processes):
        assert processes[0].stdout is not None and processes[0].stdout.read(1)
        processes[1].send_signal(signal.SIGTERM)
        (code, _, errors), (other, out, _) = finish(processes)
    assert (code, other) == (130, 130), errors
    assert not out
    record = json.loads(file.read_text())
    assert record["stop_reasons"] == ["interrupted"] * 2
    assert all(0 < len(row) < 400 for row in record["tokens"])


@pytest.mark.slow
def test_a_process_that_fails_alone_ends_the_others(tmp_path):
    """The second one has no prompts: it reports the file, and the first one repeats its report."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "0" / "prompts.txt").write_text("Once upon a time\nA dog\n")
    pair = command([*GENERATE, "--prompts", "prompts.txt"])
    started = [start(one, cwd=tmp_path / str(index))[0] for index, one in enumerate(pair)]
    for code, out, errors in finish(started, timeout=15):
        assert code == 2 and not out and "prompts.txt" in errors


# --- training by the commands ----------------------------------------------------------------------------------------


LM = ["train", "lm", "--vocab-size", "300", "--width", "16", "--layers", "1", "--heads", "2", "--length", "16",
      "--positions", "32", "--rows", "4", "--every", "10", "--warmup", "2",
      "--held-out", "0.2", "--dtype", "float32"]  # fmt: skip
T5 = ["train", "t5", "--vocab-size", "300", "--width", "16", "--encoder-layers", "1", "--decoder-layers", "1",
      "--heads", "2", "--head-width", "8", "--tokens", "64", "--widths", "8", "16", "--every", "10", "--warmup", "2",
      "--held-out", "0.2", "--dtype", "float32"]  # fmt: skip


WORDS = ["dog", "cat", "house", "river", "old", "runs", "sees", "red"]


def corpus(folder: Path, kind: str) -> Path:
    """Documents, or pairs of texts."""
    rng = np.random.default_rng(0)
    words = [
        " ".join(rng.choice(["dog", "cat", "house", "river", "old", "runs", "sees", "red"], 12)) for _ in range(80)
    ]
    if kind == "lm":
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
        return folder / "text.jsonl"
    (folder / "pairs.tsv").write_text("".join(f"{text[:15]}\t{text[:12].upper()}\n" for text in words))
    return folder / "pairs.tsv"


def trained(words: list[str], *, processes: int = 1, devices: int = 2) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each process."""
    commands = command(words, processes) if processes > 1 else [["-m", "specjax.cli", *words]]
    return finish(start(*commands, devices=devices))


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lm", "t5"])
def test_runs_are_those_of_one_process_and_go_on_anywhere(kind, tmp_path):
    words, data = {"lm": LM, "t5": T5}[kind], corpus(tmp_path, kind)
    run = lambda name, steps, mesh: [*words, "--data", str(data), "--run", str(tmp_path / name), "--steps", str(steps),
                                     *(["--mesh", mesh] if mesh else [])]  # fmt: skip
    assert trained(run("one", 20, "2x1"))[0][0] == 0
    for code, out, errors in trained(run("two", 20, "2x1"), processes=2, devices=1):
        assert code == 0 and not out, errors
    for mine, theirs in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert mine["step"] == theirs["step"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")]
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, atol=1e-6)
    assert trained(run("two", 30, ""), devices=1)[0][0] == 0
    for code, _, errors in trained(run("two", 40, "1x2"), processes=2, devices=1):
        assert code == 0, errors
    assert [row["step"] for row in metrics(tmp_path / "two")] == [10, 20, 30, 40]


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_of_a_run_stops_all_after_the_same_step(signalled, tmp_path):
    run = tmp_path / "run"
    words = [*LM, "--data", str(corpus(tmp_path, "lm")), "--run", str(run), "--steps", "100000", "--mesh", "2x1"]
    processes = start(*command(words))
    with ended(processes):
        wait_for(run / "metrics.jsonl", processes)
        processes[signalled].send_signal(signal.SIGTERM)
        for code, _, errors in finish(processes):
            assert code == 130, errors
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert all(name.isdecimal() for name in kept) and int(kept[-1]) % 10
    stopped = int(kept[-1])
    more = [*words[: words.index("--steps")], "--steps", str(stopped + 2)]
    assert trained(more, devices=1)[0][0] == 0
    assert metrics(run)[-1]["step"] == stopped + 2


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_others(killed, tmp_path):
    run = tmp_path / "run"
    words = [*LM, "--data", str(corpus(tmp_path, "lm")), "--run", str(run), "--steps", "100000", "--mesh", "2x1"]
    processes = start(*command(words))
    with ended(processes):
        wait_for(run / "metrics.jsonl", processes)
        processes[killed].kill()
        assert processes[1 - killed].wait(hosts.HEARTBEAT + 10) != 0
    rows = len(metrics(run))
    assert rows and all(path.name.isdecimal() or "tmp" in path.name for path in (run / "checkpoints").iterdir())


def wait_for(file: Path, processes: list[subprocess.Popen]) -> None:
    """Until the file exists."""
    began = time.monotonic()
    while not file.exists():
        assert time.monotonic() < began + TIMEOUT and all(one.poll() is None for one in processes)
        time.sleep(0.1)
