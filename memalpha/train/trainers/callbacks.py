"""Callbacks of a run: transformers' `TrainerCallback`, and a function that gets the metrics of every step.

Callbacks run in the main process, on `on_train_begin`, `on_step_begin`, `on_evaluate` (`metrics`: the validation's),
`on_log` (`logs`: the step's line of `metrics.jsonl`), `on_save` (`checkpoint`: its path), `on_step_end` (`metrics`: the
same line) and `on_train_end` (`summary`). `args` is the run's configuration. Of `control` a run obeys
`should_training_stop` and `should_save`; `evaluation.eval_steps` alone says when weights are validated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError

OnStep = Callable[[dict[str, Any]], object]
"""Function that is called after every step with its metrics."""


class Callbacks:
    """The callbacks of one run.

    Args:
        callbacks: Callbacks, or classes of them.
        on_step: Called after every step with a copy of its line of `metrics.jsonl`.

    Raises:
        ConfigError: A callback is none, or `on_step` cannot be called.
    """

    def __init__(
        self, callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (), on_step: OnStep | None = None
    ) -> None:
        self.callbacks = [
            callback() if isinstance(callback, type) and issubclass(callback, TrainerCallback) else callback
            for callback in callbacks
        ]
        for callback in self.callbacks:
            if not isinstance(callback, TrainerCallback):
                raise ConfigError(
                    f"callbacks: {callback!r} is none: derive its class from transformers.TrainerCallback"
                )
        if on_step is not None and not callable(on_step):
            raise ConfigError("on_step: give a function of one argument, the metrics of a step")
        self.on_step = on_step
        self.args: LearnerConfig | None = None
        self.shared: dict[str, Any] = {}
        self.state, self.control = TrainerState(), TrainerControl()

    def begin(self, config: LearnerConfig, step: int, stop: int, **shared: Any) -> None:
        """Note what all events share, and call `on_train_begin`.

        Args:
            config: Configuration of the run, the callbacks' `args`.
            step: Steps that are done.
            stop: Steps of the whole run.
            shared: What every event gets, such as `model`.
        """
        self.args, self.shared = config, shared
        self.state = TrainerState(global_step=step, max_steps=stop, save_steps=config.checkpoint.save_steps)
        self.control = TrainerControl()
        self.call("on_train_begin")

    def call(self, event: str, **values: Any) -> None:
        """Call an event of every callback.

        Raises:
            ConfigError: A callback asks for a validation, which the settings decide.
        """
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, **self.shared, **values)
        if self.control.should_evaluate:
            raise ConfigError("callbacks: should_evaluate has no effect; evaluation.eval_steps says when to validate")

    def end_step(self, metrics: Mapping[str, Any]) -> TrainerControl:
        """Call `on_log`, `on_step_end` and `on_step` after a step, and return what they ask for."""
        self.state.log_history.append(dict(metrics))
        self.call("on_log", logs=dict(metrics))
        self.call("on_step_end", metrics=dict(metrics))
        if self.on_step is not None:
            self.on_step(dict(metrics))
        return self.control
