"""`specjax plan`: options and presets; the plans themselves are tested in tests/planning."""

import shlex
from types import SimpleNamespace

import pytest

from specjax import config
from specjax.cli import plan
from specjax.planning import planner, search
from specjax.planning.request import PlanRequest
from tests.test_config import POD_PRESETS

SPARE = 2 * 2**30  # bytes of temporaries


def planned(args, monkeypatch) -> dict:
    """What the command asks to be planned."""
    found = {}
    monkeypatch.setattr(planner, "plan", lambda *models, **given: found.update(given, models=models) or DONE)
    monkeypatch.setattr(plan, "report", lambda plan: [])
    assert plan.main(args) == 0
    return found


DONE = SimpleNamespace(fits=True)


@pytest.mark.parametrize("file", POD_PRESETS, ids=lambda file: file.stem)
def test_every_preset_of_a_pod_is_planned_and_fits(file, monkeypatch):
    """By bytes, with its own models, mesh and lengths, on the slice of the command in its docstring."""
    line = next(line for line in file.read_text().splitlines() if line.startswith("    specjax plan "))
    args = [word.replace("configs/pods", str(file.parent)) for word in shlex.split(line)[2:]]
    given, preset = planned(args, monkeypatch), config.read(file)
    assert given["models"] == (preset.target, *preset.drafts) and given["mesh"] == preset.mesh
    request = PlanRequest(
        *given["models"], given["topology"], mesh=preset.mesh_shape, rows=given["rows"], gamma=preset.gamma,
        prompt_tokens=given["prompt_tokens"], max_new_tokens=preset.max_new_tokens,
    )  # fmt: skip
    assert {name: given[name] for name in ("gamma", "max_new_tokens", "dtype")} == {
        "gamma": preset.gamma, "max_new_tokens": preset.max_new_tokens, "dtype": "bfloat16",
    }  # fmt: skip
    assert search.fits(request, SPARE)
    assert not search.fits(request, int(request.place.chip.memory))


def test_options_replace_those_of_a_preset(monkeypatch):
    args = ["--config", str(POD_PRESETS[0]), "--topology", "v6e-8", "--gamma", "2", "--mesh", "auto"]
    given = planned(args, monkeypatch)
    assert (given["gamma"], given["mesh"]) == (2, "auto") and given["models"][0].startswith("meta-llama")


def test_a_model_is_required(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="--target"):
        planned(["--topology", "v6e-8"], monkeypatch)
    heads = tmp_path / "two.py"
    heads.write_text("from specjax.config import RunConfig\nCONFIG = RunConfig('a', draft=('b', 'c'))")
    with pytest.raises(ValueError, match="one draft model"):
        planned(["--topology", "v6e-8", "--config", str(heads)], monkeypatch)
