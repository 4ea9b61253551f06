"""Every drafter and policy through the program, by the names of the registry."""

import json

import jax
import pytest

import specjax as sj
from specjax import drafters, registry
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.strategy import Strategy
from specjax.training.lm import FORMAT
from tests.cli import toys

NEW = ["--max-new-tokens", "8", "--temperature", "0", "--ignore-eos", "--json"]
PROMPT = "abcabcabc"


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> dict[str, str]:
    """Folders of a target of two layers, a draft that is often right, a smaller one; a text; a fitted table; a head."""
    root = tmp_path_factory.mktemp("family")
    toys.write_model(root / "target", layers=2)
    toys.write_model(root / "draft", layers=2, noise=0.03)
    toys.write_model(root / "small", noise=0.03)
    (root / "text").write_text("abcabd\nbcabca\n")
    made = {name: str(root / name) for name in ("target", "draft", "small", "text")}
    target = sj.load(made["target"])
    table = drafters.fitting.fit_texts(target, ["abcabd", "bcabca"])
    drafters.fitting.save(table, root / "table.safetensors")
    config = MedusaConfig(target.vocab_size, target.config.width, 2)
    params = KINDS["medusa"].init(jax.random.key(0), config, FORMAT)
    Head("medusa", KINDS["medusa"], config, FORMAT, params, target).save_pretrained(root / "head")
    return made | {"table": str(root / "table.safetensors"), "head": str(root / "head")}


@pytest.fixture(scope="module")
def plain(family) -> list[int]:
    return sj.generate(sj.load(family["target"]), [PROMPT], max_new_tokens=8, temperature=0.0, ignore_eos=True).tokens[
        0
    ]


RUNS = {  # each drafter, and the verifier that suits it
    "table:gamma=2,file={table}": "token",
}  # fmt: skip
HEAVY = {
    "tree:shape=2x1": "multiround-without",
    "ngram:gamma=2": "token", "plain": "token",
    "model:gamma=2": "token", "suffix:gamma=2": "token", "lookahead:window=2,ngram=3,guesses=2": "deterministic",
    "quantized:gamma=2": "token",
    "dynamic-tree:size=6,depth=2,width=2": "deterministic", "cascade:gamma=3,inner=(model:gamma=2)": "token",
    "suffix-tree:size=5,depth=2": "deterministic", "layer-skip:gamma=2,layers=0": "token",
    "small-kv:gamma=2,budget=8": "token", "bridge:gamma=2": "token", "reencode:gamma=2": "token",
    "head:gamma=2,folder={head}": "token",
}  # fmt: skip
MORE = [
    "model:gamma=2,budget=8", "cascade:gamma=3,inner=(model:gamma=2,budget=8),middle=target,budget=12,"
    "cache=(retrieval:window=6,chunk=2)",
    "model:policy=(heuristic:gamma_max=3)", "model:policy=(threshold:theta=0.1,gamma_max=3)", "model:policy=fixed:2",
    "model:policy=(goodput:target=0/2e-4/0.03,gamma_max=3)", "model:policy=(best:alpha=0.9,c=0.1,gamma_max=3)",
    "model:policy=fixed:0", "tree:shape=2x2,siblings=with", "tree:shape=0-0-1,siblings=points", "tree:shape=chain:3",
    "tree:shape=(sequoia:accept=0.6/0.2,size=5)", "suffix:corpus={text}", "suffix-tree:corpus={text}",
    "table:text={text},order=3", "cascade:inner=(tree:shape=2x2)", "cascade:inner=(lookahead:window=2,ngram=3)",
    "cascade:inner=(layer-skip:gamma=1)", "cascade:inner=(cascade:gamma=3,inner=ngram)", "layer-skip", "ngram",
    "small-kv:gamma=2,budget=12,cache=(snapkv:window=6,observed=2,every=4)",
    "small-kv:gamma=2,budget=12,cache=(retrieval:window=6,chunk=2,every=4)",
]  # fmt: skip
NAMED = {Strategy.parse(text.format(table="x", head="x")).name for text in RUNS | HEAVY}
MORE += [name for name in registry.DRAFTERS if name not in NAMED]  # a new drafter runs with its default settings


