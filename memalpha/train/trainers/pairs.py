"""`PairsRun`: a run on a file of preferences: what is learnt from and what validates, its order, its identity."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from memalpha.config.preferences import PairsConfig
from memalpha.errors import CheckpointError, DataError
from memalpha.train.data.preferences import write_pairs
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.trainers.base import Trainer, launch
from memalpha.train.trainers.checkpoint import check_run_directory, saved_steps

P = TypeVar("P", bound=PairsConfig)
L = TypeVar("L")

Texts = Sequence[str | Sequence[Mapping[str, Any]]]
"""Prompts or replies: texts, or chat messages."""

PAIRS_FILE = "preferences.jsonl"
"""Where a run directory holds pairs that came from Python."""


def train_on_lists(
    kind: Callable[[P, World], Trainer[P]], config: P, prompts: Texts, chosen: Texts, rejected: Texts
) -> dict[str, Any]:
    """Run on pairs that are given as lists and kept in the run directory (`config.data`: its `OWN_DATA`)."""
    check_run_directory(config.out)
    config.out.mkdir(parents=True, exist_ok=True)
    write_pairs(config.data, prompts, chosen, rejected, is_resuming=bool(saved_steps(config.out)))
    return launch(kind, config)


class PairTrainer(Trainer[P], Generic[P, L]):
    """Each step learns from `batch_pairs` lines, in a seeded order that is new in every pass.

    What validates: the loss of lines that are held out (`eval_data`, or the last fifth, `validation_pairs` at most).
    """

    unit: ClassVar[str] = "line"
    """What a line of the data is called."""

    def __init__(self, config: P, world: World) -> None:
        super().__init__(config, world)
        self.schedule = config
        self.training_lines: list[L] = []
        self.validation_lines: list[L] = []
        self.fingerprint = ""
        self.tokens = 0
        self.before: dict[str, float] = {}

    @abstractmethod
    def _read_file(self, path: Path) -> list[L]:
        """The lines of a file."""

    @abstractmethod
    def _fingerprint(self, lines: list[L]) -> str:
        """What tells these lines from others."""

    @abstractmethod
    def _check_lines(self, learnt: list[L], held_out: list[L]) -> None:
        """Say what there is; raise `DataError` for what cannot be learnt from."""

    @abstractmethod
    def _validation_metrics(self) -> dict[str, float]:
        """Figures of the lines that are held out, `validation_pair_loss` among them; none without such lines."""

    def _schedule_steps(self) -> int:
        config = self.config
        self.training_lines, self.validation_lines = self.world.run_on_main(self._read_and_split)
        self.fingerprint = self._fingerprint([*self.training_lines, *self.validation_lines])
        steps = schedule_steps(config, len(self.training_lines), config.batch_pairs)
        self.schedule = config.model_copy(update={"schedule_steps": steps})
        return steps

    def _read_and_split(self) -> tuple[list[L], list[L]]:
        config = self.config
        learnt = self._read_file(config.data)
        if config.eval_data is not None:
            held_out = self._read_file(config.eval_data)[: config.validation_pairs]
        else:
            cut = len(learnt) - min(config.validation_pairs, max(1, len(learnt) // 5))
            learnt, held_out = learnt[:cut], learnt[cut:]
        if not learnt:
            raise DataError(
                f"data: {config.data} has one {self.unit}, which validates: add some, or set validation_pairs=0"
            )
        self._check_lines(learnt, held_out)
        return learnt, held_out

    def _before_training(self) -> None:
        """Nothing but the first validation."""

    def _batch(self) -> list[L]:
        """The lines of this step."""
        config = self.config
        first = self.step * config.batch_pairs
        return [
            shuffled_item(self.training_lines, first + number, str(config.seed)) for number in range(config.batch_pairs)
        ]

    def _validation_score(self, line: dict[str, Any]) -> float | None:
        found = self._validation_metrics()
        line |= found
        if self.step == 0:
            self.before = found
        return -found["validation_pair_loss"] if found else None

    def _final_summary(self, chosen: int) -> dict[str, Any]:
        return {
            "pairs": len(self.training_lines),
            "validation_pairs": len(self.validation_lines),
            "tokens": self.tokens,
            "before": self.before,
            "after": self._validation_metrics(),
        }

    def _checkpoint_state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "before": self.before, "pairs": self.fingerprint}

    def _restore_state(self, state: dict[str, Any]) -> None:
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.out} began with other {self.unit}s than data={self.config.data} (or eval_data) holds now: put "
                "back what was there, or start again in another out"
            )
        self.tokens, self.before = state["tokens"], state["before"]
