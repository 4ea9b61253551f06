"""Drafters and policies by name: the grammar and its tables."""

import inspect
import subprocess
import sys

import pytest

from specjax import drafters, policies
from specjax.naming import drafting, nested, policing
from specjax.naming.drafting import label, needs, parse
from specjax.naming.grammar import Spec

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
    "quantized:gamma=2", "bridge:gamma=3,width=2", "reencode:stretch=3", "plain",
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
        "layer-skip": drafters.layer_skip, "quantized": drafters.quantized, "bridge": drafters.bridge,
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
    "": "unknown drafter ''",
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


def test_names_are_read_without_jax():
    texts = [text for text in TEXTS if "shape" not in text and "verifier" not in text]  # those ask what makes them
    code = f"import sys; from specjax.naming import drafting; [drafting.parse(text) for text in {texts}]; "
    ran = subprocess.run([sys.executable, "-c", code + "print('jax' in sys.modules)"], capture_output=True, text=True)
    assert len(texts) > 20 and ran.stdout == "False\n", ran.stderr
