"""Stop a run whose first steps cannot teach anything: replies that nobody can read, or a reader that never answers.

Two steps are checked after every start and every resume. Such a run does not fail by itself: a writer without a
readable call keeps an empty memory, which earns a reward for being short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memalpha.agent.reader import PolicyReader
from memalpha.config import ReinforcementConfig, TrainConfig
from memalpha.errors import TrainingError
from memalpha.qa.reader import MAX_TRUNCATED, AnswerCounts, find_reader_fault
from memalpha.qa.report import Record
from memalpha.types import Trajectory

CHECKED_STEPS = 2
"""Steps after a start or a resume that are checked together."""

UNREADABLE = ("malformed", "unknown_tool")
"""Codes of results whose call nobody could read."""

EXAMPLE_CHARACTERS = 160
"""Characters of a reply that a message shows."""


class _Counts(NamedTuple):
    """Counts of a step's attempts: replies, those cut off, readable calls."""

    replies: int = 0
    truncated: int = 0
    readable: int = 0


class EarlyStop:
    """Check the first two steps of a process's run.

    Args:
        config: Settings of the run; `sampling.stop_unreadable` turns the check off.
        reader: Reader that gives the reward, if a policy answers; None otherwise.
    """

    def __init__(self, config: ReinforcementConfig, reader: PolicyReader | None = None) -> None:
        self.config, self.reader = config, reader
        self.steps: list[int] = []
        self._counts, self._answers = _Counts(), AnswerCounts()
        self._example = ""

    def check(self, step: int, attempts: Sequence[Trajectory[Any]], records: Sequence[Record]) -> None:
        """Count a step, and raise after the second one if nothing can be learnt.

        Args:
            step: Step number.
            attempts: The step's rollouts without reflections and retries, from all processes.
            records: Records of their questions.

        Raises:
            TrainingError: The two steps hold no readable call, or over 90 % truncated replies or answers, or only
                empty answers.
        """
        if len(self.steps) == CHECKED_STEPS or not self.config.sampling.stop_unreadable:
            return
        self.steps.append(step)
        turns = [turn for attempt in attempts for turn in attempt.turns]
        step_counts = (
            len(turns),
            sum(turn.completion.stop_reason == "length" for turn in turns),
            sum(result.code not in UNREADABLE for turn in turns for result in turn.results),
        )
        self._counts = _Counts(*(sum(pair) for pair in zip(self._counts, step_counts, strict=True)))
        self._answers = self._answers.plus(AnswerCounts.of(records))
        self._example = self._example or next((turn.completion.text for turn in turns), "")
        if len(self.steps) == CHECKED_STEPS:
            self._judge(self._counts)

    @property
    def _writes_memory(self) -> bool:
        return isinstance(self.config, TrainConfig)

    def _judge(self, counts: _Counts) -> None:
        if counts.replies and counts.truncated > MAX_TRUNCATED * counts.replies:
            self._stop(
                f"{counts.truncated} of {counts.replies} replies were cut at {self._reply_limit} before their end",
                self._reply_remedy(),
            )
        if self._writes_memory and counts.replies and not counts.readable:
            self._stop(
                f"none of the writer's {counts.replies} replies holds a readable tool call, so nothing was remembered",
                f"see `memalpha check-policy {self.config.policy}`, which says how this model must be asked; "
                "agent.thinking_tokens=0 turns thinking off; or teach the calls first (`memalpha train sft`)",
            )
        if self.reader is not None and isinstance(self.config, TrainConfig):
            key = "reader" if self.config.reward.reader is None else "reward.reader"
            if fault := find_reader_fault(self._answers, self.reader, key):
                self._stop(*fault)

    @property
    def _reply_limit(self) -> str:
        config: Any = self.config
        if self._writes_memory:
            return f"agent.max_new_tokens={config.agent.max_new_tokens}"
        return f"sampling.max_new_tokens={config.sampling.max_new_tokens}"

    def _reply_remedy(self) -> str:
        check = f"see `memalpha check-policy {self.config.policy}`"
        if not self._writes_memory:
            return f"raise sampling.max_new_tokens, turn the model's thinking off, and {check}"
        return (
            "raise agent.max_new_tokens, turn thinking off (agent.thinking_tokens=0) or give it a budget there, read "
            f"smaller chunks, and {check}"
        )

    def _stop(self, reason: str, remedy: str) -> None:
        steps = " and ".join(map(str, self.steps))
        example = " ".join(self._example.split())[:EXAMPLE_CHARACTERS]
        raise TrainingError(
            f"stopped after steps {steps}: {reason}. The first reply begins {example!r}. What to change, in a "
            f"new out: {remedy}. If it is meant so (random weights), set sampling.stop_unreadable=false"
        )
