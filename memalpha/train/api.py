"""Start or resume training runs: `train`, `train_on_preferences`, `train_reward_model`.

A builder per kind of run composes a `Trainer` (`trainers.trainer`) from its parts: `trainers.memory_rl` for memory
writers, `trainers.text_rl` for replies to prompts, `trainers.sft` for imitation, `trainers.preferences` and
`trainers.reward_model` for pairs.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback

from memalpha.arguments import check_items, check_path
from memalpha.config import PreferenceConfig, RewardModelConfig, SFTConfig, TextConfig, build_config, training_config
from memalpha.config.common import Config
from memalpha.config.training import AnyTraining
from memalpha.errors import CheckpointError, ConfigError, DataError, TrainingError
from memalpha.text_files import write_bytes
from memalpha.train.learner.distributed import join_world, local_device
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Callbacks, OnStep, check_trackers
from memalpha.train.trainers.trainer import Trainer, resolve_init_from

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

    A resumed text run needs the same Python inputs again. Ctrl-C and SIGTERM save a checkpoint and raise
    `KeyboardInterrupt`; the same call resumes from it.

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
    inputs: dict[str, Any] = {}
    for name in PYTHON_INPUTS:  # objects that are no settings are taken out
        value: Any = overrides.get(name)
        if name == "rewards" and isinstance(value, list | tuple):
            is_object = any(not isinstance(part, Mapping | Config) for part in value)
        else:  # a file can hold nothing else than a name or a number
            is_object = not isinstance(value, str | int | Path | None)
        if is_object:
            is_list = isinstance(value, Iterable) and name in ("tasks", "eval_data", "rewards")
            inputs[name] = list(value) if is_list else value
            if is_list and not inputs[name]:
                raise ConfigError(f"{name}: empty; leave it out, or give some")
        if is_object or (value is None and name != "eval_data"):
            overrides.pop(name, None)
    settings = training_config(config, overrides)
    if inputs and not isinstance(settings, TextConfig):
        raise ConfigError(f"{next(iter(inputs))}: tasks and functions themselves are for text runs (task: text)")
    return _launch(settings, hooks, inputs)


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
    return _train_on_lists(PreferenceConfig, "train_on_preferences", values, pairs, Callbacks(callbacks, on_step))


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
    return _train_on_lists(RewardModelConfig, "train_reward_model", values, pairs, Callbacks(callbacks, on_step))


def _train_on_lists(
    kind: type[PreferenceConfig | RewardModelConfig],
    caller: str,
    settings: Mapping[str, Any],
    pairs: tuple[Texts, Texts, Texts],
    callbacks: Callbacks,
) -> dict[str, Any]:
    """Write pairs to the run directory and train on them."""
    if "data" in settings:
        raise ConfigError(f"data: {caller} takes the pairs themselves: leave it out")
    for name in ("policy", "out"):
        check_path(name, settings[name], error=ConfigError)
    paths = {"policy": str(settings["policy"]), "out": Path(settings["out"])}
    config = build_config(kind, {**settings, **paths, "data": paths["out"] / PAIRS_FILE}, caller)
    directory = RunDirectory(config.out)
    directory.check_usable()
    with _machine_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
        write_pairs(config.data, *pairs, is_resuming=bool(directory.saved_steps()))
    return _launch(config, callbacks)


def write_pairs(
    path: Path, prompts: Sequence[Any], chosen: Sequence[Any], rejected: Sequence[Any], *, is_resuming: bool
) -> None:
    """Write pairs that `data.preferences.read_pairs` reads, atomically.

    Args:
        path: File to write.
        prompts: Texts or chat messages, one per pair.
        chosen: Better replies.
        rejected: Worse replies.
        is_resuming: True if a run has started with the file, whose pairs must then be the same.

    Raises:
        DataError: The lists differ in length, or a value is not JSON.
        CheckpointError: A resumed run started with other pairs.
    """
    prompts, chosen, rejected = (
        check_items(name, value, of="texts or messages", error=DataError)
        for name, value in (("prompts", prompts), ("chosen", chosen), ("rejected", rejected))
    )
    if not len(prompts) == len(chosen) == len(rejected):
        raise DataError(
            f"preferences: {len(prompts)} prompts, {len(chosen)} chosen and {len(rejected)} rejected replies: there "
            "must be as many of each"
        )
    lines = []
    for index, (prompt, better, worse) in enumerate(zip(prompts, chosen, rejected, strict=True)):
        try:
            lines.append(json.dumps({"prompt": prompt, "chosen": better, "rejected": worse}) + "\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"preferences: pair {index} is neither texts nor messages: {error}") from error
    if is_resuming and path.exists():
        recorded = zip_longest(path.read_text(encoding="utf-8").splitlines(keepends=True), lines)
        changed = [index for index, (better, worse) in enumerate(recorded) if better != worse]
        if changed:
            raise CheckpointError(
                f"{path} holds other pairs (from pair {changed[0]} on): give the same ones to go on, or another out"
            )
        return
    write_bytes(path, "".join(lines).encode())


PYTHON_INPUTS = ("rewards", "tasks", "eval_data", "environment", "feedback_func")
"""Arguments of `train` that may be objects which no configuration file can hold."""


def _launch(config: AnyTraining, callbacks: Callbacks, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check the run directory and device, join the other processes, compose the run and train.

    Args:
        config: Configuration of the run.
        callbacks: What is called while the run trains.
        inputs: Objects that the configuration of a text run cannot hold.

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
            return _compose(config, directory, inputs or {}).train(callbacks)


def _compose(config: AnyTraining, directory: RunDirectory, inputs: Mapping[str, Any]) -> Trainer:
    """Compose the run of a configuration and claim its directory; each kind of run loads its own modules."""
    if isinstance(config, TextConfig):
        from memalpha.train.trainers.text_rl import text_trainer

        return text_trainer(config, directory, **inputs)
    if isinstance(config, PreferenceConfig):
        from memalpha.train.trainers.preferences import preference_trainer

        return preference_trainer(config, directory)
    if isinstance(config, RewardModelConfig):
        from memalpha.train.trainers.preferences import reward_model_trainer

        return reward_model_trainer(config, directory)
    if isinstance(config, SFTConfig):
        from memalpha.train.trainers.sft import sft_trainer

        return sft_trainer(config, directory)
    from memalpha.train.trainers.memory_rl import memory_trainer

    return memory_trainer(config, directory)


@contextmanager
def _machine_errors(out: Path) -> Iterator[None]:
    """Raise errors of the disk, the rights and the descriptors as `CheckpointError`, full memory as `TrainingError`."""
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
    except torch.OutOfMemoryError as error:
        raise TrainingError(f"{str(error).splitlines()[0]}: {_memory_advice(error, out)}") from error


def _memory_advice(error: BaseException, out: Path) -> str:
    """Say which settings take less memory in the phase that ran out of it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    plan = "--plan --gpu CARD tells before a run what a step takes"
    if any(frame.f_code is _compose.__code__ for frame in frames):
        return (
            "loading the models ran out of memory: take a smaller model, or set compute.dtype=bfloat16 or lora, with "
            f"another out if the run has begun; {plan}"
        )
    if any(name.startswith("memalpha.train.learner") for name in modules):
        return (
            "learning ran out of memory: set compute.gradient_checkpointing, lower compute.microbatch_tokens and "
            f"compute.head_tokens, or set lora, with another out (init_from={out} starts from its best weights); "
            f"{plan}"
        )
    return (
        "sampling ran out of memory: lower sampling.batch_tokens and sampling.decode_rows and "
        f"run the same command again, it resumes; a smaller model, or compute.dtype=bfloat16, takes less, too; {plan}"
    )
