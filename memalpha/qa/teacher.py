"""Let a strong writer write conversations, and keep the attempts that answer best as rows to imitate.

Each conversation is written `attempts` times. Its questions are asked of every memory, and the best attempt is kept if
it answers better than an empty memory (rejection sampling: Yuan et al. 2023, arXiv 2308.01825). A row is one chunk in
TRL's format, with `task` and `chunk`, and its prompt is the one that the student gets for that memory. Calls that
failed are left out, and so is a chunk with failed calls alone, or whose reply holds no readable call.

Beside the rows, `NAME.scores.jsonl` has a line for each conversation: what it scored, whether it was kept and why. With
both files a stopped call resumes. A conversation without an executed call is then written again: its teacher, or the
teacher's server, failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memalpha.agent.prompts import prompted_config
from memalpha.agent.reader import Reader
from memalpha.agent.replies import reply_problems
from memalpha.config import AgentConfig, EndpointConfig
from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.environments.engine import RolloutEngine, Start
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import ConfigError, DataError
from memalpha.policy.base import Policy
from memalpha.policy.load import load_policy
from memalpha.qa.evaluate import evaluate_memory
from memalpha.qa.memory_reward import memory_tokens
from memalpha.qa.report import estimate_tokens
from memalpha.types import Task, ToolCall, Trajectory, TrajectoryGroup, Turn

PARALLEL_ROLLOUTS = 16
"""Rollouts that are written at the same time; a stopped call loses at most these."""

_COMMAND = "memalpha data write"

_SCORE_FIELDS = ("task", "teacher", "scores", "empty", "rows", "reason")

NO_CALL = "no call was executed"
"""Reason of a conversation whose attempts left the memory empty."""

REPLY_CHARACTERS = 500
"""Most characters of an unreadable reply that are kept, to be looked at."""


@dataclass(frozen=True, slots=True)
class WrittenConversation:
    """Result of one conversation.

    Attributes:
        task: Id of the conversation.
        teacher: Writer, attempts, temperature, who answered and by which metric, as one text.
        scores: Mean score of its questions from the memory of each attempt.
        empty: The same from an empty memory.
        rows: Rows that were kept.
        reason: Why the best attempt was kept, or none.
        reply: Beginning of the first reply if no call was executed.
        unread: Replies of the attempt that was kept which hold no readable call; they give no row.
    """

    task: str
    teacher: str
    scores: tuple[float, ...] = ()
    empty: float | None = None
    rows: int = 0
    reason: str = "no question"
    reply: str = ""
    unread: int = 0


class RowsFile:
    """File of rows and the file of scores beside it; a conversation is appended whole.

    Args:
        path: File of rows, `NAME.jsonl`.

    Attributes:
        conversations: Results of earlier calls, by task.
        repeated: Conversations that are written again, because no call of an earlier one was executed.
        teacher: How the last call of `write_rows` wrote and scored.

    Raises:
        ConfigError: The name has another ending.
        DataError: A file cannot be read or is not of this kind.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"--out {path}: name a .jsonl file")
        self.path, self.scores_path = path, path.with_suffix(".scores.jsonl")
        self.conversations = {
            value["task"]: WrittenConversation(**{**value, "scores": tuple(value["scores"])})
            for value in read_lines(self.scores_path, _SCORE_FIELDS, _COMMAND)
        }
        self.repeated, self.teacher = 0, ""
        self.tasks_with_rows = {value["task"] for value in read_lines(path, ("task", "chunk", "completion"), _COMMAND)}

    def is_done(self, task: Task, teacher: str) -> bool:
        """Return True if a task has rows, or none from this teacher although its calls could be executed."""
        return task.id in self.tasks_with_rows or self.reason(task, teacher) not in (None, NO_CALL)

    def reason(self, task: Task, teacher: str) -> str | None:
        """Return the reason of an earlier result of this teacher; None without one."""
        earlier = self.conversations.get(task.id)
        return earlier.reason if earlier is not None and earlier.teacher == teacher else None

    def append(self, conversation: WrittenConversation, rows: Sequence[dict[str, Any]]) -> None:
        """Append the rows of a conversation, then its result."""
        append_lines(self.path, rows)
        append_lines(self.scores_path, [asdict(conversation)])
        self.conversations[conversation.task] = conversation


def read_lines(path: Path, fields: Iterable[str], command: str) -> list[dict[str, Any]]:
    """Return the lines of a file that a command appends to, [] without one.

    A last line that was not written whole is cut off.

    Args:
        path: The file.
        fields: Fields that every line has.
        command: Name of the command, for messages.

    Raises:
        DataError: The file cannot be read, or is not the command's.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    lines = []
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            value = json.loads(text)
            lines.append({**value, **{name: value[name] for name in fields}})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a line that {command} wrote: name another --out") from error
    return lines


def append_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Append JSON lines to a file. Raises `DataError` if it cannot be written."""
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}): mend that; the same command resumes") from error


def load_teacher(name: str, price: tuple[float, float] | None) -> Policy:
    """Load a policy whose calls are billed.

    Args:
        name: Name of the policy.
        price: Price of a million prompt tokens and of a million generated tokens at its endpoint.

    Raises:
        ConfigError: A price is named for a policy that is no endpoint.
    """
    if price is not None and not name.startswith(ENDPOINT_PREFIXES):
        raise ConfigError(f"--price: {name} is no endpoint: leave it out")
    return load_policy(name, endpoint=EndpointConfig(prices={} if price is None else {name: price}))


