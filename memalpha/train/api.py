"""Start or resume training runs: `train`, `train_on_preferences`, `train_reward_model`.

A builder per kind of run composes a `Trainer` (`trainers.trainer`) from its parts: `trainers.memory_rl` for memory
writers, `trainers.text_rl` for replies to prompts, `trainers.sft` for imitation, `trainers.preferences` and
`trainers.reward_model` for pairs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback

from memalpha.arguments import check_path
from memalpha.config import (
    LearnerConfig,
    PreferenceConfig,
    RewardModelConfig,
    SFTConfig,
    TextConfig,
    build_config,
    training_config,
)
from memalpha.config.training import AnyTraining, PairsConfig
from memalpha.errors import CheckpointError, ConfigError
from memalpha.train.data.preferences import write_pairs
from memalpha.train.learner.distributed import join_world, local_device
from memalpha.train.rollouts.text_tasks import pop_python_inputs
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.memory_rl import memory_trainer
from memalpha.train.trainers.preferences import preference_trainer, reward_model_trainer
from memalpha.train.trainers.progress import Callbacks, OnStep, check_trackers
from memalpha.train.trainers.sft import sft_trainer
from memalpha.train.trainers.start import resolve_init_from
from memalpha.train.trainers.text_rl import text_trainer
from memalpha.train.trainers.trainer import Trainer

C = TypeVar("C", bound=LearnerConfig)
P = TypeVar("P", bound=PairsConfig)

Texts = Sequence[str | Sequence[Mapping[str, Any]]]
"""Prompts or replies: texts, or chat messages."""

_MACHINE_ERRORS = {"ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "EMFILE", "ENFILE", "EIO", "EFBIG"}
PAIRS_FILE = "preferences.jsonl"
"""File in the run directory for pairs that were passed from Python."""


def train(
    config: AnyTraining | str | Path,
    *,
    on_step: OnStep | None = None,
    callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (),
    **overrides: Any,
) -> dict[str, Any]:
    """Run or resume a training run and return its summary (also `summary.json` in the run directory).

    A resumed text run needs the same Python inputs again. Ctrl-C saves a checkpoint and raises `KeyboardInterrupt`; the
    same call resumes from it.

    Args:
        config: Configuration, shipped name, YAML path, or the directory of a run to resume.
        on_step: Called after every step with its metrics, the line of `metrics.jsonl`.
        callbacks: transformers' `TrainerCallback`s, or classes of them (`train.trainers.progress`).
        overrides: Keys of the configuration, nested ones as mappings. Text runs also take objects that no file can
            hold: `rewards=[callable, ...]`, `tasks=[TextTask, ...]`, `eval_data=[TextTask, ...]`, `environment=` a
            class, `feedback_func=` a callable.

    Raises:
        ConfigError: The settings are invalid, or Python inputs are given to a run that takes none.
    """
    hooks = Callbacks(callbacks, on_step)
    python_inputs = pop_python_inputs(overrides)
    settings = training_config(config, overrides)
    if isinstance(settings, TextConfig):
        return _launch(lambda config, directory: text_trainer(config, directory, python_inputs), settings, hooks)
    if python_inputs.names:
        raise ConfigError(f"{python_inputs.names[0]}: tasks and functions themselves are for text runs (task: text)")
    if isinstance(settings, PreferenceConfig):
        return _launch(preference_trainer, settings, hooks)
    if isinstance(settings, RewardModelConfig):
        return _launch(reward_model_trainer, settings, hooks)
    if isinstance(settings, SFTConfig):
        return _launch(sft_trainer, settings, hooks)
    return _launch(memory_trainer, settings, hooks)


def train_on_preferences(
    prompts: Texts,
    chosen: Texts,
    rejected: Texts,
    *,
    policy: str | Path,
    out: str | Path,
    on_step: OnStep | None = None,
    callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Make `chosen[i]` more likely and `rejected[i]` less likely as replies to `prompts[i]`.

    The pairs are stored in the run directory; the same call resumes a stopped run. The trained weights are in
    `out/checkpoints/best`.

    Args:
        prompts: Texts, used as they are, or chat messages.
        chosen: Better replies: texts, or lists of one assistant message.
        rejected: Worse replies, in the same formats.
        policy: Start policy: a shipped name, a path or a hub id.
        out: Run directory.
        on_step: Called after every step with its metrics; see `train`.
        callbacks: transformers' `TrainerCallback`s; see `train`.
        settings: Keys of `PreferenceConfig` (`dpo={"beta": 0.05}`, `learning_rate=5e-7`, `lora={}`, ...).

    Returns:
        Summary of the run.

    Raises:
        ConfigError: A setting is invalid.
        DataError: Training on a pair is impossible; names its line in `out/preferences.jsonl`.
        CheckpointError: `out` holds another run.
    """
    pairs, values = (prompts, chosen, rejected), {**settings, "policy": policy, "out": out}
    hooks = Callbacks(callbacks, on_step)
    return _train_on_lists(preference_trainer, PreferenceConfig, "train_on_preferences", values, pairs, hooks)


