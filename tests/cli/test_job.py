"""`specjax job run`: the files of a job are the same whatever kills it, splits it, or stores it."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from specjax import config, engine, jobs, stores
from specjax.cli.prompts import read_items
from tests.test_hosts import ended, environment, free_port

COUNT, SHARD, ROWS = 14, 5, 2
OPTIONS = ["--drafter", "ngram", "--gamma", "3", "--max-new-tokens", "6", "--ignore-eos"]
SIZES = ["--shard", str(SHARD), "--rows", str(ROWS)]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write_prompts(file: Path, count: int = COUNT) -> Path:
    """Prompts of several lengths; rows 3 and 8 are invalid."""
    texts = [json.dumps({"prompt": " ".join(WORDS[: 1 + i % 7]), "id": f"id {i}"}) for i in range(count)]
    texts[3], texts[8] = '{"prompt": [5000]}', "no JSON"
    file.write_text("\n".join(texts) + "\n")
    return file


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> str:
    return str(write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl"))


@pytest.fixture(scope="module")
def built(models):
    """(temperature) -> a built run, shared by the tests."""
    made = {}

    def of(temperature: float = 0.8, target: str = "target") -> config.Run:
        if (temperature, target) not in made:
            options = {"drafter": "ngram", "gamma": 3, "max_new_tokens": 6, "ignore_eos": True}
            given = config.RunConfig(models[target], temperature=temperature, **options)
            made[temperature, target] = config.build(given)
        return made[temperature, target]

    return of


@pytest.fixture(scope="module")
def whole(built, prompts, tmp_path_factory) -> dict[str, bytes]:
    """The files of an uninterrupted job at temperature 0.8."""
    folder = tmp_path_factory.mktemp("whole")
    done = jobs.run(built(), read_items(prompts), str(folder), split=jobs.Split(shard=SHARD, rows=ROWS))
    assert done.finished and (done.rows, done.errors, done.decoded) == (COUNT, 2, COUNT)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_rows_are_those_of_generate(built, prompts, whole):
    """In the order of the prompts; row i has random stream i; an invalid prompt is a row with an error."""
    assert sorted(whole) == ["manifest.json", *(f"part-{n:05d}.jsonl" for n in range(3))]
    rows = [json.loads(line) for n in range(3) for line in whole[f"part-{n:05d}.jsonl"].splitlines()]
    assert [row["row"] for row in rows] == list(range(COUNT))
    assert {row["row"] for row in rows if "error" in row} == {3, 8} and rows[5]["id"] == "id 5"
    items = read_items(prompts)
    alone = built().generate([items[6].prompt], rows=[6])
    assert (rows[6]["tokens"], rows[6]["text"], rows[6]["stop"]) == (alone.tokens[0], alone.texts[0], "max_tokens")
    assert rows[6]["tokens"] != built().generate([items[6].prompt], rows=[0]).tokens[0]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_groups_and_batches_change_no_byte(temperature, built, prompts, tmp_path):
    """1, 2 and 3 process groups, which run one after the other; other batches in one of them."""
    found = []
    for groups, rows in ((1, ROWS), (2, 3), (3, ROWS)):
        folder = tmp_path / str(groups)
        for index in reversed(range(groups)):
            split = jobs.Split(shard=SHARD, rows=rows, of=groups, index=index)
            done = jobs.run(built(temperature), read_items(prompts), str(folder), split=split)
            assert (done.finished and done.rows < COUNT) or groups == 1
        found.append(contents(folder))
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_prompts_are_read_in_the_same_groups_after_a_resumption(built, monkeypatch):
    """Sixteen slots read two prompts at a time: a group whose rows are not all done is read whole, and what was done
    is not returned again."""
    prompts = {row: list(range(3, 6 + row % 7)) for row in range(20)}
    groups: list[list[int]] = []
    real = engine.Serving._admit

    def admit(self, state, rows, at, axes):
        groups.append([int(self._job.prompt.key[row]) for row in rows])  # the numbers of their streams
        return real(self, state, rows, at, axes)

    monkeypatch.setattr(engine.Serving, "_admit", admit)

    def decoded(done: set[int]) -> dict[int, dict]:
        return {row: one for some in jobs.finished(built(), prompts, done, 16) for row, one in some.items()}

    whole = decoded(set())
    all_groups = [*groups]
    assert sorted(whole) == list(prompts) and all(len(group) == 2 for group in all_groups)
    done = {*all_groups[0], *all_groups[1], all_groups[2][0], all_groups[5][1]}
    groups.clear()
    assert decoded(done) == {row: one for row, one in whole.items() if row not in done}
    assert groups == all_groups[2:]
    groups.clear()
    assert decoded(set(prompts)) == {} and not groups


class Killed(BaseException):
    """In place of a kill."""


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_kill_at_any_write_loses_nothing(at, torn, built, prompts, whole, tmp_path, monkeypatch):
    """The process dies at the write number `at`: before it, or in the midst of an append; the next call finishes."""
    real, calls, decoded = stores.Folder.append, [], []

    def append(self, name, content):
        calls.append(name)
        if len(calls) == at:
            if torn:
                with (Path(self.name) / name).open("ab") as stream:
                    stream.write(content[: len(content) // 2])
            raise Killed
        real(self, name, content)

    def row_of(served):
        decoded.append(served)
        return real_row(served)

    real_row = jobs.row_of
    monkeypatch.setattr(stores.Folder, "append", append)
    monkeypatch.setattr(jobs, "row_of", row_of)
    start = lambda: jobs.run(built(), read_items(prompts), str(tmp_path), split=jobs.Split(shard=SHARD, rows=ROWS))
    with pytest.raises(Killed):
        start()
    assert start().finished
    assert contents(tmp_path) == whole
    assert len(decoded) <= COUNT - 2 + 2 * ROWS  # decoded again: rows that were not written, and the last of a chunk


def test_a_kill_while_a_part_is_written_leaves_no_part(built, prompts, whole, tmp_path, monkeypatch):
    real, dying = os.replace, [1]

    def replace(source, target):
        if "part-" in str(target) and dying:
            dying.pop()
            Path(str(source)).with_name(".part-00000.left.jsonl").write_text("half")  # a kill has no cleaning up
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    start = lambda: jobs.run(built(), read_items(prompts), str(tmp_path), split=jobs.Split(shard=SHARD, rows=ROWS))
    with pytest.raises(Killed):
        start()
    assert not list(tmp_path.glob("part-*"))
    assert start().finished and contents(tmp_path) == whole


def test_an_object_store_has_the_same_files(built, prompts, whole, monkeypatch):
    """Prompts and answers in memory://, stopped after a batch, whose rows are an object of their own."""
    system = fsspec.filesystem("memory")
    monkeypatch.setattr(type(system), "makedirs", lambda *args, **options: None)  # most stores have no empty folders
    system.pipe_file("/in/prompts.jsonl", Path(prompts).read_bytes())
    items, split = read_items("memory://in/prompts.jsonl"), jobs.Split(shard=SHARD, rows=ROWS)
    first = jobs.run(built(), items, "memory://out/job", split=split, stop=lambda: True)
    assert not first.finished
    again = jobs.run(built(), items, "memory://out/job", split=split, stop=iter([False, True]).__next__)
    assert not again.finished and 0 < again.rows < COUNT
    assert {name.split(".")[1] for name in stores.folder("memory://out/job").names() if "rows" in name} == {"rows"}
    assert jobs.run(built(), items, "memory://out/job", split=split).finished
    found = {path.rsplit("/", 1)[-1]: system.cat_file(path) for path in system.ls("/out/job", detail=False)}
    assert found == whole


