"""Prompts from arguments, files and stdin; errors name the line."""

import io
import types

import pytest

from specjax.cli.prompts import read_prompts


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_text_file_has_one_prompt_per_line(tmp_path):
    file = write(tmp_path / "p.txt", "\ufeffeins\r\n\n  zwei \u00e4\n".encode())
    assert read_prompts(["null"], file) == ["null", "eins", "  zwei \u00e4"]


def test_jsonl_holds_line_breaks(tmp_path):
    file = write(tmp_path / "p.jsonl", b'{"prompt": "a\\nb", "id": 1}\n\n{"prompt": "c"}\n')
    assert read_prompts([], file) == ["a\nb", "c"]


@pytest.mark.parametrize(("data", "wanted"), [(b"a\nb\n", ["a", "b"]), (b'{"prompt": "x"}\n', ["x"])])
def test_stdin_is_text_or_jsonl(monkeypatch, data, wanted):
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_prompts([], "-") == wanted


@pytest.mark.parametrize(
    ("name", "data", "where"),
    [
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": \n', "line 2"),
        ("p.jsonl", b'{"prompt": "a"}\n\n["b"]\n', "line 3"),
        ("p.jsonl", b'{"prompt": 3}\n', "line 1"),
        ("p.jsonl", b'{"prompt": " "}\n', "line 1"),
        ("p.txt", b"a\n\xff\n", "line 2"),
        ("p.txt", b"\n\n", "--prompts"),
    ],
)
def test_invalid_files_name_the_line(tmp_path, name, data, where):
    with pytest.raises(ValueError, match=where) as caught:
        read_prompts([], write(tmp_path / name, data))
    assert name in str(caught.value)


@pytest.mark.parametrize("prompt", ["", "  ", "\udcff"])
def test_invalid_arguments(prompt):
    with pytest.raises(ValueError, match="prompt 2"):
        read_prompts(["a", prompt], None)


def test_unreadable_file_and_no_prompt(tmp_path):
    with pytest.raises(ValueError, match="prompts"):
        read_prompts([], str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="prompts"):
        read_prompts([], str(tmp_path))
    with pytest.raises(ValueError, match="--prompts"):
        read_prompts([], None)


def test_prompts_may_be_token_ids(tmp_path):
    file = write(tmp_path / "p.jsonl", b'{"prompt": [2, 50]}\n{"prompt": "a"}\n')
    assert read_prompts([], file) == [[2, 50], "a"]
    for bad in (b'{"prompt": []}', b'{"prompt": [1.5]}', b'{"prompt": [true]}'):
        with pytest.raises(ValueError, match="line 1"):
            read_prompts([], write(tmp_path / "q.jsonl", bad))
