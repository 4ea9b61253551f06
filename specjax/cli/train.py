"""`specjax train ...`: the runs of `specjax.training` as commands."""

from collections.abc import Sequence

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from specjax.cli import INTERRUPTED, process
from specjax.cli.arguments import parse
from specjax.cli.progress import open_console
from specjax.training.answers import AnswersRun
from specjax.training.head_run import HeadRun
from specjax.training.pairs import PairRun
from specjax.training.text import TextRun

RUNS = {"lm": TextRun, "t5": PairRun, "answers": AnswersRun, "head": HeadRun}


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code; the first argument is its second word."""
    word, *rest = args
    run: TextRun | PairRun | AnswersRun | HeadRun = parse(RUNS[word], rest, prog=f"specjax train {word}")
    process.import_library()
    if isinstance(run, TextRun | PairRun):
        process.check_mesh(run.mesh)
    console = open_console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        line = progress.add_task("starting", total=None)
        folder = run.train(lambda text: progress.update(line, description=text))
    if folder is None:
        console.print("stopped and saved: the same command resumes the run")
        return INTERRUPTED
    console.print(f"written: {folder}", markup=False, soft_wrap=True)
    return 0
