"""Several processes: the tokens of one process with as many devices, differences reported, signals, and files."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hosts_cases

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 240  # seconds


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
    try:
        return [(one.wait(timeout), *map(str, one.communicate())) for one in processes]
    finally:
        for one in processes:
            one.kill()


def decoded(processes: int, devices: int, names: list[str], folder: Path) -> list[dict]:
    """What each process found."""
    where = f"localhost:{free_port()}"
    worker = lambda index: ["-m", "tests.hosts_worker", where, str(processes), str(index), str(folder), *names]
    for code, _, errors in finish(start(*map(worker, range(processes)), devices=devices)):
        assert code == 0, errors
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(processes)]


@functools.cache
def alone(name: str):
    """The case in this process."""
    case = (hosts_cases.CASES | hosts_cases.SLOW)[name]
    return json.loads(json.dumps(case.run(hosts_cases.mesh_of(case.shape))))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory) -> list[dict]:
    """Every case of the default tier on 2 processes of 2 devices."""
    return decoded(2, 2, list(hosts_cases.CASES), tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", hosts_cases.CASES)
def test_two_processes_give_what_one_gives(of_two, name):
    for found in of_two:
        assert found[name] == alone(name)
    if "tokens" in found[name] and name != "ngram":
        assert 0 < found[name]["accepted"] < found[name]["drafted"]
