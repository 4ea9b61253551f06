"""`specjax convert`: a model as an Orbax checkpoint, of which every host of a pod reads its own shards."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro

from specjax import config
from specjax.cli import process
from specjax.cli.arguments import parse
from specjax.config import arg

PROG = "specjax convert"


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Write a model once as an Orbax checkpoint, of which every host of a pod reads its own shards.

    specjax convert facebook/opt-66b gs://bucket/opt-66b --dtype bfloat16

    Every command takes the folder as a model: --target gs://bucket/opt-66b --dtype bfloat16. The machine needs
    memory for the whole model, and no accelerator.
    """

    model: Annotated[tyro.conf.Positional[str], arg(metavar="MODEL")]
    """A Hugging Face id, a folder, a GGUF file, or bundled/NAME."""
    folder: Annotated[tyro.conf.Positional[str], arg(metavar="FOLDER")]
    """Where to write; local, or gs://bucket/name. It must not exist."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the weights."""
    weights: Annotated[Literal["int8"] | None, arg(metavar="int8", help_behavior_hint="(default: as dtype)")] = None
    """Store the weights in int8, a scale per output channel. Lossy."""
    platform: Literal["tpu", "gpu", "cpu"] = "tpu"
    """Platform that the layout of the weights is for."""


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input, or a folder that exists.
    """
    options = parse(ConvertOptions, args, prog=PROG, compiles=False)
    process.import_library()
    from specjax import checkpoint
    from specjax.cli.progress import Progress, open_console

    checkpoint.check_new(options.folder)
    console = open_console(stderr=True)
    with Progress(console, show=True) as progress:
        chosen = {"dtype": options.dtype, "weights": options.weights, "platform": options.platform}
        model = config.load_model(options.model, progress=progress.update, **chosen)
        progress.update(f"writing {options.folder}")
        checkpoint.save_model(options.folder, model)
    console.print(f"written: {options.folder}: {model.size:,} parameters, {model.fmt.label}", markup=False)
    return 0
