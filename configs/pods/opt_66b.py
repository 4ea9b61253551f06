"""OPT-66B on one v5p-16 slice (8 chips), drafted by OPT-125M.

    specjax plan --config configs/pods/opt_66b.py --topology v5p:2x2x2 --rows 8
    specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers --config configs/pods/opt_66b.py --rows 8

Compiled ahead of time for v5p:2x2x2, 8 rows of 2,048 slots: 20.7 GiB of weights and caches per chip, of 95.
"""

from specjax.config import RunConfig

CONFIG = RunConfig(
    target="facebook/opt-66b", draft="facebook/opt-125m", dtype="bfloat16", mesh="1x8", gamma=4, max_new_tokens=512
)
