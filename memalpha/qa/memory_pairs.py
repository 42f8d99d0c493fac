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
MAX_FAULTS = 3
"""The most faults by which two memories of a pair differ."""
FLAWED_SHARE = 0.5
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
    values = _values_by_slot(tasks)
    pairs = []
    for task in tasks:
        if not task.gold_operations:
            raise DataError(f"task {task.id!r} has no gold operations: what a good memory would be is not known")
        rng = Random(f"{seed}|{task.id}")
        conversation = _ConversationFacts(task, values)
        kinds: list[str] = []
        while len(kinds) < each:
            kinds += rng.sample(FAULTS, len(FAULTS))
        for first in kinds[:each]:
            pairs.append(_make_pair(task, conversation, first, rng))
    return pairs


def write_memory_pairs(path: Path, pairs: Iterable[MemoryPair]) -> None:
    """A JSON Lines file that `memalpha train reward data=PATH` learns from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(pair.as_json()) + "\n" for pair in pairs), encoding="utf-8")


class _ConversationFacts:
    """What a conversation tells: `facts` that hold at its end, the `old` contents of each, `gone` ones, that were taken
    back, and `idle` lines, that state nothing."""

    def __init__(self, task: Task, values: Mapping[Fact, Sequence[str]]) -> None:
        self.core = ""
        self.old_versions: dict[Fact, list[Fact]] = {}
        self.retracted: list[Fact] = []
        self.values = values
        for operation in sorted(task.gold_operations, key=lambda entry: entry.chunk):
            if operation.kind == "core_update":
                self.core = operation.content
                continue
            category = operation.category or ""
            new, before = (category, operation.content), (category, operation.replaces or "")
            if operation.kind == "delete":
                self.retracted += [before, *self.old_versions.pop(before, [])]
            elif operation.kind == "update" and before in self.old_versions:  # which keeps its place
                versions = [*self.old_versions[before], before]
                self.old_versions = {
                    new if fact == before else fact: versions if fact == before else self.old_versions[fact]
                    for fact in self.old_versions
                }
            else:
                self.old_versions.setdefault(new, [])
        self.facts = list(self.old_versions)
        stated_turns = {operation.turn for operation in task.gold_operations}
        turns = (turn for chunk in task.chunks for turn in chunk.turns or ())
        self.small_talk = [turn.text for turn in turns if turn.id not in stated_turns]
        self.categories = sorted({operation.category for operation in task.gold_operations if operation.category})


def _make_pair(task: Task, conversation: _ConversationFacts, first: str, rng: Random) -> MemoryPair:
    """A pair with faults of kind `first`, or of the next kind that the conversation allows."""
    better = list(conversation.facts)
    if rng.random() < FLAWED_SHARE:
        for _ in range(rng.randint(1, MAX_FAULTS)):
            better = _ADD_FAULT[rng.choice(FAULTS)](better, conversation, rng) or better
    start = FAULTS.index(first)
    for fault in (*FAULTS[start:], *FAULTS[:start]):
        worse, grade = better, 0
        for _ in range(rng.randint(1, MAX_FAULTS)):
            if (changed := _ADD_FAULT[fault](worse, conversation, rng)) is not None:
                worse, grade = changed, grade + 1
        if grade:
            break
    else:
        raise DataError(f"task {task.id!r}: its gold operations leave nothing that could be remembered wrongly")
    texts = (memory_text(facts, conversation.core) for facts in (better, worse))
    return MemoryPair(task.id, fault, grade, conversation_messages(task), *texts)


def _missing(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    true_facts = [index for index, fact in enumerate(facts) if fact in conversation.old_versions]
    if not true_facts:
        return None
    place = rng.choice(true_facts)
    return [*facts[:place], *facts[place + 1 :]]


def _stale(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    """An old value in the place of the new one, or beside it; or what was taken back is kept."""
    options: list[list[Fact]] = []
    for index, fact in enumerate(facts):
        for old in conversation.old_versions.get(fact, []):
            if old not in facts:
                options += [[*facts[:index], old, *facts[index + 1 :]], [*facts[:index], old, *facts[index:]]]
    options += [
        _insert_at_random(facts, retracted, rng) for retracted in conversation.retracted if retracted not in facts
    ]
    return rng.choice(options) if options else None


def _wrong(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    true_facts = [index for index, fact in enumerate(facts) if fact in conversation.old_versions]
    own_contents = {content for versions in conversation.old_versions.values() for _, content in versions} | {
        content for _, content in conversation.facts
    }
    own_contents |= {content for _, content in conversation.retracted}
    rng.shuffle(true_facts)
    for place in true_facts:
        category, content = facts[place]
        candidates = [
            candidate for candidate in conversation.values[_slot((category, content))] if candidate not in own_contents
        ]
        if candidates:
            return [*facts[:place], (category, rng.choice(candidates)), *facts[place + 1 :]]
    return None


def _duplicate(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    rewrites = (lambda text: text.replace(": ", " is ", 1), lambda text: text.upper(), lambda text: f"{text}.")
    options = [
        (category, reworded)
        for category, content in facts
        if (category, content) in conversation.old_versions
        for rewrite in rewrites
        if (category, reworded := rewrite(content)) not in facts and reworded != content
    ]
    return _insert_at_random(facts, rng.choice(options), rng) if options else None


def _chitchat(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    contents = {content for _, content in facts}
    options = [line for line in conversation.small_talk if line not in contents]
    return (
        _insert_at_random(facts, (rng.choice(conversation.categories), rng.choice(options)), rng)
        if options and conversation.categories
        else None
    )


def _category(facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    options = [
        (index, category)
        for index, fact in enumerate(facts)
        if fact in conversation.old_versions
        for category in conversation.categories
        if category != fact[0] and (category, fact[1]) not in facts
    ]
    if not options:
        return None
    place, other = rng.choice(options)
    return [*facts[:place], (other, facts[place][1]), *facts[place + 1 :]]


_ADD_FAULT = dict(zip(FAULTS, (_missing, _stale, _wrong, _duplicate, _chitchat, _category), strict=True))


def _insert_at_random(facts: list[Fact], fact: Fact, rng: Random) -> list[Fact]:
    index = rng.randint(0, len(facts))
    return [*facts[:index], fact, *facts[index:]]


def _slot(fact: Fact) -> Fact:
    """What a value is one of: contents with the same words before a colon, else all of a category."""
    category, content = fact
    key, colon, _ = content.partition(": ")
    return category, key if colon else ""


def _values_by_slot(tasks: Sequence[Task]) -> dict[Fact, list[str]]:
    """All contents by what they are values of, in order."""
    by_slot: dict[Fact, dict[str, None]] = defaultdict(dict)
    for task in tasks:
        for operation in task.gold_operations:
            if operation.kind in ("insert", "update") and operation.category and operation.content:
                by_slot[_slot((operation.category, operation.content))][operation.content] = None
    return {slot: list(contents) for slot, contents in by_slot.items()}
