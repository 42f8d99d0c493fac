"""Training, validation and held-out tasks of a text run: generated, from data sets or files, or lists. No torch.

`evaluate_text_run` is `memalpha eval` on them; it needs torch only if the policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memalpha.arguments import check_path
from memalpha.config import TextConfig, read_config, shipped_configs, training_config
from memalpha.config.common import Config, import_object
from memalpha.config.rewards import RewardPart, RewardSettings
from memalpha.errors import ConfigError, DataError
from memalpha.policy.load import load_policy
from memalpha.qa.report import Report, make_result_folder
from memalpha.rewards.environments import TextGeneration
from memalpha.rewards.evaluate import check_tasks, evaluate_text
from memalpha.tasks.text_tasks import GENERATED, HUB_SETS, load_text_tasks
from memalpha.train.rollouts.epochs import (
    FileTasks,
    describe_repetitions,
    group_by_level,
    split_by_content,
)
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
        kept = [part.kept_in(config.out) if isinstance(part, RewardSettings) else part for part in validated]
        return TextGeneration(kept)
    if not config.rewards:
        raise ConfigError(
            "rewards: nothing says what a reply is worth: name a part (rewards: [{kind: math}]), an environment, or "
            "give functions in Python (memalpha.train(config, rewards=[...]))"
        )
    return TextGeneration([part.kept_in(config.out) for part in config.rewards])


HELD_OUT_SEED = -1
"""Seed of generated validation and evaluation tasks: the same in all runs, so that they compare on equal tasks."""


class TextTaskSource(FileTasks[TextTask]):
    """Provide a run's tasks: `batch(position)` for training, fixed `validation` and `held_out` tasks.

    `arithmetic`, `programs`: training tasks are generated by number from the run's seed and never repeat; the test
    split is held out. `gsm8k`, `math`: trained on their train split, their test split is held out. Anything else:
    without `eval_data` a fifth of its prompts is held out.

    Of the rest a fifth validates (at most `eval_tasks` and `validation_tasks` tasks), by hashes of the prompts
    (`epochs.split_by_content`). The others are reshuffled every epoch, without those whose prompts are also held out
    (`notes` says how many, and tells of equal prompts). The lists `tasks` and
    `eval_data` replace what the configuration names.

    Raises:
        ConfigError: The settings do not fit the data.
        DataError: There are too few tasks.
    """

    def __init__(
        self, config: TextConfig, tasks: Sequence[TextTask] | None = None, eval_data: Sequence[TextTask] | None = None
    ) -> None:
        super().__init__(config)
        self._name = config.data if tasks is None else "tasks"
        if tasks is not None and config.data is not None:
            raise ConfigError("tasks: data names tasks already; give one of the two")
        if self._name is None:
            raise ConfigError("data: name the tasks (arithmetic, programs, gsm8k, math, a file, a folder, a hub id)")
        if config.dataset.folder is not None and self._name not in HUB_SETS:
            raise ConfigError(f"data_folder: belongs to {', '.join(HUB_SETS)}; give the folder itself as data")
        if config.dataset.folder is not None and Path(config.dataset.folder).is_file():
            raise ConfigError(
                f"dataset.folder: {config.dataset.folder} is a file, and a file does not say which split it holds: "
                "name the folder, or the file itself as data"
            )
        eval_tasks = None if eval_data is None else list(eval_data)
        if eval_tasks is None and config.evaluation.data is not None:
            eval_tasks = self._load(config.evaluation.data, "test", config.evaluation.tasks)
        self._generator = None if tasks is not None else GENERATED.get(self._name)
        if self._generator is not None:
            if config.dataset.columns or config.dataset.limit is not None:
                key = "dataset.columns" if config.dataset.columns else "dataset.limit"
                raise ConfigError(f"{key}: {self._name} is made here, without end: leave it out")
            self.validation = self._generator("train", HELD_OUT_SEED, 0, config.evaluation.validation_tasks)
            self.held_out = eval_tasks or self._generator("test", HELD_OUT_SEED, 0, config.evaluation.tasks)
        else:
            train_tasks = list(tasks) if tasks is not None else self._load(self._name, "train", config.dataset.limit)
            is_eval_named = eval_tasks is not None
            if eval_tasks is None and tasks is None and self._name in HUB_SETS:
                eval_tasks = self._load(self._name, "test", config.evaluation.tasks)
            self._split_tasks(train_tasks, eval_tasks, is_eval_named=is_eval_named)
        if config.curriculum is not None:
            examples = self.file_tasks
            if self._generator is not None:
                examples = self._generator("train", HELD_OUT_SEED, 0, 12)
            self.levels = group_by_level(examples, config.curriculum)

    def _load(self, name: str, split: Any, limit: int | None) -> list[TextTask]:
        folder = self.config.dataset.folder if name in HUB_SETS else None
        if name in GENERATED:
            return GENERATED[name](split, HELD_OUT_SEED, 0, limit or self.config.evaluation.tasks)
        return load_text_tasks(name, columns=self.config.dataset.columns, split=split, limit=limit, data=folder)

    def _split_tasks(self, tasks: list[TextTask], eval_tasks: list[TextTask] | None, *, is_eval_named: bool) -> None:
        config = self.config
        needed, why = (5, "of which a fifth is held out (or name other tasks as eval_data)")
        if eval_tasks is not None:
            needed, why = (2, "of which one validates") if config.evaluation.validation_tasks else (1, "")
        if len(tasks) < needed:
            raise DataError(f"data: {self._name} has {len(tasks)} tasks, training needs at least {needed}, {why}")
        _check_ids(tasks, f"data: {self._name}")
        self.notes = describe_repetitions([repr(_prompt_key(task)) for task in tasks], "a prompt")
        self.held_out = eval_tasks or []
        if not eval_tasks:
            tasks, self.held_out = _split(tasks, config.evaluation.tasks, "held-out")
        train, self.validation = _split(tasks, config.evaluation.validation_tasks, "validation")
        _check_ids(self.held_out, f"eval_data: {config.evaluation.data}")
        ids_by_held_out_prompt = {_prompt_key(task): task.id for task in [*self.validation, *self.held_out]}
        self.file_tasks = [task for task in train if _prompt_key(task) not in ids_by_held_out_prompt]
        if len(self.file_tasks) == len(train):
            return
        if is_eval_named:
            copy = next(task for task in train if _prompt_key(task) in ids_by_held_out_prompt)
            original = ids_by_held_out_prompt[_prompt_key(copy)]
            raise ConfigError(
                f"eval_data: the prompt of task {original!r} is also that of training task {copy.id!r}: "
                "held-out tasks must be others"
            )
        if not self.file_tasks:
            raise DataError(f"data: every prompt of {self._name} comes so often that none is left to train on")
        left_out = len(train) - len(self.file_tasks)
        self.notes.append(f"data: {left_out} tasks are not trained on: their prompts are among those that are held out")

    def batch(self, position: int) -> list[TextTask]:
        config = self.config
        if self._generator is not None:
            return self._generator("train", config.seed, position, config.tasks_per_step)
        return super().batch(position)

    def tasks_of_level(self, level: str, first: int, count: int) -> list[TextTask]:
        if self._generator is not None:
            return self._generator("train", self.config.seed, first, count, level)  # type: ignore[call-arg]
        return super().tasks_of_level(level, first, count)


def _prompt_key(task: TextTask) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in task.messages)


def _split(tasks: list[TextTask], most: int, purpose: str) -> tuple[list[TextTask], list[TextTask]]:
    return split_by_content(tasks, [repr(_prompt_key(task)) for task in tasks], most, purpose)


def _check_ids(tasks: Sequence[TextTask], source: str) -> None:
    ids: set[str] = set()
    for task in tasks:
        if task.id in ids:
            raise DataError(f"{source}: two tasks have the id {task.id!r}: ids must differ")
        ids.add(task.id)


TRAINED_NAME = "trained"
"""Name of a run's best checkpoint in results."""


