"""Heads of the package: small files that draft for the bundled target."""

import pytest

import specjax as sj
from specjax import defaults
from specjax.convert.locate import BUNDLED_FOLDER
from tests.battery import others_slow

FOLDERS = [file.parent for file in sorted(BUNDLED_FOLDER.glob("*/config.json"))]
HEADS = [folder.name for folder in FOLDERS if not (folder / "tokenizer.json").is_file()]
NAMES = [name for name in HEADS if f"bundled/{name}".startswith(defaults.TARGET)]


@pytest.mark.parametrize("name", others_slow(NAMES, ["opt-target-hass"]))
def test_drafts_for_its_target_from_a_small_file(name):
    target, options = sj.load(defaults.TARGET), {"max_new_tokens": 40, "temperature": 0.0}
    drafter = sj.drafters.head(sj.load_head(f"bundled/{name}", target), gamma=3)
    out = sj.generate(target, ["Once upon a time"], drafter=drafter, **options)
    assert out.tokens == sj.generate(target, ["Once upon a time"], **options).tokens
    assert out.stats.tokens_per_call > 1.2
    assert sum(file.stat().st_size for file in (BUNDLED_FOLDER / name).iterdir()) < 2_000_000
