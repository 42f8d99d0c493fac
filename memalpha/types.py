"""Data types of memalpha: chunk, question, task, entry, operation, turn, trajectory, reward.

`Task`, its parts and `TextTask` are pydantic models, because they are read from files. Types made inside memalpha are
frozen dataclasses. This module imports no torch and does not depend on stores, models or rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypeVar  # typing's own has defaults from Python 3.13 on

T = TypeVar("T")


OperationKind = Literal["insert", "update", "delete", "core_update"]
LoggedKind = OperationKind | Literal["expired", "erased", "quarantined", "reviewed"]


def parse_iso_time(text: str) -> datetime:
    """Parse an ISO 8601 date or time, in letters of either case (RFC 3339). Raises `ValueError` for another text."""
    return datetime.fromisoformat(text.upper())


def is_iso_time(text: str) -> bool:
    """Return True if `text` is an ISO 8601 date or time, such as 2024-05-01."""
    try:
        parse_iso_time(text)
    except ValueError:
        return False
    return True


class _Outside(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpeakerTurn(_Outside):
    """One utterance. `id` is unique within its task (evidence refers to it)."""

    speaker: str
    text: str
    id: str | None = None


class Chunk(_Outside):
    """One piece of the stream: plain `text` or speaker `turns`, with an optional ISO timestamp."""

    text: str | None = None
    turns: tuple[SpeakerTurn, ...] = ()
    timestamp: str | None = None
    index: int = 0

    @model_validator(mode="after")
    def _one_form(self) -> Chunk:
        if (self.text is None) == (not self.turns):
            raise ValueError("a chunk has either 'text' or a non-empty 'turns'")
        return self

    def render(self) -> str:
        """Return the chunk's text, or one `speaker: text` line per turn, without timestamp."""
        if self.text is not None:
            return self.text
        return "\n".join(f"{turn.speaker}: {turn.text}" for turn in self.turns)


