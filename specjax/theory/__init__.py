"""Closed forms of speculative decoding: expected tokens and cost of a round, speed-up, best draft length.

All functions compute in float64 numpy and broadcast over their arguments; nothing here imports jax. Probabilities are
in 0..1; costs are relative to one step of the target with one token per row. Formulas and
examples: `docs/concepts/theory.md`.
"""

from specjax.theory.acceptance import alpha as alpha
from specjax.theory.acceptance import beta as beta
from specjax.theory.acceptance import divergence as divergence
from specjax.theory.acceptance import lenient_beta as lenient_beta
from specjax.theory.acceptance import rejection_beta as rejection_beta
from specjax.theory.batch import BestGoodput as BestGoodput
from specjax.theory.batch import StepTime as StepTime
from specjax.theory.batch import StepTimes as StepTimes
from specjax.theory.batch import best_goodput as best_goodput
from specjax.theory.batch import fit_step_time as fit_step_time
from specjax.theory.batch import goodput as goodput
from specjax.theory.batch import step_time as step_time
from specjax.theory.cascade import BestCascade as BestCascade
from specjax.theory.cascade import best_cascade as best_cascade
from specjax.theory.cascade import cascade_factor as cascade_factor
from specjax.theory.cascade import cascade_factor_whole_rounds as cascade_factor_whole_rounds
from specjax.theory.cascade import rounds_to_fill as rounds_to_fill
from specjax.theory.speed import BestGamma as BestGamma
from specjax.theory.speed import best_gamma as best_gamma
from specjax.theory.speed import implied_cost as implied_cost
from specjax.theory.speed import memory_factor as memory_factor
from specjax.theory.speed import operations_factor as operations_factor
from specjax.theory.speed import oracle_factor as oracle_factor
from specjax.theory.speed import walltime_factor as walltime_factor
from specjax.theory.tokens import alpha_from_drafted as alpha_from_drafted
from specjax.theory.tokens import alpha_from_tokens as alpha_from_tokens
from specjax.theory.tokens import expected_tokens as expected_tokens
from specjax.theory.tokens import expected_tokens_by_position as expected_tokens_by_position
from specjax.theory.tokens import oracle_tokens as oracle_tokens
from specjax.theory.tokens import tokens_distribution as tokens_distribution
from specjax.theory.tokens import tree_tokens as tree_tokens
