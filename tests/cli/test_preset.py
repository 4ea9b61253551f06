"""`--config FILE.py`: a preset supplies the options that the command line does not give."""

import dataclasses
import json
import subprocess
import sys

import pytest

from specjax.cli.arguments import parse
from specjax.cli.options import Options, merged, with_defaults
from specjax.config import RunConfig

CONFIG = RunConfig("t", draft="d", gamma=2, temperature=1.5, max_new_tokens=9, top_k=7, seed=3, stop=("a", "b"))


def settled(*args: str, config: RunConfig = CONFIG) -> RunConfig:
    return merged(parse(Options, args, prog="x", default=with_defaults(Options(), config)), config)


def test_preset_supplies_missing_options():
    assert settled("prompt") == dataclasses.replace(CONFIG, drafter="model")


def test_command_line_overrides_the_preset():
    """Values that are the command line's own defaults, too, and lists are replaced."""
    config = settled("--temperature", "0", "--seed", "0", "--max-new-tokens", "64", "--stop", "c", "--gamma", "5")
    assert (config.temperature, config.seed, config.top_k) == (0, 0, 7)
    assert config.max_new_tokens == 64 and config.stop == ("c",) and config.gamma == 5


def test_all_options_can_be_set_by_a_preset():
    config = RunConfig(
        "t", draft="d", mesh="1x1", policy="heuristic", logit_bias=("5=-1",), stop_token=(7,), ignore_eos=True
    )
    assert settled("prompt", config=config) == dataclasses.replace(config, drafter="model")
    changed = dataclasses.replace(config, drafter="model", stop_token=(8,), gamma=4, policy=None)
    assert settled("--stop-token", "8", "--gamma", "4", config=config) == changed


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
        (
            ["--policy", "heuristic"],
            RunConfig("t", draft="d", drafter="model:gamma=4"),
            "model:policy=heuristic",
            ["d"],
        ),
        (["--gamma", "3"], RunConfig("t", drafter="ngram:gamma=4,longest=2"), "ngram:gamma=3,longest=2", []),
        ([], RunConfig("t", draft=("d", "e"), drafter="cascade:gamma=4"), "cascade:gamma=4", ["d", "e"]),
        (["--drafter", "model"], RunConfig("t", draft=("d", "e"), drafter="cascade:gamma=4"), "model", ["d"]),
        ([], RunConfig("t", drafter="plain"), "plain", []),
        (["--drafter", "ngram", "--gamma", "2"], CONFIG, "ngram:gamma=2", []),
        (["--drafter", "model:gamma=7"], CONFIG, "model:gamma=7", ["d"]),
        (
            ["--drafter", "cascade"],
            RunConfig("bundled/opt-target", draft="d", gamma=3),
            "cascade",
            ["bundled/opt-draft", "bundled/opt-tiny"],
        ),
    ],
)
def test_options_of_the_preset_that_do_not_fit_are_dropped(args, config, drafter, drafts):
    found = settled("x", *args, config=config)
    assert (found.strategy.text, list(found.drafts)) == (drafter, drafts)


@pytest.mark.parametrize(
    "args",
    [
        ["--drafter", "model:gamma=7"], ["--drafter", "lookahead"], ["--drafter", "plain"], ["--policy", "heuristic"],
        ["--drafter", "ngram:gamma=5"],
    ],
)  # fmt: skip
def test_contradicting_options_are_refused_whatever_the_preset(args):
    with pytest.raises(ValueError, match="gamma 2"):
        settled("x", *args, "--gamma", "2")


def test_another_drafter_drops_the_verifier_of_the_preset():
    config = RunConfig("t", drafter="ngram", verifier="token", lossless=True)
    chosen = settled("x", "--drafter", "lookahead", config=config)
    assert (chosen.verifier, chosen.lossless) == (None, True)
    assert settled("x", "--drafter", "lookahead", "--verifier", "deterministic", config=config).verifier
    assert settled("x", "--drafter", "ngram", config=config).verifier == "token"


def test_verifier_of_a_preset_and_lossless():
    config = RunConfig("t", drafter="ngram", verifier="lossy-typical")
    assert settled("x", config=config).verifier == "lossy-typical" and settled("x").verifier is None
    with pytest.raises(ValueError, match="lossy-typical"):
        settled("x", "--lossless", config=config)


def test_generate_with_a_preset(specjax_program, models, tmp_path):
    file = tmp_path / "p.py"
    file.write_text(
        "from specjax.config import RunConfig\n"
        f"CONFIG = RunConfig({models['target']!r}, drafter='plain', temperature=0.0, max_new_tokens=5, seed=8)\n"
    )
    ran = specjax_program("generate", "--config", str(file), "Once", "--seed", "2", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert len(found["tokens"][0]) == 5 and found["drafter"] == "plain"
    assert (found["settings"]["seed"], found["settings"]["temperature"]) == (2, 0.0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CONFIG = RunConfig('m', drafter='plain', max_tokens=0)", "'max_new_tokens'"),
        ("CONFIG = 3", "CONFIG"),
        (None, "no such preset"),
    ],
)
def test_bad_files_are_one_line(text, name, refused, tmp_path):
    file = tmp_path / "p.py"
    if text is not None:
        file.write_text(f"from specjax.config import RunConfig\n{text}\n")
    refused("generate", "x", "--config", str(file), name=name)


@pytest.mark.slow
def test_values_of_a_wrong_type_are_one_line(tmp_path):
    """In a process of its own: in this one annotations are checked before."""
    file = tmp_path / "p.py"
    file.write_text("from specjax.config import RunConfig\nCONFIG = RunConfig('m', drafter='plain', seed='1')\n")
    command = [sys.executable, "-m", "specjax.cli", "generate", "x", "--config", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1) and "seed" in ran.stderr
