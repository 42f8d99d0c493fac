"""`RunDirectory`: settings, lock, checkpoints, logs and summary of a training run.

`checkpoints/step-N` holds the weights after N steps and all that resuming needs,
`checkpoints/best` links to the step that validated best. The settings are written once; a resumed run must have the
same. A finished run is not run again.

A checkpoint holds weights and everything that resuming needs. Plain transformers loads the folder (config, safetensors
weights, tokenizer). If only adapters train, it holds `adapter_config.json`, which names
the base, and the adapters; peft loads it. In addition there are `value_head.safetensors` (if the algorithm has a value
head), `optimizer.safetensors`, `state.json` (step, position, algorithm state, best validation) and a model card,
`README.md`. Nothing is pickled.

A checkpoint is written to a temporary name and then renamed, so a kill never leaves a partial one. The main process
writes whole tensors, so checkpoints of several processes equal those of one. Where no process keeps whole weights
(`BaseEngine.is_sharded`), each writes its share of the optimizer into a folder `optimizer` instead.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from tokenize import TokenError
from typing import Any
from uuid import uuid4

import torch
import yaml
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from memalpha.arguments import counted
from memalpha.config import LearnerConfig, training_config
from memalpha.config.sampling import SamplerConfig
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.policy.base import ADAPTER_CONFIG
from memalpha.policy.load import resolve_checkpoint
from memalpha.policy.transformers import TransformersPolicy
from memalpha.tasks.text_tasks import GENERATED
from memalpha.text_files import lock_file, write_bytes, write_json
from memalpha.train.learner.distributed import SINGLE_PROCESS, World, full_tensor, shard_like
from memalpha.train.learner.engine import BaseEngine

FORMAT = 2
RNG = "rng/torch"
SHARDED_OPTIMIZER = "optimizer"
CARD_FILE = "README.md"
VALUE_HEAD = "value_head.safetensors"
# text that tokenizers of one vocabulary cut differently
_SAMPLE = "Ana's café, Straße 12:\n\n  \u201cДа\u201d 東京 <b>x_y</b> 3.14 🙂"  # noqa: RUF001


def write_checkpoint(
    path: Path, policy: TransformersPolicy, engine: BaseEngine, state: Mapping[str, Any], card: str = ""
) -> None:
    """Write a checkpoint unless it exists. Every process must call this; the main one writes.

    Args:
        path: Folder of the checkpoint.
        policy: Policy whose tokenizer is saved with the weights.
        engine: Engine with the weights, optimizer and value head.
        state: State for `state.json`; must be JSON.
        card: Model card, `README.md`; "": none.
    """
    if engine.world.run_on_main(path.exists):
        return
    temporary = path.with_name(f".{path.name}.part")

    def make_folder() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    tensors = {} if engine.is_sharded else {**engine.optimizer_tensors(), RNG: torch.get_rng_state()}
    value_head = {name: full_tensor(parameter.detach()).cpu() for name, parameter in engine.value_head.items()}
    if engine.is_sharded:
        engine.world.run_on_main(make_folder)
        engine.write_shards(temporary)
        engine.write_optimizer(temporary / SHARDED_OPTIMIZER, **{RNG: torch.get_rng_state()})

    def write() -> None:
        if not engine.is_sharded:
            make_folder()
            engine.write(temporary)
            save_file(tensors, temporary / "optimizer.safetensors")
        if value_head:
            save_file(value_head, temporary / VALUE_HEAD)
        policy.tokenizer.save_pretrained(temporary)
        write_json(temporary / "state.json", {"format": FORMAT, **state})
        if card:
            (temporary / CARD_FILE).write_text(card, encoding="utf-8", errors="backslashreplace")
        for file in temporary.iterdir():
            _flush(file)
        temporary.replace(path)
        _flush(path.parent)

    engine.world.run_on_main(write)


def load_checkpoint(path: Path, engine: BaseEngine) -> dict[str, Any]:
    """Restore weights, optimizer and RNG from a checkpoint and return its saved state.

    Raises:
        CheckpointError: The checkpoint cannot be read or has another format.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError("state.json holds no JSON object")
        if state.get("format") != FORMAT:
            raise CheckpointError(f"{path}: checkpoint format {state.get('format')!r}, this version reads {FORMAT}")
        load_weights(path, engine)
        if (path / "optimizer.safetensors").exists():
            tensors = load_file(path / "optimizer.safetensors")
            torch.set_rng_state(tensors.pop(RNG))
            engine.load_optimizer_tensors(tensors)
        else:
            rng_state = torch.empty_like(torch.get_rng_state())
            engine.load_optimizer(path / SHARDED_OPTIMIZER, **{RNG: rng_state})
            torch.set_rng_state(rng_state)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"cannot resume from {path}: {error}; delete it to resume from an earlier one") from error
    return state