def train_reward_model(
    prompts: Texts,
    chosen: Texts,
    rejected: Texts,
    *,
    policy: str | Path,
    out: str | Path,
    on_step: OnStep | None = None,
    callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Train a reward model that scores `chosen[i]` above `rejected[i]` as a reply to `prompts[i]`.

    The pairs are stored in the run directory; the same call resumes a stopped run. `load_reward_model(out)` loads the
    model.

    Args:
        prompts: Texts, used as they are, or chat messages.
        chosen: Better replies: texts, or lists of one assistant message.
        rejected: Worse replies, in the same formats.
        policy: Model to start from: a shipped name, a path or a hub id.
        out: Run directory.
        on_step: Called after every step with its metrics; see `train`.
        callbacks: transformers' `TrainerCallback`s; see `train`.
        settings: Keys of `RewardModelConfig` (`pooling="mean"`, `epochs=2`, `lora={}`, ...).

    Returns:
        Summary of the run.

    Raises:
        ConfigError: A setting is invalid.
        DataError: Training on a pair is impossible; names its line in `out/preferences.jsonl`.
        CheckpointError: `out` holds another run.
    """
    pairs, values = (prompts, chosen, rejected), {**settings, "policy": policy, "out": out}
    hooks = Callbacks(callbacks, on_step)
    return _train_on_lists(reward_model_trainer, RewardModelConfig, "train_reward_model", values, pairs, hooks)


def _train_on_lists(
    build: Callable[[P, RunDirectory], Trainer],
    kind: type[P],
    caller: str,
    settings: Mapping[str, Any],
    pairs: tuple[Texts, Texts, Texts],
    callbacks: Callbacks,
) -> dict[str, Any]:
    """Write pairs to the run directory and train on them."""
    for name in ("policy", "out"):
        check_path(name, settings[name], error=ConfigError)
    paths = {"policy": str(settings["policy"]), "out": Path(settings["out"])}
    config = build_config(kind, {**settings, **paths, "data": paths["out"] / PAIRS_FILE}, caller)
    directory = RunDirectory(config.out)
    directory.check_usable()
    with _machine_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
        write_pairs(config.data, *pairs, is_resuming=bool(directory.saved_steps()))
    return _launch(build, config, callbacks)


def _launch(build: Callable[[C, RunDirectory], Trainer], config: C, callbacks: Callbacks) -> dict[str, Any]:
    """Check the run directory and device, join the other processes, compose the run and train.

    Args:
        build: Composes the run; claims the directory.
        config: Configuration of the run.
        callbacks: What is called while the run trains.

    Returns:
        Summary of the run, as in `summary.json`.

    Raises:
        CheckpointError: The directory holds another run, or cannot be written.
    """
    with _machine_errors(config.out):
        RunDirectory(config.out).check_usable()
        config = resolve_init_from(config).replace(device=local_device(config.compute.device))
        device = config.compute.device
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, ValueError) as error:  # AssertionError: torch was built without it
            reason = str(error).splitlines()[0]
            raise ConfigError(f"device: {device!r} cannot be used here ({reason}): try cpu") from error
        check_trackers(config.report_to)
        world = join_world(config.compute.device)
        torch.set_num_threads(config.compute.threads)
        torch.manual_seed(config.seed)
        with RunDirectory(config.out, world) as directory:
            return build(config, directory).train(callbacks)


@contextmanager
def _machine_errors(out: Path) -> Iterator[None]:
    """Raise errors of the disk, the rights and the descriptors as `CheckpointError`."""
    try:
        yield
    except OSError as error:
        if errno.errorcode.get(error.errno or 0) not in _MACHINE_ERRORS:
            raise
        raise CheckpointError(
            f"{out}: the run stopped ({error.strerror}: {error.filename or out}): mend that, and run the same command "
            "again: it goes on from the last checkpoint"
        ) from error
    except SafetensorError as error:
        if "os error" not in str(error):
            raise
        raise CheckpointError(
            f"{out}: weights cannot be written or read ({error}): mend that, and run the same command again"
        ) from error
