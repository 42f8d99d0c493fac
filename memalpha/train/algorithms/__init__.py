"""Reinforcement-learning algorithms by name (`ReinforcementConfig.algorithm`), one file each."""

import inspect

from memalpha.config import ReinforcementConfig
from memalpha.config.common import import_object
from memalpha.errors import ConfigError, TrainingError
from memalpha.train.algorithms.base import Algorithm, as_json, name_algorithm_errors
from memalpha.train.algorithms.dpo import DPO
from memalpha.train.algorithms.erl import ERL
from memalpha.train.algorithms.grpo import GRPO
from memalpha.train.algorithms.ppo import PPO
from memalpha.train.algorithms.rloo import RLOO

ALGORITHMS: dict[str, type[Algorithm]] = {"grpo": GRPO, "rloo": RLOO, "ppo": PPO, "dpo": DPO, "erl": ERL}


def find_algorithm(name: str) -> type[Algorithm]:
    """Return the class of a shipped algorithm, or of `package.module:Class`.

    Raises `ConfigError` if the name leads to nothing, or to no concrete subclass of `Algorithm`.
    """
    kind = ALGORITHMS[name] if name in ALGORITHMS else import_object(name, "algorithm")
    if not (inspect.isclass(kind) and issubclass(kind, Algorithm)) or inspect.isabstract(kind):
        raise ConfigError(
            f"algorithm: {name!r} is no subclass of memalpha.train.algorithms.Algorithm with an annotate method"
        )
    return kind


def build_algorithm(config: ReinforcementConfig) -> Algorithm:
    """Build the algorithm that `config.algorithm` names.

    Raises:
        ConfigError: See `find_algorithm`.
        TrainingError: The constructor of a user's class raised, did not call that of `Algorithm`, or made a state that
            is not JSON.
    """
    kind = find_algorithm(config.algorithm)
    with name_algorithm_errors(config):
        algorithm = kind(config)
    if not vars(algorithm).keys() >= {"config", "state"}:
        raise TrainingError(f"algorithm {config.algorithm}: its __init__ must call super().__init__(config)")
    as_json(algorithm.state, f"algorithm {config.algorithm}: state")  # checked here, written by checkpoints
    return algorithm
