"""Preferences between memories of one conversation, made from its gold operations.

The prompt is the conversation, a reply is a memory, as text (`conversation_messages`, `memory_text`: what a judge or a
reward model is shown, in training and in use). The better memory of a pair is what a perfect writer would have, or has
some faults already; the worse one has the same and one to three more, all of one kind:

    missing    a fact is not there                     duplicate  a fact a second time, in other words
    stale      an old value, in the place of the new   chitchat   a line of the conversation that states nothing
               one or beside it, or one taken back     category   a fact in another category
    wrong      another conversation's value

Faults by rule and not by a writer, so that every pair is known to be the right way round, of each kind equally many are
there, and no policy has to be at hand.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from memalpha.errors import DataError
from memalpha.store.state import MemoryState
from memalpha.types import Task

FAULTS = ("missing", "stale", "wrong", "duplicate", "chitchat", "category")
MOST = 3
"""The most faults by which two memories of a pair differ."""
FLAWED = 0.5
"""Share of pairs whose better memory has one to three faults too."""

Fact = tuple[str, str]
"""Category ("core": the core memory) and content."""


@dataclass(frozen=True, slots=True)
class MemoryPair:
    """Two memories of the conversation of `task`; the worse has `grade` faults of kind `fault` more than the better."""

    task: str
    fault: str
    grade: int
    prompt: tuple[Mapping[str, str], ...]
    chosen: str
    rejected: str

    def as_json(self) -> dict[str, Any]:
        """A line of a file for `memalpha train reward` (or `preferences`)."""
        return {"prompt": list(self.prompt), "chosen": self.chosen, "rejected": self.rejected}


def conversation_messages(task: Task) -> tuple[dict[str, str], ...]:
    """The conversation as one user message: its chunks in order, each after its date."""
    chunks = (
        f"chunk {chunk.timestamp}\n{chunk.render()}" if chunk.timestamp else chunk.render() for chunk in task.chunks
    )
    return ({"role": "user", "content": "\n".join(chunks)},)


def memory_text(facts: Iterable[Fact], core: str = "") -> str:
    """A memory: the core memory, then the entries by category, a line each; "memory" alone where it holds nothing."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for category, content in facts:
        grouped[category].append(" ".join(content.split()))
    lines = ["memory", *([f"core: {' '.join(core.split())}"] if core else [])]
    for category in sorted(grouped):
        lines += [category, *(f"- {content}" for content in grouped[category])]
    return "\n".join(lines)


def state_text(state: MemoryState) -> str:
    """`memory_text` of what a memory holds now."""
    return memory_text(((entry.category, entry.content) for entry in state.list()), state.core)


def memory_pairs(tasks: Sequence[Task], each: int, *, seed: int = 0) -> list[MemoryPair]:
    """`each` pairs of every task, in the order of tasks; the kinds of faults take turns, those that a task allows.

    Other conversations' values come from `tasks` themselves. Equal arguments give equal pairs. Raises `DataError` where
    a task has no gold operations.
    """
    values = _values(tasks)
    found = []
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"task {task.id!r} has no gold operations: what a good memory would be is not known")
        rng = Random(f"{seed}|{task.id}")
        told = _Told(task, values)
        kinds: list[str] = []
        while len(kinds) < each:
            kinds += rng.sample(FAULTS, len(FAULTS))
        for first in kinds[:each]:
            found.append(_pair(task, told, first, rng))
    return found


