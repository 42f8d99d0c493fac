"""Demonstration rows of the tiny policy: what a careful or careless writer does, and what its reader answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import ABSTAIN, reader_messages, writer_messages
from memalpha.config import AgentConfig, ReaderConfig, WorldConfig
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic.demo_world import Shape
from memalpha.tasks.synthetic.phrases import EVENTS, POOLS, pool_values
from memalpha.tasks.synthetic.worlds import drill, generate, shaped
from memalpha.types import Chunk, GoldOperation, Hit, Observation, Operation, Question, Task, ViewEntry

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
SCHEMA = load_schema("mem-alpha")
AGENT = AgentConfig(prompt="compact")
READER = ReaderConfig(kind="policy", prompt="compact")


@dataclass(frozen=True, slots=True)
class WriterHabits:
    """Set the probabilities of a demonstrating writer."""

    fact: float = 1.0
    """Probability of writing a new fact or event."""
    change: float = 1.0
    """Probability of acting on the change of a stored fact."""
    right: float = 1.0
    """Probability that this is an update or delete by id; else an insert beside the old entry."""
    note: float = 0.0
    """Probability of noting a line that states nothing."""
    forget: float = 0.15
    """Share of tasks in which facts are missing from the memory (without a demonstration of leaving them out)."""


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one prompt and its completion as text."""

    prompt: str
    completion: str
    kind: str


def entry_slot(content: str) -> str:
    """Return the key of an entry: `city` of `city: Oslo`."""
    return content.partition(":")[0]


def prompt_text(messages: Sequence[Any]) -> str:
    """Render the chat template by hand, because it is rendered for every row."""
    return f"{USER}{messages[0]['content']}{ASSISTANT}"


def demonstrate(task: Task, habits: WriterHabits, rng: Random, first: int = 0) -> tuple[list[Row], list[MemoryState]]:
    """Return a writer's rows over the chunks from `first` on, and the memory after every chunk.

    Args:
        task: Task with gold operations.
        habits: Probabilities of acting.
        rng: Source of randomness.
        first: First chunk that gives rows.
    """
    state = MemoryState.empty(SCHEMA, unique_contents=True)
    rows, states = [], []
    careless = rng.random() < habits.forget
    for chunk in task.chunks:
        view = tuple(ViewEntry(e.id, e.category, e.content, e.timestamp) for e in state.list())
        messages, _ = writer_messages(Observation(chunk, state.core, view), AGENT, SCHEMA)
        gold = [op for op in task.gold_operations if op.chunk == chunk.index]
        if chunk.index < first:
            gold = [op for op in gold if not (careless and rng.random() < 0.35)]
        calls: list[str] = []
        for operation in plan_calls(state, chunk, gold, habits, rng):
            calls.append(render_call(operation))
            if state.find(operation.category or "", operation.content or "") is None:
                state = state.apply(operation)
        if chunk.index >= first:
            rows.append(Row(prompt_text(messages), "".join(calls) or format_call("memory_skip", {}), "writer"))
        if careless and chunk.index >= first:
            for entry in state.list():
                if rng.random() < 0.25:
                    state = state.apply(Operation("delete", id=entry.id))
        states.append(state)
    return rows, states


def plan_calls(
    state: MemoryState, chunk: Chunk, gold: Sequence[GoldOperation], habits: WriterHabits, rng: Random
) -> Iterator[Operation]:
    """Yield the operations of one chunk in the order of its lines.

    Args:
        state: Memory before the chunk.
        chunk: Chunk to read.
        gold: Gold operations of the chunk.
        habits: Probabilities of acting.
        rng: Source of randomness.
    """
    by_turn = {operation.turn: operation for operation in gold}
    for turn in chunk.turns:
        operation = by_turn.get(turn.id)
        if operation is None:
            if rng.random() < habits.note:
                note = f"note: {turn.text.rstrip('.?!')}"
                yield Operation("insert", category="semantic", content=note, timestamp=chunk.timestamp)
            continue
        key = entry_slot(operation.content or operation.replaces or "")
        stored = [e.id for e in state.list("semantic") if entry_slot(e.content) == key]
        if operation.kind == "insert":
            stored = []
        content = {"content": operation.content, "timestamp": chunk.timestamp}
        insert = Operation("insert", category=operation.category, **content)
        if not stored:
            if operation.kind != "delete" and rng.random() < habits.fact:
                yield insert
        elif rng.random() < habits.change:
            is_by_id = rng.random() < habits.right
            if operation.kind == "update":
                yield Operation("update", id=stored[-1], **content) if is_by_id else insert
            elif is_by_id:
                yield Operation("delete", id=stored[-1])


def render_call(operation: Operation) -> str:
    """Return the Hermes text of an insert, update or delete."""
    names = {"insert": ("category", "content"), "update": ("id", "content"), "delete": ("id",)}[operation.kind]
    return format_call(f"memory_{operation.kind}", {name: getattr(operation, name) for name in names})


