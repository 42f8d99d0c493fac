"""Plan of a training run: tokens, memory, time and disk, computed before anything starts."""

from memalpha.train.plan.plan import plan_run
from memalpha.train.plan.table import format_plan

__all__ = ["format_plan", "plan_run"]
