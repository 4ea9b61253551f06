"""The command line: one program, `specjax`, with a module for each command.

The module of a command is imported when the command is called, and JAX when it starts to work, so that `--help` answers
at once.
"""

import contextlib
import errno
import gc
import importlib
import io
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from specjax.checks import check_name, lookup
from specjax.cli import process
from specjax.cli.arguments import one_line

INTERRUPTED = 128 + signal.SIGINT
BAD_INPUT = 2
READER_GONE = 1  # as rich exits when the reader of a pipe has closed it
FAILED = 1
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_COMPILE_CACHE = "--no-compile-cache"
GC_THRESHOLD = 200_000  # imports and tracing allocate objects that stay: the default of 700 collects them in vain


class Command(NamedTuple):
    """A command: the module whose `main([*first, *args]) -> exit code` runs it, and its line in the overview."""

    module: str
    summary: str
    first: tuple[str, ...] = ()
    joins: bool = False  # may run as several processes, see `specjax.hosts`
    index: str = "--index"  # the option for the number of the process


COMMANDS = {
    "generate": Command("specjax.cli.generate", "continue text with speculative decoding", joins=True),
    "job run": Command(
        "specjax.cli.job",
        "continue the prompts of a file; resumable, and split over slices",
        joins=True,
        index="--process-index",
    ),
    "convert": Command("specjax.cli.convert", "write a model as a checkpoint that hosts read shards from"),
    "trace": Command("specjax.cli.trace", "show each round: drafted, accepted and rejected tokens, and its time"),
    "advise": Command("specjax.cli.advise", "measure which drafter, draft length or tree is fastest here"),
    "bench": Command("specjax.cli.bench", "measure speed on this machine, next to transformers", joins=True),
    "bench shapes": Command("specjax.cli.bench_shapes", "measure speculation at the size of published models"),
    "plan": Command("specjax.cli.plan", "plan a request on a TPU slice: memory, mesh and speed, without the slice"),
    "sweep": Command("specjax.cli.sweep", "measure drafters, verifiers and settings on your prompts", joins=True),
    "reproduce": Command("specjax.cli.reproduce", "measure published tables and figures again, side by side"),
    "tree show": Command("specjax.cli.tree", "draw a tree of draft nodes and its attention mask"),
    "train lm": Command(
        "specjax.cli.train", "train a language model on text, or distill a draft from its target", ("lm",), joins=True
    ),
    "train t5": Command(
        "specjax.cli.train",
        "train an encoder-decoder on pairs, or distill a draft from its target",
        ("t5",),
        joins=True,
    ),
    "train answers": Command("specjax.cli.train", "write a target's answers, to train heads on", ("answers",)),
    "train head": Command("specjax.cli.train", "train a head that drafts for a target", ("head",)),
}

OVERVIEW = """\
usage: specjax COMMAND [OPTIONS]

Speculative decoding in JAX: faster text generation with exactly the same output distribution.

commands:
{commands}

specjax COMMAND --help explains a command; specjax --version prints the version.

Compiled programs are kept in the user's cache folder, so that later runs start faster. --no-compile-cache turns this
off for one run; the environment variable SPECJAX_COMPILE_CACHE is "off" or another folder.

exit codes: 0 done, 1 failed while running (NaN in logits, out of memory, closed pipe), 2 bad input, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code. Errors are one line; SPECJAX_TRACEBACK=1 shows tracebacks."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # a character the terminal cannot show becomes `?`
            output.reconfigure(errors="replace")
    if argv is None:
        gc.set_threshold(GC_THRESHOLD)
        sys.unraisablehook = quiet_about_interrupts
        warnings.showwarning = lambda message, *_: say(f"specjax: warning: {one_line(message)}")
    prog = "specjax"
    try:
        if not args or args[0] in ("-h", "--help"):
            print(overview(), end="")
            return 0 if args else BAD_INPUT
        if args[0] == "--version":
            from specjax import __version__

            print(f"specjax {__version__}")
            return 0
        name, rest = split_command(args)
        prog = f"specjax {name}"
        process.set_environment()
        if NO_COMPILE_CACHE in itertools.takewhile(lambda arg: arg != "--", rest):
            rest.remove(NO_COMPILE_CACHE)
            process.disable_compile_cache()
        command = COMMANDS[name]
        with process.errors_of_all():
            if command.joins and not {"-h", "--help"} & set(rest):
                process.join(name, rest, command.index)
            code = importlib.import_module(command.module).main([*command.first, *rest])
        return _interrupted(whole=argv is None) if code == INTERRUPTED else code
    except KeyboardInterrupt:
        say(f"{prog}: interrupted")
        return _interrupted(whole=argv is None)
    except BrokenPipeError:  # the reader of our output has closed it
        _drop(sys.stdout)
        return READER_GONE
    except (ValueError, OSError) as error:
        if os.environ.get("SPECJAX_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            file = f" of {error.filename}" if error.filename else ""
            say(f"{prog}: failed: cannot write the output{file}: {error.strerror}: free some space, or write elsewhere")
            _drop(sys.stdout)
            return FAILED
        say(f"{prog}: error: {one_line(error)}")
        process.end_together(BAD_INPUT, one_line(error))
        return BAD_INPUT
    except (ImportError, MemoryError, RuntimeError, FloatingPointError) as error:
        # a missing extra, JAX out of memory, a loss that is not finite
        if os.environ.get("SPECJAX_TRACEBACK"):
            raise
        say(f"{prog}: failed: {type(error).__name__}: {one_line(error)}")
        process.end_together(FAILED, one_line(error))
        return FAILED


def _interrupted(*, whole: bool) -> int:
    """The exit code. If we are the whole process, it ends here: JAX may still be computing, and crashes in an ordinary
    exit."""
    process.end_together(INTERRUPTED)
    if whole:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                output.flush()
        os._exit(INTERRUPTED)
    return INTERRUPTED


def say(line: str) -> None:
    """A line on stderr, if it can be written."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(output: Any) -> None:
    """Discards what stdout or stderr has buffered, so that Python does not fail on it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def quiet_about_interrupts(unraisable: Any) -> None:
    """For sys.unraisablehook: a Ctrl-C that a callback swallowed is raised again later, so it is not reported."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def split_command(args: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the command, one word or two ("train lm"), and its arguments.

    The first word of a single command, such as "tree", shows the help of that command.

    Raises:
      ValueError: an unknown command; suggests the closest name.
    """
    two = " ".join(args[:2])
    if two in COMMANDS:
        return two, list(args[2:])
    first = args[0]
    longer = [name for name in COMMANDS if name.startswith(first + " ")]
    if longer and first not in COMMANDS:
        if len(longer) == 1 and args[1:] in ([], ["-h"], ["--help"]):
            return longer[0], ["--help"]
        if len(args) > 1 and not args[1].startswith("-"):
            check_name(two, longer, "command")
        raise ValueError(f"{first!r} requires a second word: {', '.join(longer)}")
    lookup(first, COMMANDS, "command")
    return first, list(args[1:])


def overview() -> str:
    """What `specjax --help` prints."""
    width = max(map(len, COMMANDS))
    return OVERVIEW.format(commands="\n".join(f"  {name:{width}}  {c.summary}" for name, c in COMMANDS.items()))
