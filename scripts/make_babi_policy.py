"""Make the bAbI policy and its tokenizer from nothing: `scripts/make_babi_policy.py --out memalpha/weights/babi`.

A Qwen3-shaped causal LM of 0.8M parameters for streams of bAbI stories, built from the parts of
`scripts/make_tiny_policy.py`. Its text is the statements of the official *training* stories. The demonstrating writer
keeps one entry a person and one a thing that lies somewhere.

The three stages are those of the tiny policy: kick (copying), clean (everything is written and updated by id), lazy
(statements are skipped). So the skill is there, and selection is left for reinforcement learning. Demonstrated entries
follow from the prompt alone, never from statements that this memory missed. A share of the rows are reader rows: the
same weights, frozen, answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pretrain
from make_tiny_policy import call_fragments, demonstrations, encode, make_policy
from tiny_rows import AGENT, ASSISTANT, READER, SCHEMA, USER, Row, entry_slot, prompt_text, render_call
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import ABSTAIN, reader_messages, writer_messages
from memalpha.config import BabiConfig
from memalpha.store.state import MemoryState
from memalpha.tasks.datasets.babi import DROP, FEMALE, IS, MALE, MOVE, NOTHING, PRONOUNS, TAKE, THINGS, stream
from memalpha.types import Chunk, Hit, MemoryEntry, Observation, Operation, Task, ViewEntry

VIEW = 12
"""Most entries in view: the sum of `view_related` and `view_recent` in presets/babi.yaml."""
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
PHRASES = (
    r"(?:Then|Afterwards|After that|Following that) (?:he|she|they)",
    r" (?:went back|went|travelled|journeyed|moved) to the",
    r" (?:picked up|grabbed|got|took|dropped|put down|left|discarded) the",
    r" is (?:no longer |not )?in the",
    r"ask: (?:Where is(?: the)?|Is|What is)",
    r" there\.\n?| in the| carrying\?|; has|story:|: [a-z]+",
)
PRE_TOKENS = "|".join((*PHRASES, r"#[a-z0-9]| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}#]+\n?|#|\s+(?!\S)|\s+"))


# ------------------------------------------------------------------------------------------------ what a memory implies


@dataclass(frozen=True, slots=True)
class EntryFact:
    """Hold the content of an entry such as `mary: kitchen; has milk`.

    `location` can be "not kitchen" too, or "" if the entry names none.
    """

    location: str = ""
    carried: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: str) -> EntryFact:
        """Parse the content of an entry."""
        location, _, carried = content.partition(": ")[2].partition("has ")
        things = tuple(carried.split(", ")) if carried and carried != NOTHING else ()
        return cls(location.removesuffix("; "), things)

    def entry(self, slot: str) -> str:
        """Return the content of the entry for `slot`."""
        has = f"has {', '.join(self.carried) or NOTHING}"
        return f"{slot}: " + (f"{self.location}; {has}" if self.location and self.carried else self.location or has)


def update_entries(entries: dict[str, str], statements: Iterable[str]) -> dict[str, str]:
    """Apply statements to the entries by slot, without any other knowledge."""
    facts = {slot: EntryFact.of(content) for slot, content in entries.items()}
    subjects: list[str] = []
    for text in statements:
        match = MOVE.fullmatch(text) or IS.fullmatch(text) or TAKE.fullmatch(text) or DROP.fullmatch(text)
        assert match is not None, text
        if match["who"] not in PRONOUNS:
            subjects = match["who"].lower().split(" and ")
        for name in subjects:
            person = facts.get(name, EntryFact())
            if match.re is MOVE:
                facts[name] = replace(person, location=match["place"])
                continue
            if match.re is IS:
                facts[name] = replace(person, location=f"not {match['place']}" if match["no"] else match["place"])
                continue
            thing_name = match["thing"]
            remaining = tuple(thing for thing in person.carried if thing != thing_name)
            if match.re is TAKE:
                facts.pop(thing_name, None)
                facts[name] = replace(person, carried=(*remaining, thing_name))
            elif name in facts:
                facts[name] = replace(person, carried=remaining)
                if person.location and not person.location.startswith("not "):
                    facts[thing_name] = EntryFact(person.location)
    return {slot: value.entry(slot) for slot, value in facts.items()}


# ---------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class BabiHabits:
    """Set the probabilities of a demonstrating writer."""

    plain: float = 1.0
    """Probability of writing a person's location."""
    second: float = 1.0
    """The same for a person who is named second only ("X and Y")."""
    denial: float = 1.0
    """Probability of writing where a person is not."""
    things: float = 1.0
    """Probability of writing what a person carries and where a thing lies."""
    right: float = 1.0
    """Probability that a change is an update by id; else it is inserted beside the old entry."""
    forget: float = 0.15
    """Share of streams in which entries go missing from the memory (without a demonstration of removing them)."""

    def act_probability(self, slot: str, old: str | None, new: str | None, chunk: Chunk) -> float:
        """Return the probability of acting on the change of an entry.

        Args:
            slot: Name of the entry.
            old: Content before; None if there was none.
            new: Content after; None if there is none.
            chunk: Chunk with the statements.
        """
        old_fact, new_fact = EntryFact.of(old or ""), EntryFact.of(new or "")
        if slot in THINGS or old_fact.location == new_fact.location:
            return self.things
        if new_fact.location.startswith("not "):
            return self.denial
        subjects = [turn.text.split(" ")[0].lower() for turn in chunk.turns]
        return self.plain if slot in subjects else self.second