@pytest.mark.parametrize("change", ["seed", "target", "prompts", "shard"])
def test_other_settings_are_refused(change, built, prompts, whole, tmp_path):
    (tmp_path / jobs.MANIFEST).write_bytes(whole[jobs.MANIFEST])
    run, items, shard = built(), read_items(prompts), SHARD
    if change == "seed":
        run = run._replace(config=dataclasses.replace(run.config, seed=1))
    if change == "target":
        run = built(target="draft")
    if change == "prompts":
        items[1] = items[0]
    if change == "shard":
        shard += 1
    with pytest.raises(ValueError, match=change):
        jobs.run(run, items, str(tmp_path), split=jobs.Split(shard=shard, rows=ROWS))
    assert contents(tmp_path).keys() == {jobs.MANIFEST}


@pytest.mark.slow
def test_lengths_that_follow_the_load_need_the_coupled_verifier(models, prompts, tmp_path):
    """With it, other slots change the lengths and no row; without it, the job is refused before anything is written."""
    policy = "model:policy=(goodput:target=0/1e-2/0.03,draft=0/1e-3/0.001,gamma_max=3)"
    found = []
    for number, (verifier, rows) in enumerate([("coupled", 2), ("coupled", 4), (None, 2)]):
        options = {"drafter": policy, "verifier": verifier, "max_new_tokens": 6, "ignore_eos": True}
        run = config.build(config.RunConfig(models["target"], models["draft"], **options))
        out = tmp_path / str(number)
        start = lambda run=run, out=out, rows=rows: jobs.run(
            run, read_items(prompts), str(out), split=jobs.Split(shard=7, rows=rows)
        )
        if verifier is None:
            with pytest.raises(ValueError, match="coupled"):
                start()
            assert not out.exists()
        else:
            assert start().finished
            found.append(contents(out))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_the_batch(number, specjax_program, models, prompts, whole, tmp_path, monkeypatch):
    """The program exits with 130 and whole files; called again, it finishes."""
    real, sent = stores.Folder.append, []

    def append(self, name, content):
        sent.append(name)
        if len(sent) == 2:
            signal.raise_signal(number)
        real(self, name, content)

    monkeypatch.setattr(stores.Folder, "append", append)
    args = ["job", "run", prompts, "--out", str(tmp_path), "--target", models["target"], *OPTIONS, *SIZES]
    handler = signal.getsignal(number)
    ran = specjax_program(*args)
    assert (ran.code, ran.out) == (130, "") and "stopped" in ran.err
    assert len(sent) <= 3  # the last: rows that ended since
    assert signal.getsignal(number) is handler
    ran = specjax_program(*args)
    assert ran.code == 0 and "2 of them errors" in ran.err and contents(tmp_path) == whole


