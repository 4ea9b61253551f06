"""The file format of MLP speculators, as IBM publishes them and vLLM serves them."""

from typing import Any

from specjax.heads.eagle_formats import check_targets
from specjax.heads.head import Head, HeadFormat, Stored
from specjax.heads.mlp import MLPConfig
from specjax.models.family import NameTable
from specjax.models.published import Published

PREFIX = "speculator."
PARTS = (
    ("emb.{}.weight", "emb.{}.table"), ("ln.{}.weight", "ln.{}.scale"), ("ln.{}.bias", "ln.{}.bias"),
    ("head.{}.weight", "head.{}.kernel"),
)  # fmt: skip


def names(config: MLPConfig) -> NameTable:
    """Names of the tensors. Files of tied heads hold one copy under any stage, or several equal ones."""
    entries = []
    for stage in range(config.stages):
        own, projection = (0, min(stage, 1)) if config.tied else (stage, stage)
        entries += [(name.format(stage), path.format(own)) for name, path in PARTS]
        entries.append((f"proj.{stage}.weight", f"proj.{projection}.kernel"))
    return NameTable(tuple(entries), prefixes=(PREFIX, ""))


def read(stored: Stored) -> MLPConfig:
    """The configuration; `inner_dim` 0 is the width of the target."""
    given = Published(stored.config, "the configuration of the head")
    features, stages = given.whole("emb_dim"), given.whole("n_predict")
    shape = MLPConfig(
        given.whole("vocab_size"), features, given.whole("inner_dim", 0, least=0) or features, stages,
        given.flag("tie_weights", False), given.flag("scale_input", False),
        tuple(given.entries.get("top_k_tokens_per_head", ())), given.whole("n_candidates", 5),
    )  # fmt: skip
    check_targets(shape, stored, features)
    return shape


def publish(head: Head) -> dict[str, Any]:
    """config.json in the form of the authors."""
    config = head.config
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
        "vocab_size": config.vocab_size, "emb_dim": config.features, "inner_dim": config.inner,
        "n_predict": config.stages, "n_candidates": config.candidates,
        "top_k_tokens_per_head": list(config.top_k) or [max(5 - stage, 1) for stage in range(config.stages)],
        "tie_weights": config.tied, "scale_input": config.scale_input, "transformers_version": "4.38.2",
    }  # fmt: skip


MLP_FORMATS = (
    HeadFormat(
        "original", lambda config, names: config.get("model_type") == "mlp_speculator", read, publish, table=names,
    ),
)  # fmt: skip
