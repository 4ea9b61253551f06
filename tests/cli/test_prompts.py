"""Prompts from arguments, files and stdin; every bad line is named."""

import io
import types

import pytest

from specjax.cli.prompts import read_prompts


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_text_file_is_one_prompt_a_line_after_those_given(tmp_path):
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
    ("name", "data", "said"),
    [
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ("p.jsonl", b'{"prompt": "a"}\n\n["b"]\n', "line 3 has no text"),
        ("p.jsonl", b'{"prompt": 3}\n', "line 1 has no text"),
        ("p.jsonl", b'{"prompt": " "}\n', "line 1 is empty"),
        ("p.txt", b"a\n\xff\n", "line 2 is not UTF-8"),
        ("p.txt", b"\n\n", "holds no prompt"),
    ],
)
def test_bad_files_name_the_line(tmp_path, name, data, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_prompts([], write(tmp_path / name, data))
    assert name in str(caught.value)


@pytest.mark.parametrize("prompt", ["", "  ", "\udcff"])
def test_bad_arguments(prompt):
    with pytest.raises(ValueError, match="prompt 2"):
        read_prompts(["a", prompt], None)


def test_unreadable_file_and_no_prompt(tmp_path):
    with pytest.raises(ValueError, match="cannot read the prompts"):
        read_prompts([], str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="cannot read the prompts"):
        read_prompts([], str(tmp_path))
    with pytest.raises(ValueError, match="there is no prompt"):
        read_prompts([], None)