def write_memory_pairs(path: Path, pairs: Iterable[MemoryPair]) -> None:
    """A JSON Lines file that `memalpha train reward data=PATH` learns from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(pair.as_json()) + "\n" for pair in pairs), encoding="utf-8")


class _Told:
    """What a conversation tells: `facts` that hold at its end, the `old` contents of each, `gone` ones, that were taken
    back, and `idle` lines, that state nothing."""

    def __init__(self, task: Task, values: Mapping[Fact, Sequence[str]]) -> None:
        self.core = ""
        self.old: dict[Fact, list[Fact]] = {}
        self.gone: list[Fact] = []
        self.values = values
        for operation in sorted(task.gold_operations, key=lambda one: one.chunk):
            if operation.kind == "core_update":
                self.core = operation.content
                continue
            category = operation.category or ""
            new, before = (category, operation.content), (category, operation.replaces or "")
            if operation.kind == "delete":
                self.gone += [before, *self.old.pop(before, [])]
            elif operation.kind == "update" and before in self.old:  # which keeps its place
                past = [*self.old[before], before]
                self.old = {
                    new if fact == before else fact: past if fact == before else self.old[fact] for fact in self.old
                }
            else:
                self.old.setdefault(new, [])
        self.facts = list(self.old)
        held = {operation.turn for operation in task.gold_operations}
        turns = (turn for chunk in task.chunks for turn in chunk.turns or ())
        self.idle = [turn.text for turn in turns if turn.id not in held]
        self.categories = sorted({operation.category for operation in task.gold_operations if operation.category})


def _pair(task: Task, told: _Told, first: str, rng: Random) -> MemoryPair:
    """A pair with faults of kind `first`, or of the next kind that the conversation allows."""
    better = list(told.facts)
    if rng.random() < FLAWED:
        for _ in range(rng.randint(1, MOST)):
            better = _FAULTY[rng.choice(FAULTS)](better, told, rng) or better
    at = FAULTS.index(first)
    for fault in (*FAULTS[at:], *FAULTS[:at]):
        worse, grade = better, 0
        for _ in range(rng.randint(1, MOST)):
            if (next_one := _FAULTY[fault](worse, told, rng)) is not None:
                worse, grade = next_one, grade + 1
        if grade:
            break
    else:
        raise DataError(f"task {task.id!r}: its gold operations leave nothing that could be remembered wrongly")
    texts = (memory_text(facts, told.core) for facts in (better, worse))
    return MemoryPair(task.id, fault, grade, conversation_messages(task), *texts)


def _missing(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    right = [place for place, fact in enumerate(facts) if fact in told.old]
    if not right:
        return None
    place = rng.choice(right)
    return [*facts[:place], *facts[place + 1 :]]


def _stale(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    """An old value in the place of the new one, or beside it; or what was taken back is kept."""
    options: list[list[Fact]] = []
    for place, fact in enumerate(facts):
        for old in told.old.get(fact, []):
            if old not in facts:
                options += [[*facts[:place], old, *facts[place + 1 :]], [*facts[:place], old, *facts[place:]]]
    options += [_put(facts, gone, rng) for gone in told.gone if gone not in facts]
    return rng.choice(options) if options else None


def _wrong(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    right = [place for place, fact in enumerate(facts) if fact in told.old]
    known = {content for past in told.old.values() for _, content in past} | {content for _, content in told.facts}
    known |= {content for _, content in told.gone}
    rng.shuffle(right)
    for place in right:
        category, content = facts[place]
        others = [other for other in told.values[_slot((category, content))] if other not in known]
        if others:
            return [*facts[:place], (category, rng.choice(others)), *facts[place + 1 :]]
    return None


def _duplicate(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    ways = (lambda text: text.replace(": ", " is ", 1), lambda text: text.upper(), lambda text: f"{text}.")
    options = [
        (category, other)
        for category, content in facts
        if (category, content) in told.old
        for way in ways
        if (category, other := way(content)) not in facts and other != content
    ]
    return _put(facts, rng.choice(options), rng) if options else None


def _chitchat(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    held = {content for _, content in facts}
    options = [line for line in told.idle if line not in held]
    return _put(facts, (rng.choice(told.categories), rng.choice(options)), rng) if options and told.categories else None


def _category(facts: list[Fact], told: _Told, rng: Random) -> list[Fact] | None:
    options = [
        (place, other)
        for place, fact in enumerate(facts)
        if fact in told.old
        for other in told.categories
        if other != fact[0] and (other, fact[1]) not in facts
    ]
    if not options:
        return None
    place, other = rng.choice(options)
    return [*facts[:place], (other, facts[place][1]), *facts[place + 1 :]]


_FAULTY = dict(zip(FAULTS, (_missing, _stale, _wrong, _duplicate, _chitchat, _category), strict=True))


def _put(facts: list[Fact], fact: Fact, rng: Random) -> list[Fact]:
    place = rng.randint(0, len(facts))
    return [*facts[:place], fact, *facts[place:]]


def _slot(fact: Fact) -> Fact:
    """What a value is one of: contents with the same words before a colon, else all of a category."""
    category, content = fact
    key, colon, _ = content.partition(": ")
    return category, key if colon else ""


def _values(tasks: Sequence[Task]) -> dict[Fact, list[str]]:
    """All contents by what they are values of, in order."""
    found: dict[Fact, dict[str, None]] = defaultdict(dict)
    for task in tasks:
        for operation in task.gold_operations:
            if operation.kind in ("insert", "update") and operation.category and operation.content:
                found[_slot((operation.category, operation.content))][operation.content] = None
    return {slot: list(contents) for slot, contents in found.items()}
