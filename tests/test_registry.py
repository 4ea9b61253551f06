"""Registry: grammar, settings derived from constructors, and `Strategy`."""

import inspect
import subprocess
import sys

import pytest

import specjax as sj
from specjax import registry
from specjax.drafters import Siblings
from specjax.strategy import Choice, Strategy

TEXTS = [
    "model", "model:gamma=4", "model:policy=heuristic", "model:policy=(threshold:gamma_max=8,theta=0.3)",
    "model:policy=(goodput:draft=0.0/0.0001/0.005,target=0.0/0.0002/0.03)", "model:policy=(disco:file=a.safetensors)",
    "model:policy=(best:alpha=0.7,c=0.1,gamma_max=1,verify_cost=1.0/1.1)", "tree:shape=3x2x1,siblings=with",
    "tree:shape=0-0-1", "tree:shape=(chain:gamma=5)", "tree:shape=(sequoia:accept=0.6/0.2,depth=3,size=8)",
    "dynamic-tree:depth=3,size=12", "ngram:gamma=4,longest=2,shortest=2", "suffix:confidence=0.25,gamma=2",
    "suffix:corpus=(a,b.txt)", "suffix-tree:size=9", "lookahead:guesses=5,ngram=4,window=5",
    "table:file=t.safetensors", "table:order=3,text=t", "cascade:gamma=6,inner=(model:gamma=3),verifier=block",
    "cascade:inner=(cascade:gamma=4,inner=(ngram:gamma=2))", "model:budget=64,cache=(sinks:count=2)",
    "cascade:budget=96,cache=retrieval,inner=(model:budget=16),middle=target",
    "small-kv:budget=64,cache=(snapkv:every=8,window=16)", "small-kv:cache=retrieval", "layer-skip:layers=0-2+5",
    "quantized:gamma=2", "head:dynamic=12,folder=x", "head:folder=x,tree=3x2", "bridge:gamma=3,width=2",
    "reencode:stretch=3", "plain",
]  # fmt: skip
TEXTS += sorted(set(registry.DRAFTERS) - {Strategy.parse(text).name for text in TEXTS})  # a new drafter, with defaults


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trip(text):
    strategy = Strategy.parse(text)
    assert strategy.text == text and Strategy.parse(strategy.text) == strategy
    assert len({strategy, Strategy.parse(text)}) == 1


def test_every_policy_is_covered():
    strategies = [Strategy.parse(text) for text in TEXTS]
    policies = {policy.name for strategy in strategies if (policy := strategy.get("policy"))}
    assert policies == set(registry.POLICIES) - {"fixed"}
    assert Strategy.parse("model:policy=fixed:3") == Strategy.of(
        "model", policy=Choice("policy", "fixed", (("gamma", 3),))
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("tree:3x2", "tree:shape=3x2"),
        ("model:4", "model:gamma=4"),
        (" tree : siblings = with , shape = 3x2 ", "tree:shape=3x2,siblings=with"),
        ("tree:shape=chain:4", "tree:shape=(chain:gamma=4)"),
        ("cascade:inner=model:gamma=3,gamma=7", "cascade:gamma=7,inner=(model:gamma=3)"),
        ("layer-skip:layers=0+1+2+5+7-8", "layer-skip:layers=0-2+5+7-8"),
        ("table:a/b.safetensors", "table:file=a/b.safetensors"),
        ("model:policy=disco:a/b.safetensors", "model:policy=(disco:file=a/b.safetensors)"),
    ],
)
def test_canonical_text(text, canonical):
    assert Strategy.parse(text).text == canonical


@pytest.mark.parametrize(
    ("text", "count"),
    [("model", 1), ("tree", 1), ("bridge", 1), ("ngram", 0), ("small-kv", 0), ("plain", 0), ("cascade", 2),
     ("cascade:inner=ngram", 1), ("cascade:inner=cascade", 3), ("cascade:middle=target,budget=64", 1)],
)  # fmt: skip
def test_number_of_draft_models(text, count):
    assert Strategy.parse(text).needs == count


@pytest.mark.parametrize(
    ("text", "nodes", "levels", "gamma"),
    [("model", 6, 5, 5), ("model:gamma=2", 3, 2, 2), ("model:policy=(heuristic:gamma_max=4)", 5, 4, None),
     ("tree", 10, 2, None), ("tree:shape=(sequoia:accept=0.6/0.2,size=8)", 8, 4, None), ("dynamic-tree", 16, 4, None),
     ("suffix-tree:size=9,depth=3", 9, 3, None), ("lookahead:window=2,ngram=3,guesses=4", 12, 2, None),
     ("plain", 1, 0, None), ("cascade", 7, 6, 6), ("ngram", 9, 8, 8)],
)  # fmt: skip
def test_size_of_a_round(text, nodes, levels, gamma):
    strategy = Strategy.parse(text)
    assert (strategy.nodes, strategy.levels, strategy.gamma) == (nodes, levels, gamma)


def test_every_argument_of_a_constructor_is_a_documented_setting():
    for kind, table in registry.TABLES.items():
        for name, entry in table.items():
            parameters = inspect.signature(registry.resolve(entry.constructor)).parameters
            known = registry.settings(kind, name)
            models = ("draft", "target") if kind == "drafter" else ()
            expected = {registry.KEYS.get(one, one) for one in parameters if one not in (*models, *entry.made)}
            assert expected <= set(known), name
            assert registry.summary(kind, name) and all(setting.about for setting in known.values()), name


