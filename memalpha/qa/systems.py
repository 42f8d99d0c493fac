"""Systems under evaluation: anything that reads a conversation and later returns passages for a question.

A passage is a piece of text that a system holds and shows: a turn, a fact, an entry.

A custom system, or a third-party store, needs the three methods of `System`. If it also shows its entries
(`Inspectable`), its wrong answers can be classified. The passages of all systems are cut at the same token budget and
read by the same reader. `load_system` knows these names:

| name          | content, and passages for a question                                                                |
|---------------|-----------------------------------------------------------------------------------------------------|
| `empty`       | nothing                                                                                             |
| `append-only` | every line as an entry of a memory, verbatim; the k best                                            |
| `rag`         | raw turns with their date and the words around them, the store's default search; the k best         |
| `rag:chunks`  | the same over windows of up to 256 tokens of consecutive turns, never across a chunk                |
| `full`        | the whole conversation, newest turn first, whatever the budget                                      |
| `window`      | the last turns that fit into the budget, newest first                                               |
| `oracle`      | the evidence turns of the question: the reader's accuracy on them is its ceiling                    |
| `facts`       | a task's own facts (`Task.meta["observations"]`) as an imported memory; the k best                  |
| a policy      | a writer: "smol", "tiny", "scripted:KIND", a checkpoint's directory, a hub id, an endpoint          |
| `a.module:factory` | a custom system: the factory returns an object with the three methods of `System`              |

A factory is called once per task. It gets the evaluation's `embedder` and `k` if it takes these keywords.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, partial
from numbers import Real
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Protocol, cast, runtime_checkable

from memalpha.agent.dates import format_date
from memalpha.arguments import brief_repr, is_async_result, name_errors
from memalpha.config import AgentConfig
from memalpha.config.common import import_object
from memalpha.endpoint_calls import ENDPOINT_PREFIXES
from memalpha.environments.memory_writing import fit_tasks, memory_engine
from memalpha.errors import ConfigError, DataError, EvaluationError, InvalidContent, did_you_mean
from memalpha.policy.base import NAMED_POLICIES, RULE_POLICIES, Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.reply_cache import AnswerCache, keep_replies
from memalpha.qa.memory_reward import memory_tokens
from memalpha.qa.report import estimate_tokens
from memalpha.qa.scoring.stats import group_values
from memalpha.store.embedding import Embedder
from memalpha.store.fields import MAX_CONTENT
from memalpha.store.memory import WorkingMemory
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, Hit, MemoryEntry, Question, Task, Trajectory, TrajectoryGroup, is_iso_time

# ------------------------------------------------------------------------------------------------------------ passages


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a system returns or holds: an entry, a raw turn, a chunk, a fact.

    Attributes:
        text: Content that the reader sees.
        id: Id within the system.
        category: Category of the entry.
        timestamp: Date of the content, shown to the reader.
        turns: Ids of the conversation turns that it was taken from, if known.
        order: Write order; the later of two passages of the same time has the greater one.
        chunk: Index of the chunk it was written at, if it names no turns.
        cut_turns: Ids of source turns whose words the budget cut off.
    """

    text: str
    id: str | None = None
    category: str | None = None
    timestamp: str | None = None
    turns: tuple[str, ...] = ()
    order: int = 0
    chunk: int | None = None
    cut_turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Passages that one system returned for one question, and its memory at that time.

    Attributes:
        question: Question that was asked.
        passages: Passages that the reader sees, best first, cut at the budget.
        tokens: Length of passages and core text.
        core: Core text in view.
        entries: Current entries; None if the system does not show them.
        history: All entries up to now; None if the system does not show them.
        full_core: The whole core text, where the budget cut `core`.
        search: Returns the passages for another query at that time, cut at the budget; None if that is not possible.
        memory: Memory that the reader itself searches, instead of passages that the system returned.
    """

    question: Question
    passages: tuple[Passage, ...]
    tokens: int
    core: str = ""
    entries: tuple[Passage, ...] | None = None
    history: tuple[Passage, ...] | None = None
    full_core: str = ""
    search: Callable[[str], tuple[Passage, ...]] | None = field(default=None, compare=False)
    memory: WorkingMemory | None = field(default=None, compare=False)


def as_passage(entry: MemoryEntry) -> Passage:
    """Convert a memory entry to a passage."""
    turns = () if entry.turn is None else (entry.turn,)
    return Passage(entry.content, entry.id, entry.category, entry.timestamp, turns, entry.valid_from, entry.chunk)


def passages_as_hits(passages: Sequence[Passage], entries: dict[int, MemoryEntry] | None = None) -> tuple[Hit, ...]:
    """Convert passages to the hits that a reader takes.

    Args:
        passages: Passages, best first.
        entries: Cache of entries by `id()` of passages that have an id; filled here. A system that returns all its
            passages returns the same ones for every question.
    """
    entries = {} if entries is None else entries
    hits = []
    for index, passage in enumerate(passages):
        if (entry := entries.get(id(passage))) is None:
            entry = MemoryEntry(
                id=passage.id or f"#{index}",
                category=passage.category or "",
                content=passage.text,
                timestamp=passage.timestamp,
                turn=passage.turns[0] if passage.turns else None,
                valid_from=passage.order,
            )
            if passage.id:
                entries[id(passage)] = entry
        hits.append(Hit(entry, score=-float(index)))
    return tuple(hits)


class WrittenMemory:
    """Passages of a rollout's memory as it was after each chunk; an entry becomes a passage once, not per question.

    Args:
        trajectory: The rollout. Its states and turns stay alive as long as this object.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self._passages: dict[int, Passage] = {}  # by the identity of an entry, which the trajectory holds
        self._parts: dict[int, tuple[tuple[Passage, ...], tuple[Passage, ...]]] = {}
        self._written = [
            (
                turn.chunk,
                Passage(o.content, o.id, o.category, o.timestamp, () if o.turn is None else (o.turn,), 0, o.chunk),
            )
            for turn in trajectory.turns
            for o in turn.operations
            if o.content
        ]

    def passage(self, entry: MemoryEntry) -> Passage:
        """Return an entry of one of the states as a passage."""
        if id(entry) not in self._passages:
            self._passages[id(entry)] = as_passage(entry)
        return self._passages[id(entry)]

    def after(self, chunk: int) -> tuple[tuple[Passage, ...], tuple[Passage, ...]]:
        """Return the entries after a chunk, in the order of `MemoryState.list`, and all that was written by then."""
        if chunk not in self._parts:
            entries = tuple(map(self.passage, self.trajectory.states[chunk].list()))
            self._parts[chunk] = entries, (*entries, *(passage for at, passage in self._written if at <= chunk))
        return self._parts[chunk]


