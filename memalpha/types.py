"""The words of memalpha as frozen values: chunk, question, task, entry, operation, turn, trajectory, reward.

`Task` with its parts and `TextTask` are pydantic models because they are read from outside (JSON Lines, data sets);
everything that is made inside is a frozen dataclass. Nothing here imports torch or knows a store, a model or a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypeVar  # typing's own has defaults from Python 3.13 on

OperationKind = Literal["insert", "update", "delete", "core_update"]
LoggedKind = OperationKind | Literal["expired", "erased"]


def is_iso_time(text: str) -> bool:
    """Whether a text is a date or time as memalpha takes them everywhere: ISO 8601, such as 2024-05-01."""
    try:
        datetime.fromisoformat(text)
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
    """One piece of the stream: plain `text` or speaker `turns` (one of the two), with an optional ISO timestamp."""

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
        """The chunk as the policy reads it: its text, or one `speaker: text` line a turn (without the timestamp)."""
        if self.text is not None:
            return self.text
        return "\n".join(f"{turn.speaker}: {turn.text}" for turn in self.turns)


class Question(_Outside):
    """A question over a task's stream. Empty `answers`: the right answer is to abstain.

    `asked_after_chunk` is the 0-based index of the last chunk that may have been read (None: after the last chunk);
    `category` is the ability or the data set's own class; `evidence` holds turn ids.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    category: str | None = None
    evidence: tuple[str, ...] = ()
    asked_after_chunk: int | None = Field(default=None, strict=True)
    meta: dict[str, Any] = Field(default_factory=dict)


class GoldOperation(_Outside):
    """An operation that a perfect writer makes at `chunk`. `replaces` is the content that an update or delete ends.

    `timestamp` is the date the stated fact or event happened where that differs from the chunk's.
    """

    kind: OperationKind
    chunk: int = Field(strict=True)
    category: str
    content: str = ""
    replaces: str | None = None
    timestamp: str | None = None
    turn: str | None = None


