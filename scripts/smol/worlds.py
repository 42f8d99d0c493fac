"""Rows from the synthetic worlds, plain and paraphrased, and from the training stories of bAbI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Literal

import make_babi_policy as babi_policy
import tiny_rows
from tiny_rows import WriterHabits, entry_slot, plan_calls, scramble

from memalpha.agent.parsing import parse_calls
from memalpha.agent.replies import format_lines
from memalpha.config import WorldConfig
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic.phrases import Split, ValueSource, fill
from memalpha.tasks.synthetic.worlds import drill, generate, shaped
from memalpha.types import Chunk, GoldOperation, MemoryEntry, Operation, SpeakerTurn, Task, ToolCall
from smol.kinds import load_phrasings
from smol.rows import SCHEMA, VIEW, SmolRow, apply_new, operation_call, writer_row

Phrasings = Literal["train", "held-out"]

DEMO_WORLD = WorldConfig(pseudo_values=0.6, temporal_questions=True)
FULL_WORLD = WorldConfig(preset="full", tokens=8000, pseudo_values=0.6)
DRILLS = 0.5
"""Share of drills (a filled memory, then changes) among the demo tasks."""
READER_TASKS = 0.3
"""Share of the demo tasks that also give reader rows."""
FULL_TURNS = (4, 12)
"""Turns of a full-world chunk; its sessions are cut into pieces of this size."""


def demo_rows(seed: int, index: int) -> list[SmolRow]:
    """Return all rows of demo task number `index`: writer rows, perhaps reader rows."""
    return _demo_rows("demo", seed, index)


def paraphrase_rows(seed: int, index: int) -> list[SmolRow]:
    """Return all rows of demo task number `index`, told in the training phrasings of `paraphrases.txt`."""
    return _demo_rows("paraphrase", seed, index)


def _demo_rows(part: str, seed: int, index: int) -> list[SmolRow]:
    rng = Random(f"smol|{part}|{seed}|{index}")
    is_drill = rng.random() < DRILLS
    number = index + (0 if part == "demo" else 500_000)
    task = (drill if is_drill else generate)(DEMO_WORLD, seed, number)
    rows, _ = demonstrate(part, _prepare(task, part, rng), rng, first=int(is_drill))
    if rng.random() < READER_TASKS:
        reading = shaped(DEMO_WORLD, seed, number, tiny_rows.READING, "reading")
        task = _prepare(reading, part, rng)
        _, states = demonstrate(part, task, rng)
        rows += [_plain(part, row) for row in tiny_rows.reader_rows(task, states, rng)]
    return rows


def _prepare(task: Task, part: str, rng: Random) -> Task:
    task = rephrase(task, rng, "train") if part == "paraphrase" else task
    return scramble(task, rng, 0.35)


def demonstrate(part: str, task: Task, rng: Random, first: int = 0) -> tuple[list[SmolRow], list[MemoryState]]:
    """Return the rows of a careful writer, and the memory after every chunk.

    In some tasks entries are missing from the memory, so that a change of an unknown fact is met by an insert.

    Args:
        part: Part of the mixture.
        task: Task with gold operations.
        rng: Source of randomness.
        first: First chunk that gives rows.
    """
    habits = WriterHabits()
    state, rows, states = MemoryState.empty(SCHEMA, unique_contents=True), [], []
    has_gaps = rng.random() < habits.forget
    for chunk in task.chunks:
        gold = [operation for operation in task.gold_operations if operation.chunk == chunk.index]
        if chunk.index < first:
            gold = [operation for operation in gold if not (has_gaps and rng.random() < 0.35)]
        view, calls, state = write_chunk(state, chunk, gold, rng)
        if chunk.index >= first:
            rows.append(writer_row(part, chunk, view, calls))
            for entry in state.list() if has_gaps else ():
                if rng.random() < 0.25:
                    state = state.apply(Operation("delete", id=entry.id))
        states.append(state)
    return rows, states


def write_chunk(
    state: MemoryState, chunk: Chunk, gold: Sequence[GoldOperation], rng: Random
) -> tuple[list[MemoryEntry], list[ToolCall], MemoryState]:
    """Apply the gold operations of one chunk.

    Args:
        state: Memory before the chunk.
        chunk: Chunk to read.
        gold: Its gold operations.
        rng: Source of randomness.

    Returns:
        Entries before the chunk, gold calls, memory after the chunk.
    """
    dates = {operation.content: operation.timestamp for operation in gold if operation.timestamp}
    view, calls = state.list(), []
    for operation in plan_calls(state, chunk, gold, WriterHabits(), rng):
        date = dates.get(operation.content or "")
        calls.append(operation_call(operation, date))
        state = apply_new(state, replace(operation, timestamp=date) if date else operation)
    return view, calls, state


def _plain(part: str, row: tiny_rows.Row) -> SmolRow:
    """Convert a row of the tiny policies: no chat marks, calls in the line form."""
    prompt = row.prompt.removeprefix(tiny_rows.USER).removesuffix(tiny_rows.ASSISTANT)
    completion = row.completion.strip()
    return SmolRow(
        part, row.kind, prompt, format_lines(parse_calls(completion)) if row.kind == "writer" else completion
    )


# ---------------------------------------------------------------------------------------------------------- paraphrases


HELD_OUT_EVERY = 4
"""Every fourth phrasing of `paraphrases.txt` is held out."""


@cache
def select_phrases(kind: str, key: str, phrasings: Phrasings) -> tuple[str, ...]:
    """Return the held-out phrasings of `paraphrases.txt`, or its others and all of `phrasings.txt`.

    Args:
        kind: "state", "change", "retract", "trap", "event" or "chat".
        key: Attribute, or "lead" and "tail" of chat.
        phrasings: "train" or "held-out".
    """
    name = f"{kind}.{key}"
    phrases = load_phrasings("paraphrases.txt").get(name, ())
    held_out = phrases[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    if phrasings == "held-out":
        return held_out
    training = tuple(text for text in phrases if text not in held_out)
    return training + load_phrasings("phrasings.txt").get(name, ())


def rephrase(task: Task, rng: Random, phrasings: Phrasings, *, split: Split = "train") -> Task:
    """Tell the facts, changes and events of a demo task in other words; gold and questions stay.

    Args:
        task: Task of the demo world, before `scramble`.
        rng: Source of randomness.
        phrasings: Phrasings to draw from.
        split: Split of the values that distractors name.
    """
    gold = {operation.turn: operation for operation in task.gold_operations}
    text_of_task = task.model_dump_json().lower()
    values = ValueSource(rng, split, 0.5)
    chunks = []
    for chunk in task.chunks:
        turns = []
        for turn in chunk.turns:
            operation = gold.get(turn.id)
            if operation is not None:
                text = _rephrased(operation, rng, phrasings)
                turn = turn.model_copy(update={"text": _embed(text, rng, phrasings)})
            turns.append(turn)
            if rng.random() < 0.1:
                key = rng.choice(_attributes("trap" if phrasings == "held-out" else "state"))
                value = values.draw(key)
                if value.lower() not in text_of_task:
                    trap = fill(rng.choice(select_phrases("trap", key, phrasings)), value)
                    turns.append(SpeakerTurn(speaker="user", text=trap, id=f"{turn.id}.trap"))
        chunks.append(chunk.model_copy(update={"turns": tuple(turns)}))
    return task.model_copy(update={"chunks": tuple(chunks)})


@cache
def _attributes(kind: str) -> tuple[str, ...]:
    names = (name.split(".") for name in load_phrasings("paraphrases.txt"))
    return tuple(sorted(key for word, key in names if word == kind))


def _rephrased(operation: GoldOperation, rng: Random, phrasings: Phrasings) -> str:
    key = entry_slot(operation.content or operation.replaces or "")
    value = operation.content.partition(": ")[2]
    old = (operation.replaces or "").partition(": ")[2]
    if operation.category == "episodic":
        when = "yesterday" if operation.timestamp else "today"
        return fill(rng.choice(select_phrases("event", key, phrasings)), value, when=when)
    if operation.kind == "delete":
        return fill(rng.choice(select_phrases("retract", key, phrasings)), "", old)
    kind = "change" if operation.kind == "update" and rng.random() < 0.8 else "state"
    return fill(rng.choice(select_phrases(kind, key, phrasings)), value, old)


def _embed(text: str, rng: Random, phrasings: Phrasings) -> str:
    """Put chat before or behind a sentence at times."""
    lead = rng.choice(select_phrases("chat", "lead", phrasings)) if rng.random() < 0.25 else ""
    tail = rng.choice(select_phrases("chat", "tail", phrasings)) if rng.random() < 0.25 else ""
    return " ".join(part for part in (lead, text, tail) if part)


def held_out_tasks(count: int, seed: int = 0) -> list[Task]:
    """Return demo tasks with held-out values, told in held-out phrasings only.

    Args:
        count: Number of tasks.
        seed: Seed of the tasks.
    """
    world = WorldConfig(split="test", temporal_questions=True)
    tasks = []
    for index in range(count):
        rng = Random(f"held-out|{seed}|{index}")
        task = rephrase(generate(world, 20_000 + seed, index), rng, "held-out", split="test")
        tasks.append(task.model_copy(update={"id": f"held-out-phrasings-{seed}-{index}"}))
    return tasks


def reward_tasks(count: int, seed: int = 0) -> list[Task]:
    """Return demo tasks with training values for reinforcement: every second one told in training phrasings.

    Args:
        count: Number of tasks.
        seed: Seed of the tasks.
    """
    tasks = []
    for index in range(count):
        task = generate(DEMO_WORLD, 40_000 + seed, index)
        if index % 2:
            task = rephrase(task, Random(f"reward|{seed}|{index}"), "train")
        tasks.append(task.model_copy(update={"id": f"reward-{seed}-{index}"}))
    return tasks


# ------------------------------------------------------------------------------------------------- full world and bAbI


def full_rows(seed: int, index: int) -> Iterator[SmolRow]:
    """Yield writer rows of one full-world stream, its sessions cut into short chunks."""
    rng = Random(f"smol|full|{seed}|{index}")
    state = MemoryState.empty(SCHEMA, unique_contents=True)
    task = generate(FULL_WORLD, seed, index)
    for session in task.chunks:
        turns = list(session.turns)
        while turns:
            size = rng.randint(*FULL_TURNS)
            piece, turns = turns[:size], turns[size:]
            chunk = session.model_copy(update={"turns": tuple(piece)})
            ids = {turn.id for turn in piece}
            gold = [operation for operation in task.gold_operations if operation.turn in ids]
            entries, calls, state = write_chunk(state, chunk, gold, rng)
            if calls or rng.random() < 0.3:
                yield writer_row("full", chunk, _draw_view(entries, calls, rng), calls)


def _draw_view(entries: Sequence[MemoryEntry], calls: Sequence[ToolCall], rng: Random) -> list[MemoryEntry]:
    """Draw at most `VIEW` entries: all that the calls name, and others, in their order."""
    ids = {call.arguments.get("id") for call in calls}
    others = [entry for entry in entries if entry.id not in ids]
    chosen = {entry.id for entry in rng.sample(others, min(len(others), rng.randint(3, VIEW - 3)))}
    return [entry for entry in entries if entry.id in ids | chosen]


def babi_rows(seed: int, index: int) -> list[SmolRow]:
    """Return writer and reader rows of one stream of training stories."""
    rows = babi_policy.demonstration_rows(index, seed, babi_policy.CAREFUL, 0.25)
    return [_plain("babi", row) for row in rows]