WINDOW_TOKENS = 256
"""Tokens of a window of consecutive turns."""


UNNAMED_SPEAKERS = frozenset({"user", "story"})
"""Generic speakers, which are not put in front of their text."""


def turn_passages(chunk: Chunk) -> list[Passage]:
    """Return the turns of a chunk, or the lines of its text, each as a passage.

    The speaker stands in front if he has a name. A line has the id `<chunk>.<number>` and no turn.
    """
    if chunk.text is not None:
        lines = [line.strip() for line in chunk.text.splitlines() if line.strip()]
        return [Passage(line, f"{chunk.index}.{at}", "episodic", chunk.timestamp) for at, line in enumerate(lines)]
    passages = []
    for index, turn in enumerate(chunk.turns):
        if turn.text.strip():
            text = turn.text if turn.speaker in UNNAMED_SPEAKERS else f"{turn.speaker}: {turn.text}"
            id, turns = turn.id or f"{chunk.index}.{index}", () if turn.id is None else (turn.id,)
            passages.append(Passage(text, id, "episodic", chunk.timestamp, turns))
    return passages


def window_passages(chunk: Chunk, tokens: int = WINDOW_TOKENS) -> list[Passage]:
    """Group consecutive turns of a chunk into windows of at most `tokens`; longer turns are split at words."""
    size, windows = 4 * tokens, list[list[Passage]]()
    wrap = TextWrapper(size, expand_tabs=False, replace_whitespace=False, break_on_hyphens=False).wrap
    for piece in (replace(turn, text=text) for turn in turn_passages(chunk) for text in wrap(turn.text)):
        if windows and sum(len(part.text) + 1 for part in windows[-1]) + len(piece.text) <= size:
            windows[-1].append(piece)
        else:
            windows.append([piece])
    passages = []
    for index, window in enumerate(windows):
        text = "\n".join(part.text for part in window)
        turns = tuple(dict.fromkeys(turn for part in window for turn in part.turns))
        passages.append(Passage(text, f"{chunk.index}.{index}", "episodic", chunk.timestamp, turns))
    return passages