def resolve_text_run(name: str, overrides: Mapping[str, Any]) -> tuple[TextConfig, Path | None, str] | None:
    """Resolve a run directory, a shipped configuration or a YAML file to a text run.

    A directory evaluates its best checkpoint, anything else the configuration's start policy; `policy` overrides both.
    Nothing is written without `out`.

    Args:
        name: Directory, shipped name or YAML path.
        overrides: Configuration keys; `policy` is the policy to evaluate, `out` where results go.

    Returns:
        Configuration, output directory (None: write nothing) and name of the policy; None if `name` is no text run.

    Raises:
        ConfigError: The directory has no best checkpoint yet.
    """
    keys = dict(overrides)
    run_config = Path(name) / "config.yaml"
    check_path("config", name, error=ConfigError)
    source = str(run_config) if run_config.is_file() else name
    if source not in shipped_configs() and not Path(source).is_file():
        return None
    if read_config(source).get("task") != "text":
        return None
    out = keys.pop("out", None)
    label = str(keys["policy"]) if "policy" in keys else None
    if run_config.is_file() and label is None:
        best = Path(name) / "checkpoints" / "best"
        if not best.is_dir():
            raise ConfigError(f"{name} has no checkpoints/best: validate in training, or name policy=CHECKPOINT")
        keys["policy"], label = str(best), TRAINED_NAME
    config = training_config(source, keys)
    assert isinstance(config, TextConfig)
    return config, None if out is None else Path(out), label or config.policy


def evaluate_text_run(
    config: TextConfig,
    out: Path | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Reply greedily to the held-out tasks with `config.policy` and score the replies. Raises as a run would.

    Args:
        config: Configuration of the text run.
        out: Directory for results; None writes nothing.
        name: Name of the policy in the report; default: the policy's own.
        progress: Called with `(done, total)` tasks.

    Returns:
        Report of the evaluation.
    """
    if out is not None:
        make_result_folder(out)
    source = TextTaskSource(config)
    environment = build_environment(config.model_copy(update={"out": out}))  # cache of endpoint answers
    check_tasks(source.held_out, environment)
    policy = load_policy(
        config.policy,
        dtype=config.compute.dtype,
        device=config.compute.device,
        loading=config.compute,
        batching=config.sampling,
    )
    sampling = config.sampling
    report = evaluate_text(
        policy,
        source.held_out,
        environment=environment,
        system_prompt=config.system_prompt,
        max_new_tokens=sampling.max_new_tokens,
        thinking_tokens=sampling.thinking_tokens,
        chat_template_kwargs=sampling.chat_template_kwargs,
        max_turns=config.max_turns,
        name=name,
        progress=progress,
    )
    if out is not None:
        report.save(out)
    return report
