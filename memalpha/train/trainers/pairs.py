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
from memalpha.train.rollouts.epochs import nth, steps_of
from memalpha.train.trainers.base import Run, launch
from memalpha.train.trainers.checkpoint import check_out, saved_steps

P = TypeVar("P", bound=PairsConfig)
L = TypeVar("L")

Texts = Sequence[str | Sequence[Mapping[str, Any]]]
"""Prompts or replies: texts, or chat messages."""

OWN_DATA = "preferences.jsonl"
"""Where a run directory holds pairs that came from Python."""


def launch_on_lists(
    kind: Callable[[P, World], Run[P]], config: P, prompts: Texts, chosen: Texts, rejected: Texts
) -> dict[str, Any]:
    """Run on pairs that are given as lists and kept in the run directory (`config.data`: its `OWN_DATA`)."""
    check_out(config.out)
    config.out.mkdir(parents=True, exist_ok=True)
    write_pairs(config.data, prompts, chosen, rejected, begun=bool(saved_steps(config.out)))
    return launch(kind, config)


class PairsRun(Run[P], Generic[P, L]):
    """Each step learns from `batch_pairs` lines, in a seeded order that is new in every pass.

    What validates: the loss of lines that are held out (`eval_data`, or the last fifth, `validation_pairs` at most).
    """

    unit: ClassVar[str] = "line"
    """What a line of the data is called."""

    def __init__(self, config: P, world: World) -> None:
        super().__init__(config, world)
        self.schedule = config
        self.learnt: list[L] = []
        self.validating: list[L] = []
        self.fingerprint = ""
        self.tokens = 0
        self.before: dict[str, float] = {}

    @abstractmethod
    def _lines(self, path: Path) -> list[L]:
        """The lines of a file."""

    @abstractmethod
    def _fingerprint(self, lines: list[L]) -> str:
        """What tells these lines from others."""

    @abstractmethod
    def _check(self, learnt: list[L], held_out: list[L]) -> None:
        """Say what there is; raise `DataError` for what cannot be learnt from."""

    @abstractmethod
    def _validation(self) -> dict[str, float]:
        """Figures of the lines that are held out, `validation_pair_loss` among them; none without such lines."""

    def _length(self) -> int:
        config = self.config
        self.learnt, self.validating = self.world.run_on_main(self._read)
        self.fingerprint = self._fingerprint([*self.learnt, *self.validating])
        steps = steps_of(config, len(self.learnt), config.batch_pairs)
        self.schedule = config.model_copy(update={"schedule_steps": steps})
        return steps

    def _read(self) -> tuple[list[L], list[L]]:
        config = self.config
        learnt = self._lines(config.data)
        if config.eval_data is not None:
            held_out = self._lines(config.eval_data)[: config.validation_pairs]
        else:
            cut = len(learnt) - min(config.validation_pairs, max(1, len(learnt) // 5))
            learnt, held_out = learnt[:cut], learnt[cut:]
        if not learnt:
            raise DataError(
                f"data: {config.data} has one {self.unit}, which validates: add some, or set validation_pairs=0"
            )
        self._check(learnt, held_out)
        return learnt, held_out

    def _begin(self) -> None:
        """Nothing but the first validation."""

    def _batch(self) -> list[L]:
        """The lines of this step."""
        config = self.config
        first = self.step * config.batch_pairs
        return [nth(self.learnt, first + number, str(config.seed)) for number in range(config.batch_pairs)]

    def _score(self, line: dict[str, Any]) -> float | None:
        found = self._validation()
        line |= found
        if self.step == 0:
            self.before = found
        return -found["validation_pair_loss"] if found else None

    def _end(self, chosen: int) -> dict[str, Any]:
        return {
            "pairs": len(self.learnt),
            "validation_pairs": len(self.validating),
            "tokens": self.tokens,
            "before": self.before,
            "after": self._validation(),
        }

    def _state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "before": self.before, "pairs": self.fingerprint}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["pairs"] != self.fingerprint:
            raise CheckpointError(
                f"{self.out} began with other {self.unit}s than data={self.config.data} (or eval_data) holds now: put "
                "back what was there, or start again in another out"
            )
        self.tokens, self.before = state["tokens"], state["before"]