def plan_calls(state: MemoryState, chunk: Chunk, habits: BabiHabits, rng: Random) -> Iterator[Operation]:
    """Yield the operations of one chunk, as they follow from the memory and the chunk.

    Args:
        state: Memory before the chunk.
        chunk: Chunk with the statements.
        habits: Probabilities of acting.
        rng: Source of randomness.
    """
    entries = {entry_slot(entry.content): entry for entry in state.list()}  # the newest of a slot
    contents = {slot: entry.content for slot, entry in entries.items()}
    new_contents = update_entries(contents, [turn.text for turn in chunk.turns])
    order = {word: index for index, word in enumerate(re.findall(r"\w+", chunk.render().lower()))}  # last mention
    for slot in sorted({*contents, *new_contents}, key=lambda slot: order.get(slot, 0)):
        old, new = contents.get(slot), new_contents.get(slot)
        if old == new or rng.random() >= habits.act_probability(slot, old, new, chunk):
            continue
        if new is None:
            yield Operation("delete", id=entries[slot].id)
        elif old is not None and rng.random() < habits.right:
            yield Operation("update", id=entries[slot].id, content=new)
        else:
            yield Operation("insert", category="semantic", content=new)


def sample_view(state: MemoryState, chunk: Chunk, rng: Random) -> tuple[ViewEntry, ...]:
    """Draw a view like the one of `observe`: the entries that the chunk names, and some others.

    Args:
        state: Memory before the chunk.
        chunk: Chunk with the statements.
        rng: Source of randomness.
    """
    words = set(re.findall(r"\w+", chunk.render().lower()))
    entries = state.list()
    mentioned = [entry for entry in entries if entry_slot(entry.content) in words][-VIEW:]
    unmentioned = [entry for entry in entries if entry not in mentioned]
    chosen = mentioned + rng.sample(
        unmentioned, min(len(unmentioned), rng.randint(max(0, 6 - len(mentioned)), VIEW - len(mentioned)))
    )
    return tuple(ViewEntry(e.id, e.category, e.content, e.timestamp) for e in entries if e in chosen)


def demonstrate(task: Task, habits: BabiHabits, rng: Random) -> tuple[list[Row], list[MemoryState]]:
    """Return the rows of a writer with these habits, and the memory after every chunk.

    Args:
        task: Stream of stories.
        habits: Probabilities of acting.
        rng: Source of randomness.
    """
    state = MemoryState.empty(SCHEMA, unique_contents=True)
    rows, states = [], []
    careless = rng.random() < habits.forget
    for chunk in task.chunks:
        messages, _ = writer_messages(Observation(chunk, "", sample_view(state, chunk, rng)), AGENT, SCHEMA)
        calls: list[str] = []
        for operation in plan_calls(state, chunk, habits, rng):
            calls.append(render_call(operation))
            if state.find("semantic", operation.content or "") is None:
                state = state.apply(operation)
        rows.append(Row(prompt_text(messages), "".join(calls) or format_call("memory_skip", {}), "writer"))
        if careless:
            for entry in state.list():
                if rng.random() < 0.15:
                    state = state.apply(Operation("delete", id=entry.id))
        states.append(state)
    return rows, states


def draw_question(entries: Sequence[MemoryEntry], rng: Random) -> tuple[str, str | None]:
    """Draw a question and its answer from entries; the answer is None if they contradict or leave it open."""
    people = {name.lower(): name for name in (*FEMALE, *MALE)}
    facts = [(entry_slot(entry.content), EntryFact.of(entry.content)) for entry in entries]
    known_people = [slot for slot, _ in facts if slot in people]
    things = [thing for _, fact in facts for thing in fact.carried] + [slot for slot, _ in facts if slot not in people]
    roll = rng.random()
    if roll < 0.3:
        thing = rng.choice(things) if things and rng.random() < 0.93 else rng.choice(THINGS)
        places = {fact.location for slot, fact in facts if slot == thing or thing in fact.carried}
        answer = places.pop() if len(places) == 1 else None if places else ABSTAIN
        return f"Where is the {thing}?", answer if answer and not answer.startswith("not ") else None
    name = rng.choice(known_people) if known_people and rng.random() < 0.93 else rng.choice(list(people))
    person_facts = {fact for slot, fact in facts if slot == name}
    fact = next(iter(person_facts)) if len(person_facts) == 1 else None
    location = fact.location if fact else ""
    if roll < 0.5:
        answer = location if location and not location.startswith("not ") else None
        question = f"Where is {people[name]}?"
    elif roll < 0.8:
        asked_location = location.removeprefix("not ") if location and rng.random() < 0.5 else rng.choice(PLACES)
        answer = "yes" if location == asked_location else "no"
        if not location or (location.startswith("not ") and location != f"not {asked_location}"):
            answer = None
        question = f"Is {people[name]} in the {asked_location}?"
    else:
        answer = (", ".join(fact.carried) or NOTHING) if fact else None
        question = f"What is {people[name]} carrying?"
    return question, answer if person_facts else ABSTAIN


