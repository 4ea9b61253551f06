"""Flan-T5-XXL on one v5e-8 host, drafted by Flan-T5-small as in Leviathan et al., 2023, table 2.

    specjax plan --config configs/pods/t5_xxl.py --topology v5e:2x4 --rows 32
    specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers --config configs/pods/t5_xxl.py --rows 32

Not measured on a TPU.
"""

from specjax.config import RunConfig

CONFIG = RunConfig(
    target="google/flan-t5-xxl", draft="google/flan-t5-small", dtype="bfloat16", mesh="1x8", gamma=7, temperature=0.0,
    max_new_tokens=128,
)  # fmt: skip