def fact_passages(task: Task) -> Callable[[Chunk], Sequence[Passage]]:
    """Return a function from a chunk to the task's own facts about it.

    `Task.meta["observations"]` is a list of `{"text", "chunk"}`, with `turns` (ids) and `timestamp` if known.

    Raises:
        DataError: The task has no such facts, or one lacks a field.
    """
    facts = task.meta.get("observations")
    if not isinstance(facts, list) or not facts:
        raise DataError(
            f"system facts: task {task.id!r} brings no facts of its own (meta 'observations'): take another system"
        )
    by_chunk: dict[int, list[Passage]] = {}
    for number, fact in enumerate(facts):
        if not isinstance(fact, Mapping) or not isinstance(fact.get("text"), str) or "chunk" not in fact:
            raise DataError(f"task {task.id!r}: meta.observations[{number}] needs 'text' and 'chunk'")
        stamp = fact.get("timestamp") or task.chunks[fact["chunk"]].timestamp
        turns = tuple(map(str, fact.get("turns", ())))
        by_chunk.setdefault(fact["chunk"], []).append(Passage(fact["text"], f"fact{number}", "semantic", stamp, turns))
    return lambda chunk: by_chunk.get(chunk.index, ())


def plain_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as a plain entry for `MemoryStore.insert_many`."""
    return {"category": piece.category, "content": piece.text, "timestamp": piece.timestamp}


def raw_fields(piece: Passage, chunk: Chunk) -> dict[str, Any]:
    """Return a passage as raw dated text of its conversation, whose neighbours are searched too."""
    fields = plain_fields(piece, chunk)
    if piece.timestamp and is_iso_time(piece.timestamp[:10]):
        fields["content"] = f"{format_date(date.fromisoformat(piece.timestamp[:10]))} {piece.text}"
    return fields | {"source": "conversation", "chunk": chunk.index, "turn": piece.id}


def passage_tokens(passages: Iterable[Passage]) -> int:
    """Return the tokens of passages as a reader sees them, each with its date."""
    return sum(
        estimate_tokens(passage.text) + (estimate_tokens(f" ({passage.timestamp})") if passage.timestamp else 0)
        for passage in passages
    )


def turn_texts_of(task: Task) -> dict[str, str]:
    """Return the text of each turn that has an id."""
    return {turn.id: turn.text for chunk in task.chunks for turn in chunk.turns if turn.id is not None}


def cut_to_budget(
    passages: Sequence[Passage], budget: int | None, core: str = "", turn_texts: Mapping[str, str] | None = None
) -> tuple[str, tuple[Passage, ...]]:
    """Cut core text and passages to `budget` tokens in all, at a word boundary.

    The first passage that does not fit ends the list. Only if it is the very first, its beginning is kept. Such a
    passage keeps the ids of turns whose words are all in the kept text; the others become `cut_turns`.

    Args:
        passages: Passages, best first.
        budget: Tokens (characters / 4); None returns everything.
        core: Core text, which comes first.
        turn_texts: Words of each turn by id.
    """
    if budget is None:
        return core, tuple(passages)
    if estimate_tokens(core) > budget:
        return _truncate(core, budget), ()
    remaining, selected = budget - estimate_tokens(core), []
    for passage in passages:
        if (tokens := passage_tokens((passage,))) > remaining:
            room = remaining - (tokens - estimate_tokens(passage.text))  # the date has to fit too
            if not selected and not core and (shortened := _truncate(passage.text, room)):
                words, texts = f" {' '.join(shortened.split())} ", turn_texts or {}
                turns = [turn for turn in passage.turns if f" {' '.join(texts.get(turn, '').split())} " in words]
                cut_turns = tuple(turn for turn in passage.turns if turn not in turns)
                selected.append(replace(passage, text=shortened, turns=tuple(turns), cut_turns=cut_turns))
            break
        selected.append(passage)
        remaining -= tokens
    return core, tuple(selected)


def _truncate(text: str, tokens: int) -> str:
    head = text[: 4 * max(tokens, 0)]
    return head.rsplit(None, 1)[0] if head.strip() and len(head.split()) > 1 else head


# ----------------------------------------------------------------------------------------------------- what a system is


class System(Protocol):
    """Memory of one conversation, created anew for every task. `name` appears in reports."""

    name: str

    def read(self, chunk: Chunk) -> None:
        """Process the next chunk of the conversation."""
        ...

    def context(self, question: str) -> Sequence[Passage]:
        """Return passages for a question, best first; the caller cuts them at the token budget."""
        ...

    def size(self) -> int:
        """Return the size of the memory in tokens (characters / 4)."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """System that shows its current entries, so that wrong answers can be classified."""

    def entries(self) -> Sequence[Passage]:
        """Return all current passages, in any order."""
        ...


@runtime_checkable
class Historical(Inspectable, Protocol):
    """System that keeps its past entries; the caller need not record them after every chunk."""

    def history(self) -> Sequence[Passage]:
        """Return all passages up to now; for a system that only adds, its entries."""
        ...


@runtime_checkable
class UsesPolicy(Protocol):
    """Writer or reader that asks a policy, whose calls may be billed."""

    @property
    def policy(self) -> Policy:
        """The policy that is asked."""
        ...


def questions_by_chunk(task: Task) -> dict[int, list[Question]]:
    """Return the questions of a task by the index of the chunk after which they are asked."""
    return group_values((task.asked_after(question), question) for question in task.questions)


# ----------------------------------------------------------------------------------------------------------- baselines


class EmptySystem:
    """System that stores nothing, and base of those that do."""

    name = "empty"
    _tokens = 0

    def read(self, chunk: Chunk) -> None:
        """Ignore the chunk."""

    def context(self, question: str) -> Sequence[Passage]:
        """Return no passages."""
        return ()

    def size(self) -> int:
        """Return the tokens of all stored passages."""
        return self._tokens

    def entries(self) -> Sequence[Passage]:
        """Return all stored passages."""
        return ()

    def history(self) -> Sequence[Passage]:
        """Return all passages that were ever stored."""
        return self.entries()


class SearchSystem(EmptySystem):
    """System that stores the passages of every chunk and returns the k best of the store's default search.

    The store keeps each text once; a repeated text takes the position of its last occurrence.

    Args:
        name: Name in reports.
        split: Splits a chunk into passages.
        k: Passages to return.
        embedder: Embedder of the store.
        raw: True stores raw dated text, whose context is searched too. False stores plain entries.
    """

    def __init__(
        self, name: str, split: Callable[[Chunk], Sequence[Passage]], k: int, embedder: Embedder, *, raw: bool = True
    ) -> None:
        self.name = name
        self._split, self._k, self._raw = split, k, raw
        self._store = MemoryStore.open(":memory:", embedder=embedder)
        self._passages: dict[str, Passage] = {}
        self._pieces_read = 0

    def read(self, chunk: Chunk) -> None:
        """Store the passages of the chunk."""
        pieces = self._split(chunk)
        fields = raw_fields if self._raw else plain_fields
        entries = self._store.insert_many(fields(piece, chunk) for piece in pieces)
        for piece, entry in zip(pieces, entries, strict=True):
            self._pieces_read += 1
            previous = self._passages.get(entry.id)
            if previous is None:
                self._tokens += passage_tokens((piece,))
            turns = piece.turns if previous is None else (*previous.turns, *piece.turns)  # the same words: from both
            self._passages[entry.id] = replace(piece, id=entry.id, turns=turns, order=self._pieces_read)

    def context(self, question: str) -> Sequence[Passage]:
        """Return the k best passages."""
        return [self._passages[hit.entry.id] for hit in self._store.search(question, self._k)]

    def entries(self) -> Sequence[Passage]:
        """Return all stored passages; none is ever removed."""
        return tuple(self._passages.values())


class RecentSystem(EmptySystem):
    """System that keeps the last turns of a conversation, newest first.

    Args:
        name: Name in reports.
        tokens: Size limit; None keeps the whole conversation.
    """

    def __init__(self, name: str, tokens: int | None) -> None:
        self.name = name
        self._limit = tokens
        self._turns: list[Passage] = []
        self._dropped = 0

    def read(self, chunk: Chunk) -> None:
        """Add the turns of the chunk and drop the oldest ones beyond the limit."""
        for turn in turn_passages(chunk):
            self._turns.append(replace(turn, order=len(self._turns)))
            self._tokens += passage_tokens((turn,))
            while self._limit is not None and self._tokens > self._limit and self._dropped < len(self._turns) - 1:
                self._tokens -= passage_tokens((self._turns[self._dropped],))
                self._dropped += 1

    def context(self, question: str) -> Sequence[Passage]:
        """Return all current turns, newest first."""
        return self.entries()[::-1]

    def entries(self) -> Sequence[Passage]:
        """Return the current turns."""
        return tuple(self._turns[self._dropped :])

    def history(self) -> Sequence[Passage]:
        """Return every turn that was read."""
        return tuple(self._turns)


BUILT_IN = ("empty", "append-only", "rag", "rag:chunks", "full", "window", "oracle", "facts")

Progress = Callable[[int, int], None]
_Show = Callable[[System, str], tuple[Passage, ...]]


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """Settings that all systems of an evaluation share.

    Attributes:
        budget: Tokens (characters / 4) that a system may show for a question.
        k: Passages that searching systems return.
        embedder: Embedder of the systems that search.
        agent: Prompts and tools of a writer.
        is_searchable: Keep all systems, for a reader that searches them by itself (`Retrieval.search`).
    """

    budget: int
    k: int
    embedder: Embedder
    agent: AgentConfig = field(default_factory=AgentConfig)
    is_searchable: bool = False


@dataclass(frozen=True, slots=True)
class Retrievals:
    """Everything one system returned in an evaluation.

    Attributes:
        by_task: Retrievals as [task][question], in the order of the tasks.
        sizes: Tokens of the memory at the end of each task.
        groups: Trajectories of a writer.
    """

    by_task: list[list[Retrieval]]
    sizes: list[int]
    groups: tuple[TrajectoryGroup, ...] = ()


class EvaluatedSystem(Protocol):
    """System as the evaluation runs it: it returns passages for all questions of all tasks."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question at the time it is asked.

        Args:
            tasks: Tasks to read.
            settings: Budget, k, embedder, prompts.
            progress: Called with (chunks read, all chunks).
        """
        ...


# ---------------------------------------------------------------------------------------------------- kinds of systems


@dataclass(frozen=True, slots=True)
class Streamed:
    """System that reads a conversation chunk by chunk, a new one for every task.

    A question sees the chunks up to the one it is asked after.

    Attributes:
        name: Name in reports.
        make: Creates the system of a task: `make(task, settings)`.
        exempt: True if its passages are not cut at the budget.
    """

    name: str
    make: Callable[[Task, SystemSettings], System]
    exempt: bool = False

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the passages for every question; arguments as in `EvaluatedSystem.retrieve`.

        Raises:
            EvaluationError: The system raised; names task, chunk and line of the system's code.
            ConfigError: One of its methods is async or returns a wrong type; names the method.
        """
        total, chunks_read, by_task, sizes = sum(len(task.chunks) for task in tasks), 0, [], []
        for task in tasks:
            with self._name_errors(task):
                system = self.make(task, settings)
            by_question: dict[str, Retrieval] = {}
            seen: dict[tuple[str | None, str], Passage] = {}
            budget, asked = None if self.exempt else settings.budget, questions_by_chunk(task)
            show = partial(self._show, budget=budget, texts=turn_texts_of(task))
            for chunk in task.chunks:
                with self._name_errors(task, chunk):
                    self._refuse_async("read", system.read(chunk))
                    if isinstance(system, Inspectable) and not isinstance(system, Historical):
                        seen.update(((entry.id, entry.text), entry) for entry in self._passages(system, "entries"))
                    if questions := asked.get(chunk.index, []):
                        entries = self._passages(system, "entries") if isinstance(system, Inspectable) else None
                        history = None if entries is None else tuple(seen.values())
                        history = self._passages(system, "history") if isinstance(system, Historical) else history
                        search = self._make_search(system, task, chunk, show, settings)
                    for question in questions:
                        passages = show(system, question.question)
                        by_question[question.id] = Retrieval(
                            question, passages, passage_tokens(passages), "", entries, history, search=search
                        )
                chunks_read += 1
                if progress is not None:
                    progress(chunks_read, total)
            by_task.append([by_question[question.id] for question in task.questions])
            with self._name_errors(task):
                sizes.append(self._size(system))
        return Retrievals(by_task, sizes)

    @contextmanager
    def _name_errors(self, task: Task, chunk: Chunk | None = None) -> Iterator[None]:
        """Re-raise foreign exceptions, and contents that a store refuses, as EvaluationError with task and chunk.

        Of a foreign exception the line of the system's code is named too.
        """
        where = f"system {self.name}: task {task.id!r}" + ("" if chunk is None else f", chunk {chunk.index}")
        try:
            with name_errors(f"{where}:", EvaluationError):
                yield
        except InvalidContent as error:
            is_long = chunk is not None and len(chunk.render().encode(errors="replace")) > MAX_CONTENT
            hint = " (chunk_tokens=2048 splits the chunks of the data)" if is_long else ""
            raise EvaluationError(f"{where}: {error}{hint}") from error

    def _show(self, system: System, query: str, *, budget: int | None, texts: Mapping[str, str]) -> tuple[Passage, ...]:
        return cut_to_budget(self._passages(system, "context", query), budget, turn_texts=texts)[1]

    def _passages(self, system: System, method: str, *query: str) -> tuple[Passage, ...]:
        """Return the checked passages of `context`, where a text stands for a passage, `entries` or `history`."""
        result, prefix = getattr(system, method)(*query), f"system {self.name}: {method}() gives"
        self._refuse_async(method, result)
        if isinstance(result, str) or not isinstance(result, Iterable):
            raise ConfigError(f"{prefix} a list, not {type(result).__name__}")
        passages = tuple(Passage(item) if query and isinstance(item, str) else item for item in result)
        for passage in passages:
            if not isinstance(passage, Passage):
                raise ConfigError(f"{prefix} passages{' or texts' if query else ''}, not {type(passage).__name__}")
            if not isinstance(passage.text, str):
                kind = type(passage.text).__name__
                raise ConfigError(f"{prefix} the passage {passage.id!r}, whose text is {kind}, not str")
        return passages

    def _size(self, system: System) -> int:
        size = system.size()
        self._refuse_async("size", size)
        if isinstance(size, bool) or not isinstance(size, Real):
            raise ConfigError(f"system {self.name}: size() gives a number of tokens, not {type(size).__name__}")
        if not (math.isfinite(size) and size >= 0):
            raise ConfigError(f"system {self.name}: size() gives a number of tokens, not {size}")
        return round(size)

    def _refuse_async(self, method: str, result: object) -> None:
        """Raise `ConfigError` for what an async method returns, or a generator from `read`: its code has not run."""
        if is_async_result(result):
            raise ConfigError(f"system {self.name}: {method}() is async: write it as a plain method")
        if method == "read" and inspect.isgenerator(result):
            raise ConfigError(f"system {self.name}: read() is a generator: write it without yield")

    def _make_search(
        self, system: System, task: Task, chunk: Chunk, show: _Show, settings: SystemSettings
    ) -> Callable[[str], tuple[Passage, ...]] | None:
        """Return a search of the system as it is after `chunk`; one that reads on is made anew up to there."""
        if not settings.is_searchable:
            return None

        @cache
        def system_then() -> System:
            if chunk.index == task.chunks[-1].index:
                return system
            remade = self.make(task, settings)
            for earlier in task.chunks[: chunk.index + 1]:
                remade.read(earlier)
            return remade

        def search(query: str) -> tuple[Passage, ...]:
            with self._name_errors(task, chunk):
                return show(system_then(), query)

        return search


