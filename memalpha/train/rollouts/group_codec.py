"""Groups as bytes, for checkpoints and between processes: what was sampled and its rewards, no tasks and memories.

A task is drawn again by its number, and the memories of a trajectory are made again from its operations. The bytes are
compressed JSON; nothing is pickled.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, Generic

import numpy as np

from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import CheckpointError
from memalpha.qa.report import Record
from memalpha.store.state import MemoryState
from memalpha.train.learner.distributed import World
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
        number: Index of the task among all tasks of the run, or of the step.
        group: The rollouts.
        records: Records of the answers, [trajectory][question].
        oldest: Smallest training step whose weights sampled any of the group's tokens.
    """

    number: int
    group: TrajectoryGroup[AnyTask]
    records: Sequence[Sequence[Record]]
    oldest: int


def encode_group(scored: ScoredGroup[Any]) -> str:
    """Return a group of attempts as text; its task and the states of its trajectories are left out."""
    return base64.b64encode(_pack_group(scored)).decode()


def _pack_group(scored: ScoredGroup[Any], *, with_messages: bool = False, level: int = -1) -> bytes:
    """Return a group of attempts as bytes; its task and the states of its trajectories are left out.

    Args:
        scored: The group.
        with_messages: Keep the states, which are messages of conversations.
        level: Level of the compression, as for zlib.
    """
    trajectories = scored.group.trajectories
    before = trajectories[0].before if trajectories else ()
    trunk = [
        next(i for i, item in enumerate(trajectories) if item.states[chunk] is state)
        for chunk, state in enumerate(before[1:])
    ]
    value = {
        "number": scored.number,
        "oldest": scored.oldest,
        "task": scored.group.task.id,
        "trajectories": [trajectory_fields(item, with_messages=with_messages) for item in trajectories],
        "records": [[record.as_json() for record in answers] for answers in scored.records],
        "trunk": trunk if before else None,
    }
    return pack(value, level)


def trajectory_fields(trajectory: Trajectory[Any], *, with_messages: bool = False) -> dict[str, Any]:
    """Return what `build_trajectory` needs, without the task.

    Args:
        trajectory: The trajectory.
        with_messages: Keep the states, which are messages of a conversation.
    """
    fields = {"rollout": trajectory.rollout, "reward": trajectory.reward, "turns": trajectory.turns}
    return {**fields, "states": trajectory.states} if with_messages else fields


def pack(value: Any, level: int = 1) -> bytes:
    """Return mappings, lists and the types of rollouts as compressed JSON."""
    return zlib.compress(json.dumps(value, default=_as_json).encode(), level)


def unpack(data: bytes) -> Any:
    """Return the JSON that `pack` wrote. Raises `CheckpointError` for other bytes."""
    try:
        return json.loads(zlib.decompress(data))
    except (ValueError, zlib.error) as error:
        raise CheckpointError(f"the checkpoint's queue cannot be read ({error}): delete the checkpoint") from error


def build_trajectory(fields: Mapping[str, Any], task: AnyTask, empty: MemoryState | None) -> Trajectory[AnyTask]:
    """Return an attempt from its unpacked `trajectory_fields`.

    Args:
        fields: The fields.
        task: Its task.
        empty: Memory before the first chunk; None for tasks without a memory.
    """
    turns = tuple(_turn(turn) for turn in fields["turns"])
    messages = tuple(tuple(map(dict, state)) for state in fields.get("states", ()))
    states = messages if empty is None else tuple(accumulate(turns, _apply, initial=empty))[1:]
    if (reward := fields["reward"]) is not None:
        reward = Reward(
            turns=tuple(reward["turns"]),
            components={name: tuple(values) for name, values in reward["components"].items()},
            weights=reward["weights"],
            total=reward["total"],
            shared=frozenset(reward["shared"]),
            calls=tuple(map(tuple, reward["calls"])),
            call_sources=tuple(tuple(tuple(map(tuple, source)) for source in turn) for turn in reward["call_sources"]),
        )
    return Trajectory(task, fields["rollout"], turns, states, reward)


