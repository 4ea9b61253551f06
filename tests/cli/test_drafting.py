"""Drafters by name: the grammar, its table, and every one of them through the program."""

import inspect
import json

import pytest

import specjax as sj
from specjax import decoding, drafters, policies
from specjax.cli import catalogue, drafting, nested, policing
from specjax.cli.drafting import label, make, needs, parse
from specjax.cli.grammar import Spec
from tests.cli import toys

NEW = ["--max-new-tokens", "8", "--temperature", "0", "--ignore-eos", "--json"]
PROMPT = "abcabcabc"
TEXTS = [
    "model", "model:gamma=4", "model:policy=heuristic", "model:policy=(threshold:theta=0.3,gamma_max=8)",
    "model:policy=(goodput:target=0.0/0.0002/0.03,draft=0.0/0.0001/0.005)", "model:policy=(disco:file=a.safetensors)",
    "model:policy=(best:alpha=0.7,c=0.1,verify_cost=1.0/1.1)", "tree:shape=3x2x1,siblings=with", "tree:shape=0-0-1",
    "tree:shape=(chain:gamma=5)", "tree:shape=(sequoia:accept=0.6/0.2,size=8,depth=3)", "dynamic-tree:size=12,depth=3",
    "ngram:gamma=4,longest=2,shortest=2", "suffix:gamma=2,confidence=0.25", "suffix:corpus=(a,b.txt)",
    "suffix-tree:size=9", "lookahead:window=5,ngram=4,guesses=5", "table:file=t.safetensors", "table:text=t,order=3",
    "cascade:gamma=6,inner=(model:gamma=3),verifier=block", "cascade:inner=(cascade:gamma=4,inner=(ngram:gamma=2))",
    "model:budget=64,cache=(sinks:count=2)", "cascade:inner=(model:budget=16),middle=target,budget=64,cache=retrieval",
    "small-kv:budget=64,cache=(snapkv:window=16,every=8)", "small-kv:cache=retrieval", "layer-skip:layers=0-2+5",
    "quantised:gamma=2", "bridge:gamma=3,width=2", "reencode:stretch=3", "plain",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_label_is_read_as_what_it_was_written_of(text):
    spec = parse(text)
    assert label(spec) == text and parse(label(spec)) == spec


def test_every_drafter_and_policy_stands_in_a_text():
    assert {parse(text).name for text in TEXTS} == set(drafting.DRAFTERS)
    used = {spec.settings["policy"].name for spec in map(parse, TEXTS) if "policy" in spec.settings}
    assert used == set(policing.POLICIES) - {"fixed"}
    assert parse("model:policy=fixed:3") == Spec("model", {"policy": Spec("fixed", {"gamma": 3})})


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("tree:3x2", "tree:shape=3x2"),
        (" tree : siblings = with , shape = 3x2 ", "tree:shape=3x2,siblings=with"),
        ("tree:shape=chain:4", "tree:shape=(chain:gamma=4)"),
        ("cascade:inner=model:gamma=3,gamma=7", "cascade:gamma=7,inner=(model:gamma=3)"),
        ("layer-skip:layers=0+1+2+5+7-8", "layer-skip:layers=0-2+5+7-8"),
        ("table:a/b.safetensors", "table:file=a/b.safetensors"),
        ("model:policy=disco:a/b.safetensors", "model:policy=(disco:file=a/b.safetensors)"),
        ("model:policy=confidence", "model:policy=threshold"),
    ],
)
def test_other_ways_to_say_it(text, canonical):
    assert label(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "count"),
    [("model", 1), ("tree", 1), ("bridge", 1), ("ngram", 0), ("small-kv", 0), ("plain", 0), ("cascade", 2),
     ("cascade:inner=ngram", 1), ("cascade:inner=cascade", 3), ("cascade:middle=target,budget=64", 1)],
)  # fmt: skip
def test_how_many_draft_models(text, count):
    assert needs(parse(text)) == count


