"""Text files by lines, errors for other files, and files that appear whole."""

import gzip
import io
import lzma
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from specjax import files
from specjax.bench import record, tasks
from specjax.cli import outputs, prompts, tree
from specjax.training import data

TEXT = "\ufeffeins\r\n\n  zwei \u00e4\u2028drei\nvier".encode()
LINES = [(1, "eins\n"), (2, "\n"), (3, "  zwei \u00e4\u2028drei\n"), (4, "vier")]


@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.txt.gz", gzip.compress), ("a.xz", lzma.compress)])
def test_lines_are_numbered_whatever_system_and_packer_wrote_them(name, pack, tmp_path):
    (tmp_path / name).write_bytes(pack(TEXT))
    assert list(files.lines(tmp_path / name)) == LINES == list(files.decoded(io.BytesIO(TEXT), "stdin"))
    assert files.filled(files.lines(tmp_path / name)) == [(1, "eins"), (3, "  zwei \u00e4\u2028drei"), (4, "vier")]
    assert files.read_text(tmp_path / name) == "".join(line for _, line in LINES)


READERS = {
    "a text": files.read_text,
    "prompts": lambda file: prompts.read_prompts([], file),
    "prompts of a format": tasks.read,
    "a text to fit to": files.read_lines,
    "documents": lambda file: list(data.documents(file)),
    "pairs": lambda file: list(data.pairs(file)),
    "acceptance.json": lambda file: tree.read_acceptance([file]),
    "rows": lambda file: record.Record(Path(file), {}),
}


@pytest.mark.parametrize("what", READERS)
def test_every_reader_reports_a_bad_file_in_one_line(what, tmp_path):
    file = tmp_path / (what if what.endswith(".json") else "a.txt")
    file.write_bytes(b"\xff\n")
    with pytest.raises(ValueError) as error:
        READERS[what](str(file))
    assert str(error.value) == f"{file} line 1 is not UTF-8: save the file as UTF-8"
    if what == "rows":
        return  # such a file need not be there yet
    for there in (str(tmp_path / f"absent{file.suffix}"), str(tmp_path / f"folder{file.suffix}")):
        (tmp_path / f"folder{file.suffix}").mkdir(exist_ok=True)
        with pytest.raises(ValueError) as error:
            READERS[what](there)
        why = "No such file or directory" if "absent" in there else "Is a directory"
        message = str(error.value)
        assert message.startswith("cannot read the ")
        assert f" of {there}: {why}: name a text file that can be read" in message


def test_the_line_that_is_no_text_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"fine\n\n\xff\xfe\nfine\n")
    with pytest.raises(ValueError, match="line 3"):
        files.read_text(tmp_path / "a")


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip), (".xz", lzma)])
@pytest.mark.parametrize("damage", ["text", "cut", "flipped"])
def test_damaged_archives_are_one_line(ending, pack, damage, tmp_path):
    packer = {".gz": "gzip", ".xz": "xz"}[ending]
    packed = pack.compress(np.random.default_rng(0).bytes(4000).hex().encode())
    spoilt = {"text": b"{}", "cut": packed[: len(packed) // 2], "flipped": packed[:-40] + b"\0" * 40}[damage]
    (tmp_path / f"a{ending}").write_bytes(spoilt)
    with pytest.raises(ValueError, match=f"is no whole {packer} file, though its name ends in {ending}: ") as error:
        files.read_text(tmp_path / f"a{ending}")
    assert "\n" not in str(error.value)


def test_files_appear_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.txt"
    files.write_text(file, "one\n")
    with pytest.raises(KeyboardInterrupt), files.whole(file) as aside:
        aside.write_text("tw")
        assert aside.parent == tmp_path and aside.suffix == ".txt" and aside.name.startswith(".")
        raise KeyboardInterrupt
    assert file.read_text() == "one\n" and list(tmp_path.iterdir()) == [file]


def test_others_may_read_what_was_written_as_far_as_the_user_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_file_behind_a_link_is_written_and_a_pipe_is_left_alone(tmp_path):
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    files.write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="device"):
        files.write_text(pipe, "new")
    with pytest.raises(ValueError, match="--output"):
        outputs.writable(output=pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
