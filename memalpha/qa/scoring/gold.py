"""Gold facts of a task over time, and validity of a rollout's operations.

Contents are compared after `normalize`: case, articles and the marks of a sentence do not matter, values do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from memalpha.errors import DataError
from memalpha.store.schema import MemorySchema
from memalpha.store.state import MemoryState
from memalpha.store.values import normalize
from memalpha.types import Task, ToolResult, Trajectory

_Fact = tuple[str, str]
_CORE = "core"


def comparable_fact(category: str | None, content: str | None) -> _Fact:
    """Return category and normalized content for comparison."""
    return category or _CORE, normalize(content or "")


class GoldFacts:
    """Facts of a task, with the chunks during which each holds."""

    def __init__(self, task: Task) -> None:
        self._spans: dict[_Fact, list[tuple[int, int | None]]] = {}
        self._replaced: dict[_Fact, set[_Fact]] = {}
        self.judges_core = any(operation.kind == "core_update" for operation in task.gold_operations)
        core: _Fact | None = None
        for operation in sorted(task.gold_operations, key=lambda operation: operation.chunk):
            category = _CORE if operation.kind == "core_update" else operation.category
            previous = core if operation.kind == "core_update" else comparable_fact(category, operation.replaces)
            if operation.kind != "insert" and previous in self._spans and self._spans[previous][-1][1] is None:
                self._spans[previous][-1] = (self._spans[previous][-1][0], operation.chunk)
            if operation.kind != "delete":
                current = comparable_fact(category, operation.content)
                spans = self._spans.setdefault(current, [])
                if not spans or spans[-1][1] is not None:  # a repetition while the fact holds opens no new span
                    spans.append((operation.chunk, None))
                if operation.kind == "update" and previous is not None:
                    self._replaced.setdefault(current, set()).update({previous}, self._replaced.get(previous, ()))
                core = current if operation.kind == "core_update" else core

    def holds(self, category: str | None, content: str | None, chunk: int) -> bool:
        """Return True if a fact is true after `chunk`.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        spans = self._spans.get(comparable_fact(category, content), ())
        return any(start <= chunk and (end is None or chunk < end) for start, end in spans)

    def has_ended(self, category: str | None, content: str | None, chunk: int) -> bool:
        """Return True if a fact was true once and no longer is after `chunk`.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        was_true = any(start <= chunk for start, _ in self._spans.get(comparable_fact(category, content), ()))
        return was_true and not self.holds(category, content, chunk)

    def outdated_by(self, category: str | None, content: str | None, chunk: int) -> set[_Fact]:
        """Return the facts that gold updates replaced by this one, step by step, and that no longer hold.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        replaced = self._replaced.get(comparable_fact(category, content), set())
        return {fact for fact in replaced if self.has_ended(*fact, chunk)}


def check_categories(tasks: Iterable[Task], schema: MemorySchema, data_source: str) -> None:
    """Check that the schema has a category for every gold operation.

    Args:
        tasks: Tasks with gold operations.
        schema: Schema of the writer.
        data_source: Key and file of the tasks, for the error message.

    Raises:
        DataError: A gold operation is of a category that the schema lacks.
    """
    for task in tasks:
        for number, operation in enumerate(task.gold_operations):
            core = operation.kind == "core_update"
            if schema.core if core else operation.category in schema.category_names:
                continue
            raise DataError(
                f"{data_source}: gold_operations[{number}] of task {task.id!r} is of "
                f"{'the core memory' if core else f'category {operation.category!r}'}, which schema "
                f"{schema.describe()} does not have: set agent.memory_schema to the schema that the file was written "
                "for (mem-alpha, life, or a YAML file)"
            )


def is_valid(result: ToolResult, gold: GoldFacts, chunk: int, state: MemoryState) -> bool | None:
    """Return True if a call made the memory truer; None if it is no write or cannot be judged.

    An insert or update is valid if its content holds in its category and no other live entry says the same. An insert
    is valid only if no live entry states what a gold update replaced by it: beside the old value the memory
    contradicts itself. An update is valid only if the replaced content no longer holds. A delete is valid if the
    removed content held once and no longer does. Removing what was never true is not judged: a writer could earn by
    tidying up its own junk. An exact duplicate is not valid.

    Args:
        result: Result of the call.
        gold: Gold facts of the task.
        chunk: Index of the chunk that was read.
        state: Memory after the chunk.
    """
    if result.code == "duplicate":
        return False
    if result.code == "core_updated":
        return gold.holds(None, result.content, chunk) if gold.judges_core else None
    if result.code == "deleted":
        if gold.has_ended(result.category, result.before, chunk):
            return True
        return False if gold.holds(result.category, result.before, chunk) else None
    if result.code not in ("inserted", "updated"):
        return None
    if not gold.holds(result.category, result.content, chunk):
        return False
    if result.code == "updated" and gold.holds(result.category, result.before, chunk):
        return False
    facts = [comparable_fact(entry.category, entry.content) for entry in state.entries.values()]
    if result.code == "inserted" and not gold.outdated_by(result.category, result.content, chunk).isdisjoint(facts):
        return False
    return facts.count(comparable_fact(result.category, result.content)) <= 1


@dataclass(frozen=True, slots=True)
class ChangesById:
    """Counts of gold changes whose old fact was stored, and of those made on that very entry."""

    updates: int = 0
    updates_hit: int = 0
    deletes: int = 0
    deletes_hit: int = 0

    def __add__(self, other: ChangesById) -> ChangesById:
        return ChangesById(
            self.updates + other.updates,
            self.updates_hit + other.updates_hit,
            self.deletes + other.deletes,
            self.deletes_hit + other.deletes_hit,
        )


def count_changes_by_id(trajectory: Trajectory) -> ChangesById:
    """Count gold updates and deletes whose old content was live before their chunk.

    An update is a hit if the same entry then holds the new content, a delete if the entry no longer exists.
    """
    count: Counter[str] = Counter()
    for chunk in range(1, len(trajectory.states)):
        before = trajectory.before[chunk] if trajectory.before else trajectory.states[chunk - 1]
        before, after = before.entries, trajectory.states[chunk].entries
        for operation in trajectory.task.gold_at(chunk):
            if operation.kind not in ("update", "delete"):
                continue
            old = comparable_fact(operation.category, operation.replaces)
            stored = [entry.id for entry in before.values() if comparable_fact(entry.category, entry.content) == old]
            if not stored:
                continue
            new = comparable_fact(operation.category, operation.content)
            now = {id: comparable_fact(after[id].category, after[id].content) for id in stored if id in after}
            count[operation.kind] += 1
            count[f"{operation.kind} hit"] += new in now.values() if operation.kind == "update" else not now
    return ChangesById(count["update"], count["update hit"], count["delete"], count["delete hit"])
