"""Draft-length policies for `drafters.model(draft, policy=...)`. The output is lossless with every policy.

Each constructor returns a `Rule`; docs/guides/policies.md compares them.
"""

from specjax.policies.drafting import Disco as Disco
from specjax.policies.drafting import disco as disco
from specjax.policies.drafting import threshold as threshold
from specjax.policies.policy import Drawn as Drawn
from specjax.policies.policy import Policy as Policy
from specjax.policies.policy import Round as Round
from specjax.policies.policy import Rule as Rule
from specjax.policies.policy import ladder as ladder
from specjax.policies.rounds import agreement as agreement
from specjax.policies.rounds import best as best
from specjax.policies.rounds import fixed as fixed
from specjax.policies.rounds import goodput as goodput
from specjax.policies.rounds import heuristic as heuristic
from specjax.policies.rounds import oracle as oracle