def test_python_expression_builds_the_same_drafter():
    drafts = ["middle", "small"]
    expected = {
        "plain": "sj.drafters.plain()",
        "tree:shape=2x1,siblings=points":
            'sj.drafters.tree(sj.load("middle"), shape=sj.trees.regular((2, 1)), '
            "siblings=sj.drafters.Siblings.POINTS)",
        "cascade:gamma=6,inner=(model:gamma=3)":
            'sj.drafters.cascade(sj.load("middle"), drafter=sj.drafters.model(sj.load("small"), gamma=3), gamma=6)',
        "small-kv:budget=64,cache=(snapkv:window=16)":
            "sj.drafters.small_kv(target, budget=64, selection=sj.drafters.SnapKV(window=16))",
    }  # fmt: skip
    for text, python in expected.items():
        assert Strategy.parse(text).python(drafts) == python
    for text in ("ngram:gamma=2", "lookahead:window=2,ngram=3", "suffix-tree:size=9"):
        strategy = Strategy.parse(text)
        assert eval(strategy.python(), {"sj": sj}) == strategy.build(None)  # pyright: ignore[reportArgumentType]


def test_replace_settings():
    assert Strategy.parse("model").replace_settings(gamma=4).text == "model:gamma=4"
    assert Strategy.parse("model:gamma=4").replace_settings(gamma=None) == Strategy("model")
    assert Strategy.parse("tree").replace_settings(siblings=Siblings.POINTS).text == "tree:siblings=points"
    policy = Choice.parse("policy", "heuristic:gamma_max=4")
    assert Strategy.parse("model").replace_settings(policy=policy).text == "model:policy=(heuristic:gamma_max=4)"
    assert Strategy.parse("ngram").takes_gamma and not Strategy.parse("model:policy=heuristic").takes_gamma
    for text, changes, name in (
        ("tree", {"gamma": 3}, "gamma"), ("ngram", {"policy": policy}, "policy"),
        ("model:gamma=3", {"policy": policy}, "gamma"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            Strategy.parse(text).replace_settings(**changes)


def test_label_is_short():
    strategy = Strategy.of("cascade", gamma=6, inner=Strategy.of("model", gamma=3), drafts=(1, 0), verifier="block")
    assert strategy.label(["org/small", "org/middle/"]) == "cascade \u03b3=6 (model \u03b3=3) middle > small, block"
    assert Strategy.parse("tree:shape=(sequoia:accept=0.6/0.2,size=8)").label() == "tree 8 nodes"


BAD = {  # text -> what the message must contain
    "": "model, tree",
    "modle": "'model'",
    "small_kv": "'small-kv'",
    "model:gama=3": "'gamma'",
    "model:gamma=0": "gamma",
    "model:gamma=5000": "1024",
    "model:gamma=x": "gamma",
    "model:gamma": "gamma",
    "model:gamma=": "gamma",
    "model:": "colon",
    "model:gamma=3,gamma=4": "gamma",
    "model:gamma=2,policy=heuristic": "gamma or policy",
    "model:policy=herustic": "'heuristic'",
    "model:policy=fixed": "gamma",
    "model:policy=disco": "file",
    "model:policy=best:alpha=0.5": "setting c",
    "model:policy=goodput:target=1/2": "target",
    "model:policy=(threshold:theta=2)": "theta",
    "model:policy=(threshold:theta=nan)": "theta",
    "plain:gamma=3": "gamma",
    "tree:shape=3y2": "shape",
    "tree:shape=3x0": "shape",
    "tree:shape=0-5": "shape",
    "tree:shape=99x99": "1024",
    "tree:shape=sequoia": "accept",
    "tree:siblings=witout": "'without'",
    "suffix:confidence=2": "confidence",
    "lookahead:ngram=1": "ngram",
    "lookahead:window=4000": "1024",
    "layer-skip:layers=5-2": "layers",
    "layer-skip:layers=1+1": "layers",
    "layer-skip:layers=first": "layers",
    "cascade:middle=target": "budget",
    "cascade:inner=modle": "'model'",
    "cascade:verifier=blok": "'block'",
    "cascade:verifier=lossy-typical": "lossy",
    "cascade:inner=(model:gamma=2": "parentheses",
    "table": "file or text",
    "table:file=a,text=b": "file or text",
    "table:file=a,order=2": "file or order",
    "small-kv:cache=snapvk": "'snapkv'",
    "small-kv:cache=(snapkv:window=0)": "window",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_one_line(text):
    with pytest.raises(ValueError, match=BAD[text]) as raised:
        Strategy.parse(text)
    assert "\n" not in str(raised.value)


def test_too_few_draft_models_and_missing_files(tmp_path):
    with pytest.raises(ValueError, match="cascade"):
        Strategy.parse("cascade").build(None, [])  # pyright: ignore[reportArgumentType]
    for text, key in (
        ("table:file=absent", "file"),
        ("model:policy=disco:absent", "file"),
        ("suffix:corpus=absent", "corpus"),
    ):
        with pytest.raises(ValueError, match=f"{key}=absent"):
            Strategy.parse(text).check_files()


def test_arguments_of_a_docstring():
    doc = "Summary.\n\nArgs:\n  one: first\n    line two.\n  two, three: both.\n\nReturns:\n  four: no.\n"
    assert registry.arguments_of(doc) == {"one": "first line two.", "two": "both.", "three": "both."}


def test_import_needs_no_jax():
    code = "import sys; from specjax import registry; print(len(registry.DRAFTERS), 'jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(len(registry.DRAFTERS)), "False"]