@dataclass(frozen=True, slots=True)
class Writer:
    """Policy that writes a memory per task; the k best entries are the passages.

    Attributes:
        name: Name in reports.
        policy: The policy.
    """

    name: str
    policy: Policy

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Write one memory a task and return the passages for every question.

        Args:
            tasks: Tasks to read, each cut to chunks that fit the policy.
            settings: Budget, k, embedder, prompts.
            progress: Called with (chunks read, all chunks).

        Raises:
            PolicyError: The policy did not answer.
        """
        agent = with_prompt_style(settings.agent, self.policy)
        engine = memory_engine(self.policy, agent, settings.embedder)
        groups = engine.roll_out(fit_tasks(self.policy, tasks), progress=progress)
        sizes = [memory_tokens(group.trajectories[0].states[-1], estimate_tokens) for group in groups]
        by_task = [
            [replace(item, question=question) for item, question in zip(items, task.questions, strict=True)]
            for task, items in zip(tasks, (self._retrieve_for_task(group, settings) for group in groups), strict=True)
        ]
        return Retrievals(by_task, sizes, tuple(groups))

    def _retrieve_for_task(self, group: TrajectoryGroup, settings: SystemSettings) -> list[Retrieval]:
        [trajectory], task, by_question = group.trajectories, group.task, dict[str, Retrieval]()
        written, turn_texts = WrittenMemory(trajectory), turn_texts_of(task)
        for index, questions in questions_by_chunk(task).items():
            state = trajectory.states[index]
            memory = WorkingMemory(state, settings.embedder)
            entries, history = written.after(index)

            def show(hits: Iterable[Hit], core: str = state.core) -> tuple[str, tuple[Passage, ...]]:
                return cut_to_budget([as_passage(hit.entry) for hit in hits], settings.budget, core, turn_texts)

            def find(query: str, memory: WorkingMemory = memory, show: Callable[..., Any] = show) -> Any:
                return show(memory.search(query, settings.k))[1]

            search = find if settings.is_searchable else None
            hits_by_question = memory.search_many([question.question for question in questions], settings.k)
            for question, hits in zip(questions, hits_by_question, strict=True):
                core, passages = show(hits)
                tokens = passage_tokens(passages) + estimate_tokens(core)
                seen = Retrieval(question, passages, tokens, core, entries, history, state.core, search)
                by_question[question.id] = seen
        return [by_question[question.id] for question in task.questions]


@dataclass(frozen=True, slots=True)
class Oracle:
    """System that returns the turns a question's evidence names, as far as they have been read."""

    name: str = "oracle"

    def retrieve(self, tasks: Sequence[Task], settings: SystemSettings, progress: Progress | None = None) -> Retrievals:
        """Return the turns that the evidence of every question names.

        Args:
            tasks: Tasks with questions whose evidence is turn ids.
            settings: Budget; the other settings have no effect.
            progress: Called with (tasks done, all tasks).
        """
        by_task = []
        for number, task in enumerate(tasks, start=1):
            lines = [(chunk.index, passage) for chunk in task.chunks for passage in turn_passages(chunk)]
            turns = {
                turn: (chunk, replace(passage, order=order))  # later turns get a greater order, as in all systems
                for order, (chunk, passage) in enumerate(lines)
                for turn in passage.turns
            }
            items = []
            for question in task.questions:
                last = task.asked_after(question)
                evidence = tuple(turns[id][1] for id in question.evidence if id in turns and turns[id][0] <= last)
                _, selected = cut_to_budget(evidence, settings.budget, turn_texts=turn_texts_of(task))
                items.append(Retrieval(question, selected, passage_tokens(selected), "", evidence, evidence))
            by_task.append(items)
            if progress is not None:
                progress(number, len(tasks))
        used = [{passage.id: passage for item in items for passage in item.entries or ()} for items in by_task]
        return Retrievals(by_task, [passage_tokens(passages.values()) for passages in used])


