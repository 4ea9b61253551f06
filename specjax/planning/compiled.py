"""A request's programs compiled ahead of time, in a process of their own, and kept by request.

TPU topologies need another environment than a process that runs something: the flags of the CPU backend end the TPU
compiler, and TPU_SKIP_MDS_QUERY would hide the machine's own TPUs.
"""

import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import specjax
from specjax import files
from specjax.compilation_cache import user_cache_folder
from specjax.planning.request import PlanRequest

TIMEOUT = 1800.0
EXTRA = "compiling for TPUs requires the extra plan: pip install 'specjax[plan]'"


def compile_request(request: PlanRequest, *, prompt: bool = True, keep: bool = True) -> dict[str, Any]:
    """Compiles a request's programs for its slice, or reads the result of an equal request.

    Args:
      prompt: also compile the program that reads the prompts.
      keep: read and write the folder of results, `specjax/plans` in the user's cache folder.

    Returns:
      "loop" and "prompt", each with "arguments", "temporaries" and "outputs" in bytes of a chip, "collectives", and
      "seconds", the loop also with "groups" and "unread", which are held and no arguments; or, where
      it does not fit, with "needed", the bytes that the compiler would need.

    Raises:
      ValueError: the models or sizes do not fit together. RuntimeError: the compiler failed. ImportError: no libtpu.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(EXTRA)
    file = _file(request, prompt)
    if keep and file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    given = json.dumps({**dataclasses.asdict(request), "read_prompt": prompt})
    done = subprocess.run(
        [sys.executable, "-m", "specjax.planning.compiled", given], env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the TPU compiler failed: {_reason(done.stderr)}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        raise ValueError(found["error"])
    if keep:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(file, json.dumps(found))
    return found


def environment() -> dict[str, str]:
    """Variables of a process that compiles for TPUs."""
    package = str(Path(specjax.__file__).parents[1])
    return os.environ | {
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing here owns a chip, so other processes do no harm
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": "",
        "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]),
    }


def _file(request: PlanRequest, prompt: bool) -> Path:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    sources = sorted(Path(specjax.__file__).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    key = json.dumps([dataclasses.asdict(request), prompt, versions, specjax.__version__, code], sort_keys=True)
    return user_cache_folder() / "specjax" / "plans" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


# --- in the process that compiles ------------------------------------------------------------------------------------


def _compile(request: PlanRequest, read_prompt: bool) -> dict[str, Any]:
    from specjax.planning import lowering

    mesh = lowering.mesh_of(request)
    programs = lowering.programs_of(request, mesh)
    lowered = {"loop": lowering.lower_loop(programs, compiler_layouts=request.compiler_layouts)}
    if read_prompt:
        lowered["prompt"] = lowering.lower_prompt(programs)
    with concurrent.futures.ThreadPoolExecutor() as both:  # compiling releases the lock of the interpreter
        running = {
            name: both.submit(_analyze, one, request, programs if name == "loop" else None)
            for name, one in lowered.items()
        }
        return {name: one.result() for name, one in running.items()}


def _analyze(lowered, request: PlanRequest, programs) -> dict[str, Any]:
    from specjax.planning import program

    started = time.monotonic()
    try:
        compiled = lowered.compile()
    except Exception as error:  # the type of the compiler's error is not public
        needed = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", str(error))
        if needed is None:
            raise
        return {"needed": float(needed[1]) * 2 ** (10 * " KMGT".index(needed[2] or " "))}
    memory, text = compiled.memory_analysis(), compiled.as_text()
    return {
        "seconds": time.monotonic() - started,
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "collectives": program.traffic(text, per_slice=request.place.chips),
        **({} if programs is None else _groups(programs, compiled)),
    }


def _groups(programs, compiled) -> dict[str, Any]:
    """Bytes of each group in the layouts of the compiled program, and those that it does not read: encoders."""
    import jax

    from specjax.planning import lowering, memory

    shapes = jax.tree.leaves((programs.params, programs.state))
    formats = jax.tree.leaves(compiled.input_formats[0], is_leaf=lambda node: hasattr(node, "layout"))
    size, unread = {}, 0
    for leaf, form in zip(shapes, formats, strict=True):
        size[id(leaf)] = memory.in_format(leaf.sharding.shard_shape(leaf.shape), leaf.dtype, form.layout)
        unread += size[id(leaf)] if form.layout is None else 0
    parts = lowering.groups(programs).items()
    held = {name: sum(size[id(leaf)] for leaf in jax.tree.leaves(tree)) for name, tree in parts}
    return {"groups": held, "unread": unread}


def _main(text: str) -> dict[str, Any]:
    given = json.loads(text)
    read_prompt = given.pop("read_prompt")
    given["mesh"] = tuple(given["mesh"])
    try:
        return _compile(PlanRequest(**given), read_prompt)
    except ValueError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1])))
