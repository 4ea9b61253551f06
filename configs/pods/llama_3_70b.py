"""Llama-3-70B on one v6e-8 host, drafted by Llama-3.2-1B.

    specjax plan --config configs/pods/llama_3_70b.py --topology v6e:2x4 --rows 16
    specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers --config configs/pods/llama_3_70b.py --chat

Compiled ahead of time for v6e:2x4, 16 rows of 2,048 slots: 21 GiB of weights and caches per chip, of 31.25.
"""

from specjax.config import RunConfig

CONFIG = RunConfig(
    target="meta-llama/Meta-Llama-3-70B-Instruct", draft="meta-llama/Llama-3.2-1B-Instruct", dtype="bfloat16",
    mesh="1x8", gamma=4, max_new_tokens=1024,
)  # fmt: skip
