"""Heads of the package: small files that draft for a bundled target, and one for a target of the hub."""

import pytest

import specjax as sj
from specjax.bench.decode import random_model
from specjax.convert.locate import BUNDLED_FOLDER

PROMPTS = {
    "opt-target": ["Once upon a time"],
    "t5-target": [
        f"translate English to German: {text}"
        for text in ("The weather is nice today.", "I have no idea what you mean.", "She wanted to see her old house.")
    ],
}
FOLDERS = [file.parent for file in sorted(BUNDLED_FOLDER.glob("*/config.json"))]
OTHER = "smollm2-eagle3"
NAMES = [one.name for one in FOLDERS if one.name != OTHER and not (one / "tokenizer.json").is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_drafts_for_its_target_from_a_small_file(name):
    of, options = name.rpartition("-")[0], {"max_new_tokens": 40, "temperature": 0.0}
    target, prompts = sj.load(f"bundled/{of}"), PROMPTS[of]
    drafter = sj.drafters.head(sj.load_head(f"bundled/{name}", target), gamma=3)
    out = sj.generate(target, prompts, drafter=drafter, **options)
    assert out.tokens == sj.generate(target, prompts, **options).tokens
    assert out.stats.tokens_per_call > (1.1 if target.encoder_decoder else 1.2)
    assert sum(file.stat().st_size for file in (BUNDLED_FOLDER / name).iterdir()) < 2_000_000


@pytest.mark.slow
def test_fits_the_shape_of_a_target_that_is_not_bundled():
    target = random_model("smollm2-135m", "bfloat16")
    drafter = sj.drafters.head(sj.load_head(f"bundled/{OTHER}", target), gamma=3)
    options = {"max_new_tokens": 8, "temperature": 0.0}
    assert sj.generate(target, [[1, 2, 3]], drafter=drafter, **options).tokens == (
        sj.generate(target, [[1, 2, 3]], **options).tokens
    )


def test_weights_of_the_package_stay_small():
    sizes = {file.parent.name: file.stat().st_size for file in BUNDLED_FOLDER.glob("*/model.safetensors")}
    assert sum(sizes.values()) <= 90_000_000
    assert sizes[OTHER] <= 25_000_000
