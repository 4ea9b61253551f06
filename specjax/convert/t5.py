"""Names of T5 v1.0, v1.1 and Flan-T5. The gated feed-forward's wi_0 is what the activation sees: our `gate`."""

from specjax.convert.table import NameTable


def _stack(stack: str, dense: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The encoder's or the decoder's entries; sub-layers are numbered in the order in which they run."""
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


def _table(dense: dict[str, str]) -> NameTable:
    return NameTable(
        entries=(
            ("shared.weight", "embed.tokens.table"),
            *_stack("encoder", dense),
            *_stack("decoder", dense),
            ("lm_head.weight", "head.kernel"),
        ),
        aliases=(
            ("encoder.embed_tokens.weight", "embed.tokens.table"),
            ("decoder.embed_tokens.weight", "embed.tokens.table"),
            ("lm_head.weight", "embed.tokens.table"),
        ),
        # never used by the model, and yet in the first t5 checkpoints
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


T5 = _table({"wi": "up", "wo": "down"})
T5_GATED = _table({"wi_0": "gate", "wi_1": "up", "wo": "down"})
