"""PyTorch files, and live parity of names with transformers, where torch is installed; without it, a clear refusal."""

import json
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specjax.convert import load_params, open_source, save_pretrained
from specjax.convert.torch_source import read_torch
from specjax.loading import load
from specjax.models.format import Format
from tests.convert.test_assemble import abstract, assert_same, params_by_hand
from tests.convert.writers import GOLDEN, NAMES, config_of, names_of, tensors_of

SLICES = (slice(3, 7), slice(2, 5))


def test_without_torch_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"specjax\[torch\]"):
        open_source(tmp_path)


def save_bin(folder, tensors, **how) -> None:
    import torch

    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save(state, folder / "pytorch_model.bin", **how)


@pytest.mark.torch
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_bin_files_hold_the_same_tensors(name, zipped, tmp_path):
    expected = tensors_of(name)
    save_bin(tmp_path, expected, _use_new_zipfile_serialization=zipped)
    source = open_source(tmp_path)
    assert set(source.names()) == set(expected)
    for tensor, value in expected.items():
        np.testing.assert_array_equal(source.read(tensor), value)
        np.testing.assert_array_equal(source.read(tensor, SLICES[: value.ndim]), value[SLICES[: value.ndim]])
    fmt = Format(stacked=True)
    params = params_by_hand(name, fmt)
    assert_same(load_params(source, names_of(config_of(name)), abstract(params), fmt=fmt), params)


@pytest.mark.torch
def test_bin_shards_and_bfloat16(tmp_path):
    import torch

    values = {name: torch.arange(6.0).reshape(2, 3).to(torch.bfloat16) + i for i, name in enumerate("ab")}
    for name, value in values.items():
        torch.save({name: value}, tmp_path / f"pytorch_model-{name}.bin")
    weight_map = {name: f"pytorch_model-{name}.bin" for name in values}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = open_source(tmp_path)
    assert source.dtype("b") == ml_dtypes.bfloat16
    np.testing.assert_array_equal(source.read("b").astype(np.float32), values["b"].float().numpy())
    np.testing.assert_array_equal(
        source.read("b", (slice(0, 2), slice(1, 3))).astype(np.float32), values["b"][:, 1:].float().numpy()
    )


class Bomb:
    """Unpickling this would write to the standard error stream and raise SystemExit."""

    def __reduce__(self):
        return (sys.exit, ("executed",))


@pytest.mark.torch
def test_pickled_code_is_refused_and_never_run(tmp_path):
    import torch

    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(2), "b": Bomb()}, file)
    with pytest.raises(ValueError, match="pickled code") as error:
        read_torch(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    torch.save({"a": 3}, file)
    with pytest.raises(ValueError, match="tensors"):
        read_torch(file)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Validating sparse tensor:UserWarning")  # torch 2.14
def test_parameters_are_tensors_and_what_has_no_plain_values_is_refused(tmp_path):
    import torch

    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.nn.Parameter(torch.ones(2))}, file)
    np.testing.assert_array_equal(read_torch(file)["a"].load(()), [1, 1])
    for odd in (torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.ones(2).to(torch.float8_e4m3fn)):
        torch.save({"a": odd}, file)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin: a "):
            read_torch(file)


@pytest.mark.torch
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_bin_is_named(keep, tmp_path):
    save_bin(tmp_path, tensors_of("opt-pre-norm"))
    file = tmp_path / "pytorch_model.bin"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ValueError) as error:
        open_source(tmp_path)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.torch
@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_what_is_saved(name, shard_bytes, tmp_path):
    """Both directions: golden -> parameters -> folder -> transformers gives the golden logits."""
    import torch
    import transformers

    fmt = Format(stacked=True)
    params = jax.tree.map(jnp.asarray, params_by_hand(name, fmt))
    save_pretrained(tmp_path, params, config_of(name), fmt=fmt, shard_bytes=shard_bytes)
    kind = transformers.AutoModelForSeq2SeqLM if name.startswith("t5") else transformers.AutoModelForCausalLM
    model, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    golden = np.load(GOLDEN / name / "logits.npz")
    inputs = {"input_ids": golden["tokens"], "attention_mask": golden["mask"]}
    if "decoder" in golden:
        inputs["decoder_input_ids"] = golden["decoder"]
    with torch.no_grad():
        logits = model.eval()(**{key: torch.from_numpy(value).long() for key, value in inputs.items()}).logits.numpy()
    scale = np.abs(golden["logits"]).max()
    rows = golden["mask"].astype(bool) if "decoder" not in golden else slice(None)
    assert np.abs(logits - golden["logits"])[rows].max() <= 1e-5 * scale


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        pytest.param("relu", {}, id="relu-scaled"),
        pytest.param("gated-gelu", {"tie_word_embeddings": False}, id="gated-gelu-unscaled"),
        pytest.param("relu", {"tie_word_embeddings": False}, id="relu-unscaled", marks=pytest.mark.slow),
        pytest.param("gated-gelu", {}, id="gated-gelu-scaled", marks=pytest.mark.slow),
    ],
)
def test_a_t5_that_transformers_makes_and_saves(kind, entries, tmp_path):
    """As it is made, nothing untied by hand: transformers 5 ties every head, and reads of a configuration that says
    otherwise, as those of v1.1 and Flan do, that the head is not scaled."""
    import torch
    import transformers

    shape = {"vocab_size": 91, "d_model": 16, "d_kv": 5, "num_heads": 3, "d_ff": 24, "num_layers": 2}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, feed_forward_proj=kind, **entries))
    model.eval().save_pretrained(tmp_path)
    read, written = torch.randint(2, 91, (3, 7)), torch.randint(2, 91, (3, 5))
    with torch.no_grad():
        expected = model(input_ids=read, decoder_input_ids=written).logits.numpy()
    logits = np.asarray(load(str(tmp_path)).score(read.numpy(), written.numpy()))
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
