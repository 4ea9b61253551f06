"""`--config FILE.py`: the preset holds where the command line says nothing."""

import json
import subprocess
import sys

import pytest

from specjax.cli import setup
from specjax.cli.arguments import parse
from specjax.cli.options import Options, merge_preset, preset_defaults
from specjax.config import RunConfig

CONFIG = RunConfig("t", draft="d", gamma=2, temperature=1.5, max_new_tokens=9, top_k=7, seed=3, stop=("a", "b"))


def settled(*args: str, config: RunConfig = CONFIG) -> Options:
    return merge_preset(parse(Options, args, prog="x", default=preset_defaults(config)), config)


def test_the_preset_holds_where_nothing_is_said():
    options = settled("prompt")
    assert options.prompt == ("prompt",) and options.models.target == "t" and options.models.draft == ("d",)
    assert (options.drafting.drafter, options.drafting.gamma) == ("model", 2)
    assert (options.sampling.temperature, options.sampling.top_k, options.sampling.seed) == (1.5, 7, 3)
    assert options.stopping.max_new_tokens == 9 and options.stopping.stop == ("a", "b")


def test_the_command_line_has_the_last_word():
    """Values that are the command line's own defaults, too, and lists are replaced."""
    options = settled("--temperature", "0", "--seed", "0", "--max-new-tokens", "64", "--stop", "c", "--gamma", "5")
    assert (options.sampling.temperature, options.sampling.seed, options.sampling.top_k) == (0, 0, 7)
    assert options.stopping.max_new_tokens == 64 and options.stopping.stop == ("c",) and options.drafting.gamma == 5


@pytest.mark.parametrize(
    ("args", "config", "drafter", "drafts"),
    [
        ([], CONFIG, "model:gamma=2", ["d"]),
        (["--drafter", "ngram"], CONFIG, "ngram", []),
        (["--drafter", "plain"], CONFIG, "plain", []),
        (["--drafter", "ngram", "--gamma", "3"], CONFIG, "ngram:gamma=3", []),
        (["--drafter", "tree:3x2"], CONFIG, "tree:shape=3x2", ["d"]),
        (["--draft", "e"], CONFIG, "model:gamma=2", ["e"]),
        (["--draft", "e", "--draft", "f"], CONFIG, "cascade:gamma=2", ["e", "f"]),
        (["--draft", "e"], RunConfig("t", drafter="ngram", gamma=4), "model:gamma=4", ["e"]),
        (["--policy", "heuristic"], CONFIG, "model:policy=heuristic", ["d"]),
        (["--policy", "heuristic"], RunConfig("t", "d", "model:gamma=4"), "model:policy=heuristic", ["d"]),
        (["--gamma", "3"], RunConfig("t", drafter="ngram:gamma=4,longest=2"), "ngram:gamma=3,longest=2", []),
        ([], RunConfig("t", ("d", "e"), "cascade:gamma=4"), "cascade:gamma=4", ["d", "e"]),
        (["--drafter", "model"], RunConfig("t", ("d", "e"), "cascade:gamma=4"), "model", ["d"]),
        ([], RunConfig("t", drafter="plain"), "plain", []),
        (["--drafter", "ngram", "--gamma", "2"], CONFIG, "ngram:gamma=2", []),
        (["--drafter", "model:gamma=7"], CONFIG, "model:gamma=7", ["d"]),
        (
            ["--drafter", "cascade"],
            RunConfig("bundled/opt-target", "d", gamma=3),
            "cascade",
            ["bundled/opt-draft", "bundled/opt-tiny"],
        ),
    ],
)
def test_what_hangs_together_gives_way(args, config, drafter, drafts):
    plan = setup.plan(settled("x", *args, config=config))
    assert (plan.drafter.text, list(plan.drafts)) == (drafter, drafts)


@pytest.mark.parametrize(
    "args",
    [
        ["--drafter", "model:gamma=7"], ["--drafter", "lookahead"], ["--drafter", "plain"], ["--policy", "heuristic"],
        ["--drafter", "ngram:gamma=5"],
    ],
)  # fmt: skip
def test_a_gamma_that_is_also_the_presets_is_not_taken_for_it(args):
    """What contradicts itself on the command line is refused, whatever the preset says."""
    with pytest.raises(ValueError, match="--gamma 2"):
        setup.plan(settled("x", *args, "--gamma", "2"))


def test_a_drafter_puts_the_presets_verifier_away():
    config = RunConfig("t", drafter="ngram", verifier="token", lossless=True)
    chosen = settled("x", "--drafter", "lookahead", config=config).drafting
    assert (chosen.verifier, chosen.lossless) == (None, True)
    assert settled("x", "--drafter", "lookahead", "--verifier", "deterministic", config=config).drafting.verifier
    assert settled("x", "--drafter", "ngram", config=config).drafting.verifier == "token"


def test_the_verifier_of_a_preset_and_lossless():
    config = RunConfig("t", drafter="ngram", verifier="lossy-typical")
    lossy = setup.plan(settled("x", config=config)).verifier
    assert lossy is not None and lossy.name == "lossy-typical"
    assert setup.plan(settled("x", config=CONFIG)).verifier is None
    with pytest.raises(ValueError, match="lossy-typical"):
        setup.plan(settled("x", "--lossless", config=config))


def test_it_runs(specjax_program, models, tmp_path):
    file = tmp_path / "p.py"
    file.write_text(
        "from specjax.config import RunConfig\n"
        f"CONFIG = RunConfig({models['target']!r}, drafter='plain', temperature=0.0, max_new_tokens=5, seed=8)\n"
    )
    ran = specjax_program("generate", "--config", str(file), "Once", "--seed", "2", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert len(told["tokens"][0]) == 5 and told["drafter"] == "plain"
    assert (told["settings"]["seed"], told["settings"]["temperature"]) == (2, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CONFIG = RunConfig('m', drafter='plain', max_tokens=0)", "'max_new_tokens'"),
        ("CONFIG = 3", "CONFIG"),
        (None, "no such preset"),
    ],
)
def test_bad_files_are_one_line(text, said, refused, tmp_path):
    file = tmp_path / "p.py"
    if text is not None:
        file.write_text(f"from specjax.config import RunConfig\n{text}\n")
    refused("generate", "x", "--config", str(file), said=said)


def test_values_of_a_wrong_kind_are_one_line(tmp_path):
    """In a process of its own: in this one annotations are checked before."""
    file = tmp_path / "p.py"
    file.write_text("from specjax.config import RunConfig\nCONFIG = RunConfig('m', drafter='plain', seed='1')\n")
    command = [sys.executable, "-m", "specjax.cli", "generate", "x", "--config", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr == f"specjax generate: error: preset {file}: seed of a preset must be int, got '1'\n"
