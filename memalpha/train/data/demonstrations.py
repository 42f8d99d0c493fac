"""Demonstrations: prompts and completions to imitate, as exact token ids, for the cross-entropy stream alone.

There are four sources. A scripted writer speaks in the policy's tokens (`Demonstrator`: gold operations, or any
`scripted:KIND`). The policy's own rollouts, of which each task's best is kept (rejection sampling: Yuan et al. 2023,
arXiv 2308.01825). The same from the `turns.jsonl` of an earlier run. A user's JSON Lines. Sampled tokens are never
tokenized again, and nothing is ever cut: a row that the model cannot take is refused by name.

Not imitated are turns with a failed call or a reply that was cut off, and groups whose rewards are all equal: there the
reward prefers none.

Rows that teach the two extra roles of reflection (`memalpha train sft source=erl`), made from gold operations.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from os.path import commonprefix
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from memalpha.agent.agent import build_request
from memalpha.agent.parsing import parse_calls
from memalpha.agent.replies import format_calls
from memalpha.config import AgentConfig, ERLSettings, SFTConfig
from memalpha.environments.engine import RolloutEngine, Start
from memalpha.environments.memory_writing import MemoryWriting, memory_engine
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.store.schema import MemorySchema
from memalpha.store.values import key_value
from memalpha.train.data.chat_format import (
    check_row,
    decode,
    encode,
    encode_reply,
    format_message,
    format_validation_error,
    read_lines,
    read_objects,
    render_messages,
    reply_text,
    validate_messages,
    validate_prompt,
    validate_tools,
)
from memalpha.train.data.samples import TrainingSample, cross_entropy_sample, is_imitable
from memalpha.train.rollouts.reflection import MemoryReflection, ReflectionMemory, reflection_requests
from memalpha.types import (
    Chunk,
    Completion,
    GoldOperation,
    Observation,
    SampleRequest,
    Task,
    Trajectory,
    TrajectoryGroup,
    ViewEntry,
)


class Demonstrator:
    """A scripted writer that replies in the tokens of `policy`, so that its replies can be imitated.

    It renders and measures prompts as the policy does, so it sees the same memory. `sample` raises `DataError` for a
    reply that these tokens cannot express.

    Args:
        script: The scripted writer.
        policy: Policy whose tokens and template are used.
        form: Form in which its calls are written (`AgentConfig.reply_form`).
    """

    def __init__(self, script: ScriptedPolicy, policy: TransformersPolicy, form: str = "hermes") -> None:
        self.name, self.count_tokens = script.name, policy.count_tokens
        self._script, self._policy, self._form = script, policy, form

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return the script's replies with the ids of prompts and replies; they have no log-probs."""
        completions = []
        for request, reply in zip(requests, self._script.sample(requests), strict=True):
            observation = request.observation
            source, text = self.name, reply.text
            if observation and observation.task:
                source = f"task {observation.task.id!r}, chunk {observation.chunk.index}"
            if self._form != "hermes":
                text = format_calls(parse_calls(text), self._form, observation.entries if observation else ())
            ids = encode_reply(self._policy, text, source)
            prompt = self._policy.render_request(request)
            check_row(self._policy, [*prompt, *ids], source)
            if len(ids) > request.max_new_tokens:
                raise DataError(
                    f"{source}: the demonstration has {len(ids)} tokens, agent.max_new_tokens={request.max_new_tokens} "
                    "would cut it short: raise it"
                )
            completions.append(Completion(text, tuple(prompt), ids))
        return completions


def imitation_rows(trajectories: Iterable[Trajectory]) -> tuple[list[TrainingSample], int]:
    """Return the rows of all imitable turns, and the number of turns that were left out."""
    rows, left_out = [], 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            completion = turn.completion
            if not is_imitable(turn):
                left_out += 1
                continue
            origin = {"task": trajectory.task.id, "rollout": trajectory.rollout, "chunk": turn.chunk}
            rows.append(cross_entropy_sample(completion.prompt_ids, completion.completion_ids, **origin))
    return rows, left_out


def best_rollouts(groups: Iterable[TrajectoryGroup]) -> list[Trajectory]:
    """Return the highest-reward rollout of each group (the first of equals); none of a group with equal rewards."""
    best_of_groups = []
    for group in groups:
        scored = [(trajectory.reward.total, trajectory) for trajectory in group.trajectories if trajectory.reward]
        best = max(reward for reward, _ in scored)
        if best > min(reward for reward, _ in scored):
            best_of_groups.append(next(trajectory for reward, trajectory in scored if reward == best))
    return best_of_groups


