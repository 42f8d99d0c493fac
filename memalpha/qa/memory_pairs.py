"""Preference pairs of memories of one conversation, made from its gold operations.

The prompt is the conversation, a reply is a memory as text (`conversation_messages`, `memory_text`). Judges and reward
models see the same texts in training and in use. The better memory of a pair is the one of a perfect writer, or has
some faults already. The worse one has one to three faults more, all of one kind:

| fault       | difference                                                                              |
|-------------|-----------------------------------------------------------------------------------------|
| `missing`   | a fact is left out                                                                      |
| `stale`     | an old value instead of the new one or beside it, or a fact that was taken back         |
| `wrong`     | a value from another conversation                                                       |
| `duplicate` | a fact a second time, in other words                                                    |
| `chitchat`  | a line of the conversation that states nothing                                          |
| `category`  | a fact in another category                                                              |

Faults are made by rule, not by a writer. So every pair is known to be in the right order, all kinds are equally
frequent, and no policy is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

from memalpha.errors import DataError
from memalpha.qa.scoring.stats import group_values
from memalpha.store.state import MemoryState
from memalpha.types import Task

FAULTS = ("missing", "stale", "wrong", "duplicate", "chitchat", "category")
MAX_FAULTS = 3
"""Faults by which the two memories of a pair differ, at most."""
FLAWED_SHARE = 0.5
"""Share of pairs whose better memory has one to three faults too."""

Fact = tuple[str, str]
"""Category ("core": the core memory) and content."""


@dataclass(frozen=True, slots=True)
class MemoryPair:
    """Two memories of one conversation; the worse has `grade` faults of kind `fault` more.

    Attributes:
        task: Id of the task.
        fault: Kind of the faults.
        grade: Number of faults that the worse memory has more.
        prompt: The conversation as messages.
        chosen: Text of the better memory.
        rejected: Text of the worse memory.
    """

    task: str
    fault: str
    grade: int
    prompt: tuple[Mapping[str, str], ...]
    chosen: str
    rejected: str


def conversation_messages(task: Task) -> tuple[dict[str, str], ...]:
    """Return the conversation as one user message: its chunks in order, each after its date."""
    chunks = (
        f"chunk {chunk.timestamp}\n{chunk.render()}" if chunk.timestamp else chunk.render() for chunk in task.chunks
    )
    return ({"role": "user", "content": "\n".join(chunks)},)


def memory_text(facts: Iterable[Fact], core: str = "") -> str:
    """Return a memory as text: the core memory, then entries by category; "memory" alone if empty."""
    grouped = group_values((category, " ".join(content.split())) for category, content in facts)
    lines = ["memory", *([f"core: {' '.join(core.split())}"] if core else [])]
    for category in sorted(grouped):
        lines += [category, *(f"- {content}" for content in grouped[category])]
    return "\n".join(lines)


def state_text(state: MemoryState) -> str:
    """Return `memory_text` of a memory state."""
    return memory_text(((entry.category, entry.content) for entry in state.list()), state.core)


def memory_pairs(tasks: Sequence[Task], each: int, *, seed: int = 0) -> list[MemoryPair]:
    """Make `each` pairs for every task; kinds of faults take turns.

    Values of other conversations come from `tasks`. Equal arguments give equal pairs.

    Args:
        tasks: Tasks with gold operations.
        each: Pairs per task.
        seed: Seed of the faults.

    Raises:
        DataError: A task has no gold operations, or none that could be remembered wrongly.
    """
    facts = dict.fromkeys(
        (operation.category, operation.content)
        for task in tasks
        for operation in task.gold_operations
        if operation.kind in ("insert", "update") and operation.category and operation.content
    )
    values = group_values(dict.fromkeys((_slot(fact), fact[1]) for fact in facts))
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
            better = list(conversation.facts)
            if rng.random() < FLAWED_SHARE:
                for _ in range(rng.randint(1, MAX_FAULTS)):
                    better = _add_fault(rng.choice(FAULTS), better, conversation, rng) or better
            start = FAULTS.index(first)
            for fault in (*FAULTS[start:], *FAULTS[:start]):
                worse, grade = better, 0
                for _ in range(rng.randint(1, MAX_FAULTS)):
                    if (changed := _add_fault(fault, worse, conversation, rng)) is not None:
                        worse, grade = changed, grade + 1
                if grade:
                    break
            else:
                raise DataError(f"task {task.id!r}: its gold operations leave nothing that could be remembered wrongly")
            texts = (memory_text(facts, conversation.core) for facts in (better, worse))
            pairs.append(MemoryPair(task.id, fault, grade, conversation_messages(task), *texts))
    return pairs


def write_memory_pairs(path: Path, pairs: Iterable[MemoryPair]) -> None:
    """Write pairs as JSON Lines for `memalpha train reward data=PATH`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected} for pair in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


class _ConversationFacts:
    """Facts of a conversation, by its gold operations.

    Attributes:
        core: Core memory at the end.
        facts: Facts that hold at the end.
        old_versions: Earlier contents of each fact.
        retracted: Contents that were taken back, with their earlier versions.
        small_talk: Lines that state nothing.
        categories: Categories of the gold operations.
        values: Contents of all conversations by slot.
    """

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
            elif operation.kind == "update" and before in self.old_versions:  # keep the order of facts
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


def _add_fault(fault: str, facts: list[Fact], conversation: _ConversationFacts, rng: Random) -> list[Fact] | None:
    """Return the facts with one fault more; None if they leave no room for one of its kind."""
    versions, categories = conversation.old_versions, conversation.categories
    true_facts = [(index, fact) for index, fact in enumerate(facts) if fact in versions]
    edits: list[tuple[int, list[Fact]]] = []  # index of a fact, and what stands in its place
    additions: list[Fact] = []
    if fault == "missing":
        edits = [(index, []) for index, _ in true_facts]
    elif fault == "stale":
        for index, fact in true_facts:
            for old in versions[fact]:
                edits += [] if old in facts else [(index, [old]), (index, [old, fact])]
        additions = [old for old in conversation.retracted if old not in facts]
    elif fault == "wrong":
        own_contents = {content for _, content in chain(versions, conversation.retracted, *versions.values())}
        for index, fact in true_facts:
            if candidates := [value for value in conversation.values[_slot(fact)] if value not in own_contents]:
                edits.append((index, [(fact[0], rng.choice(candidates))]))
    elif fault == "duplicate":
        reworded = (
            (category, text)
            for _, (category, content) in true_facts
            for text in (content.replace(": ", " is ", 1), content.upper(), f"{content}.")
        )
        additions = [fact for fact in reworded if fact not in facts]
    elif fault == "chitchat" and categories:
        contents = {content for _, content in facts}
        additions = [(rng.choice(categories), line) for line in conversation.small_talk if line not in contents]
    elif fault == "category":
        moved = ((index, (category, fact[1])) for index, fact in true_facts for category in categories)
        edits = [(index, [fact]) for index, fact in moved if fact not in facts]
    if not edits and not additions:
        return None
    choice = rng.randrange(len(edits) + len(additions))
    if choice < len(edits):
        index, replacement = edits[choice]
        return [*facts[:index], *replacement, *facts[index + 1 :]]
    index = rng.randint(0, len(facts))
    return [*facts[:index], additions[choice - len(edits)], *facts[index:]]


def _slot(fact: Fact) -> Fact:
    """Return the slot of a value: contents with the same words before a colon, else the whole category."""
    category, content = fact
    key, colon, _ = content.partition(": ")
    return category, key if colon else ""
