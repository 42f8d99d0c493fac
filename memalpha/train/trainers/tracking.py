"""The figures of a run's steps in TensorBoard or Weights & Biases (`report_to`), beside `metrics.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError


def check_trackers(names: Iterable[str]) -> None:
    """Raise `ConfigError` where a package is missing."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"report_to: {name} is not installed: pip install {name}, or leave it out")


class Trackers:
    """Those that `config.report_to` names. A run that goes on goes on in the same charts, from `step`.

    TensorBoard's files are in `out/tensorboard`; a run of Weights & Biases is known by the path of `out`, its key,
    project and mode are the environment's (`WANDB_API_KEY`, `WANDB_PROJECT`, `WANDB_MODE`).
    """

    def __init__(self, config: LearnerConfig, step: int) -> None:
        self._writer: Any = None
        self._wandb: Any = None
        self._open = ExitStack()
        if "tensorboard" in config.report_to:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(config.out / "tensorboard"), purge_step=step)
            self._open.callback(self._writer.close)
        if "wandb" in config.report_to:
            import wandb  # type: ignore[import-not-found]

            place = hashlib.sha256(str(config.out.resolve()).encode()).hexdigest()[:16]
            self._wandb = wandb.init(
                id=place,
                name=config.out.name,
                dir=str(config.out),
                resume="allow",
                config=json.loads(config.model_dump_json()),
            )
            self._open.callback(self._wandb.finish)

    def log(self, line: Mapping[str, Any]) -> None:
        """The numbers of a line of `metrics.jsonl`."""
        step = line["step"]
        found = {
            name: float(value) for name, value in line.items() if isinstance(value, int | float) and name != "step"
        }
        if self._writer is not None:
            for name, value in found.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        if self._wandb is not None:
            self._wandb.log(found, step=step)

    def close(self) -> None:
        """Everything is handed over."""
        self._open.close()


@contextmanager
def open_trackers(config: LearnerConfig, step: int, main: bool) -> Iterator[Trackers | None]:
    """The trackers of a run's main process, where it has any."""
    if not (main and config.report_to):
        yield None
        return
    trackers = Trackers(config, step)
    try:
        yield trackers
    finally:
        trackers.close()
