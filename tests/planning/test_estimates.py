"""What a plan tells without compiling: slices, shapes, bytes on a chip, times, and what would fit."""

import dataclasses
import json

import pytest

from specjax.cli import plan as command
from specjax.convert.locate import BUNDLED_FOLDER
from specjax.planning import Plan, PlanRequest, chips, plan, planner, program, roofline, search
from specjax.planning.request import shape_named

LLAMA_70B = PlanRequest("llama-3-70b", None, "v6e-8", mesh=(1, 8), rows=64, prompt_tokens=1000, max_new_tokens=1000)


@pytest.mark.parametrize(
    ("name", "topology", "count"),
    [
        ("v5e:4x4", "v5e:4x4", 16), ("v5litepod-16", "v5e:4x4", 16), ("v6e-8", "v6e:2x4", 8),
        ("v5p-16", "v5p:2x2x2", 8), ("v5p-8", "v5p:2x2x1", 4), ("V5E-32", "v5e:4x8", 32),
    ],
)  # fmt: skip
def test_slices_have_the_names_of_clouds_and_compilers(name, topology, count):
    place = chips.slice_named(name)
    assert (place.topology, place.chips) == (topology, count)
    assert chips.slice_named(place.name) == place


@pytest.mark.parametrize("name", ["v9-8", "v5e", "v6e-7", "v5p:2x2", "8"])
def test_an_unknown_slice_is_refused(name):
    with pytest.raises(ValueError, match=r"topology|kind of chip"):
        chips.slice_named(name)


def test_models_are_found_by_the_names_of_their_repositories(tmp_path):
    same = {
        "facebook/opt-13b": "opt-13b", "meta-llama/Llama-2-7b-hf": "llama-2-7b", "google/flan-t5-xxl": "flan-t5-xxl",
        "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b", "meta-llama/Llama-3.2-1B": "llama-3.2-1b",
    }  # fmt: skip
    for name, short in same.items():
        assert shape_named(name) == shape_named(short)
    config = json.loads((BUNDLED_FOLDER / "opt-target" / "config.json").read_text())
    assert shape_named("bundled/opt-target")[1].heads == config["num_attention_heads"]
    with pytest.raises(ValueError, match="opt-66b"):
        shape_named("facebook/opt-66")


def test_published_step_times_lie_in_the_band():
    """Llama-3.3-70B in bfloat16 on v6e-8, 1,000 and 1,000 tokens: 25.4 ms at 64 rows and 35.1 ms at 128
    (tpu-recipes, inference/trillium/vLLM/Llama3.x), with one efficiency for both."""
    for rows, published in ((64, 25.4e-3), (128, 35.1e-3)):
        time = roofline.speed(dataclasses.replace(LLAMA_70B, rows=rows), 0.8).plain
        assert time.least < published < time.most
        assert time.most <= 2.0001 * time.least


def test_speed_follows_acceptance_rows_and_chips():
    request = dataclasses.replace(LLAMA_70B, draft="llama-3.2-1b", rows=8)
    slow, fast = (roofline.speed(request, alpha) for alpha in (0.3, 0.9))
    assert slow.pays_from is not None and 0.3 < slow.pays_from < 0.9
    assert slow.speedup < 1 < fast.speedup
    at = roofline.speed(request, slow.pays_from)
    assert at.speedup == pytest.approx(1, abs=1e-6)
    assert fast.best_gamma > slow.best_gamma
    assert slow.none_above is not None
    above = dataclasses.replace(request, rows=4 * slow.none_above)
    assert roofline.speed(above, 0.3).best_gamma == 0
    faster = dataclasses.replace(request, topology="v5p:2x2x2")
    assert roofline.speed(faster, 0.9).plain.value < fast.plain.value


def test_int8_halves_the_bytes_of_weights():
    whole, small = (search.held(dataclasses.replace(LLAMA_70B, weights=kind)).groups for kind in (None, "int8"))
    assert small["target"] == pytest.approx(whole["target"] / 2, rel=0.01)
    assert small["caches"] == whole["caches"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "topology", "expected"),
    [("llama-3-70b", "v5e:4x4", (1, 8, 2)), ("opt-66b", "v5e:4x4", (1, 8, 2)), ("llama-3-70b", "v6e-8", (1, 8))],
)
def test_the_mesh_fits_models_with_fewer_heads_than_chips(target, topology, expected):
    given = PlanRequest(target, None, topology, rows=8, prompt_tokens=512, max_new_tokens=512)
    assert search.best_mesh(given) == expected


@pytest.mark.slow
def test_what_does_not_fit_names_what_does(monkeypatch, capsys):
    """No compiler is needed where the weights alone are larger than the chips."""
    monkeypatch.setattr("specjax.planning.planner.compile_request", None)
    plans, real = [], planner.plan
    monkeypatch.setattr(planner, "plan", lambda *models, **given: plans.append(real(*models, **given)) or plans[0])
    words = ["--target", "llama-3-70b", "--draft", "llama-3.2-1b", "--topology", "v5e-8", "--rows", "8", "--json"]
    assert command.main(words) == 1
    assert '"fits": false' in capsys.readouterr().out
    (found,) = plans
    assert isinstance(found, Plan) and not found.fits and found.needed > found.memory
    assert {"int8", "slice"} <= found.alternatives.keys()
    for other in found.alternatives.values():
        assert search.held(other).total < found.memory
    assert found.alternatives["slice"].topology == "v5e:4x4"
    lines = "\n".join(command.report(found))
    assert "does not fit" in lines and "v5e:4x4" in lines


@pytest.mark.slow
def test_rows_that_fit_are_the_most():
    request = dataclasses.replace(LLAMA_70B, rows=1)
    most = search.largest_rows(request, 2**30)
    assert most is not None and search.fits(most, 2**30)
    assert not search.fits(dataclasses.replace(most, rows=most.rows + 2), 2**30)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
        ("replica_groups=[4,2]<=[2,2,2]T(1,0,2), x", [[0, 1], [4, 5], [2, 3], [6, 7]]),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, x", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("channel_id=1, x", []),
    ],
)
def test_replica_groups_are_read_in_every_spelling(text, groups):
    assert program.replica_groups(text) == groups


def test_sizes_that_no_mesh_divides_are_one_line():
    with pytest.raises(ValueError, match="positions"):
        plan("opt-66b", topology="v5e:4x4", prompt_tokens=4000)
    with pytest.raises(ValueError, match="factors of 16"):
        plan("opt-66b", topology="v5e:4x4", mesh="1x8")
    with pytest.raises(ValueError, match="vocabulary"):
        plan("opt-66b", "llama-3.2-1b", topology="v5e:4x4")