def reader_rows(states: Sequence[MemoryState], count: int, rng: Random) -> Iterator[Row]:
    """Yield reader rows over random parts of these memories.

    Args:
        states: Memories after each chunk.
        count: Number of questions; those without an answer give no row.
        rng: Source of randomness.
    """
    for _ in range(count):
        entries = rng.choice(states).list()
        sample = rng.sample(entries, min(len(entries), rng.choice((1, 2, 4, 6, 8, 8, 8, 8))))
        question, answer = draw_question(sample, rng)
        if answer is not None:
            messages = reader_messages(question, [Hit(entry, 0.0) for entry in sample], READER)
            yield Row(prompt_text(messages), f" {answer}", "reader")


def demonstration_rows(index: int, seed: int, habits: BabiHabits, reader: float) -> list[Row]:
    """Return all rows of demonstration number `index`.

    Args:
        index: Number of the stream.
        seed: Seed of all demonstrations.
        habits: Probabilities of acting.
        reader: Reader rows for each writer row.
    """
    rng = Random(f"rows|{seed}|{index}")
    task = stream(BabiConfig(stories=rng.choice((2, 4, 4))), "train", seed, index)
    rows, states = demonstrate(task, habits, rng)
    if habits is not CAREFUL and rng.random() < 0.7:
        _, states = demonstrate(task, CAREFUL, rng)
    return rows + list(reader_rows(states, round(len(rows) * reader), rng))


# -------------------------------------------------------------------------------------------------------------- stages


def corpus(seed: int) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    for index in range(150):
        for row in demonstration_rows(index, seed, CAREFUL, 0.3):
            yield row.prompt.removeprefix(USER).removesuffix(ASSISTANT)
            contents = re.findall(r'"content": "(.*?)"', row.completion)
            yield row.completion if row.kind == "reader" else "\n".join(contents)


@dataclass(frozen=True, slots=True)
class BabiStage:
    """Describe a stage of demonstrations; `reader` is the number of reader rows for each writer row."""

    rates: pretrain.Stage
    habits: BabiHabits
    reader: float = 0.8

    def rows(self, index: int, seed: int) -> list[Row]:
        """Return the rows of one demonstration."""
        return demonstration_rows(index, seed, self.habits, self.reader)


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: int = 25) -> dict[str, float]:
    """Return the share of validation rows that greedy decoding reproduces exactly, by kind of row.

    Args:
        model: Policy to probe.
        tokenizer: Its tokenizer.
        tasks: Number of validation streams.
    """
    hits: dict[str, list[bool]] = {}
    rows: list[Row] = []
    for index in range(tasks):
        rng = Random(index)
        written, states = demonstrate(stream(BabiConfig(), "validation", 10_000, index), BabiHabits(forget=0.0), rng)
        rows += written + list(reader_rows(states, 12, rng))
    for row, ok in zip(rows, pretrain.greedy_matches(model, encode(tokenizer, rows)), strict=True):
        text = row.completion if row.kind == "writer" else row.prompt
        values = re.findall("memory_(?:insert|update|delete)|has |ask: Where is the|ask: Is|ask: W[a-z]+ is", text)
        for kind in {row.kind, *(f"{row.kind} {pattern}" for pattern in values)}:
            hits.setdefault(kind, []).append(ok)
    return {kind: sum(values) / len(values) for kind, values in sorted(hits.items())}


CAREFUL = BabiHabits()
LAZY = BabiHabits(plain=0.8, second=0.2, denial=0.2, things=0.2)
STAGES = (
    BabiStage(pretrain.Stage("clean", 1500, muon=0.02, adam=3e-3, final=0.03, decay=0.6), CAREFUL),
    BabiStage(pretrain.Stage("lazy", 150, muon=0.005, adam=8e-4, final=0.1, warmup=20), LAZY),
)


if __name__ == "__main__":
    make_policy(corpus, PRE_TOKENS, call_fragments("semantic"), STAGES, demonstrations, probe, halve=True)
