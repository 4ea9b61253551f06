"""Who may import whom: the command line knows everything, and nothing knows the command line."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOWEST = {"checks", "files", "plotting", "defaults"}  # modules for all others; they import no more than each other


def imports(file: Path) -> Iterator[str]:
    """Modules of specjax that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("specjax"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specjax"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below(file: Path, *packages: str) -> set[str]:
    return {name for name in imports(file) if any(f"{name}.".startswith(f"specjax.{one}.") for one in packages)}


def test_nothing_imports_the_command_line_but_itself():
    modules = [file for file in (ROOT / "specjax").rglob("*.py") if file.parent.name != "cli"]
    assert len(modules) > 100 and below(ROOT / "specjax" / "cli" / "bench.py", "cli")
    assert {str(file): found for file in modules if (found := below(file, "cli"))} == {}


def test_the_lowest_modules_import_nothing_above_them():
    for name in LOWEST:
        assert {found.split(".")[1] for found in imports(ROOT / "specjax" / f"{name}.py")} <= LOWEST
