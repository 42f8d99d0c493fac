"""Demo world: a user states, changes and retracts facts and events in a few short sessions.

State comes first, text second. A history of every slot is planned; sentences, gold operations, questions and answers
follow from it. Entries of a perfect writer are `attribute: value` (category semantic, one value a slot at a time) and
`kind: value` (category episodic, they add up). A `Shape` sets how much a task holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random

from memalpha.tasks.synthetic import phrases
from memalpha.tasks.synthetic.phrases import Split, ValueSource, fill
from memalpha.tasks.synthetic.slot_history import Change, Event, Lines, Slot, Version, numbered, question
from memalpha.types import Chunk, GoldOperation, Question, Task

Range = tuple[int, int]

EPOCH = date(2023, 1, 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """Set how much a task holds; ranges are inclusive and per task unless said otherwise.

    Changes (updates, retractions) always come in a later chunk than the fact.
    """

    chunks: int = 3
    facts: Range = (4, 6)
    updates: Range = (1, 2)
    retracts: Range = (0, 2)
    events: Range = (1, 3)
    chitchat: Range = (1, 4)
    """Lines per chunk that state nothing: small talk, distractors and replies of the assistant."""
    fact_chunks: int | None = None
    """Number of first chunks that state facts and events (None: all)."""
    gap_days: Range = (1, 9)
    cue: float = 0.7
    """Share of updates with a cue word; the others just state the new value."""
    distractors: float = 0.35
    """Share of the filler lines that name a value without stating it."""
    echoes: float = 0.12
    """Share of the filler lines in which the assistant repeats an earlier value, current or stale."""
    replies: float = 0.08
    yesterday: float = 0.2
    """Share of events that happened the day before they are stated."""
    never: Range = (1, 1)
    """Questions about attributes that were never stated."""
    midstream: float = 0.4
    """Probability of one question that is asked before a change of its slot."""
    questions: int = 8


DEMO = Shape()

DRILL = Shape(
    chunks=2,
    facts=(3, 8),
    updates=(1, 2),
    retracts=(0, 1),
    events=(0, 2),
    chitchat=(0, 2),
    fact_chunks=1,
    never=(0, 1),
    midstream=0.0,
)
"""Practice for update and delete by id: a filled memory (chunk 0), then one to three changes (chunk 1)."""


@dataclass(slots=True)
class _Plan:
    """Hold the history of the state, before any text."""

    dates: list[date]
    slots: list[Slot] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def build_task(
    rng: Random, shape: Shape, task_id: str, *, split: Split = "train", pseudo: float = 0.0, temporal: bool = False
) -> Task:
    """Build one task of a shape; equal `rng` states and arguments give equal bytes.

    Args:
        rng: Source of randomness.
        shape: How much the task holds.
        task_id: Id of the task.
        split: Values to draw from.
        pseudo: Share of pseudo-words among the values (split "train").
        temporal: Also ask when an event happened.

    Raises:
        DataError: The shape needs more values than a pool of the split has.
    """
    values = ValueSource(rng, split, pseudo)
    day = EPOCH + timedelta(days=rng.randrange(1000))
    plan = _Plan([day])
    for _ in range(shape.chunks - 1):
        day += timedelta(days=rng.randint(*shape.gap_days))
        plan.dates.append(day)
    telling = shape.fact_chunks or shape.chunks
    retracts, updates = rng.randint(*shape.retracts), rng.randint(*shape.updates)
    changes = ["update"] * updates + ["retract"] * retracts
    facts = max(rng.randint(*shape.facts), min(1, len(changes)))
    for number, attribute in enumerate(rng.sample(phrases.ATTRIBUTES, facts)):
        early = number < len(changes)  # will probably change: needs a chunk after it
        chunk = rng.randrange(min(telling, shape.chunks - 1) if early else telling)
        plan.slots.append(Slot(attribute, [Version(chunk, values.draw(attribute.pool))]))
    for change in changes:
        open_slots = [s for s in plan.slots if s.versions[-1].value and s.versions[-1].chunk < shape.chunks - 1]
        if not open_slots:
            break
        fresh = [slot for slot in open_slots if len(slot.versions) == 1]
        slot = rng.choice(fresh if fresh and rng.random() < 0.85 else open_slots)
        chunk = rng.randrange(slot.versions[-1].chunk + 1, shape.chunks)
        slot.versions.append(Version(chunk, values.draw(slot.attribute.pool) if change == "update" else None))
    main_kind = rng.choice(phrases.EVENTS)
    for _ in range(rng.randint(*shape.events)):
        kind = main_kind if rng.random() < 0.75 else rng.choice(phrases.EVENTS)
        days_ago = int(rng.random() < shape.yesterday)
        value, chunk = values.draw(kind.pool), rng.randrange(telling)
        plan.events.append(Event(kind, value, chunk, plan.dates[chunk] - timedelta(days=days_ago)))
    chunks, operations = _write_chunks(rng, shape, values, plan)
    questions = _draw_questions(rng, shape, plan, temporal)
    return Task(id=task_id, chunks=chunks, questions=questions, gold_operations=operations)


def _write_chunks(
    rng: Random, shape: Shape, values: ValueSource, plan: _Plan
) -> tuple[tuple[Chunk, ...], tuple[GoldOperation, ...]]:
    """Write the text of every chunk, and the gold operations in line order."""
    chunks: list[Chunk] = []
    operations: list[GoldOperation] = []
    distracted: set[str] = set()
    for index, day in enumerate(plan.dates):
        lines: list[tuple[str, str, tuple[Change, ...]]] = []
        for slot in plan.slots:
            for previous, version in zip([None, *slot.versions], slot.versions, strict=False):
                if version.chunk == index:
                    text, operation = slot.say(rng, previous, version, shape.cue)
                    lines.append(("user", text, ((version, operation),)))
        for event in plan.events:
            if event.chunk == index:
                when = "yesterday" if event.day < day else "today"
                text = fill(rng.choice(event.kind.states), event.value, when=when)
                lines.append(("user", text, ((event, event.gold(day)),)))
        for _ in range(rng.randint(*shape.chitchat)):
            lines.append((*_filler_line(rng, shape, values, plan, index, distracted), ()))
        if not lines:
            lines.append(("user", rng.choice(phrases.CHITCHAT), ()))
        rng.shuffle(lines)
        written = Lines(index)
        for speaker, text, changes in lines:
            written.add(speaker, text, *changes)
        chunks.append(written.build(day))
        operations += written.operations
    return tuple(chunks), tuple(operations)


def _filler_line(
    rng: Random, shape: Shape, values: ValueSource, plan: _Plan, index: int, distracted: set[str]
) -> tuple[str, str]:
    """Draw a line (speaker, text) that states nothing.

    There is at most one distractor an attribute, so that pools suffice.
    """
    roll = rng.random()
    if roll < shape.distractors:
        source = rng.choice((*phrases.ATTRIBUTES, *phrases.EVENTS))
        if source.key not in distracted:
            distracted.add(source.key)
            return "user", fill(rng.choice(source.distractors), values.draw(source.pool))
    elif roll < shape.distractors + shape.echoes:
        earlier_values = [v.value for slot in plan.slots for v in slot.versions if v.chunk < index and v.value]
        if earlier_values:
            return "assistant", fill(rng.choice(phrases.ECHOES), rng.choice(earlier_values))
    elif roll < shape.distractors + shape.echoes + shape.replies:
        return "assistant", rng.choice(phrases.REPLIES)
    return "user", rng.choice(phrases.CHITCHAT)


def _draw_questions(rng: Random, shape: Shape, plan: _Plan, temporal: bool) -> tuple[Question, ...]:
    """Draw questions: changed slots first, then counts, never-stated, mid-stream, the rest."""
    changed = [slot for slot in plan.slots if len(slot.versions) > 1]
    stated = [slot for slot in plan.slots if len(slot.versions) == 1]
    questions = [slot.ask(rng) for slot in changed]
    counts = Counter(event.kind.key for event in plan.events)
    for key, count in counts.most_common(1):
        counted = sorted((event for event in plan.events if event.kind.key == key), key=lambda event: event.chunk)
        text, evidence = rng.choice(counted[0].kind.counts), tuple(event.turn for event in counted)
        questions.append(question(text, key, "count", (str(count),), evidence))
    stated_keys = {slot.attribute.key for slot in plan.slots}
    strangers = rng.sample([a for a in phrases.ATTRIBUTES if a.key not in stated_keys], rng.randint(*shape.never))
    questions += [Slot(a).ask(rng) for a in strangers]
    if temporal and plan.events:
        event = rng.choice(plan.events)
        text = fill(rng.choice(event.kind.whens), event.value)
        questions.append(question(text, event.kind.key, "when", (event.day.isoformat(),), evidence=(event.turn,)))
    if changed and rng.random() < shape.midstream:
        slot = rng.choice(changed)
        questions.append(slot.ask(rng, rng.choice(slot.versions[1:]).chunk - 1))
    rng.shuffle(stated)
    questions += [slot.ask(rng) for slot in stated]
    questions = questions[: shape.questions]
    rng.shuffle(questions)
    return numbered(questions)