# ------------------------------------------------------------------------------------------------------------ loading

_FACTORY_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_system(name: str, *, replies: AnswerCache | None = None, **loading: Any) -> EvaluatedSystem:
    """Load a system by name; the table above lists the names.

    Args:
        name: Name of a system, a policy, or `package.module:factory`.
        replies: File in which the replies of a local policy are kept (`policy.reply_cache`).
        loading: How a policy is loaded: keywords of `policy.load.load_policy`.

    Raises:
        ConfigError: No system has this name.
        PolicyError: The policy cannot be loaded.
    """

    def search(split: Callable[[Chunk], Sequence[Passage]], settings: SystemSettings, raw: bool = True) -> System:
        return SearchSystem(name, split, settings.k, settings.embedder, raw=raw)

    makers: dict[str, Callable[[Task, SystemSettings], System]] = {
        "empty": lambda task, settings: EmptySystem(),
        "append-only": lambda task, settings: search(turn_passages, settings, raw=False),
        "rag": lambda task, settings: search(turn_passages, settings),
        "rag:chunks": lambda task, settings: search(window_passages, settings),
        "window": lambda task, settings: RecentSystem(name, settings.budget),
        "full": lambda task, settings: RecentSystem(name, None),
        "facts": lambda task, settings: search(fact_passages(task), settings, raw=False),
    }
    if name in makers:
        return Streamed(name, makers[name], exempt=name == "full")
    if name == "oracle":
        return Oracle()
    if _is_factory(name):
        return Streamed(name, load_factory(name))
    if re.fullmatch(r"[\w.-]+", name) and name not in (*NAMED_POLICIES, *RULE_POLICIES) and not Path(name).exists():
        near = did_you_mean(name, (*BUILT_IN, *NAMED_POLICIES, *RULE_POLICIES))
        raise ConfigError(
            f"no system {name!r}{near}: there are {', '.join(BUILT_IN)}; a policy: "
            f"{', '.join((*NAMED_POLICIES, *RULE_POLICIES))}, "
            "scripted:KIND, a directory, owner/name on a hub, an endpoint; and your own as package.module:factory"
        )
    return Writer(name, keep_replies(load_policy(name, setting="systems", **loading), replies))


