"""Training that begins with a trained model: what stays is its shape, its tokenizer, and at first its weights."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers

import specjax as sj
from specjax import text
from specjax.models import llama
from specjax.training import data, lm, tokenizer
from specjax.training.pairs import PairRun
from specjax.training.recipe import Distillation, Recipe
from specjax.training.text import TextRun
from tests.battery import others_slow

SENTENCES = [f"the {i % 7} cats and the {i % 5} dogs sat down." for i in range(80)]
STILL = Recipe(steps=2, every=1, warmup=0, decay=0, rate=1e-9, weight_decay=0.0)  # changes no weight visibly


def a_llama(folder: Path) -> str:
    """A model of another family, whose texts begin with one token and end with another."""
    bpe = tokenizer.train_bpe(SENTENCES, 300, specials=("<unk>", "<s>", "<e>", "</s>"), template="</s> $A")
    bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    bpe.enable_truncation(4)  # as some published files have
    config = llama.LlamaConfig(
        vocab_size=320, width=8, layers=1, heads=2, kv_heads=1, head_width=4, mlp_width=16, max_positions=64
    )
    params = llama.FAMILY.init(jax.random.key(7), config, lm.FORMAT)  # not those of a new run
    model = sj.Model("llama", llama.FAMILY, config, lm.FORMAT, params, text.from_tokenizer(bpe), eos=(2,))
    model.save_pretrained(folder)
    return str(folder)


def started(kind: str, folder: Path, **options) -> TextRun | PairRun:
    """A run of two steps that begins with a model: of OPT, Llama or T5."""
    file = folder / "data.txt"
    shared = {"run": folder / "run", "data": (file,), "held_out": 0.3, "dtype": "float32", "recipe": STILL} | options
    if kind == "t5":
        file.write_text("".join(f"{one}\t{one}\n" for one in SENTENCES))
        return PairRun(start="bundled/t5-draft", tokens=64, widths=(24,), **shared)
    file.write_text("\n<|endofbook|>\n".join(SENTENCES))
    start = a_llama(folder / "llama") if kind == "llama" else "bundled/opt-tiny"
    return TextRun(start=start, rows=2, length=8, **shared)


@pytest.mark.parametrize("kind", others_slow(["opt", "llama", "t5"], ["llama"]))
def test_the_first_steps_are_those_of_the_model(kind, tmp_path):
    run = started(kind, tmp_path)
    folder = run.train()
    assert folder is not None
    before, after = sj.load(run.start), sj.load(folder)
    assert after.config == before.config and after.eos == before.eos
    for one, other in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert before.text.encode(SENTENCES[0]) == after.text.encode(SENTENCES[0])
    assert run.train() == folder  # a finished run is exported again
    if isinstance(run, TextRun):
        check_packed(run)


def check_packed(run: TextRun) -> None:
    """Each document as its tokenizer begins it, and an end."""
    bpe = tokenizers.Tokenizer.from_file(str(run.run / "tokenizer" / "tokenizer.json"))
    bpe.no_truncation()
    parts = data.split(data.documents(run.data[0]), 0.3)
    tokens = [bpe.encode(one).ids for one in parts.train]
    expected = [token for ids in tokens for token in (*ids[ids[0] == 2 :], 2)]  # OPT has one token for both
    assert data.tokens(run.run / "train.bin", bpe.get_vocab_size()).tolist() == expected


@pytest.mark.slow
def test_a_student_that_begins_as_its_teacher_agrees_with_it(tmp_path):
    run = started("opt", tmp_path, teacher="bundled/opt-tiny", distillation=Distillation(divergence="tv"))
    assert run.train() is not None
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["held_out_agreement"] > 0.99 and first["held_out_overlap"] > 0.999


@pytest.mark.parametrize(("half", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_half_precision_includes_the_teacher(half, dtype, tmp_path):
    run = started("opt", tmp_path, teacher="bundled/opt-tiny", recipe=dataclasses.replace(STILL, half=half))
    teacher = run.load_teacher(4096, encoder_decoder=False)
    assert teacher is not None
    table = next(leaf for leaf in jax.tree.leaves(teacher.params) if leaf.shape == (4096, 48))
    assert table.dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["opt", "llama", "t5"])
def test_weights_are_laid_over_a_mesh(kind, tmp_path):
    moving = dataclasses.replace(STILL, rate=1e-3)
    curves = []
    for name, mesh in (("one", None), ("mesh", "4x2")):
        (tmp_path / name).mkdir()
        run = started(kind, tmp_path / name, mesh=mesh, recipe=moving)
        assert run.train() is not None
        lines = (run.run / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["held_out_nats"] for line in lines])
    np.testing.assert_allclose(*curves, rtol=2e-4)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("opt", {"width": 64}, "width"), ("opt", {"vocab_size": 300}, "vocab_size"),
        ("opt", {"tokenizer": Path("other")}, "tokenizer"), ("t5", {"heads": 2}, "heads"),
        ("opt", {"length": 600}, "length"), ("opt", {"start": "bundled/t5-draft"}, "train t5"),
        ("t5", {"start": "bundled/opt-tiny"}, "train lm"),
    ],
)  # fmt: skip
def test_what_a_model_has_is_not_chosen(kind, options, named, tmp_path):
    run = dataclasses.replace(started(kind, tmp_path), **options)
    with pytest.raises(ValueError, match=named):
        run.train()
    assert not run.run.exists()


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    run = started("llama", tmp_path)
    for file in Path(run.start).glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="tokenizer"):
        run.train()
