"""Names find checkpoints; missing or invalid ones raise errors of one line; ties follow the weights."""

import json
import shutil
import sys
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import save_file

from specjax.convert import locate
from specjax.convert.shards import open_source
from specjax.models import llama, opt, t5
from tests.convert.writers import GOLDEN, NAMES, config_of, tensors_of


@pytest.mark.parametrize("name", NAMES)
def test_a_folder(name):
    found = locate(GOLDEN / name)
    assert found.config["model_type"] == config_of(name)["model_type"]
    assert set(found.source.names()) == set(tensors_of(name))
    assert found.tokenizer() is None
    assert locate(str(GOLDEN / name)).path == found.path


def raises(name, *words: object, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind) as error:
        locate(name)
    assert "\n" not in str(error.value)
    for word in words:
        assert str(word) in str(error.value), str(error.value)


def test_what_is_no_model(tmp_path):
    raises(tmp_path, tmp_path, "config.json", ".gguf", kind=FileNotFoundError)
    (tmp_path / "config.json").write_text("{")
    raises(tmp_path, tmp_path / "config.json", "not JSON")
    (tmp_path / "config.json").write_text("{}")
    raises(tmp_path, tmp_path / "config.json", "model_type")
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    raises(tmp_path, tmp_path, "model.safetensors", kind=FileNotFoundError)
    raises(GOLDEN / "make.py", "not a GGUF file")
    raises("./no/such/folder", "./no/such/folder", kind=FileNotFoundError)
    raises("absent.gguf", "absent.gguf", kind=FileNotFoundError)
    raises("bundled/absent", "'absent'", kind=FileNotFoundError)
    raises("", "not a file", kind=FileNotFoundError)
    raises("~nouser_xyz/m", "'~nouser_xyz/m'", "home directory", kind=FileNotFoundError)


def test_a_bundled_model(tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / "opt-pre-norm", tmp_path / "tiny")
    monkeypatch.setattr(sys.modules["specjax.convert.locate"], "BUNDLED_FOLDER", tmp_path)
    assert locate("bundled/tiny").path == tmp_path / "tiny"
    raises("bundled/absent", "tiny", kind=FileNotFoundError)


class Hub:
    """A hub and its cache: what the functions of huggingface_hub would do, without a network."""

    def __init__(self, monkeypatch, *, files: list[str] | None, snapshot, cached: bool):
        self.files, self.snapshot, self.cached = files, snapshot, cached
        self.patterns: list[list[str]] = []
        self.requests = 0
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.download)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=self.info))

    def info(self, name, **_):
        self.requests += 1
        if self.files is None:
            raise ConnectionError("could not resolve the host\nmore lines")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def download(self, name, *, local_files_only=False, allow_patterns=None):
        if local_files_only and not self.cached:
            raise FileNotFoundError("not in the cache")
        if not local_files_only:
            self.patterns.append(allow_patterns)
        return str(self.snapshot)


def test_a_hub_id_prefers_safetensors_then_flax_then_torch(monkeypatch):
    every = ["config.json", "pytorch_model.bin", "flax_model.msgpack", "model.safetensors", "tf_model.h5"]
    for gone, pattern in enumerate(["model*.safetensors", "flax_model*.msgpack", "pytorch_model*.bin"]):
        files = every[: 4 - gone]
        hub = Hub(monkeypatch, files=files, snapshot=GOLDEN / "opt-pre-norm", cached=False)
        assert locate("org/name").config["model_type"] == "opt"
        (patterns,) = hub.patterns
        assert patterns[0] == pattern
        assert "*.json" in patterns
        assert not any("tf_model" in p or p == "*" for p in patterns)


def test_the_cache_comes_before_the_network(monkeypatch):
    hub = Hub(monkeypatch, files=None, snapshot=GOLDEN / "opt-pre-norm", cached=True)
    assert locate("org/name").path == GOLDEN / "opt-pre-norm"
    assert hub.requests == 0


def test_half_a_download_in_the_cache_is_completed(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("opt-pre-norm")))
    hub = Hub(monkeypatch, files=["config.json", "model.safetensors"], snapshot=tmp_path, cached=True)
    with pytest.raises(FileNotFoundError):  # this hub delivers the same half
        locate("org/name")
    assert hub.requests == 1


def test_offline_and_empty_hubs(monkeypatch):
    Hub(monkeypatch, files=None, snapshot=GOLDEN, cached=False)
    raises("org/name", "org/name", "could not resolve", kind=FileNotFoundError)
    Hub(monkeypatch, files=["config.json", "model.onnx"], snapshot=GOLDEN, cached=False)
    raises("org/name", "org/name", "model.safetensors", kind=FileNotFoundError)


def settled(module, published: dict, source) -> dict:
    return module.FAMILY.ties(published, source.names(), source.same)


def ties(tmp_path, head: str, **stated) -> tuple[bool, bool]:
    """(tied, scaled) of a T5 whose file has no head, the embedding as its head ("same"), or a head of its own."""
    tensors = {"shared.weight": np.arange(9000.0, dtype=np.float32).reshape(4500, 2)}
    if head != "none":
        tensors["lm_head.weight"] = tensors["shared.weight"].copy()
        tensors["lm_head.weight"][-1, -1] += head == "own"
    save_file(tensors, tmp_path / "model.safetensors")
    config = settled(t5, stated, open_source(tmp_path))
    return config["tie_word_embeddings"], config["scale_decoder_outputs"]


def test_ties_of_t5(tmp_path):
    assert ties(tmp_path, "none") == (True, True)  # t5-small
    assert ties(tmp_path, "same") == (True, True)
    assert ties(tmp_path, "own", tie_word_embeddings=False) == (False, False)  # v1.1 and Flan by transformers 4
    assert ties(tmp_path, "same", tie_word_embeddings=False) == (False, False)
    newer = {"tie_word_embeddings": True, "scale_decoder_outputs": False}  # v1.1 and Flan by transformers 5
    assert ties(tmp_path, "own", **newer) == (False, False)
    assert ties(tmp_path, "none", **newer) == (True, False)


@pytest.mark.parametrize(("own", "tied"), [(False, True), (True, False)])
def test_a_head_of_its_own_unties_a_llama(own, tied, tmp_path):
    table = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    save_file({"model.embed_tokens.weight": table, "lm_head.weight": table + own}, tmp_path / "model.safetensors")
    config = settled(llama, {"tie_word_embeddings": True}, open_source(tmp_path))
    assert config["tie_word_embeddings"] is tied


def test_ties_of_other_models_are_as_stated(tmp_path):
    assert settled(opt, {"model_type": "opt"}, locate(GOLDEN / "opt-pre-norm").source) == {"model_type": "opt"}


@pytest.mark.parametrize(
    "message, cause", [("Couldn't instantiate the backend tokenizer from one of:\n(1) a file", ""), ("no\nyes", ": no")]
)
def test_a_tokenizer_that_transformers_cannot_build_is_one_line(message, cause, tmp_path, monkeypatch):
    import transformers

    def fail(*args, **how):
        raise ValueError(message)

    shutil.copytree(GOLDEN / "opt-pre-norm", tmp_path / "model")
    (tmp_path / "model" / "vocab.json").write_text("{}")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ValueError) as error:
        locate(tmp_path / "model").tokenizer()
    assert str(error.value).endswith(f"transformers can read; add its tokenizer.json{cause}")
