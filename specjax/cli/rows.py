"""Where commands that measure rows write them, and the record that a stopped run resumes from."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specjax.cli import outputs, process
from specjax.config import arg

if TYPE_CHECKING:
    from rich.console import Console

    from specjax.bench.record import Record

NO_FILE = "(default: none)"


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """Where results are written; the terminal shows them in any case."""

    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint=NO_FILE)] = None
    """Append one JSON object per row. Rows that the file has are not measured again: a stopped run resumes."""
    markdown: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint=NO_FILE)] = None
    """Write the table as Markdown."""

    def check(self) -> None:
        """Raises ValueError for files that cannot be written; of several processes, by the leader."""
        if not process.peers().leader:
            return
        outputs.writable(json=self.json, markdown=self.markdown)

    def open(self) -> "tuple[Record, Console, Console]":
        """The record of the JSON file, and consoles on stdout and stderr; prints the versions."""
        from specjax import hosts
        from specjax.bench import record
        from specjax.cli.progress import tables_and_errors

        about = record.versions()
        kept = record.Record(self.json, about, writes=process.peers().leader)
        hosts.agree(rows=kept.known)
        console, errors = tables_and_errors()
        console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
        return kept, console, errors
