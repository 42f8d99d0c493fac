"""Environments: give prompts to a policy and score its replies.

`reset(task)` returns the first observation, a prompt. `step(reply)` returns a `Step`: reward, whether the episode is
done, and the next observation. `rollouts(policy, tasks, environment)` plays many episodes at once,
`evaluate_text(policy, tasks, rewards)` makes a report, and `memalpha.train` learns from them (`task: text`).
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
