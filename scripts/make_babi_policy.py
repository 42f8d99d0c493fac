"""Make the bAbI policy and its tokenizer from nothing: `scripts/make_babi_policy.py --out memalpha/weights/babi`.

A Qwen3-shaped causal LM of 0.8M parameters, as the tiny policy is (`scripts/make_tiny_policy.py`, whose parts are used
here), for streams of bAbI stories. Its text is the statements of the official *training* stories, its demonstrations
those of a writer that keeps one entry a person and one a thing that lies somewhere. The same three stages: kick
(copying), clean (everything is written and updated by id), lazy (statements are passed over), so that what to write is
left for reinforcement learning while the skill is there. Demonstrated entries follow from what the prompt shows, never
from statements that this memory missed. A share of the rows are reader rows: the same weights, frozen, answer.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pretrain
import torch
from make_tiny_policy import (
    ASSISTANT,
    BATCH_TOKENS,
    USER,
    Row,
    build_model,
    build_tokenizer,
    encode,
    prompt_text,
    render_call,
    save,
    slot_of,
)
from pretrain import Trainer, batches, kick
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from memalpha.agent.parsing import format_call
from memalpha.agent.prompts import ABSTAIN, reader_messages, writer_messages
from memalpha.config import AgentConfig, BabiConfig, ReaderConfig
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.datasets.babi import FEMALE, MALE, THINGS, stream
from memalpha.tasks.datasets.babi_world import DROP, IS, MOVE, NOTHING, PRONOUNS, TAKE
from memalpha.types import Chunk, Hit, MemoryEntry, Observation, Operation, Task, ViewEntry

VIEW = 12
"""Entries in view, at most: what `view_related` and `view_recent` of presets/babi.yaml give."""
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
SCHEMA = load_schema("mem-alpha")
AGENT = AgentConfig(prompt="compact")
READER = ReaderConfig(kind="policy", prompt="compact")


def macros() -> list[str]:
    """The fixed parts of the calls, one token each."""
    calls = [
        format_call("memory_insert", {"category": "semantic", "content": "\x07"}),
        format_call("memory_update", {"id": "\x07", "content": "\x07"}),
        format_call("memory_delete", {"id": "\x07"}),
        format_call("memory_skip", {}),
    ]
    return list(dict.fromkeys(part for call in calls for part in call.split("\\u0007")))


# ------------------------------------------------------------------------------------------------ what a memory implies


@dataclass(frozen=True, slots=True)
class Told:
    """What an entry says: `mary: kitchen; has milk` (place "not kitchen" too, "" where it names none)."""

    place: str = ""
    holds: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: str) -> Told:
        place, _, held = content.partition(": ")[2].partition("has ")
        things = tuple(held.split(", ")) if held and held != NOTHING else ()
        return cls(place.removesuffix("; "), things)

    def entry(self, slot: str) -> str:
        has = f"has {', '.join(self.holds) or NOTHING}"
        return f"{slot}: " + (f"{self.place}; {has}" if self.place and self.holds else self.place or has)


def rewritten(known: dict[str, str], statements: Iterable[str]) -> dict[str, str]:
    """The entries by slot after the statements, for one who knows nothing but `known` and these."""
    told = {slot: Told.of(content) for slot, content in known.items()}
    last: list[str] = []
    for text in statements:
        found = MOVE.fullmatch(text) or IS.fullmatch(text) or TAKE.fullmatch(text) or DROP.fullmatch(text)
        assert found is not None, text
        if found["who"] not in PRONOUNS:
            last = found["who"].lower().split(" and ")
        for name in last:
            person = told.get(name, Told())
            if found.re is MOVE:
                told[name] = replace(person, place=found["place"])
                continue
            if found.re is IS:
                told[name] = replace(person, place=f"not {found['place']}" if found["no"] else found["place"])
                continue
            what = found["thing"]
            rest = tuple(thing for thing in person.holds if thing != what)
            if found.re is TAKE:
                told.pop(what, None)
                told[name] = replace(person, holds=(*rest, what))
            elif name in told:
                told[name] = replace(person, holds=rest)
                if person.place and not person.place.startswith("not "):
                    told[what] = Told(person.place)
    return {slot: value.entry(slot) for slot, value in told.items()}


# ---------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Habits:
    """How a demonstrating writer behaves: probabilities."""

    plain: float = 1.0
    """Writes where a person is."""
    second: float = 1.0
    """… of one who is named second only ("X and Y")."""
    denial: float = 1.0
    """… where a person is not."""
    things: float = 1.0
    """Writes what a person has, and where a thing lies."""
    right: float = 1.0
    """A change is an update by id; else it is inserted beside the old entry."""
    forget: float = 0.15
    """Share of streams in which entries go missing from the memory (without a demonstration of removing them)."""

    def heeds(self, slot: str, old: str | None, new: str | None, chunk: Chunk) -> float:
        """The probability that such a writer acts on the change of an entry from `old` to `new`."""
        before, after = Told.of(old or ""), Told.of(new or "")
        if slot in THINGS or before.place == after.place:
            return self.things
        if after.place.startswith("not "):
            return self.denial
        named = [turn.text.split(" ")[0].lower() for turn in chunk.turns]
        return self.plain if slot in named else self.second


def plan_calls(state: MemoryState, chunk: Chunk, habits: Habits, rng: Random) -> Iterator[Operation]:
    """The operations of one chunk: what changes for one who knows the memory and reads the chunk."""
    entries = {slot_of(entry.content): entry for entry in state.list()}  # the newest of a slot
    known = {slot: entry.content for slot, entry in entries.items()}
    after = rewritten(known, [turn.text for turn in chunk.turns])
    order = {word: place for place, word in enumerate(re.findall(r"\w+", chunk.render().lower()))}  # last mention
    for slot in sorted({*known, *after}, key=lambda slot: order.get(slot, 0)):
        old, new = known.get(slot), after.get(slot)
        if old == new or rng.random() >= habits.heeds(slot, old, new, chunk):
            continue
        if new is None:
            yield Operation("delete", id=entries[slot].id)
        elif old is not None and rng.random() < habits.right:
            yield Operation("update", id=entries[slot].id, content=new)
        else:
            yield Operation("insert", category="semantic", content=new)


def view(state: MemoryState, chunk: Chunk, rng: Random) -> tuple[ViewEntry, ...]:
    """What `observe` would show, roughly: the entries the chunk speaks of, and some others."""
    words = set(re.findall(r"\w+", chunk.render().lower()))
    entries = state.list()
    mine = [entry for entry in entries if slot_of(entry.content) in words][-VIEW:]
    others = [entry for entry in entries if entry not in mine]
    chosen = mine + rng.sample(others, min(len(others), rng.randint(max(0, 6 - len(mine)), VIEW - len(mine))))
    return tuple(ViewEntry(e.id, e.category, e.content, e.timestamp) for e in entries if e in chosen)


def demonstrate(task: Task, habits: Habits, rng: Random) -> tuple[list[Row], list[MemoryState]]:
    """Rows of a writer with these habits, and the memory after every chunk."""
    state = MemoryState.empty(SCHEMA)
    rows, states = [], []
    careless = rng.random() < habits.forget
    for chunk in task.chunks:
        messages, _ = writer_messages(Observation(chunk, "", view(state, chunk, rng)), AGENT, SCHEMA)
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


def asked(shown: Sequence[MemoryEntry], rng: Random) -> tuple[str, str | None]:
    """A question and its answer from the shown entries (None: they contradict each other or leave it open)."""
    people = {name.lower(): name for name in (*FEMALE, *MALE)}
    told = [(slot_of(entry.content), Told.of(entry.content)) for entry in shown]
    known = [slot for slot, _ in told if slot in people]
    held = [thing for _, said in told for thing in said.holds] + [slot for slot, _ in told if slot not in people]
    roll = rng.random()
    if roll < 0.3:
        thing = rng.choice(held) if held and rng.random() < 0.93 else rng.choice(THINGS)
        places = {said.place for slot, said in told if slot == thing or thing in said.holds}
        answer = places.pop() if len(places) == 1 else None if places else ABSTAIN
        return f"Where is the {thing}?", answer if answer and not answer.startswith("not ") else None
    name = rng.choice(known) if known and rng.random() < 0.93 else rng.choice(list(people))
    mine = {said for slot, said in told if slot == name}
    said = next(iter(mine)) if len(mine) == 1 else None
    place = said.place if said else ""
    if roll < 0.5:
        answer = place if place and not place.startswith("not ") else None
        question = f"Where is {people[name]}?"
    elif roll < 0.8:
        where = place.removeprefix("not ") if place and rng.random() < 0.5 else rng.choice(PLACES)
        answer = "yes" if place == where else "no"
        if not place or (place.startswith("not ") and place != f"not {where}"):
            answer = None
        question = f"Is {people[name]} in the {where}?"
    else:
        answer = (", ".join(said.holds) or NOTHING) if said else None
        question = f"What is {people[name]} carrying?"
    return question, answer if mine else ABSTAIN


def read(states: Sequence[MemoryState], count: int, rng: Random) -> Iterator[Row]:
    """Reader rows over random parts of these memories."""
    for _ in range(count):
        entries = rng.choice(states).list()
        shown = rng.sample(entries, min(len(entries), rng.choice((1, 2, 4, 6, 8, 8, 8, 8))))
        question, answer = asked(shown, rng)
        if answer is not None:
            messages = reader_messages(question, [Hit(entry, 0.0) for entry in shown], READER)
            yield Row(prompt_text(messages), f" {answer}", "reader")


def rows_of(index: int, seed: int, habits: Habits, reader: float) -> list[Row]:
    """All rows of demonstration number `index`."""
    rng = Random(f"rows|{seed}|{index}")
    task = stream(BabiConfig(stories=rng.choice((2, 4, 4))), "train", seed, index)
    rows, states = demonstrate(task, habits, rng)
    if habits is not CAREFUL and rng.random() < 0.7:
        _, states = demonstrate(task, CAREFUL, rng)
    return rows + list(read(states, round(len(rows) * reader), rng))


# -------------------------------------------------------------------------------------------------------------- stages


def corpus(seed: int) -> Iterator[str]:
    """Training texts of the tokenizer."""
    for index in range(150):
        for row in rows_of(index, seed, CAREFUL, 0.3):
            yield row.prompt.removeprefix(USER).removesuffix(ASSISTANT)
            contents = re.findall(r'"content": "(.*?)"', row.completion)
            yield row.completion if row.kind == "reader" else "\n".join(contents)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of demonstrations by a writer with these habits; so many reader rows for each of its own."""

    rates: pretrain.Stage
    habits: Habits
    reader: float = 0.8


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, marked) batches of the stage's rows."""
    rng = Random(f"batches|{seed}|{stage.rates.name}")
    index = rng.randrange(1 << 40)
    while True:
        rows: list[Row] = []
        while len(rows) < 1500:
            rows += rows_of(index, seed, stage.habits, stage.reader)
            index += 1
        yield from batches(encode(tokenizer, rows), BATCH_TOKENS, rng)