def test_defaults_are_those_of_the_constructors():
    named = {
        "model": drafters.model, "dynamic-tree": drafters.dynamic_tree, "ngram": drafters.ngram,
        "suffix": drafters.suffix, "suffix-tree": drafters.suffix_tree, "lookahead": drafters.lookahead,
        "table": drafters.table, "cascade": drafters.cascade, "small-kv": drafters.small_kv,
        "layer-skip": drafters.layer_skip, "quantised": drafters.quantised, "bridge": drafters.bridge,
        "reencode": drafters.reencode,
    }  # fmt: skip
    kinds = [(drafting.DRAFTERS[name], function) for name, function in named.items()]
    kinds += [(kind, getattr(policies, name)) for name, kind in policing.POLICIES.items()]
    others = zip(nested.SELECTIONS.values(), (drafters.Sinks, drafters.SnapKV, drafters.Retrieval), strict=True)
    compared = 0
    for kind, function in [*kinds, *others]:
        for name, parameter in inspect.signature(function).parameters.items():
            if name in kind.keys and isinstance(parameter.default, int | float) and name != "policy":
                assert kind.keys[name].default == parameter.default, (kind.about, name)
                compared += 1
    assert compared >= 35 and drafting.DRAFTERS["model"].keys["gamma"].default == drafters.MODEL_GAMMA


