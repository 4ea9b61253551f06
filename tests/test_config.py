"""Presets: every file in configs/ builds and generates; bad files are one-line errors."""

import dataclasses
import math
import shlex
from pathlib import Path

import jax
import pytest

import specjax
from specjax import checkpoint, config, sharding
from specjax.cli.job import JobOptions
from specjax.cli.options import merged, read_options
from specjax.config import RunConfig
from specjax.model import Model
from specjax.models.format import default_format
from specjax.models.shapes import published_shapes
from specjax.request import check_parts, named_verifier

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PRESETS = sorted(CONFIGS.glob("*.py"))
POD_PRESETS = sorted((CONFIGS / "pods").glob("*.py"))


def test_there_are_presets():
    assert PRESETS and POD_PRESETS


@pytest.mark.slow
@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_every_preset_builds_and_generates(file):
    run = config.build(config.read(file))
    out = run.generate(["Once upon a time", "The"], max_new_tokens=8)
    assert [len(row) for row in out.tokens] == [8, 8] or "eos" in out.stop_reasons
    assert out.lossless


CHIPS = {"v5p:2x2x2": 95, "v5e:2x4": 15.75, "v6e:2x4": 31.25}  # GiB of memory


def published(name: str, **options) -> Model:
    """A model without weights: the published shape of that name, in the layout of TPUs."""
    word = name.rpartition("/")[2].lower().removesuffix("-instruct").replace("meta-", "")
    family, shape = published_shapes()[word]
    mesh, dtype = options["mesh"], options["dtype"]
    fmt = default_format(dtype, platform="tpu", sharded=mesh is not None, cache_dtype=options["cache_dtype"])
    rules = sharding.replicated(family.rules) if options.get("replicate") else family.rules
    abstract = family.abstract(shape, fmt)
    where = sharding.shardings(abstract, mesh, rules, fmt, kv_heads=shape.kv_heads)
    return Model(name, family, shape, fmt, checkpoint.like(abstract, where), mesh=mesh, rules=rules)


@pytest.mark.parametrize("file", POD_PRESETS, ids=lambda file: file.stem)
def test_every_preset_of_a_pod_builds(file, monkeypatch):
    """On 8 chips, without weights: the mesh divides the models, target and draft fit together, and the weights of both
    leave a third of the memory of a chip to caches. The commands in its docstring parse."""
    monkeypatch.setattr(specjax, "load", published)
    run = config.build(config.read(file))
    assert run.verifier.lossless
    assert named_verifier(run.drafter, None) == check_parts(run.target, run.drafter, None)
    size = lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    used = sum(size(leaf) for model in (run.target, *run.drafts) for leaf in jax.tree.leaves(model.params)) / 2**30
    plan, job = (shlex.split(line) for line in file.read_text().splitlines() if line.startswith("    specjax "))
    assert plan[:2] == ["specjax", "plan"] and used < CHIPS[plan[plan.index("--topology") + 1]] * 2 / 3
    assert job[1:3] == ["job", "run"] and f"configs/pods/{file.name}" in job
    options, preset = read_options(JobOptions, job[3:], "job run")
    assert merged(options, preset) == dataclasses.replace(run.config, drafter="model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": "modle"}, "drafter 'modle'"),
        ({"target": "x", "drafter": "model"}, "requires draft"),
        ({"drafter": "plain", "draft": "x"}, "draft x"),
        ({"drafter": "cascade", "draft": "x"}, "requires draft 2"),
        ({"drafter": "tree:shape=3by2", "draft": "x"}, "shape"),
        ({"drafter": "tree", "draft": "x", "gamma": 3}, "gamma"),
        ({"drafter": "plain", "verifier": "blok"}, "verifier 'blok'"),
        ({"drafter": "plain", "verifier": "lossy-typical", "lossless": True}, "lossy-typical"),
        ({"mesh": "two"}, "mesh"),
        ({"logit_bias": ("5",)}, "logit_bias"),
        ({"stop_token": (-1,)}, "stop_token"),
    ],
)
def test_bad_presets(changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**changes)


def test_presets_support_every_drafter():
    names = ("bundled/opt-draft", "bundled/opt-tiny")
    cascade = RunConfig(draft=names, drafter="cascade:inner=(model:gamma=2)", gamma=4)
    assert cascade.drafts == names and cascade.strategy.gamma == 4
    assert RunConfig("t", draft="d", drafter="model:policy=heuristic", lossless=True).drafts == ("d",)


def test_other_files_are_not_presets(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"x\.py"):
        config.read(tmp_path / "x.py")
    (tmp_path / "y.py").write_text("A = 1\n")
    with pytest.raises(ValueError, match="CONFIG"):
        config.read(tmp_path / "y.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "CONFIG = RunConfig('m', drafter='plain', tempreature=0)",
            "'tempreature'.*'temperature'",
        ),
        ("CONFIG = RunConfig('m', drafter='plain', zzz=0)", r"'zzz'"),
        ("CONFIG = RunConfig('m', drafter='plain', dtype='float8')", "dtype"),
        ("CONFIG = RunConfig('m', drafter='plain', temperature=-1.0)", r"p\.py: temperature"),
        ("CONFIG = RunConfig('m', drafter='plain', stop=('',))", r"p\.py: stop"),
        ("import sys; sys.exit(0)", r"p\.py: SystemExit"),
        ("CONFIG = RunConfig(", "SyntaxError"),
        ("import absent_package", "'absent_package'"),
    ],
)
def test_a_preset_that_does_not_run_is_a_one_line_error(text, message, tmp_path):
    file = tmp_path / "p.py"
    file.write_text(f"from specjax.config import RunConfig\n{text}\n")
    with pytest.raises(ValueError, match=message) as raised:
        config.read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
