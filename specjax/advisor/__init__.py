"""Which way of decoding a pair, a machine and some prompts call for, measured; `advise` is `specjax.advise`.

ways.py names ways; running.py decodes in them; measure.py gathers what theory needs; rank.py is that theory, on numbers
alone; trials.py tries the best ways; desk.py joins all; say.py and pictures.py tell.
"""

from specjax.advisor.desk import Advice as Advice
from specjax.advisor.desk import advise as advise
from specjax.advisor.trials import Trial as Trial
