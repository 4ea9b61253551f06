"""Measured advice on how to decode: which drafter, draft length or tree is fastest; `advise` is `specjax.advise`.

parts.py divides the prompts; measure.py decodes and times; rank.py predicts speed-ups from these numbers alone;
trials.py decodes the best candidates; advice.py joins them; report.py presents the result.
"""

from specjax.advisor.advice import advise as advise
from specjax.advisor.report import Advice as Advice
from specjax.advisor.trials import Trial as Trial
