"""A step in parts, so that neither sampler nor learner waits for a reader or judge behind an endpoint.

    sampling | 1 | 2 | 3 |
    scoring      | 1 ......... | 2 ....... | 3 ............. |       (parts in parallel)
    training                   | 1 |       | 2 |             | 3 |

Each part holds some of the step's tasks. All parts are sampled before the first update, so the step stays on-policy.
Parts are trained on in order, each as soon as its rewards are known. With `minibatches` 1 the gradients of the parts
are added up; with as many minibatches as parts, each part is an optimizer step.

The divisors of a single optimizer step follow from the sampled rows (`loss_weights.count_streams`), so no part waits
for another's rewards. A rollout that gets no reward still counts in them, as one with advantage 0 would, but is not
trained on. Forward passes that need no reward (the reference, the learner's own old log-probs) run while the first part
is being scored.

The result does not depend on timing: parts are trained on in order, and texts that are searched for in a memory are
embedded when the part is sampled. The same parts one after the other give the same bits; without an endpoint the step
runs that way. Several processes wait in parallel and train in their main threads. If a part has fewer tasks than there
are processes, its tasks are assigned to the processes in turn.
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
from memalpha.qa.evaluate import ScoredGroups
from memalpha.qa.records import Record
from memalpha.train.algorithms.base import Algorithm, annotate, build_rows, mask_truncated
from memalpha.train.data.samples import STREAMS, TrainingSample
from memalpha.train.learner.async_engine import Learner, merge_metrics
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.futures import Future, Pipeline
from memalpha.train.learner.loss_weights import StreamCount, count_streams
from memalpha.train.rollouts.worker import RolloutWorker, drop_unscored
from memalpha.types import TrajectoryGroup


@dataclass(slots=True)
class Part:
    """Some of a step's tasks: sampled rows, pending rewards, and forward passes over the rows.

    It is the scorer that the part is annotated with. Its log-probs are those of the step's first weights, even after
    updates on earlier parts.

    Attributes:
        tasks: The tasks, of all processes.
        step: Step number.
        rows: Rows as sampled.
        scored: Groups with rewards, and records, once they are known.
        forward_passes: Log-probs of the rows; the key is True for the reference's.
    """

    tasks: Sequence[Any]
    step: int
    rows: list[TrainingSample]
    scored: Future[ScoredGroups[Any]]
    forward_passes: dict[bool, Future[list[np.ndarray]]] = field(default_factory=dict)

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[np.ndarray]:
        """Return log-probs of the part's rows.

        Raises:
            TrainingError: A row was not sampled, or this pass was not prepared.
        """
        indices_by_tokens: dict[Any, list[int]] = {}
        for index in reversed(range(len(self.rows))):
            indices_by_tokens.setdefault(_tokens(self.rows[index]), []).append(index)
        indices = [
            indices_by_tokens[key].pop() if indices_by_tokens.get(key := _tokens(sample)) else -1 for sample in samples
        ]
        if reference not in self.forward_passes or -1 in indices:
            raise TrainingError("overlap: this algorithm scores rows that were not sampled: set overlap=1")
        logprobs = self.forward_passes[reference].result()
        return [logprobs[index] for index in indices]

    def values(self, samples: Sequence[TrainingSample]) -> list[np.ndarray]:
        """Raise `TrainingError`: training in parts supports no values."""
        raise TrainingError("overlap: this algorithm asks for values: set overlap=1")


@dataclass(frozen=True, slots=True)
class StepResult:
    """Groups, records and rows of a step, and metrics of its updates.

    Attributes:
        groups: Groups with rewards.
        records: Answers to all questions of the attempts.
        samples: Rows that were trained on.
        stats: Metrics of each optimizer step.
        mismatch: `mismatch_*` metrics; {} unless old log-probs are recomputed.
    """

    groups: list[TrajectoryGroup[Any]]
    records: list[Record]
    samples: list[TrainingSample]
    stats: list[dict[str, float]]
    mismatch: dict[str, float]


class OverlapPipeline:
    """Runs a step in `config.overlap` parts; a context manager that stops its threads at the end.

    Attributes:
        has_endpoint: True if there is an endpoint to wait for.
        wait_seconds: Time of the step in which rewards blocked sampling and training.
    """

    def __init__(
        self, worker: RolloutWorker[Any], algorithm: Algorithm, engine: Engine, config: ReinforcementConfig
    ) -> None:
        self.worker, self.algorithm, self.engine, self.config = worker, algorithm, engine, config
        self.wait_seconds = 0.0
        self._scoring = worker.scorer.background()
        self.has_endpoint = self._scoring.has_endpoint
        is_inline = not self.has_endpoint
        self.learner = Learner(engine, inline=is_inline)
        pipeline_count = config.sampling.overlap if self._scoring.is_concurrent else 1
        self._pipelines = [
            Pipeline(inline=is_inline, name=f"memalpha scores {index}") for index in range(pipeline_count)
        ]

    def start_step(self, tasks: Sequence[Any], step: int) -> list[Part]:
        """Sample all parts, start scoring them and wait for the first part's rewards. Changes no weights."""
        self.wait_seconds = 0.0
        try:
            sampled = [self._sample_part(index, tasks, step) for index in range(self.config.sampling.overlap)]
            # Gather only after sampling all parts: every process has submitted its share by then.
            parts = [self._build_part(index, step, *share) for index, share in enumerate(sampled)]
            for part in parts:
                if self.algorithm.needs_reference:
                    part.forward_passes[True] = self.learner.forward(part.rows, reference=True)
                if self.config.loss.old_logprobs == "recomputed":
                    part.forward_passes[False] = self.learner.forward(part.rows)
            self._wait_for_scores(parts[0])
        except KeyboardInterrupt:
            self.close()  # before a checkpoint is made
            raise
        return parts

    def learn(self, parts: Sequence[Part], rate: float) -> StepResult:
        """Train on each part in order, as soon as its rewards are known."""
        config = self.config
        step_count = count_streams([row for part in parts for row in part.rows])["pg"]
        groups: list[TrajectoryGroup[Any]] = []
        records: list[Record] = []
        samples: list[TrainingSample] = []
        mismatches: list[dict[str, float]] = []
        updates: list[Future[dict[str, float]]] = []
        for part_index, part in enumerate(parts):
            local = self._wait_for_scores(part)
            groups_of_part, records_of_part = self.worker.gather(local, part.tasks, part.step, part_index)
            groups_of_part = drop_unscored(groups_of_part)
            rows = annotate(self.algorithm, groups_of_part, part).rows
            samples += rows
            _check_trained_tokens(rows, self._sampled_rows(groups_of_part))
            if config.loss.old_logprobs == "recomputed":
                rows, mismatch = self.engine.recompute_old_logprobs(
                    rows,
                    config.loss.importance_cap,
                    part.forward(rows),
                    mode=config.loss.importance_sampling_mode,
                )
                mismatches.append({**mismatch, "tokens": float(count_streams(rows)["pg"].tokens)})
            if config.optimizer.minibatches == 1:
                normalized_rows = self.engine.normalized(rows, step_counts=dict.fromkeys(STREAMS, step_count))
                updates.append(self.learner.forward_backward(normalized_rows))
            else:
                updates.append(self.learner.update(rows, rate=rate))
            groups += groups_of_part
            records += records_of_part
        if config.optimizer.minibatches == 1:
            norm = self.learner.optim_step(rate)
            stats_of_update = merge_metrics([update.result() for update in updates])
            stats = [{**stats_of_update, "grad_norm": norm.result(), "learning_rate": rate}]
        else:
            stats = [update.result() for update in updates]
        mismatch = (
            {name: value for name, value in merge_metrics(mismatches).items() if name != "tokens"} if mismatches else {}
        )
        return StepResult(groups, records, samples, stats, mismatch)

    def close(self) -> None:
        """Cancel pending requests and wait for a forward pass under way. Caches keep the answers received so far."""
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
        self, index: int, tasks: Sequence[Any], step: int
    ) -> tuple[Sequence[Any], list[TrajectoryGroup[Any]], Future[ScoredGroups[Any]]]:
        """Sample this process's share of part `index` and submit it for scoring."""
        first, end = (len(tasks) * i // self.config.sampling.overlap for i in (index, index + 1))
        groups = self.worker.sample(tasks[first:end], step, first, offset=index)
        score = self._scoring.start(groups)
        pipeline = self._pipelines[index % len(self._pipelines)]
        start = time.monotonic()
        scored = pipeline.submit(f"scoring part {index + 1} of step {step}", score)
        self.wait_seconds += time.monotonic() - start
        return tasks[first:end], groups, scored

    def _build_part(
        self,
        index: int,
        step: int,
        tasks: Sequence[Any],
        groups: list[TrajectoryGroup[Any]],
        scored: Future[ScoredGroups[Any]],
    ) -> Part:
        all_groups, _ = self.worker.gather((groups, []), tasks, step, index)
        return Part(tasks, step, self._sampled_rows(all_groups), scored)

    def _sampled_rows(self, groups: Sequence[TrajectoryGroup[Any]]) -> list[TrainingSample]:
        """Return the rows that an algorithm trains, as far as they are known without rewards."""
        return mask_truncated(build_rows(groups, self.config.loss.entropy_coef), self.config)

    def _wait_for_scores(self, part: Part) -> ScoredGroups[Any]:
        start = time.monotonic()
        scored = part.scored.result()
        if (idle := self.learner.idle_since) is not None:
            self.wait_seconds += time.monotonic() - max(start, idle)
        return scored


def _tokens(sample: TrainingSample) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    return sample.prompt_ids, sample.completion_ids, sample.temperature


def _check_trained_tokens(rows: Sequence[TrainingSample], sampled: Sequence[TrainingSample]) -> None:
    """Raise `TrainingError` if a stream trains other rows or tokens than those counted at sampling."""
    expected, untrained = count_streams(sampled)["pg"], StreamCount(0, 0, 0)
    if any(counted not in (expected, untrained) for counted in count_streams(rows).values()):
        raise TrainingError("overlap: this algorithm trains other tokens than were sampled: set overlap=1")
