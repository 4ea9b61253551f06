"""Names of OPT: Hugging Face's OPTForCausalLM (also saved as OPTModel, with or without "model.") and ours."""

from specjax.convert.table import NameTable


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
