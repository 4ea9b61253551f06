"""Name tables: which Hugging Face tensor is which parameter, in both directions, for each model family."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

LAYER = "{i}"  # placeholder for the layer index in names and paths


@dataclasses.dataclass(frozen=True)
class NameTable:
    """The names of one model family. Paths are those of separate layers ("layers.3.attn.q.kernel").

    Attributes:
      entries: (Hugging Face name after the prefix, parameter path).
      prefixes: possible prefixes of a name in a file, longest first; the first is written.
      bare: names without a prefix.
      aliases: other names of a parameter, used if its own name is absent.
      ignored: patterns of names in files that are not parameters.
    """

    entries: tuple[tuple[str, str], ...]
    prefixes: tuple[str, ...] = ("",)
    bare: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    def candidates(self, name: str) -> Iterator[tuple[int, str]]:
        """(rank, path) of every parameter that the tensor `name` may be; lower ranks are preferred."""
        for rank, (pattern, path) in enumerate(self._patterns):
            match = pattern.fullmatch(name)
            if match:
                yield rank, path.replace(LAYER, match["i"] if LAYER in path else "")

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def name(self, path: str) -> str:
        """The name under which the parameter at `path` is written.

        Raises:
          ValueError: no entry has this path.
        """
        numbered = re.search(r"\blayers\.(\d+)\.", path)
        template = re.sub(r"\blayers\.\d+\.", f"layers.{LAYER}.", path)
        for name, entry in self.entries:
            if entry == template:
                name = name.replace(LAYER, numbered[1] if numbered else "")
                return name if name in self.bare else self.prefixes[0] + name
        raise ValueError(f"parameter {path} has no Hugging Face name")

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        prefix = "(?:" + "|".join(map(re.escape, self.prefixes)) + ")"

        def pattern(name: str) -> re.Pattern[str]:
            return re.compile(prefix + re.escape(name).replace(re.escape(LAYER), r"(?P<i>\d+)"))

        return tuple((pattern(name), path) for name, path in (*self.entries, *self.aliases))


# --- OPT: OPTForCausalLM, or OPTModel with and without "model." ------------------------------------------------------


def _affine(hf: str, path: str, first: str) -> tuple[tuple[str, str], ...]:
    """A linear map (first "kernel") or a norm (first "scale"), with its bias."""
    return ((f"{hf}.weight", f"{path}.{first}"), (f"{hf}.bias", f"{path}.bias"))


OPT = NameTable(
    entries=(
        ("embed_tokens.weight", "embed.tokens.table"),
        ("embed_positions.weight", "embed.positions.table"),
        ("project_in.weight", "project_in.kernel"),
        ("project_out.weight", "project_out.kernel"),
        *_affine("layers.{i}.self_attn_layer_norm", "layers.{i}.attn_norm", "scale"),
        *_affine("layers.{i}.self_attn.q_proj", "layers.{i}.attn.q", "kernel"),
        *_affine("layers.{i}.self_attn.k_proj", "layers.{i}.attn.k", "kernel"),
        *_affine("layers.{i}.self_attn.v_proj", "layers.{i}.attn.v", "kernel"),
        *_affine("layers.{i}.self_attn.out_proj", "layers.{i}.attn.o", "kernel"),
        *_affine("layers.{i}.final_layer_norm", "layers.{i}.mlp_norm", "scale"),
        *_affine("layers.{i}.fc1", "layers.{i}.mlp.up", "kernel"),
        *_affine("layers.{i}.fc2", "layers.{i}.mlp.down", "kernel"),
        *_affine("final_layer_norm", "final_norm", "scale"),
    ),
    prefixes=("model.decoder.", "decoder.", ""),
    aliases=(("lm_head.weight", "embed.tokens.table"),),  # tied
    ignored=(r"(model\.)?decoder\.version",),
)

# --- Llama, Vicuna, SmolLM2, TinyLlama, Mistral, and Qwen2, which adds biases to q, k and v --------------------------

_LINEAR = {
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}

LLAMA = NameTable(
    entries=(
        ("embed_tokens.weight", "embed.tokens.table"),
        ("layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale"),
        ("layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.scale"),
        *((f"layers.{{i}}.{hf}.weight", f"layers.{{i}}.{path}.kernel") for hf, path in _LINEAR.items()),
        *((f"layers.{{i}}.{hf}.bias", f"layers.{{i}}.{path}.bias") for hf, path in _LINEAR.items()),
        ("norm.weight", "final_norm.scale"),
        ("lm_head.weight", "head.kernel"),
    ),
    prefixes=("model.", ""),
    bare=("lm_head.weight",),
    aliases=(("lm_head.weight", "embed.tokens.table"),),  # tied: used where only the head was written
    ignored=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # buffers of old releases
)

# --- T5 v1.0, v1.1 and Flan-T5; wi_0 of the gated feed-forward is the input of the activation: our `gate` -------------


def _t5_stack(stack: str, dense: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The entries of the encoder or the decoder; sub-layers are numbered in order of execution."""
    crossed = stack == "decoder"
    mlp = 2 if crossed else 1
    block, layer = f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}"
    attentions = [("0.SelfAttention", "attn"), *([("1.EncDecAttention", "cross")] if crossed else [])]
    norms = [("0", "attn_norm"), *([("1", "cross_norm")] if crossed else []), (str(mlp), "mlp_norm")]
    return (
        (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{stack}.relative_bias.table"),
        *((f"{block}.{n}.layer_norm.weight", f"{layer}.{path}.scale") for n, path in norms),
        *((f"{block}.{hf}.{p}.weight", f"{layer}.{path}.{p}.kernel") for hf, path in attentions for p in "qkvo"),
        *((f"{block}.{mlp}.DenseReluDense.{hf}.weight", f"{layer}.mlp.{path}.kernel") for hf, path in dense.items()),
        (f"{stack}.final_layer_norm.weight", f"{stack}.final_norm.scale"),
    )


def _t5_table(dense: dict[str, str]) -> NameTable:
    return NameTable(
        entries=(
            ("shared.weight", "embed.tokens.table"),
            *_t5_stack("encoder", dense),
            *_t5_stack("decoder", dense),
            ("lm_head.weight", "head.kernel"),
        ),
        aliases=(
            ("encoder.embed_tokens.weight", "embed.tokens.table"),
            ("decoder.embed_tokens.weight", "embed.tokens.table"),
            ("lm_head.weight", "embed.tokens.table"),
        ),
        # in the first t5 checkpoints, but not used by the model
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


T5 = _t5_table({"wi": "up", "wo": "down"})
T5_GATED = _t5_table({"wi_0": "gate", "wi_1": "up", "wo": "down"})


def table_for(config: Mapping[str, Any]) -> NameTable:
    """The name table of a Hugging Face configuration (the contents of config.json).

    Raises:
      ValueError: an unsupported model type.
    """
    kind = config.get("model_type")
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    known = {"opt": OPT, "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "t5": T5_GATED if gated else T5}
    if kind not in known:
        raise ValueError(f"model_type {kind!r} is not supported: specjax runs {', '.join(known)}")
    return known[kind]