class Question(_Outside):
    """Question over a task's stream; without `answers` the right answer is to abstain.

    `asked_after_chunk` is the 0-based index of the last chunk that may have been read (None: the last chunk).
    `category` is the ability or the data set's own class. `evidence` holds turn ids.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    category: str | None = None
    evidence: tuple[str, ...] = ()
    asked_after_chunk: int | None = Field(default=None, strict=True)
    meta: dict[str, Any] = Field(default_factory=dict)


class GoldOperation(_Outside):
    """Operation of a perfect writer at `chunk`.

    `replaces` is the content that an update or delete ends. `timestamp` is the date of the fact or event if it differs
    from the chunk's.
    """

    kind: OperationKind
    chunk: int = Field(strict=True)
    category: str
    content: str = ""
    replaces: str | None = None
    timestamp: str | None = None
    turn: str | None = None


class Task(_Outside):
    """Stream of chunks with questions.

    `gold_operations` is set if the data set knows them. A question without `id` gets its position: "q0", "q1", ….
    """

    id: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...] = ()
    gold_operations: tuple[GoldOperation, ...] = ()
    meta: dict[str, Any] = Field(default_factory=dict)

    @field_validator("chunks")
    @classmethod
    def _numbered(cls, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """Set each chunk's index to its position.

        A chunk with another index is copied, because another task may share it.
        """
        if not chunks:
            raise ValueError("empty: a task has at least one chunk")
        return tuple(
            chunk if chunk.index == number else chunk.model_copy(update={"index": number})
            for number, chunk in enumerate(chunks)
        )

    @field_validator("questions", mode="before")
    @classmethod
    def _with_ids(cls, questions: Any) -> Any:
        if not isinstance(questions, list | tuple):
            return questions
        return [
            {"id": f"q{number}", **question} if isinstance(question, dict) else question
            for number, question in enumerate(questions)
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Task:
        first: dict[str, int] = {}
        for number, question in enumerate(self.questions):
            at, last = question.asked_after_chunk, len(self.chunks) - 1
            if at is not None and not 0 <= at <= last:
                raise ValueError(f"questions[{number}].asked_after_chunk: {at} is outside 0..{last}")
            if first.setdefault(question.id, number) != number:
                raise ValueError(f"questions[{number}].id: questions[{first[question.id]}] has {question.id!r} already")
        return self

    def asked_after(self, question: Question) -> int:
        """Return the index of the chunk after which a question is asked."""
        return len(self.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk

    def gold_at(self, chunk: int) -> tuple[GoldOperation, ...]:
        """Return the net gold operations of one chunk.

        A fact that is stated and changed within the chunk counts once, in its final form.
        """
        net: list[GoldOperation] = []
        for operation in self.gold_operations:
            if operation.chunk != chunk:
                continue
            replaced = (operation.category, operation.replaces)
            before = next((o for o in net if o.content and (o.category, o.content) == replaced), None)
            if before is None or operation.kind not in ("update", "delete"):
                net.append(operation)
                continue
            index = net.index(before)
            if operation.kind == "update":
                changed = {"kind": before.kind, "replaces": before.replaces}
                net[index] = operation.model_copy(update=changed)
            elif before.kind == "update":
                net[index] = operation.model_copy(update={"replaces": before.replaces})
            else:
                del net[index]
        return tuple(net)


class TextTask(_Outside):
    """One prompt to complete, with the data set's other columns (answer, tests, level, ...).

    `prompt` is a text or chat messages. `category` (a level, a subject) groups results in tables. Its trajectory has
    one turn per reply, whose `chunk` is the reply's index, and no states.
    """

    id: str
    prompt: str | tuple[dict[str, str], ...]
    columns: dict[str, Any] = Field(default_factory=dict)
    category: str | None = None

    @field_validator("prompt")
    @classmethod
    def _can_be_replied_to(cls, prompt: str | tuple[dict[str, str], ...]) -> str | tuple[dict[str, str], ...]:
        if not prompt:
            raise ValueError("empty: a task has a text or at least one message to reply to")
        for message in () if isinstance(prompt, str) else prompt:
            if differing := sorted(set(message) ^ {"role", "content"}):
                raise ValueError(f"a message has 'role' and 'content', and nothing else; see {differing[0]!r}")
        try:
            "".join([prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]).encode()
        except UnicodeEncodeError as error:
            raise ValueError("holds half of a surrogate pair, as of a cut emoji, which is not text") from error
        return prompt

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """Prompt as chat messages; a text becomes one user message."""
        return ({"role": "user", "content": self.prompt},) if isinstance(self.prompt, str) else self.prompt

    @property
    def text(self) -> str:
        """Prompt as one text; messages are joined by blank lines."""
        return self.prompt if isinstance(self.prompt, str) else "\n\n".join(one["content"] for one in self.prompt)


AnyTask = TypeVar("AnyTask", bound=Task | TextTask, default=Task)
"""Task type of a rollout."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One stored fact, as of one position of the operation log.

    `valid_from` and `valid_to` are log positions from 1; `valid_to` is None for a current entry. `source`, `chunk` and
    `turn` name its origin, `speaker` who said it, and `key` the server's key that wrote it. A store hides the entry
    from `expires` (ISO, UTC) on.
    """

    id: str
    category: str
    content: str
    timestamp: str | None = None
    importance: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    chunk: int | None = None
    turn: str | None = None
    expires: str | None = None
    speaker: str | None = None
    key: str | None = None
    version: int = 1
    valid_from: int = 0
    valid_to: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, of JSON types."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"metadata": deepcopy(dict(self.metadata))}


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of a store, as logged.

    `id` names the entry; it is None only for an insert that has no id yet. For `core_update`, `content` is the new core
    text. On an update, None keeps the entry's metadata, importance, timestamp and expires. An empty string clears the
    timestamp or expires.

    `speaker` and `key` say on whose word it was written (see `MemoryStore.writing_as`), and `reason` why.

    `expired` ends an entry at its expiry. Three kinds change nothing. `erased` is the remainder of an operation whose
    content was erased. `quarantined` holds an operation that awaits a review, and `reviewed` the decision.
    """

    kind: LoggedKind
    id: str | None = None
    category: str | None = None
    content: str | None = None
    timestamp: str | None = None
    importance: float | None = None
    metadata: Mapping[str, Any] | None = None
    source: str | None = None
    chunk: int | None = None
    turn: str | None = None
    expires: str | None = None
    speaker: str | None = None
    key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    `explain` holds the parts of the score by name (dense, bm25, group, ...). `around` holds the raw spans around the
    entry, if requested. `passage` is the best passage of a long entry, whose number is in `explain`.
    """

    entry: MemoryEntry
    score: float
    explain: Mapping[str, float] = field(default_factory=dict)
    around: tuple[MemoryEntry, ...] = ()
    passage: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, of JSON types, with entries as mappings."""
        return {
            "entry": self.entry.to_dict(),
            "score": self.score,
            "explain": dict(self.explain),
            "around": [entry.to_dict() for entry in self.around],
            "passage": self.passage,
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call of the model. `error` is a code if its text was malformed."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call. `ok` counts as executed for the reward.

    `code` is inserted, updated, deleted, core_updated, changed (by several `operations`), skipped or duplicate. With
    `ok` False it is malformed, unknown_tool, invalid_arguments, unknown_id, unknown_category, invalid_content, conflict
    (somebody changed the entry after the writer saw it) or quarantined (a trust rule wants a review). `before` is the
    content that an update or delete ended. `category` and `content` are the entry's values after the call.
    """

    call: ToolCall
    ok: bool
    code: str
    message: str = ""
    entry_id: str | None = None
    category: str | None = None
    content: str | None = None
    before: str | None = None
    operations: int = 1


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """Entry as the writer sees it in its prompt."""

    id: str
    category: str
    content: str
    timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Writer's view of one chunk, before it is rendered to messages.

    Scripted policies read it directly. `task` is set only in training and evaluation. `advice` is the writer's own
    advice from an earlier attempt, used in training retries. `entry_counts` holds the number of live entries by
    category, for prompt styles that show it.
    """

    chunk: Chunk
    core: str = ""
    entries: tuple[ViewEntry, ...] = ()
    task: Task | None = None
    advice: str = ""
    entry_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt for a policy.

    `key` = (seed, step, task, rollout, turn) seeds its noise; roles other than "attempt" append a number. Temperature 0
    is greedy. With `thinking_tokens` the model may think first, at most that long, before the `max_new_tokens` of its
    reply; 0 turns thinking off. `chat_template_kwargs` are further arguments of its chat template. Without
    `native_calls` the prompt itself says in which form calls are written, and the model family's own is not looked for.
    """

    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    key: tuple[int, ...] = ()
    temperature: float = 0.0
    max_new_tokens: int = 256
    thinking_tokens: int = 0
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    observation: Observation | None = None
    native_calls: bool = True


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled completion: exact ids and their log-probs at the sampling temperature.

    The ids include the end-of-sequence token. `prompt_ids`, `completion_ids` and `logprobs` are empty for policies
    without token ids (scripted policies, endpoints). Those cannot be trained. `stop_reason` is "eos" or "length".
    `text` is a view of the ids that reads the same for every model family: thoughts in `<think>` tags, tool calls as
    Hermes blocks. `forced` is the range of ids that were not sampled but written by the policy, to end a thought that
    was longer than its budget; nothing is learnt from them. `weights_step` is the training step whose weights sampled
    it; None where sampler and learner share their weights.
    """

    text: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    temperature: float = 0.0
    stop_reason: Literal["eos", "length"] = "eos"
    forced: tuple[int, int] = (0, 0)
    weights_step: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy call with its tool calls and their results.

    `operations` are those that changed the memory. `problems` says what could not be read of the reply: "no_call" if it
    held no readable call, "cut_off" if it ended at its most tokens.
    """

    chunk: int
    completion: Completion
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    operations: tuple[Operation, ...] = ()
    problems: tuple[str, ...] = ()


LARGEST_REWARD = 3.4e38
"""Largest size of a total: advantages are float32."""


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward of one trajectory: components, weights, total, and totals per turn.

    `components` maps a name to one float per turn. A component in `shared` belongs to the whole trajectory and repeats;
    all others belong to their turns. `turns` holds the totals r_t. `calls` holds per turn a number for each call, then
    one for the end of the reply (`train.algorithms.credit`); it is empty without credit per call. `call_sources` says,
    in the same places, which questions gave how much of it.
    """

    turns: tuple[float, ...]
    components: Mapping[str, tuple[float, ...]]
    weights: Mapping[str, float]
    total: float
    shared: frozenset[str] = frozenset()
    calls: tuple[tuple[float, ...], ...] = ()
    call_sources: tuple[tuple[tuple[tuple[str, float], ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory(Generic[AnyTask]):
    """Ordered turns of one rollout over one task.

    `states[i]` is the memory after chunk i (an immutable value). `Trajectory[TextTask]` is over a prompt and has no
    states. `role` is attempt, reflection (one turn without a chunk) or retry. `parent` is the index of the rollout that
    a reflection or retry follows. `before[i]` is the memory before chunk i where all rollouts of a group read it from
    one memory (`environments.memory_writing`); empty: it is `states[i - 1]`.
    """

    task: AnyTask
    rollout: int
    turns: tuple[Turn, ...]
    states: tuple[Any, ...]
    reward: Reward | None = None
    role: str = "attempt"
    parent: int | None = None
    before: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class TrajectoryGroup(Generic[AnyTask]):
    """G rollouts of the same task."""

    task: AnyTask
    trajectories: tuple[Trajectory[AnyTask], ...]
