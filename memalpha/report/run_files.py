"""Read the rollouts of a run while it may still be writing them: an index of where each step's lines lie."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from memalpha.errors import DataError

_STEP = re.compile(rb'\{"step": (\d+),')
MAX_EMBEDDED = 2_000_000
"""Bytes of rollouts that a static page holds."""


class StepFile:
    """A file of JSON lines whose first key is `step`, such as trajectories.jsonl; it may grow, or begin anew.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._end = 0
        self._last = b""
        self._lock = Lock()  # a server looks from several threads

    def steps(self) -> list[int]:
        """Return the steps that have lines, after a look at what was written since the last one."""
        with self._lock:
            self._look()
            return sorted(self._ranges)

    def _look(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self._end - len(self._last)))
                if file.read(len(self._last)) != self._last:  # a resumed run cuts what it repeats
                    self._ranges, self._end, self._last = {}, 0, b""
                    file.seek(0)
                for line in file:
                    if not line.endswith(b"\n"):  # half a line: the rest comes
                        break
                    if match := _STEP.match(line):
                        self._ranges.setdefault(int(match[1]), []).append((self._end, len(line)))
                    self._end, self._last = self._end + len(line), line
        except FileNotFoundError:
            self._ranges, self._end, self._last = {}, 0, b""

    def read(self, step: int) -> list[dict[str, Any]]:
        """Return the lines of a step; none for a step that has none.

        Raises:
            DataError: A line is not JSON.
        """
        lines = []
        with self.path.open("rb") as file:
            for start, length in self._ranges.get(step, ()):
                file.seek(start)
                try:
                    lines.append(json.loads(file.read(length)))
                except ValueError as error:
                    raise DataError(f"{self.path}: a line of step {step} is not valid JSON: {error}") from error
        return lines

    def size(self, step: int) -> int:
        """Return the bytes of a step's lines."""
        return sum(length for _, length in self._ranges.get(step, ()))


class Rollouts:
    """Rollouts of a run by step, as trajectories.jsonl, tasks.jsonl and turns.jsonl have them.

    Args:
        folder: Run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rollouts, self._tasks, self._turns = (
            StepFile(folder / name) for name in ("trajectories.jsonl", "tasks.jsonl", "turns.jsonl")
        )

    def steps(self) -> list[int]:
        """Return the steps that have rollouts."""
        return self._rollouts.steps()

    def read(self, step: int) -> dict[str, Any]:
        """Return tasks and rollouts of a step.

        Raises:
            DataError: The step has none, or a line is not JSON.
        """
        if step not in self.steps():
            raise DataError(f"{self._rollouts.path}: no rollouts of step {step}")
        has_tasks = step in self._tasks.steps()
        return {
            "step": step,
            "tasks": self._tasks.read(step) if has_tasks else [],
            "rollouts": self._rollouts.read(step),
        }

    def tokens(self, step: int, task: str, rollout: int, role: str) -> list[dict[str, Any]]:
        """Return the turns of a rollout as tokens: chunk, texts, log-probs in nats. Without turns.jsonl there are none.

        The texts are the tokenizer's, from the run's first checkpoint.
        """
        if step not in self._turns.steps():
            return []
        key = (task, rollout, role)
        turns = [turn for turn in self._turns.read(step) if (turn["task"], turn["rollout"], turn["role"]) == key]
        decode = _decoder(self.folder)
        return [
            {
                "chunk": turn["chunk"],
                "texts": [decode(id) for id in turn["completion_ids"]],
                "logprobs": [round(value, 4) for value in turn["logprobs"]],
            }
            for turn in turns
        ]

    def embed(self) -> list[dict[str, Any]]:
        """Return steps for a page that is a file: evenly spaced, at most `MAX_EMBEDDED` bytes."""
        steps = self.steps()
        while steps and sum(map(self._rollouts.size, steps)) > MAX_EMBEDDED:
            steps = _every_second(steps)
        return [self.read(step) for step in steps]


def _every_second(steps: Sequence[int]) -> list[int]:
    """Return the last step, and every second one before it; nothing of a single step."""
    return list(steps[::-1][::2][::-1]) if len(steps) > 1 else []


def _decoder(folder: Path) -> Any:
    """Return a function from a token id to its text, by the tokenizer of a checkpoint."""
    from tokenizers import Tokenizer

    files = sorted((folder / "checkpoints").glob("*/tokenizer.json"))
    if not files:
        return str
    tokenizer = Tokenizer.from_file(str(files[0]))
    return lambda id: tokenizer.decode([id], skip_special_tokens=False)
