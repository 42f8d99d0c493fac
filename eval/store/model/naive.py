"""A naive memory: lists and dicts that say what a store must hold after every operation.

It shares no code with the store and imports nothing of it. A state is a dict of facts by id and the core text. There is
a whole state for every log position. What undo may take back is a linked list of positions for every log position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Fact:
    """One version of a fact."""

    category: str
    content: str
    timestamp: str | None = None
    importance: float = 1.0
    metadata: str = "{}"  # JSON with sorted keys
    expires: datetime | None = None
    source: str | None = None
    speaker: str | None = None


@dataclass
class Row:
    """One operation of the log; `kind` is "erased" once its entry is."""

    kind: str
    id: str | None
    time: datetime
    source: str | None = None
    speaker: str | None = None
    undone: int = 0  # position that an undo took back
    redone: int = 0  # position that a redo did again


@dataclass
class State:
    """Memory at one log position."""

    facts: dict[str, Fact]
    core: str


@dataclass
class Pending:
    """Operation in quarantine: kind, entry, content, category, and the content that it would replace.

    `row` is the id that its row in the log has. After a review, `accepted` is the entry that it became.
    """

    kind: str
    id: str | None
    content: str | None
    category: str | None
    before: str | None
    row: str
    accepted: str | None = None
    decided_at: int = 0


_SPECIAL = ("expired", "erased", "quarantined", "reviewed")  # neither undone nor redone
Stack = tuple[int, Any] | None  # position in effect, and the stack below it


@dataclass
class NaiveMemory:
    """One namespace."""

    rows: list[Row] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [State({}, "")])
    stacks: list[Stack] = field(default_factory=lambda: [None])
    created: dict[str, int] = field(default_factory=dict)
    events: dict[str, list[tuple[int, Fact | None]]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)  # ids of all times, and the position where each first came
    queue: dict[int, Pending] = field(default_factory=dict)  # pending
    reviewed: dict[int, Pending] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)  # vectors that were given, by content

    @property
    def now(self) -> State:
        """Current state."""
        return self.states[-1]

    @property
    def position(self) -> int:
        """Position of the last operation."""
        return len(self.rows)

    def write(
        self, kind: str, id: str | None, time: datetime, fact: Fact | None = None, *, stack: Any = "own", **origin: Any
    ) -> None:
        """Append one operation.

        Args:
            kind: Kind of the operation.
            id: Entry that it changes; None for the core memory and for reviews.
            time: Time of the clock.
            fact: New version of the entry; None ends it.
            stack: What is in effect afterwards; by default this operation upon what was before.
            origin: Source and speaker of an operation without a version, and the text of a core update.
        """
        position = self.position + 1
        before = self.now
        core = origin.pop("core", None)
        facts = dict(before.facts)
        if kind in ("insert", "update"):
            assert fact is not None and id is not None
            facts[id] = fact
            self.created.setdefault(id, position)
            self.used.setdefault(id, position)
            origin = {"source": fact.source, "speaker": fact.speaker}
        elif kind in ("delete", "expired"):
            assert id is not None
            del facts[id]
        if kind in ("insert", "update", "delete", "expired"):
            assert id is not None
            self.events.setdefault(id, []).append((position, fact))
        last = self.rows[-1].time if self.rows else time
        self.rows.append(Row(kind, id, max(time, last), **origin))
        self.states.append(State(facts, before.core if core is None else core))
        below = self.stacks[-1]
        self.stacks.append((below if kind in _SPECIAL else (position, below)) if stack == "own" else stack)

    def expire(self, now: datetime) -> None:
        """End what has expired."""
        due = [(fact.expires, self.created[id], id) for id, fact in self.now.facts.items() if fact.expires is not None]
        for expires, _, id in sorted(due):
            if expires <= now:
                self.write("expired", id, expires)

    def _is_gone(self, position: int) -> bool:
        """Return True if an operation was erased, or its entry has expired since."""
        row = self.rows[position - 1]
        if row.kind == "erased":
            return True
        events = self.events.get(row.id or "", [])
        return bool(events) and events[-1][1] is None and self.rows[events[-1][0] - 1].kind == "expired"

    def redoable(self) -> list[int]:
        """Return the positions that redo would do again, the next one last, as if what was erased had never been."""
        positions: list[int] = []
        for row in self.rows:
            if row.kind in _SPECIAL:
                continue
            if row.undone:
                positions.append(row.undone)
            elif row.redone:
                positions = [position for position in positions if position != row.redone]
            else:
                positions = []
        return [position for position in positions if not self._is_gone(position)]

    def undo(self, time: datetime) -> int:
        """Take the last operation in effect back; return its position, or 0."""
        stack = self._in_effect(self.stacks[-1])
        if stack is None:
            return 0
        self._put(stack[0], self.states[stack[0] - 1], time, stack[1])
        self.rows[-1].undone = stack[0]
        return stack[0]

    def redo(self, time: datetime) -> int:
        """Do again what the last undo took back; return its position, or 0."""
        redoable = self.redoable()
        if not redoable:
            return 0
        again = redoable.pop()
        self._put(again, self.states[again], time, self.stacks[again])
        self.rows[-1].redone = again
        return again

    def _put(self, position: int, state: State, time: datetime, stack: Stack) -> None:
        """Give the entry of an operation, or the core memory, what it has in a state."""
        row = self.rows[position - 1]
        if row.kind == "core_update":
            self.write("core_update", None, time, stack=stack, core=state.core)
            return
        assert row.id is not None
        fact = state.facts.get(row.id)
        if fact is None:
            is_same = row.kind == "delete"  # a redone delete; an undone insert has no source
            origin: dict[str, Any] = {"source": row.source, "speaker": row.speaker} if is_same else {}
            self.write("delete", row.id, time, stack=stack, **origin)
        else:
            self.write("update" if row.id in self.now.facts else "insert", row.id, time, fact, stack=stack)

    def restore(self, position: int, operations: Iterable[tuple[str, str | None]], time: datetime) -> None:
        """Go back to a position by the operations (kind, id) that the store chose; the result must be that state."""
        target, stack, operations = self.states[position], self.stacks[position], list(operations)
        redoable, top = self.redoable(), self._in_effect(self.stacks[-1])
        for kind, id in operations:
            if kind == "core_update":
                self.write(kind, None, time, core=target.core)
            elif kind == "delete":
                self.write(kind, id, time)
            else:
                assert id is not None
                self.write(kind, id, time, target.facts[id])
        assert self.now.facts == target.facts and self.now.core == target.core
        self.stacks[-1] = stack
        if len(operations) == 1:  # one operation back is an undo, and one forward a redo
            if top is not None and self._in_effect(stack) == self._in_effect(top[1]):
                self.rows[-1].undone = top[0]
            elif redoable and self._in_effect(stack) == self._in_effect(self.stacks[redoable[-1]]):
                self.rows[-1].redone = redoable[-1]

    def _in_effect(self, stack: Stack) -> Stack:
        """Return a stack without what is gone at its top."""
        while stack is not None and self._is_gone(stack[0]):
            stack = stack[1]
        return stack

    def texts(self) -> set[str]:
        """Return all texts that the log may hold: contents, metadata, sources, core memory, quarantine."""
        facts = [fact for events in self.events.values() for _, fact in events if fact is not None]
        texts = {text for fact in facts for text in (fact.content, fact.metadata, fact.source) if text}
        texts |= {state.core for state in self.states}
        items = [*self.queue.values(), *self.reviewed.values()]
        return texts | {text for item in items for text in (item.content, item.before) if text}

    def ids(self) -> set[str]:
        """Return the ids that the log may hold, those of quarantined operations included."""
        return self.events.keys() | {item.row for item in [*self.queue.values(), *self.reviewed.values()]}

    def contents(self) -> dict[str, set[str]]:
        """Return what every id holds, or held, those of quarantined operations included."""
        contents = {id: {fact.content for _, fact in events if fact} for id, events in self.events.items()}
        for item in [*self.queue.values(), *self.reviewed.values()]:
            if item.content:
                contents.setdefault(item.row, set()).add(item.content)
        return contents

    def erased_with(self, id: str) -> set[str]:
        """Return an id, and those of quarantined operations that were accepted as this entry."""
        return {id} | {item.row for item in self.reviewed.values() if item.accepted == id}

    def same_contents(self, id: str) -> set[str]:
        """Return other ids that hold, or held, a content of this one."""
        contents, ids = self.contents(), self.erased_with(id)
        own = set().union(*(contents.get(id, set()) for id in ids))
        return {other for other, texts in contents.items() if texts & own} - ids

    def erase(self, id: str, time: datetime) -> None:
        """Take an entry out of all states."""
        ids = self.erased_with(id)
        for state in self.states:
            state.facts.pop(id, None)
        for position, row in enumerate(self.rows, 1):
            if row.id in ids:
                self.clear(position)
        self.events.pop(id, None)
        self.created.pop(id, None)
        self.write("erased", None, time)

    def clear(self, position: int) -> None:
        """Turn an operation into a stub."""
        row = self.rows[position - 1]
        row.kind, row.id, row.source, row.speaker = "erased", None, None, None
        self.queue.pop(position, None)
        self.reviewed.pop(position, None)

    def erase_all(self, time: datetime) -> None:
        """Take everything out."""
        for state in self.states:
            state.facts, state.core = {}, ""
        for position in range(1, self.position + 1):
            self.clear(position)
        self.events, self.created, self.given = {}, {}, {}
        self.write("erased", None, time)

    def erase_core_history(self, time: datetime) -> int:
        """Take all texts of the core memory out but the last; return their number."""
        updates = [position for position, row in enumerate(self.rows, 1) if row.kind == "core_update"]
        past = [at for at, item in self.reviewed.items() if item.kind == "core_update"]
        past += [at for at, item in self.queue.items() if item.kind == "core_update" and item.before != self.now.core]
        for position in (*updates[:-1], *past):
            self.clear(position)
        if len(updates) > 1 or past:
            for state in self.states[: updates[-1] if updates else 0]:
                state.core = ""
            self.write("erased", None, time)
        return max(0, len(updates) - 1)

    def fork(self, position: int) -> NaiveMemory:
        """Return the memory as of a position, with its whole past."""
        copy = deepcopy(self)
        copy.rows, copy.states, copy.stacks = (
            copy.rows[:position],
            copy.states[: position + 1],
            copy.stacks[: position + 1],
        )
        events = {id: [event for event in events if event[0] <= position] for id, events in copy.events.items()}
        copy.events = {id: kept for id, kept in events.items() if kept}
        copy.created = {id: at for id, at in copy.created.items() if at <= position}
        copy.used = {id: at for id, at in copy.used.items() if at <= position}
        kept = {at: item for at, item in (copy.queue | copy.reviewed).items() if at <= position}
        copy.reviewed = {at: item for at, item in kept.items() if at in self.reviewed and item.decided_at <= position}
        copy.queue = {at: item for at, item in kept.items() if at not in copy.reviewed}
        return copy

    def plan_revert(
        self, is_selected: Callable[[Row], bool], since: int, now: datetime
    ) -> tuple[list[tuple[str, str | None, Fact | str | None]], set[str | None]]:
        """Return the operations that take selected rows back, (kind, id, version or core text), and ids in conflict."""
        selected = {
            position
            for position, row in enumerate(self.rows, 1)
            if position > since and row.kind in ("insert", "update", "delete", "core_update") and is_selected(row)
        }
        plans: list[tuple[str, str | None, Fact | str | None]] = []
        conflicts: set[str | None] = set()
        for id in dict.fromkeys(id for p in sorted(selected) if (id := self.rows[p - 1].id) is not None):
            events = self.events[id]
            last = max(index for index, (position, _) in enumerate(events) if position in selected)
            first = last
            while first and events[first - 1][0] in selected:
                first -= 1
            target = events[first - 1][1] if first else None
            if target is not None and target.expires is not None and target.expires <= now:
                target = None
            current = events[-1][1]
            if last < len(events) - 1:  # somebody else came after
                is_expired = self.rows[events[-1][0] - 1].kind == "expired"
                if not is_expired and (current and current.content) != (target and target.content):
                    conflicts.add(id)
            elif target is None and current is not None:
                plans.append(("delete", id, None))
            elif target is not None and not (current is not None and _is_same(current, target)):
                plans.append(("insert" if current is None else "update", id, target))
        plans.sort(key=lambda plan: ("delete", "update", "insert").index(plan[0]))
        updates = [position for position, row in enumerate(self.rows, 1) if row.kind == "core_update"]
        last = max((index for index, position in enumerate(updates) if position in selected), default=None)
        if last is not None:
            first = last
            while first and updates[first - 1] in selected:
                first -= 1
            target_core = self.states[updates[first] - 1].core
            if target_core != self.now.core:
                if last < len(updates) - 1:
                    conflicts.add(None)
                else:
                    plans.append(("core_update", None, target_core))
        return plans, conflicts

    def revert(self, plans: list, conflicts: set[str | None], time: datetime) -> set[str | None]:
        """Do what `plan_revert` says and return the ids that stay as they are."""
        for kind, id, target in plans:
            if kind == "core_update":
                self.write(kind, None, time, core=target)
            elif kind == "delete":
                self.write(kind, id, time)
            else:
                self.write(kind, id, time, target)
        return conflicts


def _is_same(a: Fact, b: Fact) -> bool:
    """Return True if two versions differ in their origin at most."""
    return replace(a, source=None, speaker=None) == replace(b, source=None, speaker=None)
