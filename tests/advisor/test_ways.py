"""Names of ways: on the command line and in Python they make the drafter that was measured."""

import types

import pytest

import specjax as sj
from specjax import trees
from specjax.advisor import ways
from specjax.naming import drafting

DRAFTS = ("hub/large", "small")
WAYS = [
    ways.PLAIN,
    ways.chain("model", 4, 1),
    ways.chain("ngram", 6),
    ways.chain("suffix", 8),
    ways.lookahead(4, 3, 5),
    ways.tree(trees.regular((3, 2)), 0),
    ways.tree(trees.Tree((-1, 0, 0, 1)), 0),
    ways.cascade(6, 3, 0, 1),
    ways.dynamic_tree(8, 4, 2, 1),
    ways.suffix_tree(8, 6),
    ways.chain("layer-skip", 2),
    ways.chain("quantized", 3),
    ways.cascade(4, 2, 0, 1, verifier="block"),
    ways.chain("quantized", 2, verifier="block"),
]
NAMES = [ways.spec(way) for way in WAYS]


@pytest.fixture(scope="module")
def models():
    from specjax.model import Model
    from specjax.models import opt
    from tests.cli import toys

    config = opt.OPTConfig(vocab_size=257, width=16, embed_width=16, layers=2, heads=2, mlp_width=32, max_positions=128)
    return [Model(name, opt, config, toys.FMT, toys.params(seed, config)) for seed, name in enumerate(DRAFTS)]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_the_command_line_and_python_make_the_drafter_that_was_run(way, models):
    ran = ways.guide(way, models, models[0])
    spec = drafting.parse(ways.spec(way))
    own = [models[number] for number in way.drafts]
    assert drafting.needs(spec) == len(way.drafts)
    assert drafting.make(spec, models[0], own).drafter is ran.drafter
    names = types.SimpleNamespace(drafters=sj.drafters, trees=sj.trees, load=dict(zip(DRAFTS, models, strict=True)).get)
    written = eval(ways.python(way, DRAFTS), {"sj": names, "target": models[0], "None": None})
    assert (written or sj.drafters.plain()).drafter is ran.drafter
    sj.verify.get(way.verifier).check(ran.drafter.tree, ran.drafter.siblings, dynamic=ran.drafter.dynamic)


def test_labels_tell_kind_length_and_models():
    assert ways.label(WAYS[1], DRAFTS) == "model \u03b3=4 small"
    assert ways.label(WAYS[5], DRAFTS) == "tree 3x2 large"
    assert ways.label(WAYS[6], DRAFTS) == "tree of 4 nodes, 2 levels large"
    assert ways.label(WAYS[7], DRAFTS) == "cascade \u03b3=6, inner \u03b3=3 large > small"
    assert ways.label(WAYS[8], DRAFTS) == "dynamic-tree of 8 nodes, 4 levels, 2 wide small"
    assert ways.label(WAYS[9], DRAFTS) == "suffix-tree of 8 nodes, 6 levels"
    assert ways.label(WAYS[10]) == "layer-skip \u03b3=2"
    assert ways.label(ways.chain("model", 4, 1, verifier="block"), DRAFTS) == "model \u03b3=4 small, block"
    assert [ways.label(way) for way in (ways.PLAIN, ways.verify(1), ways.verify(5))] == [
        "plain", "plain", "checking 5 tokens",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "shape, told", [(trees.regular((3, 2)), (3, 2)), (trees.chain(3), (1, 1, 1)), (trees.Tree((-1, 0, 0, 1)), None)]
)
def test_what_is_regular_is_seen(shape, told):
    assert ways.regular_shape(shape) == told


@pytest.mark.parametrize("way", [way for way in WAYS if way.kind != "plain"], ids=NAMES[1:])
def test_nodes_and_levels_are_those_of_the_drafters_tree(way, models):
    tree = ways.guide(way, models, models[0]).drafter.tree
    assert (ways.nodes(way), ways.levels(way)) == (tree.size, tree.width - 1)