def _arguments(text: str, family: dict[str, str]) -> list[str]:
    filled = text.format(**family)
    models = [family["draft"], family["draft" if "cascade:gamma=3,inner=ngram" in text else "small"]]
    drafts = [arg for name in models[: Strategy.parse(filled).needs] for arg in ("--draft", name)]
    return ["generate", "--target", family["target"], *drafts, "--drafter", filled, PROMPT, *NEW]


@pytest.mark.parametrize("text", [*RUNS, *(pytest.param(text, marks=pytest.mark.slow) for text in HEAVY)])
def test_output_equals_plain_decoding(text, family, plain, specjax_program):
    ran = specjax_program(*_arguments(text, family))
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["tokens"] == [plain] and record["lossless"] is True
    assert record["verifier"] == (RUNS | HEAVY)[text] and (record["stats"]["drafted"] > 0) == (text != "plain")


@pytest.mark.slow
@pytest.mark.parametrize("text", MORE)
def test_output_equals_plain_decoding_with_other_settings(text, family, plain, specjax_program):
    ran = specjax_program(*_arguments(text, family))
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["tokens"] == [plain] and record["lossless"] is True


WRONG = {  # arguments, and the option or value that the message must name
    "layers out of range": (["--drafter", "layer-skip:layers=0+7"], "layers"),
    "all layers": (["--drafter", "layer-skip:layers=0-1"], "layers"),
    "no table": (["--drafter", "table:absent.safetensors"], "file=absent.safetensors"),
    "no text": (["--drafter", "suffix:corpus=absent.txt"], "corpus=absent.txt"),
    "no classifier": (["--draft", "{draft}", "--policy", "disco:absent"], "file=absent"),
    "a text for a table": (["--drafter", "table:{text}"], "safetensors"),
    "unknown policy": (["--draft", "{draft}", "--policy", "heurstic"], "'heuristic'"),
    "policy of ngram": (["--drafter", "ngram", "--policy", "heuristic"], "policy"),
    "empty names": (["--drafter", ""], "drafter ''"),
    "empty policy of ngram": (["--drafter", "ngram", "--policy", ""], "policy ''"),
    "policy and gamma": (["--draft", "{draft}", "--policy", "heuristic", "--gamma", "3"], "--gamma 3"),
    "gamma of a tree": (["--drafter", "tree", "--draft", "{draft}", "--gamma", "3"], "--gamma 3"),
    "gamma twice": (["--drafter", "ngram:gamma=4", "--gamma", "3"], "--gamma 3"),
    "one draft of two": (["--drafter", "cascade", "--draft", "{draft}"], "--draft"),
    "three drafts": (["--draft", "a", "--draft", "b", "--draft", "c"], "--drafter"),
    "draft too many": (["--drafter", "model", "--draft", "{draft}", "--draft", "b"], "--draft b"),
    "lossy": (["--drafter", "ngram", "--verifier", "lossy-typical", "--lossless"], "lossy-typical"),
    "wrong verifier": (["--drafter", "suffix-tree", "--verifier", "token"], "deterministic"),
    "shape": (["--drafter", "tree:shape=3by2", "--draft", "{draft}"], "shape"),
    "small window": (["--drafter", "small-kv:budget=6"], "budget"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
@pytest.mark.usefixtures("nothing_is_computed")
def test_bad_options_are_refused_in_one_line_before_any_work(case, refused, family):
    args, name = WRONG[case]
    refused("generate", "x", "--target", family["target"], *(arg.format(**family) for arg in args), name=name)


def test_lossy_run_is_reported(specjax_program, family):
    args = ["--target", family["target"], "--drafter", "ngram:gamma=2", "--verifier", "lossy-typical", *NEW]
    ran = specjax_program("generate", PROMPT, *args)
    record = json.loads(ran.out)
    assert ran.code == 0 and record["lossless"] is False and record["verifier"] == "lossy-typical"


def test_help_lists_everything(specjax_program):
    ran = specjax_program("generate", "--drafter", "help")
    assert ran.code == 0 and ran.err == ""
    for name in registry.DRAFTERS:
        assert f"\n{name}: " in ran.out and all(key in ran.out for key in registry.settings("drafter", name))
    found = specjax_program("trace", "--policy", "help")
    assert found.code == 0 and all(f"\n{name}: " in found.out for name in registry.POLICIES)