class Task(_Outside):
    """A stream of chunks and the questions asked of it; `gold_operations` where the data set knows them."""

    id: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...] = ()
    gold_operations: tuple[GoldOperation, ...] = ()
    meta: dict[str, Any] = Field(default_factory=dict)

    @field_validator("chunks")
    @classmethod
    def _numbered(cls, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """Each chunk with its place as its index. One that says otherwise is copied: it may be another task's too."""
        if not chunks:
            raise ValueError("empty: a task has at least one chunk")
        return tuple(
            chunk if chunk.index == number else chunk.model_copy(update={"index": number})
            for number, chunk in enumerate(chunks)
        )

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

    def gold_at(self, chunk: int) -> tuple[GoldOperation, ...]:
        """The net gold operations of one chunk: what is stated and changed within it counts once, as it ends up."""
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
    """One prompt to complete, with what its data set has beside it (`columns`: answer, tests, level, ...).

    `prompt` is a text or chat messages; `category` (a level, a subject) is for tables. A trajectory over it has a turn
    for each reply (one, unless an environment asks for more), whose `chunk` is the reply's number, and no states.
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
        if not isinstance(prompt, str) and any(set(message) != {"role", "content"} for message in prompt):
            raise ValueError("a message has 'role' and 'content', and nothing else")
        return prompt

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """The prompt in chat form: a text is one message of the user's."""
        return ({"role": "user", "content": self.prompt},) if isinstance(self.prompt, str) else self.prompt

    @property
    def text(self) -> str:
        """The prompt as one text: the contents of its messages, a paragraph each."""
        return self.prompt if isinstance(self.prompt, str) else "\n\n".join(one["content"] for one in self.prompt)


AnyTask = TypeVar("AnyTask", bound=Task | TextTask, default=Task)
"""What a rollout is over."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One stored fact, as of one position of the operation log.

    `valid_from`/`valid_to` are log positions (1-based sequence numbers; `valid_to` None: still current). `source`,
    `chunk` and `turn` say where it came from. `expires` (ISO, UTC): the moment from which a store does not give it.
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
    version: int = 1
    valid_from: int = 0
    valid_to: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of a store, as logged. `id` is None only for an insert whose id the state has yet to give.

    For update and delete, `id` names the entry; for `core_update`, `content` is the new core text. `metadata` None on
    an update keeps the entry's own (likewise importance, and timestamp and expires, which "" clears). `expired`: the
    end that a store puts to an entry when its time has come. `erased`: what is left of an operation whose content was
    erased; it changes nothing.
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


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result. `explain` holds the parts of the score by name (dense, bm25, group, ...), `around` the raw
    spans around the entry, if they were asked for."""

    entry: MemoryEntry
    score: float
    explain: Mapping[str, float] = field(default_factory=dict)
    around: tuple[MemoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asked. `error` is a parse error code when the text was no well-formed call."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What happened. `ok` counts as executed for the reward.

    `code`: inserted, updated, deleted, core_updated, skipped, duplicate; or, with ok False: malformed, unknown_tool,
    invalid_arguments, unknown_id, unknown_category, invalid_content. `before` is the content an update or delete ended,
    `category` and `content` what the entry then held.
    """

    call: ToolCall
    ok: bool
    code: str
    message: str = ""
    entry_id: str | None = None
    category: str | None = None
    content: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """An entry as the writer sees it in its prompt."""

    id: str
    category: str
    content: str
    timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a writer is shown for one chunk, before it is rendered to messages. Scripted policies read it directly.

    `task` is there only in training and evaluation; a served writer has none. `advice`: what the writer told itself
    after an earlier attempt at the task (a second attempt in training; otherwise there is none).
    """

    chunk: Chunk
    core: str = ""
    entries: tuple[ViewEntry, ...] = ()
    task: Task | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt for a policy. `key` = (seed, step, task, rollout, turn) seeds its noise (with a number more where the
    prompt is of another role than an attempt's); temperature 0 is greedy."""

    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    key: tuple[int, ...] = ()
    temperature: float = 0.0
    max_new_tokens: int = 256
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy sampled: the exact ids (end-of-sequence included) with their log-probs at the sampling temperature.

    `prompt_ids`, `completion_ids` and `logprobs` are empty for policies without a token record (scripted, some
    endpoints); those cannot be trained on. `stop_reason`: "eos" or "length".
    """

    text: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    temperature: float = 0.0
    stop_reason: Literal["eos", "length"] = "eos"


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy call and what its tool calls did. `operations` are those that changed the memory."""

    chunk: int
    completion: Completion
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Reward:
    """Named components, weights and total of one trajectory; `turns` holds the per-turn totals r_t.

    `components` maps a name to one float per turn; a component shared by the trajectory repeats. `shared` names those
    (None: r1 and r3, and the other names in `train.algorithms.advantages.SHARED_COMPONENTS`).
    """

    turns: tuple[float, ...]
    components: Mapping[str, tuple[float, ...]]
    weights: Mapping[str, float]
    total: float
    shared: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Trajectory(Generic[AnyTask]):
    """The ordered turns of one rollout over one task; `states[i]` is the memory after chunk i (values, not copies).

    `Trajectory` is one over a `Task`, `Trajectory[TextTask]` one over a prompt, which has no states.

    `role` serves algorithms that shape collection: attempt, reflection (one turn, which reads no chunk), retry;
    `parent` is then the number of the rollout that it follows from.
    """

    task: AnyTask
    rollout: int
    turns: tuple[Turn, ...]
    states: tuple[Any, ...]
    reward: Reward | None = None
    role: str = "attempt"
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class TrajectoryGroup(Generic[AnyTask]):
    """G rollouts of the same task."""

    task: AnyTask
    trajectories: tuple[Trajectory[AnyTask], ...]