def check_tokenizer(path: Path, policy: TransformersPolicy) -> None:
    """Raise `CheckpointError` if a policy has another chat template or tokenizer than a checkpoint of its run."""
    if not (path / "tokenizer_config.json").is_file():
        return
    try:
        saved: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot resume from {path}: its tokenizer cannot be read ({error})") from error
    tokenizer: Any = policy.tokenizer
    for name, read in (
        ("chat template", lambda tokenizer: tokenizer.get_chat_template()),
        ("tokenizer", lambda tokenizer: (tokenizer.get_vocab(), tokenizer.eos_token, tokenizer(_SAMPLE)["input_ids"])),
    ):
        if read(saved) != read(tokenizer):
            raise CheckpointError(
                f"policy={policy.name} has another {name} than {path}, the checkpoint to resume from: put back what "
                "the run began with, or start again in another out"
            )


def load_weights(path: Path, engine: BaseEngine) -> None:
    """Copy a checkpoint's weights into the engine's model and value head, in place.

    Every process must call this; sharded parameters are filled, too.

    Raises:
        CheckpointError: The checkpoint is missing or does not fit the model.
    """
    model = engine.model
    config_name = ADAPTER_CONFIG if isinstance(model, PeftModel) else "config.json"
    if not (path / config_name).is_file():  # otherwise transformers takes the path for a hub repository
        raise CheckpointError(f"{path} is not there or holds no weights: put it back, or start again in another out")
    try:
        engine.read(path)
        value_head = load_file(path / VALUE_HEAD) if engine.value_head else {}
        with torch.no_grad():
            for name, parameter in engine.value_head.items():
                parameter.copy_(shard_like(value_head[name], parameter))
            for name, parameter in model.named_parameters():
                if name in engine.trainable and engine.trainable[name] is not parameter:
                    engine.trainable[name].copy_(shard_like(parameter, engine.trainable[name]))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"the weights of {path} cannot be loaded: {error}; delete it to resume from an earlier one"
        ) from error


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RUN_FILE = "run.json"
"""File with the run's id, for trackers, the fingerprint of its data, the names of its rewards, hashes of its code."""
STOP_FILE = "stopped.json"
"""File that says why a run stopped before its end; a resumed run removes it."""

CHANGEABLE_ON_RESUME = frozenset(
    {
        *("out", "max_steps", "report_to", "checkpoint.save_steps", "checkpoint.save_total_limit"),
        "checkpoint.max_minutes",
        *("compute.threads", "compute.device", "compute.sharding", "compute.device_map", "compute.offload_optimizer"),
        *("sampling.batch_tokens", "sampling.decode_rows", "sampling.stop_unreadable"),
        *(f"sampling.sampler.{name}" for name in SamplerConfig.model_fields),
        *("data", "evaluation.data", "policy", "init_from", "evaluation.stop_below"),
    }
)
"""Settings that may change when a run is resumed. Of data (`dataset.*`, too) and policy the content must stay."""


