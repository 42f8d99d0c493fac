"""What a text run is given in Python in the place of settings, and the environment that either makes. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memalpha.config import TextConfig
from memalpha.config.common import Config
from memalpha.config.rewards import RewardPart
from memalpha.environments.builtin import TextGeneration
from memalpha.errors import ConfigError
from memalpha.rewards.base import imported
from memalpha.types import TextTask


@dataclass(frozen=True, slots=True)
class PythonInputs:
    """What Python can give a run and a file cannot: callables and lists, in the place of what the settings name."""

    rewards: Any = None
    tasks: Sequence[TextTask] | None = None
    eval_data: Sequence[TextTask] | None = None
    environment: Any = None
    feedback_func: Any = None

    @property
    def names(self) -> list[str]:
        """Which were given."""
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
    """Whether a value cannot stand in a file: anything but a name, a number, or a list of settings."""
    if value is None or isinstance(value, str | int | Path):
        return False
    if name == "rewards" and isinstance(value, list | tuple):
        return any(not isinstance(one, Mapping | Config) for one in value)
    return True


def build_environment(config: TextConfig, given: PythonInputs | None = None) -> Any:
    """The environment that the settings, or what is given in their place, make. Raises `ConfigError` for none."""
    given = given or PythonInputs()
    if given.environment is not None or config.environment is not None:
        if given.rewards is not None or config.rewards:
            raise ConfigError("rewards: have no effect with an environment, which gives its own; leave one of them out")
        return given.environment if config.environment is None else imported(config.environment, "environment")
    if given.rewards is not None:
        parts = TypeAdapter(RewardPart)
        rewards = given.rewards if isinstance(given.rewards, Sequence) else [given.rewards]
        try:
            found = [parts.validate_python(one) if isinstance(one, Mapping) else one for one in rewards]
        except ValidationError as error:
            raise ConfigError("rewards: " + "; ".join(item["msg"] for item in error.errors())) from error
        return TextGeneration([one.kept_in(config.out) if hasattr(one, "kept_in") else one for one in found])
    if not config.rewards:
        raise ConfigError(
            "rewards: nothing says what a reply is worth: name a part (rewards: [{kind: math}]), an environment, or "
            "give functions in Python (memalpha.train(config, rewards=[...]))"
        )
    return TextGeneration([part.kept_in(config.out) for part in config.rewards])
