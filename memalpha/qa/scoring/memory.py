"""Score built memories: a record per question, and a reward per trajectory.

Every question is answered from the memory as it was after the chunk that it is asked at (`qa.scoring.states`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from memalpha.agent.reader import Reader
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.report import Record
from memalpha.qa.scoring.judge import ContentVerdicts, judge_step
from memalpha.qa.scoring.states import StateQuestion, ask_states
from memalpha.qa.systems.base import question_chunk
from memalpha.store.embedding import Embedder
from memalpha.types import Trajectory, TrajectoryGroup


def evaluate_memory(
    groups: Sequence[TrajectoryGroup], reader: Reader, metric: str = "exact", *, embedder: Embedder
) -> list[list[list[Record]]]:
    """Ask every trajectory its task's questions, in one reader call.

    Args:
        groups: Groups of trajectories with their memory states.
        reader: Reader that answers. Its exceptions are passed on: a failed reader is not a wrong answer.
        metric: Name of the metric that scores answers.
        embedder: Embedder that the memories are searched with.

    Returns:
        Records as [group][trajectory][question].
    """
    records = iter(ask_states(list(questions_of(groups)), reader, metric, embedder=embedder))
    return [
        [list(islice(records, len(trajectory.task.questions))) for trajectory in group.trajectories] for group in groups
    ]


def questions_of(groups: Sequence[TrajectoryGroup]) -> Iterator[StateQuestion]:
    """Yield each trajectory's questions with the states that they are asked of."""
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        for question in trajectory.task.questions:
            state = trajectory.states[question_chunk(question, trajectory.task)]
            yield StateQuestion(trajectory.task, question, state, trajectory.rollout)


def score_groups(
    groups: Sequence[TrajectoryGroup], reader: Reader, rewards: MemoryReward, *, embedder: Embedder
) -> tuple[list[TrajectoryGroup], list[Record]]:
    """Return the groups with every trajectory's reward set, and all records.

    Args:
        groups: Groups of trajectories with their memory states.
        reader: Reader that answers the questions.
        rewards: Reward that scores the trajectories, with its judge if it has one.
        embedder: Embedder that the memories are searched with.
    """
    metric = "exact" if rewards.config.metric == "judge" else rewards.config.metric
    records = evaluate_memory(groups, reader, metric, embedder=embedder)
    contents: dict[int, tuple[ContentVerdicts, ...]] = {}
    if rewards.judge is not None:
        records, contents = judge_step(rewards.config, rewards.judge, groups, records)
    model_scores = rewards.score_by_model(groups)

    def with_reward(trajectory: Trajectory, records: Sequence[Record]) -> Trajectory:
        key = id(trajectory)
        return replace(trajectory, reward=rewards.reward(trajectory, records, contents.get(key), model_scores.get(key)))

    scored = [
        TrajectoryGroup(group.task, tuple(map(with_reward, group.trajectories, group_records)))
        for group, group_records in zip(groups, records, strict=True)
    ]
    return scored, [record for of_group in records for records in of_group for record in records]
