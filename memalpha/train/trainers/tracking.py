"""Metrics of a run in TensorBoard or Weights & Biases (`report_to`), in addition to `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from memalpha.config import LearnerConfig
from memalpha.errors import ConfigError
from memalpha.train.trainers.directory import RunDirectory


def check_trackers(names: Iterable[str]) -> None:
    """Raise `ConfigError` if a tracker's package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"report_to: {name} is not installed: pip install {name}, or leave it out")


class Trackers:
    """Trackers that `report_to` names; a resumed run continues the same charts from `step`.

    TensorBoard's files are in `out/tensorboard`. The id of a Weights & Biases run is the one in `out/run.json`: a new
    run in the same path is another one, a run that was moved is the same. Its key, project and mode come from the
    environment (`WANDB_API_KEY`, `WANDB_PROJECT`, `WANDB_MODE`).
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

            self._wandb = wandb.init(
                id=RunDirectory(config.out).load_run_id(),
                name=config.out.name,
                dir=str(config.out),
                resume="allow",
                config=json.loads(config.model_dump_json()),
            )
            self._open.callback(self._wandb.finish)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log the numbers of a line of `metrics.jsonl`."""
        step = metrics["step"]
        numbers = {
            name: float(value) for name, value in metrics.items() if isinstance(value, int | float) and name != "step"
        }
        if self._writer is not None:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Flush and close all trackers."""
        self._open.close()


@contextmanager
def open_trackers(config: LearnerConfig, step: int, is_main: bool) -> Iterator[Trackers | None]:
    """Open the trackers of a run's main process and close them after the block.

    Args:
        config: `report_to` names the trackers.
        step: Step that the run starts or resumes from.
        is_main: False in all processes but the main one.

    Returns:
        Context manager of the trackers; None without any.
    """
    if not (is_main and config.report_to):
        yield None
        return
    trackers = Trackers(config, step)
    try:
        yield trackers
    finally:
        trackers.close()
