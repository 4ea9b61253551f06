"""The documentation: its examples run, its command lines parse, its links and its navigation are complete."""

import ast
import contextlib
import doctest
import functools
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
import yaml

import specjax
from specjax.cli import COMMANDS, arguments, split_command
from tests import battery

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "configs/*.md", "tpu_scripts/*.md", "specjax/bundled/README.md")
    for page in ROOT.glob(pattern)
)
MARK = "<!-- exec -->"  # precedes a Python block that runs as it is
# Pages that compile many programs.
SLOW_PAGES = {
    "drafters", "custom-loop", "encoder-decoder", "flax", "long-context", "policies", "quickstart", "sampling",
    "sharding", "streaming",
}  # fmt: skip
SLOW_MODULES = {
    "specjax.calibration", "specjax.categorical", "specjax.drafters.bridge", "specjax.drafters.self_speculation",
    "specjax.engine", "specjax.jobs", "specjax.memory_use", "specjax.models.llama", "specjax.models.opt",
    "specjax.models.t5", "specjax.prompts", "specjax.verify.block", "specjax.verify.coupled", "specjax.verify.kseq",
    "specjax.verify.multiround", "specjax.verify.traversal",
}  # fmt: skip
REFERENCE = {"specjax": "specjax"} | {f"specjax.{n}": n for n in ("drafters", "policies", "theory", "trees", "verify")}
SEPARATORS = {"|", ">", "&&", ";", "<"}


class Block(NamedTuple):
    """A fenced block: its language, whether it is marked as executable, its first line in the file, and its text."""

    language: str
    marked: bool
    line: int
    text: str


@functools.cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The fenced blocks of a page."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if not (fence := re.fullmatch(r"```(\S*)", lines[at])):
            at += 1
            continue
        end = lines.index("```", at + 1)
        text = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Block(fence[1], at > 0 and lines[at - 1] == MARK, at + 2, text))
        at = end + 1
    return tuple(found)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(wanted) -> list:
    """Parameters: the pages that have a wanted block; those that compile many programs are slow."""
    pages = [page for page in PAGES if any(map(wanted, blocks(page)))]
    marks = lambda page: [pytest.mark.slow] if page.stem in SLOW_PAGES else []
    return [pytest.param(page, marks=marks(page), id=name_of(page)) for page in pages]


@pytest.mark.parametrize("page", pages_with(lambda block: block.marked))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The marked blocks of a page run in order, in one namespace; dtypes promote as users' do, for optax."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # what a block sets does not outlive it
    namespace: dict = {"__name__": "docs"}
    for block in blocks(page):
        if block.marked:
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()), jax.numpy_dtype_promotion("standard"):
                exec(code, namespace)


@pytest.mark.parametrize("page", pages_with(lambda block: block.language == "pycon"))
def test_pycon_blocks_run(page):
    text = "\n".join(block.text for block in blocks(page) if block.language == "pycon")
    check_examples(doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0))


def modules_with_examples() -> list:
    files = [file for file in (ROOT / "specjax").rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]
    names = sorted(".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files)
    return battery.others_slow(names, set(names) - SLOW_MODULES)


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"sj": specjax}):
        check_examples(example)


def check_examples(example: doctest.DocTest) -> None:
    """Runs the examples of one docstring or page; the report of a failure is the assertion's message."""
    report = io.StringIO()
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(example, out=report.write)
    assert not result.failed, report.getvalue()


# Command lines


def commands_in(line: str) -> Iterator[list[str]]:
    """The arguments of each `specjax` in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in SEPARATORS:
            words.append(word)
            continue
        if words and Path(words[0]).name == "specjax":
            yield words[1:]
        words = []


def documented_commands() -> list:
    """Parameters: the arguments of every command line in a shell block."""
    found = {}
    for page in PAGES:
        for block in blocks(page):
            if block.language != "bash":
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                for args in commands_in(line):
                    if "--help" not in args:
                        found.setdefault(tuple(args), name_of(page))
    return [pytest.param(list(args), id=f"{page}: {' '.join(args)}") for args, page in found.items()]


class Parsed(Exception):
    """Raised in the place of the work that follows parsing."""


@pytest.mark.parametrize("args", documented_commands())
def test_command_lines_parse(args, monkeypatch):
    name, rest = split_command(args)
    command = COMMANDS[name]
    main, real = importlib.import_module(command.module).main, arguments.parse

    def parse(*args, **options):
        real(*args, **options)
        raise Parsed

    for module in list(sys.modules.values()):
        if module.__name__.startswith("specjax.cli.") and getattr(module, "parse", None) is real:
            monkeypatch.setattr(module, "parse", parse)
    with pytest.raises(Parsed):
        main([*command.first, *rest])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        importlib.import_module(COMMANDS[name].module).main([*COMMANDS[name].first, "--help"])
    options = set(re.findall(r"^\W*(--[a-z][a-z0-9-]*)", capsys.readouterr().out, flags=re.MULTILINE))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = sorted(option for option in options if not re.search(rf"{option}(?![a-z0-9-])", text))
    assert not missing


# Links, navigation, reference


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown renderers make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked), target


def test_the_navigation_lists_every_page():
    def files(entry) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
            return
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from files(part)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = ROOT / "docs"
    assert sorted(files(nav)) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def public_names(module: str) -> set[str]:
    """What a package defines, or exports by `import x as x`."""
    home = importlib.import_module(module)
    if exported := getattr(home, "__all__", None):
        return set(exported) - {"__version__"}
    names: set[str] = set()
    for node in ast.parse(Path(str(home.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(("module", "page"), REFERENCE.items())
def test_the_reference_lists_every_public_name(module, page):
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    assert not sorted(name for name in public_names(module) if not re.search(rf"\b{name}\b", text))
