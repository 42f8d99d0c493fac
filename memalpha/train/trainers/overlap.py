"""`overlap`: a step in parts, so that neither sampler nor learner waits for a reader or judge behind an endpoint.

    sampled   | 1 | 2 | 3 |
    asked         | 1 ......... | 2 ....... | 3 ............. |       (parts side by side)
    learnt                      | 1 |       | 2 |             | 3 |

Each part is some of the step's tasks. All are sampled before the first update, so the step is on-policy as ever. A part
is learnt from in its turn, as soon as its rewards are there: with `minibatches` 1 its gradient is added to the others',
with as many minibatches as parts it is an optimizer step. Divisors of the one optimizer step follow from what was
sampled (`normalize.count`), so no part waits for another's rewards; a rollout that then has no reward counts in them,
as one of advantage 0 would, and is learnt from no more. Passes that need no reward (the reference, the
learner's own old log-probs) are made while the first part is being asked about.

What is learnt depends on no timing: parts are learnt from in order, and what is searched in a memory was embedded when
the part was sampled. The same parts one after the other give the same bits, and are what is done where no endpoint is
waited for. Several processes wait side by side, and learn in their main threads; parts of fewer tasks than processes
are dealt to them in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from memalpha.config import ReinforcementConfig
from memalpha.errors import TrainingError
from memalpha.qa.records import Record
from memalpha.train.algorithms.base import Algorithm, build_rows
from memalpha.train.data.samples import STREAMS, TrainingSample
from memalpha.train.learner.async_engine import Learner, merge_metrics
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.futures import Future, Pipeline
from memalpha.train.learner.loss_weights import StreamCount, count_streams
from memalpha.train.rollouts.base import RolloutCollector, ScoredGroups, drop_unscored
from memalpha.types import TrajectoryGroup


@dataclass(slots=True)
class Part:
    """Some of a step's tasks: `rows` as sampled, rewards on their way, and passes over the rows made ahead.

    It is the `Score` that the part is annotated with: log-probs of the step's first weights, whatever was learnt since.
    """

    rows: list[TrainingSample]
    scored: Future[ScoredGroups[Any]]
    forward_passes: dict[bool, Future[list[np.ndarray]]] = field(default_factory=dict)
    """By whether they are the reference's."""

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]:
        """Log-probs of the part's rows. Raises `TrainingError` for other rows, and passes that were not foreseen."""
        places: dict[Any, list[int]] = {}
        for place in reversed(range(len(self.rows))):
            places.setdefault(_tokens(self.rows[place]), []).append(place)
        wanted = [places[key].pop() if places.get(key := _tokens(sample)) else -1 for sample in samples]
        if reference not in self.forward_passes or -1 in wanted:
            raise TrainingError("overlap: this algorithm scores rows that were not sampled: set overlap=1")
        found = self.forward_passes[reference].result()
        return [found[place] for place in wanted]

    def values(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Raises `TrainingError`: no algorithm that is learnt from in parts asks for values."""
        raise TrainingError("overlap: this algorithm asks for values: set overlap=1")


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step: its scored groups and records, its rows, the figures of each optimizer step, and `mismatch_*`."""

    groups: list[TrajectoryGroup[Any]]
    records: list[Record]
    samples: list[TrainingSample]
    stats: list[dict[str, float]]
    mismatch: dict[str, float]


class OverlapPipeline:
    """Does the steps of a run in `config.overlap` parts. A context manager: at its end nothing is under way.

    `waits`: whether there is an endpoint to wait for. `waited`: seconds in which nothing was sampled or learnt, for
    rewards were waited for, or made without a thread.
    """

    def __init__(
        self, collector: RolloutCollector[Any], algorithm: Algorithm, engine: Engine, config: ReinforcementConfig
    ) -> None:
        self.collector, self.algorithm, self.engine, self.config = collector, algorithm, engine, config
        self.wait_seconds = 0.0
        self._scoring = collector.background_scoring()
        self.has_endpoint = self._scoring.has_endpoint
        inline = not self.has_endpoint
        self.learner = Learner(engine, inline=inline)
        lanes = config.overlap if self._scoring.is_concurrent else 1
        self._pipelines = [Pipeline(inline=inline, name=f"memalpha scores {number}") for number in range(lanes)]

    def start_step(self, tasks: Sequence[Any], step: int) -> list[Part]:
        """Sample all parts, have them scored, and wait for the first one's rewards. Changes no weights."""
        self.wait_seconds = 0.0
        try:
            sampled = [self._sample_part(number, tasks, step) for number in range(self.config.overlap)]
            parts = [
                self._build_part(number, *own) for number, own in enumerate(sampled)
            ]  # now that all processes have
            for part in parts:
                if self.algorithm.needs_reference:
                    part.forward_passes[True] = self.learner.forward(part.rows, reference=True)
                if self.config.old_logprobs == "recomputed":
                    part.forward_passes[False] = self.learner.forward(part.rows)
            self._wait_for_scores(parts[0])
        except KeyboardInterrupt:
            self.close()  # before a checkpoint is made
            raise
        return parts

    def learn(self, parts: Sequence[Part], rate: float) -> StepResult:
        """Learn from each part in its turn, as soon as its rewards are there."""
        config, world = self.config, self.collector.world
        whole = count_streams([row for part in parts for row in part.rows])["pg"]
        groups: list[TrajectoryGroup[Any]] = []
        records: list[Record] = []
        samples: list[TrainingSample] = []
        mismatches: list[dict[str, float]] = []
        passes: list[Future[dict[str, float]]] = []
        for turn, part in enumerate(parts):
            mine = self._wait_for_scores(part)
            scored = drop_unscored(world.gather(mine[0], turn))
            rows = self.algorithm.annotate(scored, part)
            _check_trained_tokens(rows, build_rows(scored, config.entropy_coef))
            if config.old_logprobs == "recomputed":
                rows, mismatch = self.engine.recompute_old_logprobs(rows, config.importance_cap, part.forward(rows))
                mismatches.append({**mismatch, "tokens": float(count_streams(rows)["pg"].tokens)})
            if config.minibatches == 1:
                divided = self.engine.normalized(rows, step_counts=dict.fromkeys(STREAMS, whole))
                passes.append(self.learner.forward_backward(divided))
            else:
                passes.append(self.learner.update(rows, rate=rate))
            groups += scored
            records += world.gather(mine[1], turn)
            samples += rows
        if config.minibatches == 1:
            norm = self.learner.optim_step(rate)
            figures = merge_metrics([one.result() for one in passes])
            stats = [{**figures, "grad_norm": norm.result(), "learning_rate": rate}]
        else:
            stats = [one.result() for one in passes]
        mismatch = (
            {name: value for name, value in merge_metrics(mismatches).items() if name != "tokens"} if mismatches else {}
        )
        return StepResult(groups, records, samples, stats, mismatch)

    def close(self) -> None:
        """Ask no more, and wait for the one pass that may be under way. Answers under way are kept where a cache is."""
        self._scoring.cancel()
        for pipeline in self._pipelines:
            pipeline.close(drop=True)
        self.learner.close(drop=True)

    def __enter__(self) -> OverlapPipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample_part(
        self, number: int, tasks: Sequence[Any], step: int
    ) -> tuple[list[TrajectoryGroup[Any]], Future[ScoredGroups[Any]]]:
        """This process's share of a part: its rollouts, and their rewards on their way."""
        first, end = (len(tasks) * place // self.config.overlap for place in (number, number + 1))
        collector = self.collector
        mine = collector.sample(tasks[first:end], step, first, turn=number)
        score = self._scoring.start(mine)
        lane = self._pipelines[number % len(self._pipelines)]
        begun = time.monotonic()
        scored = lane.submit(f"scoring part {number + 1} of step {step}", score)
        self.wait_seconds += time.monotonic() - begun
        return mine, scored

    def _build_part(self, number: int, mine: Sequence[TrajectoryGroup[Any]], scored: Future[ScoredGroups[Any]]) -> Part:
        return Part(build_rows(self.collector.world.gather(mine, number), self.config.entropy_coef), scored)

    def _wait_for_scores(self, part: Part) -> ScoredGroups[Any]:
        begun = time.monotonic()
        found = part.scored.result()
        if (idle := self.learner.idle_since) is not None:
            self.wait_seconds += time.monotonic() - max(begun, idle)
        return found


def _tokens(sample: TrainingSample) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    return sample.prompt_ids, sample.completion_ids, sample.temperature


def _check_trained_tokens(rows: Sequence[TrainingSample], sampled: Sequence[TrainingSample]) -> None:
    """Raise `TrainingError` where a stream trains other rows or tokens than were counted on."""
    expected, nothing = count_streams(sampled)["pg"], StreamCount(0, 0, 0)
    if any(found not in (expected, nothing) for found in count_streams(rows).values()):
        raise TrainingError("overlap: this algorithm trains other tokens than were sampled: set overlap=1")
