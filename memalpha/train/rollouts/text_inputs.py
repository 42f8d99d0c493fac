"""Python objects that a text run takes instead of settings, and the environment that either gives. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memalpha.config import TextConfig
from memalpha.config.common import Config, import_object
from memalpha.config.rewards import RewardPart
from memalpha.errors import ConfigError
from memalpha.rewards.environments import TextGeneration
from memalpha.types import TextTask


@dataclass(frozen=True, slots=True)
class PythonInputs:
    """Objects passed to `train()` that a config file cannot hold.

    Attributes:
        rewards: Reward function, or a list of functions and reward parts.
        tasks: Tasks for training and, without `eval_data`, for evaluation.
        eval_data: Held-out tasks.
        environment: Environment class.
        feedback_func: Function that gives feedback on replies.
    """

    rewards: Any = None
    tasks: Sequence[TextTask] | None = None
    eval_data: Sequence[TextTask] | None = None
    environment: Any = None
    feedback_func: Any = None

    @property
    def names(self) -> list[str]:
        """Names of the inputs that are set."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


def pop_python_inputs(overrides: dict[str, Any]) -> PythonInputs:
    """Remove non-config values from `overrides` in place and return them.

    Raises:
        ConfigError: A list of tasks or rewards is empty.
    """
    inputs: dict[str, Any] = {}
    for field in fields(PythonInputs):
        value: Any = overrides.get(field.name)
        if _is_object(field.name, value):
            is_list = isinstance(value, Iterable) and field.name in ("tasks", "eval_data", "rewards")
            inputs[field.name] = list(value) if is_list else value
            if is_list and not inputs[field.name]:
                raise ConfigError(f"{field.name}: empty; leave it out, or give some")
        if _is_object(field.name, value) or (value is None and field.name != "eval_data"):
            overrides.pop(field.name, None)
    return PythonInputs(**inputs)


def _is_object(name: str, value: Any) -> bool:
    """Return True if a file cannot hold the value: anything but a name, a number, or a list of settings."""
    if value is None or isinstance(value, str | int | Path):
        return False
    if name == "rewards" and isinstance(value, list | tuple):
        return any(not isinstance(part, Mapping | Config) for part in value)
    return True


def build_environment(config: TextConfig, inputs: PythonInputs | None = None) -> Any:
    """Build the environment that the settings or the Python inputs define.

    Raises:
        ConfigError: Neither defines rewards, or both rewards and an environment are given.
    """
    inputs = inputs or PythonInputs()
    if inputs.environment is not None or config.environment is not None:
        if inputs.rewards is not None or config.rewards:
            raise ConfigError("rewards: have no effect with an environment, which gives its own; leave one of them out")
        return inputs.environment if config.environment is None else import_object(config.environment, "environment")
    if inputs.rewards is not None:
        parts = TypeAdapter(RewardPart)
        rewards = inputs.rewards if isinstance(inputs.rewards, Sequence) else [inputs.rewards]
        try:
            validated = [parts.validate_python(part) if isinstance(part, Mapping) else part for part in rewards]
        except ValidationError as error:
            raise ConfigError("rewards: " + "; ".join(item["msg"] for item in error.errors())) from error
        return TextGeneration([part.kept_in(config.out) if hasattr(part, "kept_in") else part for part in validated])
    if not config.rewards:
        raise ConfigError(
            "rewards: nothing says what a reply is worth: name a part (rewards: [{kind: math}]), an environment, or "
            "give functions in Python (memalpha.train(config, rewards=[...]))"
        )
    return TextGeneration([part.kept_in(config.out) for part in config.rewards])