# ------------------------------------------------------------------------------------------------- logged trajectories


class _LoggedTurn(BaseModel):
    step: int
    task: str
    rollout: int
    chunk: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    reward: float
    ok: bool
    role: str = "attempt"


def load_best_rollouts(
    run: Path, policy: TransformersPolicy, agent: AgentConfig, schema: MemorySchema
) -> tuple[list[list[TrainingSample]], int]:
    """Load the highest-reward rollout of each group in `run`'s turns.jsonl.

    The reward of a rollout is the mean over its turns, as in the run. Second attempts are ignored: their prompts hold
    advice.

    Args:
        run: Run directory with a turns.jsonl (`keep_tokens=true`).
        policy: Policy whose tokens the turns must be in.
        agent: Prompt settings that the turns must have been made with.
        schema: Memory schema that the prompts must show.

    Returns:
        Rows per task, number of turns that were left out (failed call, or cut off).

    Raises:
        DataError: A line is no turn, an id is outside the vocabulary, a prompt does not decode to a text of the same
            ids, or a prompt does not begin and end as those of this agent.
    """
    path = run / "turns.jsonl"
    turns: list[tuple[str, _LoggedTurn]] = []
    for source, raw in read_lines(path):
        try:
            turn = _LoggedTurn.model_validate_json(raw)
        except ValidationError as error:
            problem = format_validation_error(error).removeprefix(".")
            raise DataError(f"{source}: {problem}: not a turn that a run wrote (keep_tokens=true)") from error
        if turn.role == "attempt":  # a second one has prompts with advice
            turns.append((source, turn))
    views = (
        Observation(Chunk(text="a")),
        Observation(Chunk(text="b", timestamp="2024-05-01"), "x"),
        Observation(Chunk(text="c"), "", (ViewEntry("y#0", "semantic", "z"),)),
    )
    texts = [decode(policy, policy.render_request(build_request(view, agent, schema))) for view in views]
    reversed_texts = [text[::-1] for text in texts]
    prefix, suffix = commonprefix(texts), commonprefix(reversed_texts)[::-1]  # noqa: RUF071  # letter by letter
    vocabulary = policy.model.config.get_text_config().vocab_size
    checked_prompts: set[tuple[int, ...]] = set()
    for source, turn in turns:
        ids = turn.prompt_ids + turn.completion_ids
        if not turn.completion_ids or not all(0 <= id < vocabulary for id in ids):
            raise DataError(f"{source}: holds ids that are none of policy {policy.name!r}: it was another policy's run")
        if turn.prompt_ids in checked_prompts:
            continue
        checked_prompts.add(turn.prompt_ids)
        text = decode(policy, turn.prompt_ids)
        if not text.startswith(prefix) or not text.endswith(suffix):
            raise DataError(
                f"{source}: the prompt does not begin and end as those of policy {policy.name!r} with this agent's "
                "prompt and memory_schema: give the settings and the policy of that run"
            )
        if encode(policy, text) != list(turn.prompt_ids):
            raise DataError(
                f"{source}: the prompt is not in the tokens of policy {policy.name!r}: it was another's run"
            )
    by_task: dict[str, list[TrainingSample]] = {}
    left_out = 0
    for group in _rollout_groups([turn for _, turn in turns]):
        means = [sum(turn.reward for turn in rollout) / len(rollout) for rollout in group]
        if max(means) == min(means):
            continue
        best = group[means.index(max(means))]
        complete = [turn for turn in best if turn.ok and turn.completion_ids[-1] in policy.eos_ids]
        left_out += len(best) - len(complete)
        by_task.setdefault(best[0].task, []).extend(
            cross_entropy_sample(
                turn.prompt_ids, turn.completion_ids, task=turn.task, rollout=turn.rollout, chunk=turn.chunk
            )
            for turn in complete
        )
    return list(by_task.values()), left_out


def _rollout_groups(turns: Iterable[_LoggedTurn]) -> Iterator[list[list[_LoggedTurn]]]:
    """Yield the turns of each group by rollout, in the order of the file: a step may contain a task twice."""
    group: list[list[_LoggedTurn]] = []
    for (step, task, rollout), rollout_turns in groupby(turns, key=lambda turn: (turn.step, turn.task, turn.rollout)):
        last = group[-1][-1] if group else None
        if last and ((step, task) != (last.step, last.task) or rollout < last.rollout):
            yield group
            group = []
        group.append(list(rollout_turns))
    if group:
        yield group


# ---------------------------------------------------------------------------------------------------- a user's own rows

_KEYS = ("prompt", "completion", "messages", "tools", "task", "chunk")


