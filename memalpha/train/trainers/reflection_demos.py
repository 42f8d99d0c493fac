"""Rows that teach the two roles that reflection adds (`memalpha train sft source=erl`), from gold operations.

A small policy has never written advice and takes none. For each task the policy's own attempts are sampled and asked;
of one that has not succeeded there are then

* a reflection, twice, for it is short: its prompt as in training, and as its completion what the gold operations of the
  failed questions' evidence are about, the key of each: "Write down city, trip; delete pet." (or in the compact style
  `city:,trip:,-pet`, the tokens that the calls are to begin with). Keys and not values: what is stored has to come from
  the conversation, and advice that holds in other conversations can be used again (of gold operations in free text,
  which have no key, it is the whole content);
* a second attempt with that advice: the gold operations that the advice names or that the attempt had done rightly.
  What neither names is left out, so that a policy that heeds the advice fits these rows better than one that does not.

The turns of each task's first attempt are rows too, whatever they are worth: they hold the policy where it was without
advice. So the start of a run with reflection is, on first attempts, the start it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.agent.builder import Builder
from memalpha.agent.reader import Reader
from memalpha.agent.rollout import Start
from memalpha.config import ERLConfig, SFTConfig
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import score_groups
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.records import Record
from memalpha.store.slots import key_value
from memalpha.train.data.demonstrations import Demonstrator, encode_reply, imitation_rows
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.rollouts.base import ReflectionCandidate
from memalpha.train.rollouts.reflection import (
    ReflectionMemory,
    group_records,
    memory_reflection_requests,
    reflection_candidates,
)
from memalpha.types import GoldOperation, Task, Trajectory


def reflection_demo_rows(
    policy: TransformersPolicy,
    builder: Builder,
    reader: Reader,
    rewards: MemoryReward,
    tasks: Sequence[Task],
    config: SFTConfig,
    *,
    first: int = 0,
) -> tuple[list[TrainingSample], int]:
    """The rows of these tasks, and how many turns were left out because a call failed or they were cut off.

    `builder` samples `group_size` attempts at each with `policy`; `first` is the number of the first task. Raises
    `DataError` for a task without gold operations.
    """
    settings = config.erl or ERLConfig()
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"source: erl needs tasks with gold operations, and {task.id!r} has none")
    groups = builder.build(tasks, config.group_size, config.temperature, config.seed, first=first)
    groups, records = score_groups(groups, reader, rewards, embedder=builder.embedder)
    wrong = {
        (number, attempt.rollout): [record for record in of_attempt if not record.correct]
        for number, (group, of_group) in enumerate(
            zip(groups, group_records(groups, records), strict=True), start=first
        )
        for attempt, of_attempt in zip(group.trajectories, of_group, strict=True)
    }
    rows, left_out = imitation_rows(group.trajectories[0] for group in groups)
    memory = ReflectionMemory([], settings, builder.embedder)
    starts = []
    for one in reflection_candidates(groups, records, first, builder, settings):
        task = one.attempt.task
        named = evidence_operations(task, wrong[one.task_index, one.attempt.rollout])
        said = format_advice(named, builder.config.prompt)
        if not said:
            continue
        earlier = memory.recall([one.feedback]) if settings.enable_memory else [[]]
        [request] = memory_reflection_requests(builder, [one], earlier, settings.reflection_tokens, 0.0, config.seed, 0)
        prompt = policy.render(request.messages, request.tools)
        ids = encode_reply(policy, said, f"task {task.id!r}, reflection")
        rows += [cross_entropy_sample(prompt, ids, task=task.id, rollout=one.attempt.rollout)] * 2
        starts.append(Start(retry_task(one, named), one.task_index, one.attempt.rollout, said))
        memory.add(said)
    oracle = Builder(Demonstrator(ScriptedPolicy("oracle"), policy), builder.config, builder.embedder, builder.schema)
    again, more = imitation_rows(oracle.run(starts, role="retry"))
    return [*rows, *again], left_out + more


def evidence_operations(task: Task, wrong: Sequence[Record]) -> list[GoldOperation]:
    """The gold operations that the wrong answers rest on: those of their evidence, in the order of the conversation."""
    questions = {question.id: question for question in task.questions}
    turns = {turn for record in wrong for turn in questions[record.question_id].evidence}
    return [operation for operation in task.gold_operations if operation.turn in turns]


def operation_point(operation: GoldOperation) -> tuple[bool, str]:
    """What the advice says of an operation: whether something is to be there after it, and its key (or content)."""
    content = operation.content or operation.replaces or ""
    pair = key_value(content)
    return bool(operation.content), pair[0] if pair else content.rstrip(".")


def format_advice(named: Sequence[GoldOperation], style: str) -> str:
    """The points of these operations, each once; "" for none."""
    points = list(dict.fromkeys(map(operation_point, named)))
    if style == "compact":
        return ",".join(f"{key}:" if there else f"-{key}" for there, key in points)
    written, ended = (", ".join(key for there, key in points if there == what) for what in (True, False))
    parts = [part for part in (written and f"write down {written}", ended and f"delete {ended}") if part]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def retry_task(one: ReflectionCandidate, named: Sequence[GoldOperation]) -> Task:
    """The task with only those gold operations that the advice names or the attempt has done."""
    points = {operation_point(operation) for operation in named}
    task = one.attempt.task
    kept = [
        operation
        for operation in task.gold_operations
        if operation_point(operation) in points or _has_executed(one.attempt, operation)
    ]
    return task.model_copy(update={"gold_operations": tuple(kept)})


def _has_executed(attempt: Trajectory, operation: GoldOperation) -> bool:
    results = (result for turn in attempt.turns if turn.chunk == operation.chunk for result in turn.results)
    if operation.content:
        return any(r.code in ("inserted", "updated") and r.content == operation.content for r in results)
    return any(r.code == "deleted" and r.before == operation.replaces for r in results)