def test_index_from_the_environment(specjax_program, refused, models, prompts, whole, tmp_path, monkeypatch):
    args = ["job", "run", prompts, "--out", str(tmp_path), "--target", models["target"], *OPTIONS, *SIZES, "--of", "3"]
    monkeypatch.setenv("JOB_INDEX", "1")
    assert specjax_program(*args).code == 0
    assert contents(tmp_path) == {name: whole[name] for name in ("manifest.json", "part-00001.jsonl")}
    refused(*args, "--index", "3", name="index")
    monkeypatch.setenv("JOB_INDEX", "one")
    refused(*args, name="JOB_INDEX")


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--out", "x"], "FILE"), (["missing.jsonl", "--out", "x"], "missing.jsonl"), (["missing.jsonl"], "--out"),
        (["p", "--out", "x", "--temperature", "0", "1"], "--temperature"), (["p", "--out", "x", "--rows", "0"], "rows"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line(args, name, refused, no_model_is_loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("job", "run", *args, name=name)
    assert not list(tmp_path.iterdir())


def test_a_preset_supplies_options(specjax_program, models, prompts, whole, tmp_path):
    file = tmp_path / "p.py"
    file.write_text(
        "from specjax.config import RunConfig\n"
        f"CONFIG = RunConfig({models['target']!r}, drafter='ngram', gamma=3, max_new_tokens=6, ignore_eos=True)\n"
    )
    ran = specjax_program("job", "run", prompts, "--out", str(tmp_path / "out"), "--config", str(file), *SIZES)
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "out") == whole


def start(models: dict[str, str], prompts: str, out: Path, *sizes: str) -> subprocess.Popen:
    """The program in a process of its own."""
    command = [sys.executable, "-m", "specjax.cli", "job", "run", prompts, "--out", str(out), "--target"]
    return subprocess.Popen(
        [*command, models["target"], *OPTIONS, *(sizes or SIZES)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def test_kill_9_and_the_same_command_again(built, models, prompts, whole, tmp_path):
    """Killed as soon as there are rows; the rest is decoded in this process."""
    run = start(models, prompts, tmp_path)
    while not list(tmp_path.glob("unfinished-*")) and run.poll() is None:
        time.sleep(0.002)
    run.kill()
    run.communicate()
    assert jobs.run(built(), read_items(prompts), str(tmp_path), split=jobs.Split(shard=SHARD, rows=ROWS)).finished
    assert contents(tmp_path) == whole


@pytest.mark.slow
def test_kill_9_at_random_moments(models, tmp_path):
    """200 prompts; killed ten times, from the import on, before the process may finish."""
    prompts, sizes = str(write_prompts(tmp_path / "p.jsonl", 200)), ("--shard", "32", "--rows", "4")
    with start(models, prompts, tmp_path / "whole", *sizes) as run:
        assert run.wait(timeout=300) == 0
    rng, kills = random.Random(0), 0
    for _ in range(10):
        with start(models, prompts, tmp_path / "killed", *sizes) as run:
            try:
                run.wait(rng.uniform(1.0, 6.0))
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
    with start(models, prompts, tmp_path / "killed", *sizes) as run:
        assert run.wait(timeout=300) == 0
    assert kills and contents(tmp_path / "killed") == contents(tmp_path / "whole")


# --- several processes -----------------------------------------------------------------------------------------------


def start_two(models: dict[str, str], prompts: str, out: Path) -> list[subprocess.Popen]:
    """Two processes of one group."""
    where, sizes = f"localhost:{free_port()}", ["--shard", "16", "--rows", "4", "--mesh", "2x1"]
    command = [sys.executable, "-m", "specjax.cli", "job", "run", prompts, "--out", str(out), *OPTIONS, *sizes]
    command += ["--target", models["target"], "--coordinator", where, "--processes", "2", "--process-index"]
    return [
        subprocess.Popen([*command, str(index)], env=environment(1), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for index in range(2)
    ]


def one_process(models: dict[str, str], prompts: str, out: Path) -> dict[str, bytes]:
    command = [sys.executable, "-m", "specjax.cli", "job", "run", prompts, "--out", str(out), *OPTIONS]
    command += ["--target", models["target"], "--shard", "16", "--rows", "4", "--mesh", "2x1"]
    subprocess.run(command, env=environment(2), check=True, capture_output=True, timeout=300)
    return contents(out)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both(models, tmp_path):
    """After the same batch, with whole files; the same command finishes, and has the files of one process."""
    prompts, out = str(write_prompts(tmp_path / "p.jsonl", 60)), tmp_path / "two"
    processes = start_two(models, prompts, out)
    with ended(processes):
        while not list(out.glob("unfinished-*")) and processes[0].poll() is None:
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGTERM)
        assert [one.wait(timeout=120) for one in processes] == [130, 130]
    assert len(list(out.glob("part-*"))) < 4
    processes = start_two(models, prompts, out)
    with ended(processes):
        assert [one.wait(timeout=120) for one in processes] == [0, 0]
    assert contents(out) == one_process(models, prompts, tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_of_two_processes(victim, models, tmp_path):
    """The other one ends by itself; the same command finishes."""
    prompts, out = str(write_prompts(tmp_path / "p.jsonl", 60)), tmp_path / "two"
    processes = start_two(models, prompts, out)
    with ended(processes):
        while not list(out.glob("unfinished-*")) and processes[0].poll() is None:
            time.sleep(0.01)
        processes[victim].kill()
        assert processes[1 - victim].wait(timeout=60) != 0
    processes = start_two(models, prompts, out)
    with ended(processes):
        assert [one.wait(timeout=120) for one in processes] == [0, 0]
    assert contents(out) == one_process(models, prompts, tmp_path / "one")
