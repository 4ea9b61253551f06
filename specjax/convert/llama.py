"""Names of the Llama family (Llama, Vicuna, SmolLM2, TinyLlama) and of Qwen2, which adds biases to q, k and v."""

from specjax.convert.table import NameTable

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