def as_system(system: str | Policy | EvaluatedSystem) -> EvaluatedSystem:
    """Return the system of a name, or of a policy that writes."""
    if isinstance(system, str):
        return load_system(system)
    return Writer(system.name, system) if isinstance(system, Policy) else system


def is_writer(name: str) -> bool:
    """Return True if a system's name means a policy that writes a memory."""
    return not (name in BUILT_IN or _is_factory(name))


def _is_factory(name: str) -> bool:
    return bool(_FACTORY_PATH.fullmatch(name)) and not name.startswith(("scripted:", *ENDPOINT_PREFIXES))


def load_factory(path: str) -> Callable[[Task, SystemSettings], System]:
    """Import `package.module:factory` and return a function that creates a system per task.

    Modules of the working directory are found too.

    Raises:
        ConfigError: The factory is missing or cannot be called, or its systems lack one of the three methods.
    """
    if not callable(factory := import_object(path, "systems")):
        raise ConfigError(f"system {path}: not a function or class, but {brief_repr(factory)}")
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some callables written in C have no signature
        parameters = {}

    def make(task: Task, settings: SystemSettings) -> System:
        common = {"embedder": settings.embedder, "k": settings.k}
        system = factory(**{key: value for key, value in common.items() if key in parameters})
        if missing := [method for method in ("read", "context", "size") if not callable(getattr(system, method, None))]:
            raise ConfigError(
                f"system {path}: what it makes lacks {', '.join(missing)}: see memalpha.qa.systems.System"
            )
        return cast(System, system)

    return make