def reader_rows(task: Task, states: Sequence[MemoryState], rng: Random) -> Iterator[Row]:
    """Yield reader rows: every question over a random part of the memory, answered from its lines.

    Args:
        task: Task with questions.
        states: Memories after each chunk.
        rng: Source of randomness.
    """
    counts = [
        Question(id="", question=rng.choice(kind.counts), meta={"slot": kind.key, "kind": "count"})
        for kind in rng.sample(EVENTS, 2)
    ]
    for question in (*task.questions, *counts):
        chunk_index = question.asked_after_chunk
        state = states[len(states) - 1 if chunk_index is None else chunk_index]
        entries = state.list()
        if rng.random() < 0.4:
            entries = rng.sample(entries, rng.randint(0, len(entries)))
        if len(entries) > READER.k:
            slot_entries = [e for e in entries if entry_slot(e.content) == question.meta["slot"]][: READER.k]
            other_entries = [e for e in entries if e not in slot_entries]
            entries = slot_entries + rng.sample(other_entries, READER.k - len(slot_entries))
        answer = answer_from(question, entries)
        if answer is not None:
            messages = reader_messages(question.question, [Hit(entry, 0.0) for entry in entries], READER)
            yield Row(prompt_text(messages), f" {answer}", "reader")  # " Oslo" is the token shown; readers strip


def answer_from(question: Question, entries: Iterable[Any]) -> str | None:
    """Return the answer that follows from the entries; None for two values of one slot."""
    slot_entries = [entry for entry in entries if entry_slot(entry.content) == question.meta["slot"]]
    if not slot_entries:
        return ABSTAIN
    if question.meta["kind"] == "count":
        return str(len(slot_entries))
    if question.meta["kind"] == "when":
        matching = [e for e in slot_entries if e.content.partition(": ")[2] in question.question]
        return (matching[0].timestamp or ABSTAIN) if matching else ABSTAIN
    values = {entry.content.partition(": ")[2] for entry in slot_entries}
    return values.pop() if len(values) == 1 else None


READING = Shape(
    facts=(2, 6), updates=(0, 2), retracts=(0, 1), events=(0, 6), never=(1, 2), chitchat=(0, 2), questions=6
)
"""Tasks for reader rows: more events to count than the demo has."""


def scramble(task: Task, rng: Random, share: float) -> Task:
    """Replace a share of the stored values by words made of fragments of training values.

    Pseudo-words have few first letters. Without these words, one held-out value in six begins with the wrong piece.

    Args:
        task: Task to change.
        rng: Source of randomness.
        share: Share of values to replace.
    """
    values = dict.fromkeys(op.content.partition(": ")[2] for op in task.gold_operations if op.content)
    table = {value: fragments(rng, value[0].isupper()) for value in values if rng.random() < share}
    if not table:
        return task
    words = re.compile(r"\b(" + "|".join(map(re.escape, table)) + r")\b")
    return Task.model_validate_json(words.sub(lambda match: table[match.group()], task.model_dump_json()))


def fragments(rng: Random, capital: bool) -> str:
    """Draw a word of two or three pieces of words."""
    pieces = []
    for _ in range(rng.choice((2, 2, 3))):
        word = rng.choice(WORDS)
        start = rng.randrange(max(1, len(word) - 2))
        pieces.append(word[start : start + rng.randint(1, 4)])
    word = "".join(pieces)
    return word.capitalize() if capital else word


CAREFUL = WriterHabits()
LAZY = WriterHabits(fact=0.5, change=0.7, right=0.97, note=0.12)
READ_FROM = (CAREFUL, CAREFUL, WriterHabits(fact=0.7, change=0.7, right=0.7, note=0.3))
"""Writers whose memories the reader learns to read."""
WORDS = [value.lower() for pool in sorted(POOLS) for value in pool_values(pool, "train") if value.isalpha()]


def demonstration_rows(
    index: int, seed: int, habits: WriterHabits, world: WorldConfig, drills: float, reader: float, share: float = 0.35
) -> list[Row]:
    """Return all rows of demonstration number `index`: a task or a drill, and perhaps reader rows.

    Args:
        index: Number of the task.
        seed: Seed of all demonstrations.
        habits: Probabilities of acting.
        world: World of the tasks.
        drills: Share of drills among the tasks.
        reader: Probability of reader rows.
        share: Share of values to replace by fragments.
    """
    rng = Random(f"rows|{seed}|{index}")
    if rng.random() < drills:
        rows, _ = demonstrate(scramble(drill(world, seed, index), rng, share), habits, rng, first=1)
    else:
        rows, _ = demonstrate(scramble(generate(world, seed, index), rng, share), habits, rng)
    if rng.random() < reader:
        task = scramble(shaped(world, seed, index, READING, "reading"), rng, share)
        _, states = demonstrate(task, rng.choice(READ_FROM), rng)
        rows += reader_rows(task, states, rng)
    return rows
