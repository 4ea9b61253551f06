"""Plans next to the TPU compiler: bytes, temporaries and collectives of programs compiled ahead of time."""

import dataclasses
import importlib.util

import pytest

from specjax.planning import PlanRequest, plan, search
from specjax.planning.compiled import compile_request
from specjax.planning.request import shape_named

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu (of the test extra) is not installed"
)
GIB = 2**30
SMALL = PlanRequest("opt-1.3b", "opt-125m", "v5e:2x4", mesh=(2, 4), rows=8, prompt_tokens=200, max_new_tokens=50)
OF_70B = PlanRequest("llama-3-70b", "llama-3.2-1b", "v6e:2x4", mesh=(1, 8), rows=16, compiler_layouts=True)
CASES = {
    "opt-1.3b": SMALL,
    "opt-66b": PlanRequest("opt-66b", "opt-125m", "v5e:4x4", mesh=(1, 8, 2), prompt_tokens=512, max_new_tokens=512),
    "t5-xxl": PlanRequest(
        "t5-v1_1-xxl", "t5-v1_1-small", "v5e:2x4", mesh=(1, 8), prompt_tokens=256, max_new_tokens=128
    ),
    "llama-2-7b": PlanRequest("llama-2-7b", None, "v5e:2x4", mesh=(2, 4), rows=16),
    "llama-3-70b": dataclasses.replace(
        OF_70B, topology="v5e:4x4", mesh=(1, 8, 2), rows=8, draft=None, compiler_layouts=False
    ),
    "int8": dataclasses.replace(OF_70B, topology="v5e:2x4", rows=8, draft=None, weights="int8"),
}


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_bytes_by_group_are_those_of_the_compiler(name):
    """Within 3 %, both those of the compiled layouts and those that are estimated without compiling; and no collective
    is larger than the logits: no weight moves."""
    request = CASES[name]
    loop = compile_request(request, prompt=False)["loop"]
    total = loop["arguments"] + loop["unread"]
    assert sum(loop["groups"].values()) == pytest.approx(total, rel=0.001)
    estimate = search.held(request)
    assert estimate.total == pytest.approx(total, rel=0.03)
    assert estimate.groups["target"] == pytest.approx(loop["groups"]["target"], rel=0.03)
    assert loop["arguments"] + loop["temporaries"] < request.place.chip.memory
    _, config = shape_named(request.target)
    logits = 4 * request.rows * request.block * config.vocab_size
    assert max(one["bytes"] for one in loop["collectives"]) <= logits
    assert not any(one["across"] for one in loop["collectives"])


@pytest.mark.slow
def test_temporaries_of_llama_3_70b_with_a_draft_on_v6e():
    """Sixteen rows of 2,048 slots: the caches and kernels are placed as the loop reads them."""
    loop = compile_request(OF_70B, prompt=False)["loop"]
    assert loop["temporaries"] <= 0.6 * GIB


@pytest.mark.slow
def test_transfers_between_slices_are_counted():
    """Rows are split over slices: the stop bit crosses them once per round, and nothing else."""
    request = dataclasses.replace(SMALL, slices=2, mesh=(4, 4))
    lines = compile_request(request, prompt=False)["loop"]["collectives"]
    across = [one for one in lines if one["across"]]
    assert across and all(one["bytes"] <= 1024 for one in across)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [None, "bundled/opt-tiny"])
def test_a_plan_is_compiled_once(draft):
    """A small model on eight chips, with its prompt; a second plan reads the first one's results."""
    options = {"topology": "v5e-8", "rows": 8, "prompt_tokens": 20, "max_new_tokens": 20, "mesh": "2x4"}
    first = plan("bundled/opt-target", draft, **options)
    assert first.fits and first.temporaries is not None
    assert first.needed == pytest.approx(sum(first.groups.values()) + first.temporaries, rel=0.5)
    # One sum in each layer, after `down`: the five heads do not divide, so attention is whole. Others are of flags.
    sums = [one for one in first.collectives if one["kind"] == "all-reduce" and one["loops"] == 2]
    assert [one["devices"] for one in sums if one["bytes"] > 1024] == [4]
    again = plan("bundled/opt-target", draft, **options)
    assert again == first