def load_rows(path: Path, policy: TransformersPolicy) -> list[list[TrainingSample]]:
    """Load the rows of a JSON Lines file in TRL's formats, a list for each line.

    `{"prompt", "completion"}`: the prompt is a text, used as it is, or messages, which go through the policy's chat
    template (with `"tools"`, if there are any); the completion is a text or one assistant message. `{"messages"}`:
    every assistant message is a completion, the messages before it are its prompt. Tool calls of an assistant message
    become the text of calls that the agent reads. `task` and `chunk` say where a row is from.

    Raises:
        DataError: A line is invalid, or a row is longer than the model takes; names file, line and field.
    """
    rows_by_line = []
    for source, value in read_objects(path, _KEYS):
        rows, task = [], source if value.get("task") is None else value["task"]
        if not isinstance(task, str | int):
            raise DataError(f"{source}: task: the id of a task is needed, not {task!r:.80}")
        for prompt, reply, field in _prompts_and_replies(value, policy, source):
            if not prompt:
                raise DataError(f"{source}: {field}: there is no prompt before it")
            ids = encode_reply(policy, reply, f"{source}: {field}")
            check_row(policy, [*prompt, *ids], source)
            rows.append(cross_entropy_sample(prompt, ids, task=str(task)))
        rows_by_line.append(rows)
    return rows_by_line


def _prompts_and_replies(
    value: Mapping[str, Any], policy: TransformersPolicy, source: str
) -> Iterator[tuple[Sequence[int], str, str]]:
    """Yield (prompt ids, reply, field of the reply) of one line."""
    tools = validate_tools(value, source)
    if ("messages" in value) == ("prompt" in value or "completion" in value):
        raise DataError(f"{source}: write either prompt and completion, or messages")
    if "messages" in value:
        messages = validate_messages(value["messages"], f"{source}: messages")
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not replies:
            raise DataError(f"{source}: messages: none is the assistant's, so there is nothing to imitate")
        for index in replies:
            field = f"messages[{index}]"
            prompt = render_messages(policy, messages[:index], tools, f"{source}: {field}")
            yield prompt, format_message(messages[index], f"{source}: {field}", policy.reply_form), field
        return
    for key in ("prompt", "completion"):
        if key not in value:
            raise DataError(f"{source}: {key}: missing")
    prompt = validate_prompt(value["prompt"], tools, source)
    is_text = isinstance(prompt, str)
    ids = encode(policy, prompt) if is_text else render_messages(policy, prompt, tools, f"{source}: prompt")
    yield ids, reply_text(value["completion"], f"{source}: completion", policy.reply_form), "completion"


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
    """
    settings, sampling = config.erl or ERLSettings(), config.sampling
    engine = RolloutEngine(policy, writing)
    groups = engine.roll_out(tasks, sampling.group_size, sampling.temperature, config.seed, first_index=first)
    groups, records = scorer.score(groups)
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
        questions = {question.id: question for question in task.questions}
        records_of_attempt = wrong[candidate.task_index, candidate.attempt.rollout]
        evidence = {turn for record in records_of_attempt for turn in questions[record.question_id].evidence}
        operations = [operation for operation in task.gold_operations if operation.turn in evidence]
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
        # The second attempt shows only what the advice names or the first attempt executed.
        points, attempt = {operation_point(operation) for operation in operations}, candidate.attempt
        shown = [o for o in task.gold_operations if operation_point(o) in points or _has_executed(attempt, o)]
        retry = task.model_copy(update={"gold_operations": tuple(shown)})
        starts.append(Start(retry, candidate.task_index, attempt.rollout, advice))
        memory.add(advice)
    demonstrator = Demonstrator(ScriptedPolicy("oracle"), policy, writing.config.reply_form)
    oracle = memory_engine(demonstrator, writing.config, writing.embedder, writing.schema)
    retry_rows, retries_left_out = imitation_rows(oracle.run(starts, role="retry"))
    return [*rows, *retry_rows], left_out + retries_left_out


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
    verbs = {True: "write down", False: "delete"}
    keys = {verb: ", ".join(key for stores, key in points if stores == kind) for kind, verb in verbs.items()}
    text = "; ".join(f"{verb} {names}" for verb, names in keys.items() if names)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _has_executed(attempt: Trajectory, operation: GoldOperation) -> bool:
    results = (result for turn in attempt.turns if turn.chunk == operation.chunk for result in turn.results)
    if operation.content:
        return any(r.code in ("inserted", "updated") and r.content == operation.content for r in results)
    return any(r.code == "deleted" and r.before == operation.replaces for r in results)
