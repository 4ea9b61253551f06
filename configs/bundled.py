"""The bundled OPT pair, greedy, three draft tokens a round.

    specjax generate --config configs/bundled.py "Once upon a time"

From Python: `config.build(config.read("configs/bundled.py")).generate("Once").texts`, of the module `specjax.config`.

Acceptance on held-out prompts: specjax/bundled/README.md.
"""

from specjax.config import RunConfig

CONFIG = RunConfig(target="bundled/opt-target", draft="bundled/opt-draft", drafter="model", gamma=3, temperature=0.0)
