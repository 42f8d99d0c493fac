"""Settings, device, start weights and interrupts of a run, whatever it trains.

The settings are written once; a resumed run must have the same. A finished run is not run again. Ctrl-C waits until the
state is consistent.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from pydantic import ValidationError

from memalpha.config import LearnerConfig
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.trainers.checkpoint import checkpoint_path, read_json, saved_steps

L = TypeVar("L", bound=LearnerConfig)

CHANGEABLE_ON_RESUME = frozenset(
    {
        *("out", "max_steps", "report_to", "checkpoint.save_steps", "checkpoint.save_total_limit"),
        *("compute.threads", "compute.device", "compute.sharding"),
    }
)
"""Settings that may change when a run is resumed; all others must stay as recorded."""


def check_device(name: str) -> None:
    """Raise `ConfigError` if torch cannot use this device here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ValueError) as error:  # AssertionError: torch was built without it
        raise ConfigError(f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}): try cpu") from error


def trainable_policy(config: LearnerConfig) -> TransformersPolicy:
    """Load the start policy on the run's device.

    Raises:
        PolicyError: The policy has no weights.
    """
    is_frozen = config.lora is not None  # trained weights are float32
    policy = load_policy(
        config.policy, dtype=config.compute.dtype if is_frozen else "float32", device=config.compute.device
    )
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {config.policy!r} has no weights: only a transformers model can be trained")
    return policy


def resolve_init_from(config: L) -> L:
    """Replace `init_from` by a checkpoint path in `policy`; a resumed run keeps the one it started from.

    Raises:
        ConfigError: `init_from` holds no checkpoint, or is this run itself.
    """
    if config.init_from is None or "policy" in config.model_fields_set:  # a run's own config.yaml names both
        return config
    if config.init_from.resolve() == config.out.resolve():
        raise ConfigError(f"init_from: {config.init_from} is this run's own out: name the run before it")
    recorded = _load_recorded_settings(config.out) if saved_steps(config.out) else {}
    if recorded.get("init_from") == str(config.init_from) and isinstance(recorded.get("policy"), str):
        return config.model_copy(update={"policy": recorded["policy"]})
    return config.model_copy(update={"policy": str(_best_checkpoint(config.init_from))})


def _best_checkpoint(run: Path) -> Path:
    """Return a run's best checkpoint, or its newest one if nothing was validated."""
    steps = saved_steps(run)
    if not steps:
        raise ConfigError(
            f"init_from: {run} holds no checkpoint: name the directory of a training run (a checkpoint's own, or any "
            "other model, is given as policy)"
        )
    best = run / "checkpoints" / "best"
    if not best.is_symlink():
        return checkpoint_path(run, steps[-1])
    path = best.with_name(best.readlink().name)
    if not path.is_dir():
        raise ConfigError(f"init_from: {best} names {path.name}, which is not there: name a checkpoint as policy")
    return path


def check_settings(run: Path, config: LearnerConfig) -> None:
    """Raise `CheckpointError` if the directory holds a run with other or unreadable settings."""
    if not (run / "config.yaml").exists() or not saved_steps(run):
        return
    recorded = _load_recorded_settings(run)
    with suppress(ValidationError):  # a key that is newer than the run gets its default
        recorded = json.loads(type(config).model_validate(recorded).model_dump_json())
    current = _flatten_settings(json.loads(config.model_dump_json()))
    groups = {key.partition(".")[0] for key in current}
    recorded = _flatten_settings({key: value for key, value in recorded.items() if key in groups})
    keys = {**current, **recorded}.keys() - CHANGEABLE_ON_RESUME
    changed = sorted(key for key in keys if recorded.get(key) != current.get(key))
    if changed:
        differences = ", ".join(f"{key}: {recorded.get(key)!r} there, {current.get(key)!r} now" for key in changed)
        raise CheckpointError(
            f"{run} holds a run with other settings ({differences}): give the same ones to resume it, or another out"
        )


def _flatten_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by name, those of a group as `group.name`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _load_recorded_settings(run: Path) -> dict[str, Any]:
    """Load `config.yaml` of a run directory; {} if there is none."""
    path = run / "config.yaml"
    try:
        settings = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"{path} is not valid YAML ({problem}): mend or delete it to resume") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} does not hold a mapping: mend or delete it to resume")
    return settings


def write_settings(run: Path, config: LearnerConfig) -> None:
    """Write `config.yaml` atomically.

    Call it after all checks, so that a refused run leaves the existing settings alone.
    """
    temporary = run / ".config.yaml.part"
    settings = json.loads(config.model_dump_json())
    temporary.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    temporary.replace(run / "config.yaml")


def load_finished_summary(run: Path, stop: int) -> dict[str, Any] | None:
    """Load the summary of a run that has finished at step `stop`; None if it has not."""
    path = run / "summary.json"
    if not path.exists() or not saved_steps(run):
        return None
    summary = read_json(path)
    return summary if summary.get("steps") == stop else None


class CoordinatedInterrupt(KeyboardInterrupt):
    """Ctrl-C that all processes take at the same point, with a consistent state."""


@contextmanager
def defer_interrupt(log: Callable[[str], None], world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Delay SIGINT until the block ends; a second one interrupts at once.

    With several processes, all of them stop at the end of the block if one received SIGINT (`CoordinatedInterrupt`). A
    second SIGINT changes nothing there, because launchers pass on their own. torchrun and accelerate wait 30 s and then
    kill the processes: a longer step is lost back to the last checkpoint.

    Args:
        log: Called with a message when the first SIGINT arrives.
        world: Processes that must stop together.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # nohup or a background job: stays ignored
    is_handled = not ignored and threading.current_thread() is threading.main_thread()
    interrupted = False

    def on_sigint(signal_number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted and world.size == 1:
            raise KeyboardInterrupt
        if not interrupted:
            hint = "press again to stop at once" if world.size == 1 else "a launcher may not wait for its end"
            log(f"Ctrl-C: finishing this step first; {hint}")
        interrupted = True

    previous_handler = signal.signal(signal.SIGINT, on_sigint) if is_handled else None
    try:
        yield
        # Interrupts are still deferred here: a process that skipped the gather would hang the others.
        if world.size > 1 and any(world.gather([interrupted])):
            raise CoordinatedInterrupt
    finally:
        if is_handled:
            signal.signal(signal.SIGINT, previous_handler)
    if interrupted:
        raise KeyboardInterrupt
