"""Reinforcement-learning algorithms by name (`ReinforcementConfig.algorithm`), one file each."""

from memalpha.train.algorithms.base import Algorithm
from memalpha.train.algorithms.dpo import DPO
from memalpha.train.algorithms.erl import ERL
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.algorithms.ppo import PPO
from memalpha.train.algorithms.rloo import RLOO

ALGORITHMS: dict[str, type[Algorithm]] = {"grpo": GRPO, "rloo": RLOO, "ppo": PPO, "dpo": DPO, "erl": ERL}
