"""What every training run does to its run directory and its process, whatever it learns from.

Settings are written once and must be the same when a run goes on; a finished run is not run again; a Ctrl-C waits
until the state is whole.
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
    {"out", "max_steps", "save_every", "keep_checkpoints", "threads", "device", "sharding", "report_to"}
)
"""Settings that may change when a run is resumed; all others must be those it began with."""


def check_device(name: str) -> None:
    """Raise `ConfigError` for a torch device that cannot be used here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ValueError) as error:  # an AssertionError: torch was built without it
        raise ConfigError(f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}): try cpu") from error


def trainable_policy(config: LearnerConfig) -> TransformersPolicy:
    """The policy that a run starts from, on its device. Raises `PolicyError` for one that has no weights."""
    frozen = config.lora is not None  # weights that train are float32
    policy = load_policy(config.policy, dtype=config.dtype if frozen else "float32", device=config.device)
    if not isinstance(policy, TransformersPolicy):
        raise PolicyError(f"policy {config.policy!r} has no weights: only a transformers model can be trained")
    return policy


def resolve_init_from(config: L) -> L:
    """The configuration with `policy` the checkpoint that `init_from` stands for: of a run that goes on, the one it
    began with. Raises `ConfigError` for an `init_from` that holds none."""
    if config.init_from is None or "policy" in config.model_fields_set:  # a run's own config.yaml names both
        return config
    if config.init_from.resolve() == config.out.resolve():
        raise ConfigError(f"init_from: {config.init_from} is this run's own out: name the run before it")
    began = _load_recorded_settings(config.out) if saved_steps(config.out) else {}
    if began.get("init_from") == str(config.init_from) and isinstance(began.get("policy"), str):
        return config.model_copy(update={"policy": began["policy"]})
    return config.model_copy(update={"policy": str(_best_checkpoint(config.init_from))})


def _best_checkpoint(run: Path) -> Path:
    """A run's best checkpoint; its newest where nothing validated."""
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
    """Raise `CheckpointError` where the directory holds a run with other settings, or ones that cannot be read."""
    if not (run / "config.yaml").exists() or not saved_steps(run):
        return
    theirs = _load_recorded_settings(run)
    with suppress(ValidationError):  # a key that is newer than the run has its default: what the run did without it
        theirs = json.loads(type(config).model_validate(theirs).model_dump_json())
    ours = json.loads(config.model_dump_json())
    other = [key for key in ours if key not in CHANGEABLE_ON_RESUME and theirs.get(key) != ours[key]]
    if other:
        told = ", ".join(f"{key}: {theirs.get(key)!r} there, {ours[key]!r} now" for key in other)
        raise CheckpointError(
            f"{run} holds a run with other settings ({told}): give the same ones to go on with it, or another out"
        )


def _load_recorded_settings(run: Path) -> dict[str, Any]:
    """The settings that a run directory names; none where it has no `config.yaml`."""
    path = run / "config.yaml"
    try:
        theirs = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        raise CheckpointError(f"{path} is not valid YAML ({told}): mend or delete it to go on") from error
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{path} does not hold a mapping: mend or delete it to go on")
    return theirs


def write_settings(run: Path, config: LearnerConfig) -> None:
    """Write `config.yaml`, once nothing refuses the run: a refused one leaves the settings that are there."""
    aside = run / ".config.yaml.part"
    settings = json.loads(config.model_dump_json())
    aside.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    aside.replace(run / "config.yaml")


def load_finished_summary(run: Path, stop: int) -> dict[str, Any] | None:
    """The summary of a run that has ended at step `stop`."""
    path = run / "summary.json"
    if not path.exists() or not saved_steps(run):
        return None
    summary = read_json(path)
    return summary if summary.get("steps") == stop else None


class CoordinatedInterrupt(KeyboardInterrupt):
    """A Ctrl-C that all of several processes take at the same place, where the state is whole."""


@contextmanager
def defer_interrupt(say: Callable[[str], None], world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Hold a Ctrl-C back until the block has made the state whole again; a second one stops at once.

    Of several processes all stop at the block's end if one was asked to (`StoppedTogether`); a second Ctrl-C is the
    launcher's own there, which passes it on, and changes nothing. A launcher waits for them only so long (torchrun and
    accelerate: 30 s) and kills them then: of a longer step nothing is left but the last checkpoint.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # nohup, a background job: it stays so
    held = not ignored and threading.current_thread() is threading.main_thread()
    pressed = False

    def hold(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed and world.size == 1:
            raise KeyboardInterrupt
        if not pressed:
            again = "press again to stop at once" if world.size == 1 else "a launcher may not wait for its end"
            say(f"Ctrl-C: finishing this step first; {again}")
        pressed = True

    before = signal.signal(signal.SIGINT, hold) if held else None
    try:
        yield
        if world.size > 1 and any(world.gather([pressed])):  # held: one that is left out here waits for the others
            raise CoordinatedInterrupt
    finally:
        if held:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
