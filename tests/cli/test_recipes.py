"""The scripts in configs/: every command that they run parses."""

import json
import os
import subprocess
import sys
from pathlib import Path

from specjax.cli import advise, bench, bench_shapes, reproduce, split_command, sweep
from specjax.cli.arguments import parse
from specjax.convert.locate import BUNDLED_FOLDER
from specjax.training.answers import AnswersRun
from specjax.training.head_run import HeadRun
from specjax.training.pairs import PairRun
from specjax.training.text import TextRun

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIONS = {
    "train lm": TextRun, "train t5": PairRun, "train answers": AnswersRun, "train head": HeadRun,
    "sweep": sweep.SweepOptions, "bench": bench.Bench, "bench shapes": bench_shapes.BenchShapes,
    "advise": advise.AdviceOptions, "reproduce": reproduce.Reproduce,
}  # fmt: skip
GIVEN = {"DATA": "data", "RUNS": "runs", "TRANSLATIONS": "pairs.tsv", "BOOKS": "books.txt"}


def recorded(folder: Path, script: str, *args: str) -> list[tuple[str, list[str]]]:
    """The commands of the script, by a `specjax` that only writes down its arguments; Python does nothing."""
    log = folder / "log"
    note = f"import json, sys\nopen({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')"
    for name, text in {"specjax": f"#!{sys.executable}\n{note}\n", "python": "#!/bin/sh\n"}.items():
        shim = folder / name
        shim.write_text(text)
        shim.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **GIVEN}
    subprocess.run(["sh", CONFIGS / script, *args], check=True, env=env, cwd=folder)
    return [split_command(json.loads(line)) for line in log.read_text().splitlines()]


def test_commands_of_the_results_pages_parse(tmp_path):
    commands = recorded(tmp_path, "results/measure.sh", "out")
    for name, args in commands:
        assert isinstance(parse(OPTIONS[name], args, prog=name), OPTIONS[name])
    assert commands


def stages(folder: Path) -> dict[str, list[TextRun | PairRun]]:
    """The runs of each bundled model, in order: a second one starts from the first."""
    options = [parse(OPTIONS[name], args, prog=name) for name, args in recorded(folder, "train/bundled.sh")]
    found: dict[str, list[TextRun | PairRun]] = {}
    for run in options:
        if isinstance(run, TextRun | PairRun):
            found[run.run.name] = [*found.pop(Path(run.start).parent.name if run.start else "", []), run]
    return found


def test_commands_parse_and_train_every_bundled_model_once(tmp_path):
    models = [file.parent.name for file in BUNDLED_FOLDER.glob("*/tokenizer.json")]
    assert sorted(stages(tmp_path)) == sorted(models)
    used = set()
    for name, args in recorded(tmp_path, "train/bundled.sh"):
        if name == "sweep":
            run = parse(OPTIONS[name], args, prog=name)
            used |= {Path(str(model)).parent.name for model in (run.grid.target, *run.grid.drafts)}
    assert used == set(models)


def test_commands_train_the_heads_that_are_compared(tmp_path):
    made = set()
    for script in ("train/heads.sh", "train/smollm2.sh"):
        folder = tmp_path / Path(script).stem
        folder.mkdir()
        options = [parse(OPTIONS[name], args, prog=name) for name, args in recorded(folder, script)]
        trained = [run for run in options if isinstance(run, HeadRun)]
        setups = [one.setup for one in options if isinstance(one, reproduce.Reproduce)]
        for target in {setup.head_target for setup in setups}:
            heads = [head for setup in setups if setup.head_target == target for head in setup.heads]
            made_of = {str(run.out / "head") for run in trained if run.target == target}
            assert {head.partition("=")[2] for head in heads} == made_of - {run.start for run in trained}
            assert heads
        made |= {run.out.name for run in trained}
    bundled = {file.parent.name for file in BUNDLED_FOLDER.glob("*/config.json")}
    assert bundled - {file.parent.name for file in BUNDLED_FOLDER.glob("*/tokenizer.json")} <= made


def test_shapes_equal_those_of_the_bundled_models(tmp_path):
    for name, (run, *_) in stages(tmp_path).items():
        config = json.loads((BUNDLED_FOLDER / name / "config.json").read_text())
        if isinstance(run, TextRun):
            wanted = {"hidden_size": run.width, "num_hidden_layers": run.layers, "num_attention_heads": run.heads}
        else:
            wanted = {
                "d_model": run.width, "num_heads": run.heads, "d_kv": run.head_width,
                "num_layers": run.encoder_layers, "num_decoder_layers": run.decoder_layers,
            }  # fmt: skip
        assert {key: config[key] for key in wanted} == wanted, name