class RunDirectory:
    """The directory of a training run, shared by the processes of `world`; only the main process writes.

    As a context manager it releases its lock on exit.

    Args:
        path: The directory; `lock` creates it.
        world: Processes of the run.
    """

    def __init__(self, path: Path, world: World = SINGLE_PROCESS) -> None:
        self.path, self.world = path, world
        self.origin: dict[str, Any] = {"data": None, "rewards": None, "code": {}}
        self.changed_code: list[str] = []
        self._lock = ExitStack()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    # ------------------------------------------------------------------------------------------------------- the lock

    def check_usable(self) -> None:
        """Raise `ConfigError` if the path cannot be a run directory; creates nothing."""
        path = self.path
        try:
            existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        except OSError as error:
            raise ConfigError(f"out: {path} cannot be a run directory ({error.strerror}): name another") from error
        if not existing.is_dir():
            raise ConfigError(f"out: {existing} is a file: {path} cannot be a run directory, name another")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigError(f"out: no right to write in {existing}: {path} cannot be a run directory, name another")

    def claim(
        self,
        config: LearnerConfig,
        data: str | None = None,
        rewards: list[str] | None = None,
        code: Mapping[str, object] | None = None,
    ) -> None:
        """Lock the directory for a run and check that its recorded settings are those of `config`.

        Args:
            config: Settings of the run.
            data: Fingerprint of the tasks; None if the run records its data otherwise.
            rewards: Names of what rewards the replies, which may be objects that no settings hold.
            code: Functions and classes of the run by name; those that have changed since it began may be a mend, so
                `changed_code` names them.

        Raises:
            CheckpointError: Another process holds the lock, the settings are others or unreadable, the run in the
                directory began with other data or rewards, or its checkpoints are gone.
        """
        hashes = {name: _hash_source(item) for name, item in (code or {}).items()}
        self.origin = {"data": data, "rewards": rewards, "code": hashes}
        self.world.run_on_main(self.lock)
        self.world.run_on_main(lambda: self.check_settings(config))

    def begin_run(self) -> None:
        """Give the run an id of its own and record what it began with."""
        write_json(self.path / RUN_FILE, {"id": uuid4().hex[:16], **self.origin})

    def lock(self) -> None:
        """Lock the directory, in the main process, until the context ends; create it if missing.

        Raises:
            CheckpointError: Another run holds the lock.
        """
        self._lock.enter_context(lock_file(self.path / ".lock", "another training process", CheckpointError))

    # ------------------------------------------------------------------------------------------------------- settings

    def load_settings(self) -> dict[str, Any]:
        """Load the recorded settings (`config.yaml`); {} if there are none.

        Raises:
            CheckpointError: The file is invalid.
        """
        path = self.path / "config.yaml"
        try:
            settings = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            problem = " ".join(str(error).split())
            raise CheckpointError(f"{path} is not valid YAML ({problem}): mend or delete it to resume") from error
        if not isinstance(settings, dict):
            raise CheckpointError(f"{path} does not hold a mapping: mend or delete it to resume")
        return settings

    def check_settings(self, config: LearnerConfig) -> None:
        """Raise `CheckpointError` if the directory holds a run with other settings or data, or without checkpoints."""
        if not self.saved_steps():
            path = self.path / "metrics.jsonl"
            steps = sum(1 for line in path.read_bytes().split(b"\n") if line.strip()) if path.exists() else 0
            if steps:  # step 0's checkpoint precedes them, so all were removed
                raise CheckpointError(
                    f"{self.path} holds {counted(steps, 'step')} in metrics.jsonl but no checkpoint: restore its "
                    "checkpoints, or delete the folder (or take another out=) to start anew"
                )
            return
        settings = json.loads(config.model_dump_json())
        recorded = self.load_settings() if (self.path / "config.yaml").exists() else settings
        with suppress(ConfigError):  # a key that is newer than the run gets its default
            recorded = json.loads(training_config(self.path).model_dump_json())
        current = _comparable(settings)
        recorded = _comparable({key: value for key, value in recorded.items() if key in settings})
        generators, changed = {*GENERATED, "synthetic", "babi"}, []  # no fingerprint says what these make
        for key in sorted({**current, **recorded}):
            old, new = recorded.get(key), current.get(key)
            is_generated = key in ("data", "evaluation.data") and not generators.isdisjoint({old, new})
            may_change = not is_generated and (key in CHANGEABLE_ON_RESUME or key.startswith("dataset."))
            changed += [key] if old != new and not may_change else []
        if changed:
            differences = ", ".join(f"{key}: {recorded.get(key)!r} there, {current.get(key)!r} now" for key in changed)
            raise CheckpointError(
                f"{self.path} holds a run with other settings ({differences}): give the same ones to resume it, or "
                "another out"
            )
        start, rewards = self.origin | self.read_json(RUN_FILE), self.origin["rewards"]  # earlier versions record less
        changed = dict(self.origin["code"].items() - start["code"].items())
        self.changed_code = [name for name in changed if name in start["code"]]
        if start["rewards"] != rewards:
            raise CheckpointError(
                f"{self.path} holds a run that began with other rewards ({start['rewards']} there, {rewards} now): "
                "give the same ones to resume it, or another out"
            )
        if start["data"] != self.origin["data"]:
            raise CheckpointError(
                f"{self.path} holds a run that began with other tasks (data or eval_data has changed since): put back "
                "the files to resume it, or name another out to train on the new ones"
            )

    def write_settings(self, config: LearnerConfig) -> None:
        """Write `config.yaml` atomically.

        Call it after all checks, so that a refused run leaves the existing settings alone.
        """
        settings = json.loads(config.model_dump_json())
        write_bytes(self.path / "config.yaml", yaml.safe_dump(settings, sort_keys=False).encode())

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint after `step` steps."""
        return self.path / "checkpoints" / f"step-{step}"

    def saved_steps(self) -> list[int]:
        """Return the steps with a complete checkpoint, ascending."""
        names = [path.name.removeprefix("step-") for path in (self.path / "checkpoints").glob("step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def prune_checkpoints(self, newest: int, also: Iterable[int] = ()) -> None:
        """Delete old checkpoints (main process only).

        Each is renamed before it is deleted, so a kill leaves no partial checkpoint. The next call deletes what
        remained.

        Args:
            newest: Number of newest checkpoints to keep.
            also: Steps whose checkpoints are kept, too.
        """
        if not self.world.is_main:
            return
        for step in set(self.saved_steps()[:-newest]) - set(also):
            path = self.checkpoint(step)
            path.replace(path.with_name(f".{path.name}.old"))
        for renamed in (self.path / "checkpoints").glob(".step-*.old"):
            shutil.rmtree(renamed)

    def link_best(self, step: int) -> None:
        """Point the link `checkpoints/best` to `step-N` atomically (main process only)."""
        if not self.world.is_main:
            return
        link = self.path / "checkpoints" / "best"
        if link.is_dir() and not link.is_symlink():  # in a copy made by a program that follows links
            if self.checkpoint(step).is_dir():
                shutil.rmtree(link)
            else:
                link.rename(self.checkpoint(step))
        temporary = link.with_name(".best.part")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(f"step-{step}")
        temporary.replace(link)

    def best_checkpoint(self) -> Path:
        """Return the best checkpoint, or the newest one if nothing was validated.

        Raises:
            ConfigError: There is no checkpoint, or the best one is gone; names the setting `init_from`.
        """
        if not self.saved_steps():
            raise ConfigError(
                f"init_from: {self.path} holds no checkpoint: name the directory of a training run (a checkpoint's "
                "own, or any other model, is given as policy)"
            )
        try:
            path = resolve_checkpoint(self.path)
        except PolicyError as error:
            raise ConfigError(f"init_from: {error}") from error
        return path.with_name(path.readlink().name) if path.is_symlink() else path

    # ----------------------------------------------------------------------------------------------- logs and results

    def append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append JSON lines to the log file `name` (main process only)."""
        if self.world.is_main:
            with (self.path / name).open("a", encoding="utf-8") as file:  # ASCII, as in `write_json`
                for line in lines:
                    file.write(json.dumps(line) + "\n")

    def truncate(self, name: str, step: int) -> int:
        """Remove lines of step `step` and later, and a last line that a kill left incomplete.

        Returns:
            The number of lines that stay.

        Raises:
            CheckpointError: Another line is not a JSON object with a step.
        """
        path = self.path / name
        if not path.exists():
            return 0
        lines = path.read_bytes().rstrip(b"\n").split(b"\n")  # bytes: an incomplete line may end within a character
        kept_lines = []
        for number, line in enumerate(lines, start=1):
            try:
                line_step = int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    break
                raise CheckpointError(
                    f"{path}:{number}: not a line this run wrote (a JSON object with a step): mend or delete it to "
                    "resume"
                ) from error
            if line_step < step:
                kept_lines.append(line + b"\n")
        write_bytes(path, b"".join(kept_lines))
        return len(kept_lines)

    def read_json(self, name: str) -> dict[str, Any]:
        """Load the JSON object in the file `name`.

        Raises:
            CheckpointError: The file is missing or holds no JSON object.
        """
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): put it back to resume, or start again in another out"
            ) from error
        except ValueError as error:
            raise CheckpointError(f"{path} is not valid JSON ({error}): mend or delete it to resume") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{path} does not hold a JSON object: mend or delete it to resume")
        return value

    def load_finished_summary(self, stop: int) -> dict[str, Any] | None:
        """Load the summary of a run that has finished at step `stop`; None if it has not."""
        if not (self.path / "summary.json").exists() or not self.saved_steps():
            return None
        summary = self.read_json("summary.json")
        return summary if summary.get("steps") == stop else None


def flatten_settings(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Return settings by their full names, those of a group as `group.name`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten_settings(value, f"{group}{name}.") if isinstance(value, dict) else {group + name: value}
    return flat


def _hash_source(item: Any) -> str | None:
    """Return a hash of the source of a user's function, class or object; None without one that can be read."""
    item = inspect.unwrap(item.func if isinstance(item, partial) else item)
    item = item if inspect.isfunction(item) or inspect.ismethod(item) or inspect.isclass(item) else type(item)
    if item.__name__ == "<lambda>" or str(item.__module__).startswith("memalpha."):  # a lambda's line holds other code
        return None
    try:
        return sha256(inspect.getsource(item).encode()).hexdigest()[:16]
    except (OSError, TypeError, SyntaxError, TokenError):  # the file may be half edited since it was imported
        return None


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full names; where a server samples, none of its own settings stands for it."""
    flat = flatten_settings(settings)
    return flat | ({"sampling.sampler": "a server"} if "sampling.sampler.url" in flat else {})
