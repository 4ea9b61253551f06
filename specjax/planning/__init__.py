"""Plans: what a request needs on a TPU slice, compiled ahead of time without one."""

from specjax.planning.planner import Plan, plan
from specjax.planning.request import PlanRequest

__all__ = ["Plan", "PlanRequest", "plan"]
