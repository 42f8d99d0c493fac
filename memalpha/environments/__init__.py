"""Environments: what asks for text and says what a reply is worth.

`reset(task)` gives the first observation, a prompt; `step(reply)` gives a `Step`: reward, whether it was the last, and
the next observation. `rollouts(policy, tasks, environment)` plays many at once, `evaluate_text(policy, tasks, rewards)`
makes a report; `memalpha.train` learns from them (`task: text`).
"""

from memalpha.environments.base import Environment, Step
from memalpha.environments.builtin import (
    MultiObjective,
    PreferenceComparison,
    TextGeneration,
    code_environment,
    math_environment,
)
from memalpha.environments.evaluate import evaluate_text
from memalpha.environments.rollouts import Player, rollouts

__all__ = [
    "Environment",
    "MultiObjective",
    "Player",
    "PreferenceComparison",
    "Step",
    "TextGeneration",
    "code_environment",
    "evaluate_text",
    "math_environment",
    "rollouts",
]
