"""Shapes of T5 models, and their config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.models.layers import check_activation
from specjax.models.published import Published


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Shape of a T5 model. `heads * head_width` need not be `width`; `start_token` opens every decoder row, and
    `pad_token` fills up encoder rows that are scored.

    Published heads are tied and `scaled` (what they read is multiplied by width**-0.5), or neither, which is what None
    means; transformers 5 also writes tied ones that are not scaled.
    """

    vocab_size: int = 32128
    width: int = 512
    head_width: int = 64
    heads: int = 8
    mlp_width: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    buckets: int = 32
    max_distance: int = 128
    gated: bool = False
    activation: str = "relu"
    tied: bool = True
    scaled: bool | None = None
    eps: float = 1e-6
    start_token: int = 0
    pad_token: int = 0

    def __post_init__(self) -> None:
        check_activation(self.activation)
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"{self.buckets} buckets of distances up to {self.max_distance}: relative positions need at least 4 "
                "buckets, and a largest distance above half their number"
            )
        if not 0 <= self.start_token < self.vocab_size:
            raise ValueError(f"start token {self.start_token} is outside the vocabulary of {self.vocab_size}")

    @property
    def scales_head(self) -> bool:
        return self.tied if self.scaled is None else self.scaled

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def positions(self) -> None:
        """Relative positions have no limit."""


def sizes() -> dict[str, T5Config]:
    """The published shapes, by the names of their repositories."""
    first = {
        "small": (512, 64, 8, 2048, 6), "base": (768, 64, 12, 3072, 12), "large": (1024, 64, 16, 4096, 24),
        "3b": (1024, 128, 32, 16384, 24), "11b": (1024, 128, 128, 65536, 24),
    }  # fmt: skip
    second = {
        "small": (512, 64, 6, 1024, 8), "base": (768, 64, 12, 2048, 12), "large": (1024, 64, 16, 2816, 24),
        "xl": (2048, 64, 32, 5120, 24), "xxl": (4096, 64, 64, 10240, 24),
    }  # fmt: skip

    def shape(*numbers: int) -> T5Config:
        fields = ("width", "head_width", "heads", "mlp_width", "encoder_layers")
        return T5Config(**dict(zip(fields, numbers, strict=True)), decoder_layers=numbers[-1])

    shapes = {f"t5-{name}": shape(*numbers) for name, numbers in first.items()}
    for name, numbers in second.items():
        config = dataclasses.replace(shape(*numbers), gated=True, activation="gelu_new", tied=False)
        shapes[f"t5-v1_1-{name}"] = shapes[f"flan-t5-{name}"] = config
    return shapes


SIZES = {  # field -> entry of config.json
    "vocab_size": "vocab_size", "width": "d_model", "head_width": "d_kv", "heads": "num_heads", "mlp_width": "d_ff",
    "encoder_layers": "num_layers",
}  # fmt: skip
DISTANCES = {"buckets": "relative_attention_num_buckets", "max_distance": "relative_attention_max_distance"}


def from_published(published: Mapping[str, Any]) -> T5Config:
    """The shape that a published config.json describes.

    Raises:
      ValueError: a missing or wrong entry.
    """
    given = Published(published, "the configuration of a T5 model")
    given.require(*SIZES.values())
    tied = given.flag("tie_word_embeddings", True)
    scaled = given.flag("scale_decoder_outputs", tied)
    gate, _, kind = given.word("feed_forward_proj", "relu").rpartition("-")
    if gate not in ("", "gated"):
        raise ValueError(f"feed_forward_proj {gate}-{kind} is not implemented: an activation, or gated- and one")
    padding = given.whole("pad_token_id", 0, least=0)
    return T5Config(
        **{field: given.whole(entry) for field, entry in SIZES.items()},
        **{field: given.whole(entry, getattr(T5Config, field)) for field, entry in DISTANCES.items()},
        decoder_layers=given.whole("num_decoder_layers", given.whole("num_layers")),
        gated=bool(gate),
        activation="gelu_new" if gate and kind == "gelu" else kind,
        tied=tied,
        scaled=None if scaled == tied else scaled,
        eps=given.real("layer_norm_epsilon", 1e-6),
        pad_token=padding,
        start_token=given.whole("decoder_start_token_id", padding, least=0),
    )


def to_published(config: T5Config) -> dict[str, Any]:
    """The contents of a config.json that transformers and `from_published` read as this shape."""
    kind = "gelu" if config.activation == "gelu_new" else config.activation
    return {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True,
        **{entry: getattr(config, field) for field, entry in (SIZES | DISTANCES).items()},
        "num_decoder_layers": config.decoder_layers,
        "feed_forward_proj": f"gated-{kind}" if config.gated else kind,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scales_head,
        "layer_norm_epsilon": config.eps,
        "dropout_rate": 0.0,
        "decoder_start_token_id": config.start_token, "pad_token_id": config.pad_token, "eos_token_id": 1,
    }  # fmt: skip
