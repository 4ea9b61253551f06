"""Ways to guess what the target will say: pure functions with explicit state (`base.Drafter`)."""

from specjax.drafters.model import model as model
from specjax.drafters.ngram import ngram as ngram
from specjax.drafters.plain import plain as plain
