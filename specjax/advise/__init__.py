"""Which way of decoding a pair, a machine and some prompts call for, measured; `advise` is `specjax.advise`.

ways.py names ways; rank.py is theory on measured numbers; measure.py runs; desk.py joins them; say.py tells.
"""

from specjax.advise.desk import Advice as Advice
from specjax.advise.desk import advise as advise
from specjax.advise.trials import Trial as Trial
