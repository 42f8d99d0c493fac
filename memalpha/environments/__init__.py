"""Environments: give prompts to a policy and say when an episode ends; the engine rolls many of them out.

`reset(task)` returns the first observation, a prompt. `step(reply)` returns a `Step`: reward, whether the episode is
done, and the next observation. `rollouts(policy, tasks, environment)` plays many episodes at once. Writing a memory is
one environment (`MemoryWriting`); those of `memalpha.rewards` score a text reply by reward functions.
"""

from memalpha.environments.engine import Environment, RolloutEngine, Start, Step, rollouts
from memalpha.environments.memory_writing import MemoryWriting, memory_engine

__all__ = ["Environment", "MemoryWriting", "RolloutEngine", "Start", "Step", "memory_engine", "rollouts"]