def test_gamma_and_policy_from_outside():
    assert label(drafting.with_gamma(parse("model"), 4)) == "model:gamma=4"
    assert label(drafting.with_gamma(parse("small-kv:gamma=2,budget=64"), 4)) == "small-kv:gamma=4,budget=64"
    assert label(drafting.with_policy(parse("model"), "heuristic:gamma_max=4")) == (
        "model:policy=(heuristic:gamma_max=4)"
    )
    for call, said in (
        (lambda: drafting.with_gamma(parse("tree"), 3), "gamma has no meaning for the drafter 'tree'"),
        (lambda: drafting.with_gamma(parse("model:policy=heuristic"), 3), "beside the policy"),
        (lambda: drafting.with_gamma(parse("ngram"), 0), "gamma must be at least 1"),
        (lambda: drafting.with_policy(parse("ngram"), "heuristic"), "takes no policy"),
        (lambda: drafting.with_policy(parse("model:gamma=3"), "heuristic"), "told gamma and a policy"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    assert drafting.takes_gamma(parse("ngram")) and not drafting.takes_gamma(parse("model:policy=heuristic"))


BAD = {
    "": "no drafter is named ''",
    "modle": "did you mean 'model'",
    "small_kv": "did you mean 'small-kv'",
    "model:gama=3": "no setting 'gama', did you mean 'gamma'",
    "model:gamma=0": "gamma must be at least 1, got 0",
    "model:gamma=x": "gamma must be a whole number, got 'x'",
    "model:gamma": "'gamma' is not KEY=VALUE",
    "model:gamma=": "gamma has no value",
    "model:": "nothing stands after the colon",
    "model:gamma=3,gamma=4": "is told gamma twice",
    "model:gamma=2,policy=heuristic": "told gamma and a policy",
    "model:policy=herustic": "did you mean 'heuristic'",
    "model:policy=fixed": "needs gamma",
    "model:policy=disco": "needs file",
    "model:policy=best:alpha=0.5": "needs alpha and c|needs c",
    "model:policy=goodput:target=1/2": "must be 3 numbers",
    "model:policy=(threshold:theta=2)": "theta must be finite and between 0 and 1, got 2",
    "model:policy=(threshold:theta=nan)": "theta must be finite",
    "plain:gamma=3": "takes no settings, got 'gamma=3'",
    "tree:shape=3y2": "shape must be children by level",
    "tree:shape=3x0": "at least one child a level, got '3x0'",
    "tree:shape=0-5": "node 2 has parent 5",
    "tree:shape=99x99": "at most 1024 nodes",
    "tree:shape=sequoia": "'sequoia' needs accept",
    "tree:shape=(sequoia:size=4)": "'sequoia' needs accept",
    "tree:siblings=witout": "did you mean 'without'",
    "dynamic-tree:size=1": "size must be at least 2, got 1",
    "suffix:confidence=2": "between 0 and 1, got 2",
    "lookahead:ngram=1": "ngram must be at least 2, got 1",
    "layer-skip:layers=5-2": "must be ascending",
    "layer-skip:layers=1+1": "must be ascending",
    "layer-skip:layers=first": "numbers and ranges such as 0-2",
    "model:cache=sinks": "cache is of a budget",
    "cascade:middle=target": "drafts on a small cache",
    "cascade:inner=bridge": "cannot serve in a cascade",
    "cascade:inner=modle": "did you mean 'model'",
    "cascade:verifier=blok": "did you mean 'block'",
    "cascade:verifier=lossy-typical": "'lossy-typical' is lossy",
    "cascade:inner=(model:gamma=2": "parentheses",
    "table": "needs file=FITTED.safetensors or text=FILE",
    "table:file=a,text=b": "not both",
    "table:file=a,order=2": "order is of a table that is fitted",
    "small-kv:cache=snapvk": "did you mean 'snapkv'",
    "small-kv:cache=(snapkv:window=0)": "window must be at least 1, got 0",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_texts_are_one_line(text):
    with pytest.raises(ValueError, match=BAD[text]) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


# --- with models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> dict[str, str]:
    """Folders of a target of two layers, a draft that is often right, a smaller one; a text; a fitted table."""
    root = tmp_path_factory.mktemp("family")
    toys.write_model(root / "target", layers=2)
    toys.write_model(root / "draft", layers=2, noise=0.03)
    toys.write_model(root / "small", noise=0.03)
    (root / "text").write_text("abcabd\nbcabca\n")
    made = {name: str(root / name) for name in ("target", "draft", "small", "text")}
    target = sj.load(made["target"])
    table = drafters.fitting.fit_texts(target, ["abcabd", "bcabca"])
    drafters.fitting.save(table, root / "table.safetensors")
    return made | {"table": str(root / "table.safetensors")}


@pytest.fixture(scope="module")
def plain(family) -> list[int]:
    return sj.generate(sj.load(family["target"]), [PROMPT], max_new_tokens=8, temperature=0.0, ignore_eos=True).tokens[
        0
    ]


RUNS = {  # each drafter, and the verifier that suits it
    "tree:shape=2x1": "multiround-without", "ngram:gamma=2": "token", "table:gamma=2,file={table}": "token",
    "plain": "token",
}  # fmt: skip
HEAVY = {
    "model:gamma=2": "token", "suffix:gamma=2": "token", "lookahead:window=2,ngram=3,guesses=2": "deterministic",
    "quantised:gamma=2": "token",
    "dynamic-tree:size=6,depth=2,width=2": "deterministic", "cascade:gamma=3,inner=(model:gamma=2)": "token",
    "suffix-tree:size=5,depth=2": "deterministic", "layer-skip:gamma=2,layers=0": "token",
    "small-kv:gamma=2,budget=8": "token", "bridge:gamma=2": "token", "reencode:gamma=2": "token",
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


def _arguments(text: str, family: dict[str, str]) -> list[str]:
    filled = text.format(**family)
    models = [family["draft"], family["draft" if "cascade:gamma=3,inner=ngram" in text else "small"]]
    drafts = [arg for name in models[: needs(parse(filled))] for arg in ("--draft", name)]
    return ["generate", "--target", family["target"], *drafts, "--drafter", filled, PROMPT, *NEW]


def test_every_drafter_runs():
    assert {parse(text.format(table="x")).name for text in RUNS | HEAVY} == set(drafting.DRAFTERS)


@pytest.mark.parametrize("text", [*RUNS, *(pytest.param(text, marks=pytest.mark.slow) for text in HEAVY)])
def test_it_says_what_plain_decoding_says(text, family, plain, specjax_program):
    ran = specjax_program(*_arguments(text, family))
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["tokens"] == [plain] and told["lossless"] is True
    assert told["verifier"] == (RUNS | HEAVY)[text] and (told["stats"]["drafted"] > 0) == (text != "plain")


@pytest.mark.slow
@pytest.mark.parametrize("text", MORE)
def test_so_it_does_with_other_settings(text, family, plain, specjax_program):
    ran = specjax_program(*_arguments(text, family))
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["tokens"] == [plain] and told["lossless"] is True


def test_the_catalogue_names_verifiers_that_serve(family):
    target, draft, small = (sj.load(family[name]) for name in ("target", "draft", "small"))
    for text in RUNS | HEAVY:
        spec = parse(text.format(**family))
        kind, part = drafting.DRAFTERS[spec.name], make(spec, target, [draft, small]).drafter
        if kind.makes:
            assert catalogue.verifiers(kind) == catalogue.serving(part.tree, part.siblings, part.dynamic), text


def test_too_few_models(family):
    with pytest.raises(ValueError, match="the drafter 'cascade' needs 2 draft models, got 0"):
        make(parse("cascade"), sj.load(family["target"]), [])


WRONG = {
    "layers out of range": (["--drafter", "layer-skip:layers=0+7"], "layers must be some of 0..1"),
    "all layers": (["--drafter", "layer-skip:layers=0-1"], "names all 2 layers"),
    "no table": (["--drafter", "table:absent.safetensors"], "there is no file at absent.safetensors"),
    "no text": (["--drafter", "suffix:corpus=absent.txt"], "there is no corpus at absent.txt"),
    "no classifier": (["--draft", "{draft}", "--policy", "disco:absent"], "there is no file at absent"),
    "a text for a table": (["--drafter", "table:{text}"], "is not a readable safetensors file"),
    "unknown policy": (["--draft", "{draft}", "--policy", "heurstic"], "did you mean 'heuristic'"),
    "policy of ngram": (["--drafter", "ngram", "--policy", "heuristic"], "takes no policy"),
    "policy beside gamma": (["--draft", "{draft}", "--policy", "heuristic", "--gamma", "3"], "beside the policy"),
    "gamma of a tree": (["--drafter", "tree", "--draft", "{draft}", "--gamma", "3"], "no meaning for the drafter"),
    "gamma twice": (["--drafter", "ngram:gamma=4", "--gamma", "3"], "say gamma once"),
    "one draft of two": (["--drafter", "cascade", "--draft", "{draft}"], "needs --draft, 2 times.*got 1"),
    "three drafts": (["--draft", "a", "--draft", "b", "--draft", "c"], "say which --drafter uses them"),
    "draft too many": (["--drafter", "model", "--draft", "{draft}", "--draft", "b"], "--draft b is not used"),
    "lossy": (["--drafter", "ngram", "--verifier", "lossy-typical", "--lossless"], "'lossy-typical' is lossy"),
    "wrong verifier": (["--drafter", "suffix-tree", "--verifier", "token"], "serves a chain.*deterministic"),
    "shape": (["--drafter", "tree:shape=3by2", "--draft", "{draft}"], "shape must be children by level"),
    "small window": (["--drafter", "small-kv:budget=6"], "raise the budget or lower gamma"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_one_line_and_nothing_is_computed(case, specjax_program, family, monkeypatch):
    def computed(*args, **options):
        raise AssertionError("something was computed")

    monkeypatch.setattr(decoding, "prefill", computed)
    args, said = WRONG[case]
    ran = specjax_program("generate", "x", "--target", family["target"], *(arg.format(**family) for arg in args))
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1
    with pytest.raises(ValueError, match=said):
        raise ValueError(ran.err)


def test_a_lossy_run_says_so(specjax_program, family):
    args = ["--target", family["target"], "--drafter", "ngram:gamma=2", "--verifier", "lossy-typical", *NEW]
    ran = specjax_program("generate", PROMPT, *args)
    told = json.loads(ran.out)
    assert ran.code == 0 and told["lossless"] is False and told["verifier"] == "lossy-typical"


def test_help_lists_everything(specjax_program):
    ran = specjax_program("generate", "--drafter", "help")
    assert ran.code == 0 and ran.err == ""
    for name, kind in drafting.DRAFTERS.items():
        assert f"\n{name}: {kind.about}" in ran.out and all(key in ran.out for key in kind.keys)
    told = specjax_program("trace", "--policy", "help")
    assert told.code == 0 and all(f"\n{name}: " in told.out for name in policing.POLICIES)
