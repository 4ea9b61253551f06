"""File formats of Medusa heads and MLP speculators, read and written."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax as sj
from specjax import sharding
from specjax.drafters.head import draft_logits
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp import MLPConfig
from specjax.model import Model
from specjax.models.format import default_format
from tests import battery

GOLDEN = Path(__file__).parent.parent / "golden"
VOCAB, WIDTH, FEW = 96, 32, 20
FMT = default_format("float32", platform="cpu")
TOKENS = np.random.default_rng(7).permutation(VOCAB)[:FEW].astype(np.int32)  # the most frequent first, in no order
TEXT = [1, 17, 5, 80, 9]
CONFIGS = {
    "medusa": MedusaConfig(VOCAB, WIDTH, 3, blocks=2, matrices=3, draft_vocab=VOCAB),
    "medusa v2": MedusaConfig(VOCAB, WIDTH, 3, draft_vocab=VOCAB),
    "medusa few": MedusaConfig(VOCAB, WIDTH, 3, matrices=3, draft_vocab=FEW, bias=False),
    "medusa shared": MedusaConfig(VOCAB, WIDTH, 3, matrices=1, draft_vocab=VOCAB),
    "mlp": MLPConfig(VOCAB, WIDTH, 24, 3, top_k=(5, 4, 3)),
    "mlp tied": MLPConfig(VOCAB, WIDTH, WIDTH, 4, tied=True, scale_input=True, top_k=(4, 3, 2, 2), candidates=6),
}
V1 = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}  # fmt: skip
VLLM = {
    "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": WIDTH, "vocab_size": VOCAB, "num_heads": 3,
    "num_hidden_layers": 1, "medusa_fc_bias": False, "truncated_vocab_size": VOCAB, "original_lm_head": False,
}  # fmt: skip
MLP = {
    "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "vocab_size": VOCAB,
    "emb_dim": WIDTH, "inner_dim": 24, "n_predict": 3, "top_k_tokens_per_head": [5, 4, 3], "n_candidates": 5,
    "tie_weights": False, "scale_input": False, "transformers_version": "4.38.2",
}  # fmt: skip


@functools.cache
def target(name: str = "llama-grouped-untied") -> Model:
    return sj.load(GOLDEN / name)


@functools.cache
def head(kind: str) -> Head:
    of, config, numbers = KINDS[kind.split()[0]], CONFIGS[kind], np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: of.init(jax.random.key(0), config, FMT))
    params = jax.tree.map(lambda leaf: jnp.asarray(numbers.normal(0, 0.3, leaf.shape), leaf.dtype), shapes)
    return Head(kind, of, config, FMT, params, target(), TOKENS if kind == "medusa few" else None)


def stored(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """config.json and the tensors."""
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write(folder: Path, config: dict, tensors: dict[str, np.ndarray], file: str = "model.safetensors") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, folder / file)


def written(kind: str, form: str | None, folder: Path) -> dict[str, np.ndarray]:
    head(kind).save_pretrained(folder, format=form)
    return stored(folder)[1]


def logits(of: Head, steps: int = 3) -> np.ndarray:
    return draft_logits(of.target, TEXT, sj.drafters.head(of), steps=steps)[1]


# --- writing ---------------------------------------------------------------------------------------------------------

MEDUSA_KEYS = {
    **{f"{k}.{m}.linear.{part}": shape for k in range(3) for m in range(2)
       for part, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,)))},
    **{f"{k}.2.weight": (VOCAB, WIDTH) for k in range(3)},
}  # fmt: skip
V2_KEYS = {name: shape for name, shape in MEDUSA_KEYS.items() if ".0.linear." in name}
VLLM_BLOCKS = {f"blocks.{k}.layers.0.weight": (WIDTH, WIDTH) for k in range(3)}
VLLM_BIASES = {f"blocks.{k}.layers.0.bias": (WIDTH,) for k in range(3)}
MLP_KEYS = {
    **{f"speculator.{part}.{k}.weight": (VOCAB, 24) for k in range(3) for part in ("emb", "head")},
    **{f"speculator.proj.{k}.weight": (24, 24 if k else WIDTH) for k in range(3)},
    **{f"speculator.ln.{k}.{part}": (24,) for k in range(3) for part in ("weight", "bias")},
}  # fmt: skip
TIED_KEYS = {
    "speculator.emb.0.weight": (VOCAB, WIDTH), "speculator.head.0.weight": (VOCAB, WIDTH),
    "speculator.proj.0.weight": (WIDTH, WIDTH), "speculator.proj.1.weight": (WIDTH, WIDTH),
    "speculator.ln.0.weight": (WIDTH,), "speculator.ln.0.bias": (WIDTH,),
}  # fmt: skip
ORIGINAL = V1 | {"base_model_name_or_path": str(GOLDEN / "llama-grouped-untied"), "medusa_num_heads": 3}
WRITTEN = {
    ("medusa", "original"): (ORIGINAL | {"medusa_num_layers": 2}, MEDUSA_KEYS),
    ("medusa v2", "original"): (ORIGINAL | {"version": "2"}, V2_KEYS),
    ("medusa few", "vllm"): (
        VLLM | {"truncated_vocab_size": FEW},
        VLLM_BLOCKS | {f"lm_heads.{k}.weight": (FEW, WIDTH) for k in range(3)} | {"token_map": (FEW,)},
    ),
    ("medusa shared", "vllm"): (
        VLLM | {"original_lm_head": True, "medusa_fc_bias": True},
        VLLM_BLOCKS | VLLM_BIASES | {"lm_head.weight": (VOCAB, WIDTH)},
    ),
    ("mlp", "original"): (MLP, MLP_KEYS),
    ("mlp tied", "original"): (
        MLP | {"inner_dim": WIDTH, "n_predict": 4, "top_k_tokens_per_head": [4, 3, 2, 2], "n_candidates": 6,
               "tie_weights": True, "scale_input": True},
        TIED_KEYS,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), WRITTEN)
def test_what_is_written_is_the_published_format_and_is_read_back(kind, form, tmp_path):
    whole = head(kind)
    whole.save_pretrained(tmp_path, format=form)
    config, tensors = stored(tmp_path)
    expected, shapes = WRITTEN[kind, form]
    assert config == expected | {"dtype": "float32"}
    assert {name: one.shape for name, one in tensors.items()} == shapes
    again = sj.load_head(tmp_path, target())
    assert (again.kind, again.config, again.format) == (whole.kind, whole.config, form)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.params, whole.params))
    np.testing.assert_array_equal(again.draft_tokens, whole.draft_tokens)
    again.save_pretrained(tmp_path / "again")  # in the format that it was read from
    repeated, copies = stored(tmp_path / "again")
    assert repeated == config and all((copies[name] == tensors[name]).all() for name in tensors)


def test_the_other_format_of_the_same_head(tmp_path):
    written("medusa", "vllm", tmp_path)
    assert sj.load_head(tmp_path, target()).config == CONFIGS["medusa"]
    assert stored(tmp_path)[0]["num_hidden_layers"] == 2


@pytest.mark.parametrize(
    "name",
    battery.others_slow(
        ["llama-grouped-untied", "llama-scaled-rope-tied", "opt-post-norm-projected", "t5-relu-tied"],
        ["opt-post-norm-projected"],
    ),
)
def test_a_second_version_in_vllms_format_has_the_targets_output_matrix(name, tmp_path):
    whole = target(name)
    config = MedusaConfig(whole.vocab_size, whole.config.width, 2, draft_vocab=whole.vocab_size)
    fmt = whole.fmt
    params = KINDS["medusa"].init(jax.random.key(0), config, fmt)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size).reshape(leaf.shape)), params)
    one = Head("v2", KINDS["medusa"], config, fmt, params, whole)
    one.save_pretrained(tmp_path, format="vllm")
    again = sj.load_head(tmp_path, whole)
    assert again.config.matrices == 1
    np.testing.assert_allclose(logits(one, 2), logits(again, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["medusa few", "medusa shared"])
def test_a_head_that_the_original_format_cannot_express_is_refused(kind, tmp_path):
    with pytest.raises(ValueError, match="vllm"):
        head(kind).save_pretrained(tmp_path, format="original")


# --- reading ---------------------------------------------------------------------------------------------------------


def test_heads_are_counted_in_the_file(tmp_path):
    """Published configurations have 2 heads."""
    tensors = written("medusa", "original", tmp_path / "written")
    write(tmp_path / "read", V1, tensors, "medusa_lm_head.safetensors")
    assert sj.load_head(tmp_path / "read", target()).config == CONFIGS["medusa"]


@pytest.mark.torch
def test_medusa_as_its_authors_save_it(tmp_path):
    """The state of torch modules, in a .pt file; a block that is repeated is one module, stored several times."""
    import torch

    class ResBlock(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + torch.nn.functional.silu(self.linear(x))

    make = lambda: torch.nn.Sequential(*[ResBlock()] * 2, torch.nn.Linear(WIDTH, VOCAB, bias=False))
    heads = torch.nn.ModuleList([make() for _ in range(4)])
    (tmp_path / "config.json").write_text(json.dumps(V1))
    torch.save(heads.state_dict(), tmp_path / "medusa_lm_head.pt")
    of = sj.load_head(tmp_path, target())
    assert of.config == MedusaConfig(VOCAB, WIDTH, 4, blocks=2, matrices=4, draft_vocab=VOCAB)
    prefill = jax.jit(target().lm.prefill, static_argnums=3)
    read = prefill(target().params, jnp.asarray([TEXT]), jnp.asarray([len(TEXT)]), 8)
    feature = torch.tensor(np.asarray(read.features[0, len(TEXT) - 2]))
    with torch.no_grad():
        expected = np.stack([one(feature).numpy() for one in heads])
    np.testing.assert_allclose(logits(of, 4), expected, atol=1e-4)


@pytest.mark.slow
def test_medusa_2_is_a_folder_with_target_and_heads(tmp_path):
    heads = {f"medusa_head.{name}": one for name, one in written("medusa", "original", tmp_path / "heads").items()}
    config, tensors = stored(GOLDEN / "llama-grouped-untied")
    write(tmp_path / "both", config | {"medusa_num_heads": 3, "medusa_num_layers": 1}, tensors | heads)
    whole = sj.load(tmp_path / "both")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole.params, target().params))
    of = sj.load_head(tmp_path / "both", whole)
    assert of.config == CONFIGS["medusa"]
    np.testing.assert_array_equal(logits(of), logits(head("medusa")))
    of.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again")[1].keys() == MEDUSA_KEYS.keys()


def test_heads_beside_the_target_in_a_file_of_their_own(tmp_path):
    config, tensors = stored(GOLDEN / "llama-grouped-untied")
    write(tmp_path, config, written("medusa v2", "original", tmp_path / "written"), "medusa_lm_head.safetensors")
    write(tmp_path, config | {"medusa_num_heads": 3, "version": "2"}, tensors)
    assert sj.load_head(tmp_path, sj.load(tmp_path)).config == CONFIGS["medusa v2"]


@pytest.mark.slow
def test_a_token_map_beside_whole_output_matrices(tmp_path):
    """vLLM takes the rows of the map; with a prefix, and with other names that it ignores."""
    tensors = written("medusa", "vllm", tmp_path / "written") | {"token_map": TOKENS.astype(np.int64)}
    tensors = {f"medusa_heads.{name}": one for name, one in tensors.items()} | {
        "medusa_heads.lm_head.weight": np.zeros((VOCAB, WIDTH), np.float32)
    }
    config = VLLM | {"truncated_vocab_size": FEW, "medusa_fc_bias": True, "num_hidden_layers": 2}
    write(tmp_path / "read", config, tensors)
    of = sj.load_head(tmp_path / "read", target())
    assert of.config.draft_vocab == FEW and of.config.matrices == 3
    found, whole = logits(of), logits(head("medusa"))
    np.testing.assert_allclose(found[:, TOKENS], whole[:, TOKENS], rtol=1e-5)
    assert (found > -np.inf).sum(1).tolist() == [FEW] * 3


def test_a_token_map_of_all_tokens_is_not_read(tmp_path):
    every = np.random.default_rng(1).permutation(VOCAB)
    write(tmp_path / "read", VLLM, written("medusa", "vllm", tmp_path / "written") | {"token_map": every})
    of = sj.load_head(tmp_path / "read", target())
    assert of.draft_tokens is None
    np.testing.assert_array_equal(logits(of), logits(head("medusa")))


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_the_shared_output_matrix_has_either_name(name, tmp_path):
    tensors = written("medusa shared", "vllm", tmp_path / "written")
    tensors[name] = tensors.pop("lm_head.weight")
    write(tmp_path / "read", VLLM | {"original_lm_head": True}, tensors)
    assert sj.load_head(tmp_path / "read", target()).config == CONFIGS["medusa shared"]


def test_a_tied_speculator_under_any_stage_and_with_inner_width_zero(tmp_path):
    """Weights that are tied are stored once, or several times."""
    tensors = written("mlp tied", None, tmp_path / "written")
    for part in ("emb.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias"):
        tensors[f"speculator.{part.format(3)}"] = tensors.pop(f"speculator.{part.format(0)}")
    tensors["speculator.proj.2.weight"] = tensors["speculator.proj.1.weight"]
    config = stored(tmp_path / "written")[0] | {"inner_dim": 0, "torch_dtype": "float16"}
    write(tmp_path / "read", config, tensors)
    of = sj.load_head(tmp_path / "read", target())
    assert of.config == CONFIGS["mlp tied"]
    np.testing.assert_array_equal(logits(of, 4), logits(head("mlp tied"), 4))


@pytest.mark.slow
def test_an_encoder_decoder_has_heads(tmp_path):
    whole = target("t5-gated-untied")
    shape = {"vocab_size": whole.vocab_size, "emb_dim": whole.config.width}
    config = MLPConfig(whole.vocab_size, whole.config.width, 8, 3, top_k=(5, 4, 3))
    params = KINDS["mlp"].init(jax.random.key(0), config, whole.fmt)
    Head("t5", KINDS["mlp"], config, whole.fmt, params, whole).save_pretrained(tmp_path)
    assert shape.items() <= stored(tmp_path)[0].items()
    assert sj.load_head(tmp_path, whole).config == config


def test_a_sharded_file_under_its_usual_name(tmp_path):
    tensors, read = written("medusa", "original", tmp_path / "written"), tmp_path / "read"
    parts = [dict(list(tensors.items())[at::2]) for at in (0, 1)]
    files = [f"medusa_lm_head-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, part in zip(files, parts, strict=True):
        write(read, stored(tmp_path / "written")[0], part, file)
    where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (read / "medusa_lm_head.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    np.testing.assert_array_equal(logits(sj.load_head(read, target())), logits(head("medusa")))


# --- files that do not fit -------------------------------------------------------------------------------------------


def without(name: str):
    return lambda config, tensors: tensors.pop(name)


def renamed(**entries):
    return lambda config, tensors: config.update(entries)


def put(name: str, shape: tuple[int, ...], dtype: Any = np.float32):
    return lambda config, tensors: tensors.update({name: np.full(shape, VOCAB, dtype)})


@pytest.mark.parametrize(
    ("kind", "form", "change", "name"),
    [
        ("medusa", "original", without("1.0.linear.weight"), "1.0.linear.weight"),
        ("medusa", "original", put("1.3.linear.other", (2,)), "1.3.linear.other"),
        ("medusa", "original", put("extra.weight", (2,)), "extra.weight"),
        ("medusa", "original", put("1.2.weight", (VOCAB, 3)), "1.2.weight"),
        ("medusa", "original", renamed(vocab_size=40), "vocabulary"),
        ("medusa few", "vllm", put("token_map", (FEW,), np.int64), "token_map"),
        ("medusa few", "vllm", renamed(vocab_size=40), "vocabulary"),
        ("medusa few", "vllm", put("lm_heads.2.weight", (FEW - 1, WIDTH)), "lm_heads.2.weight"),
        ("mlp", None, renamed(vocab_size=40), "vocabulary"),
        ("mlp", None, renamed(emb_dim=40), "hidden size"),
        ("mlp", None, renamed(n_predict=4), "speculator.emb.3.weight"),
        ("mlp", None, renamed(n_predict=0), "n_predict"),
        ("mlp", None, without("speculator.ln.1.bias"), "speculator.ln.1.bias"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(kind, form, change, name, tmp_path):
    tensors = written(kind, form, tmp_path / "written")
    config = stored(tmp_path / "written")[0]
    change(config, tensors)
    write(tmp_path / "read", config, tensors)
    with pytest.raises(ValueError, match=name):
        sj.load_head(tmp_path / "read", target())


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_a_head_of_another_target_is_refused(kind, tmp_path):
    head(kind).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"hidden size|vocabulary"):
        sj.load_head(tmp_path, target("t5-gated-untied"))


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_has_a_sharding_rule(kind):
    whole, mesh = head(kind), sharding.make_mesh(4, 2)
    placed = sharding.shardings(whole.params, mesh, whole.kind.rules, FMT, kv_heads=1)
    assert len(jax.tree.leaves(placed)) == len(jax.tree.leaves(whole.params))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa few", "mlp"])
def test_a_head_is_placed_like_its_target(kind, tmp_path):
    head(kind).save_pretrained(tmp_path, format="vllm" if kind == "medusa few" else None)
    prompts, options = [TEXT, TEXT[1:], TEXT[:3], TEXT[2:]], {"max_new_tokens": 8, "temperature": 0.0}
    plain = sj.generate(target(), prompts, **options)
    whole = sj.load(GOLDEN / "llama-grouped-untied", mesh=sharding.make_mesh(4, 2))
    of = sj.load_head(tmp_path, whole)
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(of.params))
    found = sj.generate(whole, prompts, drafter=sj.drafters.head(of), **options)
    assert found.tokens == plain.tokens