def decode_group(text: str, task: Callable[[int], AnyTask], empty: MemoryState | None) -> ScoredGroup[AnyTask]:
    """Return the group that `encode_group` wrote.

    Args:
        text: Result of `encode_group`.
        task: Returns the task of a number.
        empty: Memory before the first chunk; None for tasks without a memory, whose trajectories get no states.

    Raises:
        CheckpointError: The text is no group, or one of another task.
    """
    try:
        data = base64.b64decode(text)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's queue cannot be read ({error}): delete the checkpoint") from error
    return _build(unpack(data), task, empty)


def gather_groups(
    world: World,
    scored: Sequence[ScoredGroup[AnyTask]],
    task: Callable[[int], AnyTask],
    empty: MemoryState | None,
    *,
    with_messages: bool = False,
) -> list[ScoredGroup[AnyTask]]:
    """Return the groups of all processes, by number. Every process must call this.

    Tokens and rewards travel. Tasks and memories are made again in each process, the sender's among them, so that all
    processes hold equal groups.

    Args:
        world: The processes.
        scored: Groups of this process.
        task: Returns the task of a number.
        empty: Memory before the first chunk; None for tasks without a memory.
        with_messages: Keep the states of conversations.
    """
    if world.size == 1:
        return list(scored)
    packed = [_pack_group(group, with_messages=with_messages, level=1) for group in scored]
    values = [unpack(data) for data in world.gather_bytes(packed)]
    return [_build(value, task, empty) for value in sorted(values, key=lambda value: value["number"])]


def empty_memory(environment: Any) -> MemoryState | None:
    """Return the memory before the first chunk; None for an environment that writes none."""
    return (
        MemoryState.empty(environment.schema, unique_contents=True) if isinstance(environment, MemoryWriting) else None
    )


def _build(
    value: Mapping[str, Any], task_of: Callable[[int], AnyTask], empty: MemoryState | None
) -> ScoredGroup[AnyTask]:
    task = task_of(int(value["number"]))
    if value["task"] != task.id:
        raise CheckpointError(
            f"the checkpoint's queue holds rollouts of task {value['task']!r}, where the data now has {task.id!r}: put "
            "the data back, or start again in another out"
        )
    trunk = value["trunk"]
    trajectories = [
        build_trajectory(fields, task, empty if trunk is None else None) for fields in value["trajectories"]
    ]
    if empty is not None and trunk is not None:  # a chunk group: the rollout that went on after each chunk but the last
        before, states = [empty], []
        for chunk in range(len(trunk) + 1):
            states.append([_apply(before[chunk], trajectory.turns[chunk]) for trajectory in trajectories])
            before += [states[chunk][trunk[chunk]]] if chunk < len(trunk) else []
        pairs = zip(trajectories, zip(*states, strict=True), strict=True)
        trajectories = [replace(trajectory, states=after, before=tuple(before)) for trajectory, after in pairs]
    records = [[Record.from_json(record) for record in answers] for answers in value["records"]]
    return ScoredGroup(value["number"], TrajectoryGroup(task, tuple(trajectories)), records, value["oldest"])


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a rollout: it cannot stand in a checkpoint or go to another process")


def _turn(value: Mapping[str, Any]) -> Turn:
    completion = dict(value["completion"])
    for name in ("prompt_ids", "completion_ids", "logprobs", "forced"):
        completion[name] = tuple(completion[name])
    return Turn(
        chunk=value["chunk"],
        completion=Completion(**completion),
        calls=tuple(ToolCall(**call) for call in value["calls"]),
        results=tuple(ToolResult(**{**result, "call": ToolCall(**result["call"])}) for result in value["results"]),
        operations=tuple(Operation(**operation) for operation in value["operations"]),
        problems=tuple(value["problems"]),
    )


def _apply(state: MemoryState, turn: Turn) -> MemoryState:
    for operation in turn.operations:
        state = state.apply(operation)
    return state
