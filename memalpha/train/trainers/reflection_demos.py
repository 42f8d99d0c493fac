"""Rows that teach the two extra roles of reflection (`memalpha train sft source=erl`), made from gold operations.

A small policy has never written advice and does not follow any. For each task, the policy's own attempts are sampled
and answered. Each attempt that did not succeed gives:

* a reflection, twice because it is short. Its prompt is that of training. Its completion names the keys of the gold
  operations in the evidence of the failed questions: "Write down city, trip; delete pet." (compact style:
  `city:,trip:,-pet`, the tokens that calls begin with). It names keys and not values: stored values must come from the
  conversation, and advice that fits other conversations can be reused. Gold operations in free text have no key; their
  whole content is named.
* a second attempt with that advice: the gold operations that the advice names or that the attempt executed correctly.
  All others are left out, so that a policy fits these rows better if it follows the advice.

The turns of each task's first attempt are rows, too, whatever their reward. They keep the policy without advice where
it was: on first attempts, a run with reflection starts from the policy that these rows were made with.
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.config import ERLSettings, SFTConfig
from memalpha.environments.engine import RolloutEngine, Start
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.records import Record
from memalpha.store.slots import key_value
from memalpha.train.data.demonstrations import Demonstrator, encode_reply, imitation_rows
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample
from memalpha.train.rollouts.reflection import (
    MemoryReflection,
    ReflectionMemory,
    reflection_requests,
)
from memalpha.train.rollouts.worker import ReflectionCandidate
from memalpha.types import GoldOperation, Task, Trajectory


def reflection_demo_rows(
    policy: TransformersPolicy,
    writing: MemoryWriting,
    scorer: MemoryScorer,
    tasks: Sequence[Task],
    config: SFTConfig,
    *,
    first: int = 0,
) -> tuple[list[TrainingSample], int]:
    """Make reflection rows for the tasks and count the turns that were left out (failed call, or cut off).

    Args:
        policy: Policy whose attempts are sampled; its tokenizer encodes the rows.
        writing: Environment of the attempts.
        scorer: Scorer of the attempts.
        tasks: Tasks with gold operations.
        config: `erl` (default: `ERLSettings()`), `group_size`, `temperature` and `seed` are used.
        first: Index of the first task; keys the sampling noise.

    Returns:
        Rows, number of turns left out.

    Raises:
        DataError: A task has no gold operations.
    """
    settings = config.erl or ERLSettings()
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"source: erl needs tasks with gold operations, and {task.id!r} has none")
    groups, records = scorer.score(
        RolloutEngine(policy, writing).roll_out(
            tasks, config.sampling.group_size, config.sampling.temperature, config.seed, first_index=first
        )
    )
    answers = scorer.group_records(groups, records)
    reflection = MemoryReflection(writing, scorer)
    wrong = {
        (index, attempt.rollout): [record for record in attempt_records if not record.correct]
        for index, (group, records_of_group) in enumerate(zip(groups, answers, strict=True), start=first)
        for attempt, attempt_records in zip(group.trajectories, records_of_group, strict=True)
    }
    rows, left_out = imitation_rows(group.trajectories[0] for group in groups)
    memory = ReflectionMemory([], settings, writing.embedder)
    starts = []
    for candidate in reflection.candidates(groups, answers, first, settings):
        task = candidate.attempt.task
        operations = evidence_operations(task, wrong[candidate.task_index, candidate.attempt.rollout])
        advice = format_advice(operations, writing.config.prompt)
        if not advice:
            continue
        earlier = memory.recall([candidate.feedback]) if settings.enable_memory else [[]]
        [request] = reflection_requests(
            policy, reflection.prompt, [candidate], earlier, settings.reflection_tokens, 0.0, config.seed, 0
        )
        prompt = policy.render_request(request)
        ids = encode_reply(policy, advice, f"task {task.id!r}, reflection")
        rows += [cross_entropy_sample(prompt, ids, task=task.id, rollout=candidate.attempt.rollout)] * 2
        starts.append(Start(retry_task(candidate, operations), candidate.task_index, candidate.attempt.rollout, advice))
        memory.add(advice)
    demonstrator = Demonstrator(ScriptedPolicy("oracle"), policy, writing.config.reply_form)
    oracle = memory_engine(demonstrator, writing.config, writing.embedder, writing.schema)
    retry_rows, retries_left_out = imitation_rows(oracle.run(starts, role="retry"))
    return [*rows, *retry_rows], left_out + retries_left_out


def evidence_operations(task: Task, wrong: Sequence[Record]) -> list[GoldOperation]:
    """Return the gold operations in the evidence of wrongly answered questions, in the order of the conversation."""
    questions = {question.id: question for question in task.questions}
    turns = {turn for record in wrong for turn in questions[record.question_id].evidence}
    return [operation for operation in task.gold_operations if operation.turn in turns]


def operation_point(operation: GoldOperation) -> tuple[bool, str]:
    """Return True if the operation stores something (False: deletes), and its key; the content if it has no key."""
    content = operation.content or operation.replaces or ""
    pair = key_value(content)
    return bool(operation.content), pair[0] if pair else content.rstrip(".")


def format_advice(operations: Sequence[GoldOperation], style: str) -> str:
    """Format the points of the operations as advice, each once; "" without operations."""
    points = list(dict.fromkeys(map(operation_point, operations)))
    if style == "compact":
        return ",".join(f"{key}:" if stores else f"-{key}" for stores, key in points)
    stored_keys, deleted_keys = (", ".join(key for stores, key in points if stores == kind) for kind in (True, False))
    parts = [
        part
        for part in (stored_keys and f"write down {stored_keys}", deleted_keys and f"delete {deleted_keys}")
        if part
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def retry_task(candidate: ReflectionCandidate, operations: Sequence[GoldOperation]) -> Task:
    """Return the task with only the gold operations that the advice names or the attempt executed."""
    points = {operation_point(operation) for operation in operations}
    task = candidate.attempt.task
    remaining = [
        operation
        for operation in task.gold_operations
        if operation_point(operation) in points or _has_executed(candidate.attempt, operation)
    ]
    return task.model_copy(update={"gold_operations": tuple(remaining)})


def _has_executed(attempt: Trajectory, operation: GoldOperation) -> bool:
    results = (result for turn in attempt.turns if turn.chunk == operation.chunk for result in turn.results)
    if operation.content:
        return any(r.code in ("inserted", "updated") and r.content == operation.content for r in results)
    return any(r.code == "deleted" and r.before == operation.replaces for r in results)