def probe(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: int = 25) -> dict[str, float]:
    """Share of validation rows that greedy decoding would reproduce exactly, by kind of row."""
    hits: dict[str, list[bool]] = {}
    rows: list[Row] = []
    for index in range(tasks):
        rng = Random(index)
        written, states = demonstrate(stream(BabiConfig(), "validation", 10_000, index), Habits(forget=0.0), rng)
        rows += written + list(read(states, 12, rng))
    for row, ok in zip(rows, pretrain.reproduced(model, encode(tokenizer, rows)), strict=True):
        where = row.completion if row.kind == "writer" else row.prompt
        found = re.findall("memory_(?:insert|update|delete)|has |ask: Where is the|ask: Is|ask: W[a-z]+ is", where)
        for kind in {row.kind, *(f"{row.kind} {what}" for what in found)}:
            hits.setdefault(kind, []).append(ok)
    return {kind: sum(found) / len(found) for kind, found in sorted(hits.items())}


CAREFUL = Habits()
LAZY = Habits(plain=0.8, second=0.2, denial=0.2, things=0.2)
STAGES = (
    Stage(pretrain.Stage("clean", 1500, muon=0.02, adam=3e-3, final=0.03, decay=0.6), CAREFUL),
    Stage(pretrain.Stage("lazy", 150, muon=0.005, adam=8e-4, final=0.1, warmup=20), LAZY),
)


@torch.no_grad()
def halve(model: Qwen3ForCausalLM) -> None:
    """Round the weights to float16, so that a stage can be made again from the saved end of the one before."""
    for weight in model.parameters():
        weight.copy_(weight.half())


def main() -> None:
    """Make, report, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(corpus(arguments.seed), PRE_TOKENS, macros())
    model = build_model(len(tokenizer))
    trainer = Trainer(model)
    print(f"kick: loss {kick(trainer, arguments.seed):.3f}", flush=True)
    for stage in STAGES:
        pretrain.train(trainer, stage.rates, demonstrations(tokenizer, stage, arguments.seed))
        halve(model)  # as it would come from disk
        trainer = Trainer(model)
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in probe(model, tokenizer).items())
        print(f"{stage.rates.name}: validation rows right: {shares}", flush=True)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