def write_rows(
    tasks: Sequence[Task],
    policy: Policy,
    file: RowsFile,
    *,
    reader: Reader,
    metric: str = "exact",
    config: AgentConfig | None = None,
    student: AgentConfig | None = None,
    attempts: int = 1,
    temperature: float = 0.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[WrittenConversation]:
    """Write each conversation and keep the best attempt as rows; those that are done are skipped.

    A conversation of an earlier call without an executed call is written again; `file.repeated` counts these.

    Args:
        tasks: Conversations with questions.
        policy: The teacher.
        file: File of the rows.
        reader: Reader that answers the questions.
        metric: Metric that scores answers.
        config: Prompts of the teacher. Default: its own style.
        student: Prompts of the rows. Default: those of the teacher.
        attempts: Attempts at each conversation.
        temperature: Sampling temperature; several attempts need one above 0.
        progress: Called with (conversations done, all).

    Returns:
        The results of all conversations, in order, those of earlier calls included.

    Raises:
        ConfigError: Several attempts would all be the same.
        DataError: Two conversations have one id, or a file cannot be written.
        PolicyError: The teacher did not answer; conversations that are done stay.
    """
    if attempts > 1 and not temperature:
        raise ConfigError("temperature 0: all attempts would be the same: set one above 0, or make one attempt")
    if len({task.id for task in tasks}) < len(tasks):
        raise DataError("two conversations have the same id: give each its own")
    by = f"answered by {reader.name}, {metric}"
    teacher = file.teacher = f"{policy.name}, best of {attempts} at temperature {temperature:g}, {by}"
    prompted = prompted_config(config or AgentConfig(), policy)
    writing = MemoryWriting(prompted, policy.count_tokens)
    of_student = writing if student is None else MemoryWriting(student, policy.count_tokens)
    engine = RolloutEngine(policy, writing)
    todo = [(number, task) for number, task in enumerate(tasks) if not file.is_done(task, teacher)]
    file.repeated = sum(file.reason(task, teacher) == NO_CALL for _, task in todo)
    size = max(1, PARALLEL_ROLLOUTS // attempts)
    for first in range(0, len(todo), size):
        progress(len(tasks) - len(todo) + first, len(tasks))
        batch = [(number, task) for number, task in todo[first : first + size] if task.questions]
        # The noise depends on the place in the file, so that a resumed call asks an endpoint what it has paid for.
        starts = [Start(task, number, n) for number, task in batch for n in range(attempts)]
        trajectories = engine.run(starts, temperature)
        for index, (_, task) in enumerate(batch):
            group = trajectories[index * attempts : (index + 1) * attempts]
            empty = Trajectory(task, attempts, (), (of_student.new_memory().state,) * len(task.chunks))
            asked = TrajectoryGroup(task, (*group, empty))
            [records] = evaluate_memory([asked], reader, metric, embedder=of_student.embedder)
            *scores, floor = (sum(record.score for record in answers) / len(answers) for answers in records)
            # Of equally good memories the shortest is the clearest example.
            sizes = [memory_tokens(attempt.states[-1], estimate_tokens) for attempt in group]
            best = max(range(attempts), key=lambda n: (scores[n], -sizes[n]))
            rows: list[dict[str, Any]] = []
            reply, unread, form = "", 0, prompted.reply_form
            if not any(turn.operations for attempt in group for turn in attempt.turns):
                reason = NO_CALL
                reply = next((turn.completion.text for turn in group[0].turns), "")[:REPLY_CHARACTERS]
            elif scores[best] <= floor:
                reason = "answers no better than an empty memory"
            else:
                rows, reason = list(_rows(group[best], of_student, form)), "kept"
                unread = sum(_is_unread(turn, form) for turn in group[best].turns)
            result = WrittenConversation(task.id, teacher, tuple(scores), floor, len(rows), reason, reply, unread)
            file.append(result, rows)
        for _, task in todo[first : first + size]:
            if not task.questions:
                file.append(WrittenConversation(task.id, teacher), ())
    progress(len(tasks), len(tasks))
    return [file.conversations.get(task.id) or WrittenConversation(task.id, "", reason="kept before") for task in tasks]


def _is_unread(turn: Turn, form: str) -> bool:
    return "no_call" in reply_problems(turn.completion, turn.calls, form)


def _rows(attempt: Trajectory, writing: MemoryWriting, form: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each turn, with those calls that were executed; none for a reply that held no readable call."""
    for request, turn in zip(writing.without_advice(attempt), attempt.turns, strict=True):
        calls = [call for call, result in zip(turn.calls, turn.results, strict=True) if result.ok]
        if _is_unread(turn, form) or (turn.calls and not calls):
            continue
        calls = calls or [ToolCall("memory_skip", {})]
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        tool_calls = [{"type": "function", "function": function} for function in functions]
        yield {
            "task": attempt.task.id,
            "chunk": turn.chunk,
            "prompt": [dict(message) for message in request.messages],
            **({"tools": [dict(tool) for tool in request.tools]} if request.tools else {}),
            "completion": [{"role": "assistant", "content": "", "tool_calls": tool_calls}],
        }
