"""Heads of the package: small files that draft for a bundled target."""

import pytest

import specjax as sj
from specjax.convert.locate import BUNDLED_FOLDER
from tests.battery import others_slow

PROMPTS = {
    "opt-target": ["Once upon a time"],
    "t5-target": [
        f"translate English to German: {text}"
        for text in ("The weather is nice today.", "I have no idea what you mean.", "She wanted to see her old house.")
    ],
}
FOLDERS = [file.parent for file in sorted(BUNDLED_FOLDER.glob("*/config.json"))]
NAMES = [folder.name for folder in FOLDERS if not (folder / "tokenizer.json").is_file()]


@pytest.mark.parametrize("name", others_slow(NAMES, ["opt-target-hass"]))
def test_drafts_for_its_target_from_a_small_file(name):
    of, options = name.rpartition("-")[0], {"max_new_tokens": 40, "temperature": 0.0}
    target, prompts = sj.load(f"bundled/{of}"), PROMPTS[of]
    drafter = sj.drafters.head(sj.load_head(f"bundled/{name}", target), gamma=3)
    out = sj.generate(target, prompts, drafter=drafter, **options)
    assert out.tokens == sj.generate(target, prompts, **options).tokens
    assert out.stats.tokens_per_call > (1.1 if target.encoder_decoder else 1.2)
    assert sum(file.stat().st_size for file in (BUNDLED_FOLDER / name).iterdir()) < 2_000_000
