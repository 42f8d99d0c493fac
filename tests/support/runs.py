"""Helpers for tests of whole runs: files of a run directory as values, a killed run, an interrupted run."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from memalpha.config import LearnerConfig
from memalpha.train.api import train


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def weights(run: Path, step: int, name: str = "model") -> dict[str, torch.Tensor]:
    """Load the weights of the model or its adapters; name="optimizer" loads the optimizer's state."""
    [file] = (run / "checkpoints" / f"step-{step}").glob(f"*{name}.safetensors")
    return load_file(file)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def interrupted(config: LearnerConfig, number: signal.Signals = signal.SIGINT, **inputs) -> None:
    """Train with `inputs` until a signal, Ctrl-C or another, after the first step's line."""
    metrics = config.out / "metrics.jsonl"

    def press() -> None:
        while not metrics.exists() or not metrics.stat().st_size:
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train(config, **inputs)
    thread.join()
