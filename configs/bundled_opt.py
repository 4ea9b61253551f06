"""The bundled OPT pair, greedy, with a model drafter. No figures are kept here yet.

specjax generate "Once upon a time" --temperature 0
"""

from specjax.config import RunConfig

CONFIG = RunConfig(
    target="bundled/opt-target",
    draft="bundled/opt-draft",
    prompts=("Once upon a time",),
    gamma=4,
    temperature=0.0,
)
