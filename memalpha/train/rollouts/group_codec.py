"""Scored groups as text, for checkpoints: what was sampled and its rewards, without tasks and memories.

A task is drawn again by its number, and the memories of a trajectory are made again from its operations. The text is
compressed JSON; nothing is pickled.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic

from memalpha.errors import CheckpointError
from memalpha.qa.records import Record
from memalpha.store.state import MemoryState
from memalpha.types import (
    AnyTask,
    Completion,
    Operation,
    Reward,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


@dataclass(frozen=True, slots=True)
class ScoredGroup(Generic[AnyTask]):
    """Rollouts of a task with their rewards.

    Attributes:
        number: Index of the task among all tasks of the run.
        group: The rollouts.
        records: Records of the answers, [trajectory][question].
        oldest: Smallest training step whose weights sampled any of the group's tokens.
    """

    number: int
    group: TrajectoryGroup[AnyTask]
    records: Sequence[Sequence[Record]]
    oldest: int


def encode_group(scored: ScoredGroup[Any]) -> str:
    """Return a group as text; its task and the states of its trajectories are left out."""
    trajectories = [
        {"rollout": trajectory.rollout, "reward": trajectory.reward, "turns": trajectory.turns}
        for trajectory in scored.group.trajectories
    ]
    records = [[record.as_json() for record in answers] for answers in scored.records]
    value = {
        "number": scored.number,
        "oldest": scored.oldest,
        "task": scored.group.task.id,
        "trajectories": trajectories,
        "records": records,
    }
    return base64.b64encode(zlib.compress(json.dumps(value, default=_as_json).encode())).decode()


def group_number(text: str) -> int:
    """Return the number of an encoded group."""
    return int(_load(text)["number"])


def decode_group(text: str, task: AnyTask, empty: MemoryState | None) -> ScoredGroup[AnyTask]:
    """Return the group that `encode_group` wrote.

    Args:
        text: Result of `encode_group`.
        task: Its task.
        empty: Memory before the first chunk; None for tasks without a memory, whose trajectories get no states.

    Raises:
        CheckpointError: The text is no group, or one of another task.
    """
    value = _load(text)
    if value["task"] != task.id:
        raise CheckpointError(
            f"the checkpoint's queue holds rollouts of task {value['task']!r}, where the data now has {task.id!r}: put "
            "the data back, or start again in another out"
        )
    trajectories = []
    for trajectory in value["trajectories"]:
        turns = tuple(_turn(turn) for turn in trajectory["turns"])
        states = () if empty is None else _replay(turns, empty)
        reward = _reward(trajectory["reward"])
        trajectories.append(Trajectory(task, trajectory["rollout"], turns, states, reward))
    records = [[Record.from_json(record) for record in answers] for answers in value["records"]]
    return ScoredGroup(value["number"], TrajectoryGroup(task, tuple(trajectories)), records, value["oldest"])


def _load(text: str) -> dict[str, Any]:
    try:
        return json.loads(zlib.decompress(base64.b64decode(text)))
    except (ValueError, zlib.error) as error:
        raise CheckpointError(f"the checkpoint's queue cannot be read ({error}): delete the checkpoint") from error


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot stand in a checkpoint")


def _turn(value: Mapping[str, Any]) -> Turn:
    completion = dict(value["completion"])
    for name in ("prompt_ids", "completion_ids", "logprobs", "forced"):
        completion[name] = tuple(completion[name])
    completion["weights_spans"] = tuple(map(tuple, completion.get("weights_spans", ())))
    return Turn(
        chunk=value["chunk"],
        completion=Completion(**completion),
        calls=tuple(ToolCall(**call) for call in value["calls"]),
        results=tuple(ToolResult(**{**result, "call": ToolCall(**result["call"])}) for result in value["results"]),
        operations=tuple(Operation(**operation) for operation in value["operations"]),
    )


def _reward(value: Mapping[str, Any] | None) -> Reward | None:
    if value is None:
        return None
    return Reward(
        turns=tuple(value["turns"]),
        components={name: tuple(values) for name, values in value["components"].items()},
        weights=value["weights"],
        total=value["total"],
        shared=frozenset(value["shared"]),
    )


def _replay(turns: Sequence[Turn], state: MemoryState) -> tuple[MemoryState, ...]:
    states = []
    for turn in turns:
        for operation in turn.operations:
            state = state.apply(operation)
        states.append(state)
    return tuple(states)
