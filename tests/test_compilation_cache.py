"""Persistent compilation cache: entries on disk, damage, bounds, and the programs of several processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specjax import compilation_cache
from specjax.compilation_cache import Entries, enable_compilation_cache

PROGRAM = """
import jax, jax.numpy as jnp, specjax as sj
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
folder = sj.enable_compilation_cache()
print(float(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.arange(4.0))), len(hits), folder)
"""


def test_entries_round_trip_and_overwrite(tmp_path):
    entries = Entries(tmp_path)
    assert entries.get("a") is None
    for value in (b"one", b"", b"two" * 1000):
        entries.put("a", value)
        assert entries.get("a") == value
    assert [file.suffix for file in tmp_path.iterdir()] == [compilation_cache.SUFFIX]


@pytest.mark.parametrize("content", [b"", b"short", None])
def test_damaged_entries_are_missing_and_removed(tmp_path, content):
    entries = Entries(tmp_path)
    entries.put("a", b"program" * 100)
    (file,) = tmp_path.iterdir()
    garbled = bytearray(file.read_bytes())
    garbled[50] ^= 1
    file.write_bytes(bytes(garbled) if content is None else content)
    assert entries.get("a") is None and not file.exists()
    entries.put("a", b"again")
    assert entries.get("a") == b"again"


def test_the_folder_is_bounded_and_the_oldest_go_first(tmp_path):
    entries = Entries(tmp_path, max_bytes=1000)
    for number in range(5):
        entries.put(f"k{number}", bytes(300))
        os.utime(tmp_path / f"k{number}{compilation_cache.SUFFIX}", (number, number))
    kept = {file.stem for file in tmp_path.iterdir()}
    assert "k4" in kept and "k0" not in kept and len(kept) <= 3


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    entries = Entries(tmp_path / "absent")
    entries.put("a", b"x")
    assert entries.get("a") is None


def test_concurrent_writers(tmp_path):
    def write(number: int) -> None:
        entries = Entries(tmp_path, max_bytes=20_000)
        for turn in range(40):
            entries.put(f"k{turn % 7}", bytes([turn % 7]) * 1000)
            found = entries.get(f"k{number % 7}")
            assert found is None or found == bytes([number % 7]) * 1000

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(Entries(tmp_path).get(f"k{n}") == bytes([n]) * 1000 for n in range(7))


def test_a_cache_configured_through_jax_is_kept(monkeypatch):
    import jax

    monkeypatch.delenv(compilation_cache.VARIABLE, raising=False)
    configured = jax.config.jax_compilation_cache_dir
    assert configured and enable_compilation_cache() == Path(configured)
    monkeypatch.setenv(compilation_cache.VARIABLE, "off")
    assert enable_compilation_cache() is None


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c"),
        ("linux", {"HOME": "/h"}, "/h/.cache"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l"),
    ],
)
def test_user_cache_folder(platform, environment, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "environ", environment)
    assert compilation_cache.user_cache_folder() == Path(expected)


@pytest.mark.slow
def test_later_processes_load_programs_and_survive_damage(tmp_path):
    def run(**variables: str) -> tuple[float, int, str]:
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **variables}
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env)
        assert ran.returncode == 0 and ran.stderr == "", ran.stderr
        value, hits, folder = ran.stdout.split()
        return float(value), int(hits), folder

    value, hits, folder = run()
    assert hits == 0 and folder.startswith(str(tmp_path))
    assert run()[1] >= 1
    for number, file in enumerate(sorted(Path(folder).iterdir())):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if number % 2 else content[:-9] + b"garbage!!")
    assert run()[:2] == (value, 0)  # compiled again, and replaced
    assert run()[1] >= 1
    assert run(SPECJAX_COMPILE_CACHE="off") == (value, 0, "None")
