"""A hub on this machine: what an id downloads, over HTTP, by the real client, and the errors when the hub fails."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from specjax.convert.locate import BUNDLED_FOLDER

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-one/small-model"


class Hub(NamedTuple):
    """A server of one repository. refused: names of files not given; requested: the paths of GET requests, in order."""

    url: str
    files: dict[str, bytes]
    refused: set[str]
    requested: list[str]


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {file.name: file.read_bytes() for file in (BUNDLED_FOLDER / "opt-tiny").iterdir() if file.is_file()}
    files |= {"pytorch_model.bin": b"a pickle", "README.md": b"# about"}
    refused: set[str] = set()
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            requested.append(self.path)
            self.answer(body=True)

        def answer(self, *, body: bool):
            path = self.path.split("?")[0]
            name = path.rsplit("/", 1)[-1]
            if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
                siblings = [{"rfilename": name} for name in files]
                content = json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode()
            elif path == f"/api/models/{NAME}/tree/{COMMIT}":
                tree = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()]
                content = json.dumps(tree).encode()
            elif path.startswith(f"/{NAME}/resolve/") and name in files and name not in refused:
                content = files[name]
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format, *args):
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Hub(f"http://127.0.0.1:{server.server_port}", files, refused, requested)
        server.shutdown()
        thread.join()


def generate(url: str, cache: Path, name: str = NAME) -> subprocess.CompletedProcess[str]:
    """`specjax generate` in a process of its own, with a hub and a cache of its own."""
    env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "specjax.cli", "generate", "--target", name, "Once", "--drafter", "plain"]
    return subprocess.run(
        [*command, "--max-new-tokens", "3"], env=env, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_an_id_is_downloaded_once_and_only_what_is_read(hub, tmp_path):
    ran = generate(hub.url, tmp_path)
    assert ran.returncode == 0 and ran.stdout.startswith("Once"), ran.stderr
    got = {path.rsplit("/", 1)[-1] for path in hub.requested if "/resolve/" in path}
    assert got == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    hub.requested.clear()
    again = generate(hub.url, tmp_path)
    assert again.returncode == 0 and hub.requested == []  # from the cache, without the network


@pytest.mark.slow
def test_an_id_that_the_hub_does_not_have_is_one_line(hub, tmp_path):
    ran = generate(hub.url, tmp_path, "some-one/else")
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and "some-one/else" in ran.stderr and "hub" in ran.stderr


@pytest.mark.slow
def test_a_file_that_the_hub_denies_is_one_line(hub, tmp_path):
    hub.refused.add("tokenizer.json")  # listed, and not given
    ran = generate(hub.url, tmp_path)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1 and "was not downloaded" in ran.stderr, ran.stderr


@pytest.mark.slow
def test_an_id_without_weights_raises_before_any_download(hub, tmp_path):
    for name in ("model.safetensors", "pytorch_model.bin"):
        del hub.files[name]
    ran = generate(hub.url, tmp_path)
    assert ran.returncode == 2 and "contains no weights" in ran.stderr and ran.stderr.count("\n") == 1
    assert not any("/resolve/" in path for path in hub.requested)
