"""Synthetic worlds: every answer is derived again from the gold operations alone."""

import re
from collections import defaultdict
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.config import WorldConfig
from memalpha.errors import ConfigError
from memalpha.tasks.synthetic import phrases
from memalpha.tasks.synthetic.demo_world import DRILL, Shape
from memalpha.tasks.synthetic.phrases import pool_values
from memalpha.tasks.synthetic.slot_history import ABILITIES
from memalpha.tasks.synthetic.worlds import drill, generate, shaped, tasks

DEMO = WorldConfig(temporal_questions=True)
SMALL = WorldConfig(preset="full", tokens=3000)
splits, lengths = st.sampled_from(["train", "test"]), st.sampled_from([200, 2000, 12000])
shares, few_shares = st.sampled_from([0.0, 0.6, 1.0]), st.sampled_from([0.0, 0.6])
worlds = st.builds(WorldConfig, split=splits, pseudo_values=shares, temporal_questions=st.booleans()) | st.builds(
    WorldConfig, preset=st.just("full"), split=splits, pseudo_values=few_shares, tokens=lengths
)
seeds = st.integers(0, 10**6)


class Replay:
    """Replay the gold operations up to a chunk, and nothing else."""

    def __init__(self, task, upto=None):
        self.history = defaultdict(list)  # slot -> [(value or None, turn, chunk)]
        self.events = []  # (content, day, turn, chunk)
        for op in task.gold_operations:
            if upto is not None and op.chunk > upto:
                continue
            slot, _, value = (op.content or op.replaces).partition(": ")
            past = self.history[slot]
            live = past[-1][0] if past else None
            if op.category == "episodic":
                assert op.kind == "insert"
                del self.history[slot]
                day = date.fromisoformat(op.timestamp or task.chunks[op.chunk].timestamp)
                self.events.append((op.content, day, op.turn, op.chunk))
                continue
            if op.kind == "insert":
                assert not past, "a slot is stated once; afterwards it is updated, and never restated once retracted"
            else:
                assert op.replaces == f"{slot}: {live}"
                assert op.chunk > past[-1][2], "what is changed in a chunk was there before it"
            assert value not in [slots for slots, _, _ in past] or op.kind == "delete"
            past.append((None if op.kind == "delete" else value, op.turn, op.chunk))

    def answer(self, question):
        """(kind, answers, evidence)"""
        meta = question.meta
        past = self.history.get(meta["slot"], [])
        if meta["kind"] in ("stated", "updated", "retracted", "never"):
            if not past:
                return "never", [], []
            value, turn, _ = past[-1]
            kind = "retracted" if value is None else "updated" if len(past) > 1 else "stated"
            assert sorted(meta["stale"]) == sorted(values for values, _, _ in past[:-1] if values)
            return kind, [value] if value else [], [turn]
        if meta["kind"] == "previous":
            at = [values for values, _, _ in past].index(meta["before"])
            return "previous", [past[at - 1][0]], [past[at - 1][1], past[at][1]]
        if meta["kind"] == "join":
            (person, who, first), (value, turn, second) = self.history[meta["via"]][-1], past[-1]
            assert meta["slot"].startswith(person + " ") and first != second
            assert value not in meta["stale"]
            return "join", [value], [who, turn]
        matches = {content: (day, turn) for content, day, turn, _ in self.events}
        assert len(matches) == len(self.events), "no event happens twice"
        if meta["kind"] == "count":
            month = meta.get("month") or ""
            events = [event for event in self.events if event[0].startswith(meta["slot"] + ": ")]
            turns = [turn for _, day, turn, _ in events if str(day).startswith(month)]
            return "count", [str(len(turns))], turns
        if meta["kind"] == "when":
            content = meta.get("event") or next(c for c, (_, turn) in matches.items() if turn == question.evidence[0])
            assert content.partition(": ")[2] in question.question
            return "when", [str(matches[content][0])], [matches[content][1]]
        (day_a, turn_a), (day_b, turn_b) = (matches[content] for content in meta["events"])
        assert all(content.partition(": ")[2] in question.question for content in meta["events"])
        assert day_a != day_b
        if meta["kind"] == "between":
            days = abs((day_b - day_a).days)
            return "between", [str(days), f"{days} days"], [turn_a, turn_b]
        first = meta["events"][day_b < day_a].partition(": ")[2]
        return "order", [first, question.answers[1]], [turn_a, turn_b]


def check(task):
    turns = {turn.id: (chunk.index, turn) for chunk in task.chunks for turn in chunk.turns}
    assert len(turns) == sum(len(chunk.turns) for chunk in task.chunks)
    for op in task.gold_operations:
        chunk, turn = turns[op.turn]
        assert chunk == op.chunk and turn.speaker == "user"
        assert op.content.partition(": ")[2] in turn.text
    assert [chunk.timestamp for chunk in task.chunks] == sorted(chunk.timestamp for chunk in task.chunks)
    assert len({question.id for question in task.questions}) == len(task.questions)
    fact_turns = [turns[op.turn][1].text for op in task.gold_operations if op.content]
    for question in task.questions:
        replay = Replay(task, question.asked_after_chunk)
        kind, answers, evidence = replay.answer(question)
        assert (kind, answers) == (question.meta["kind"], list(question.answers)), question
        assert sorted(evidence) == sorted(question.evidence)
        last = len(task.chunks) - 1 if question.asked_after_chunk is None else question.asked_after_chunk
        assert all(turns[turn][0] <= last for turn in question.evidence)
        if kind in ("stated", "updated", "previous", "join"):
            assert any(question.answers[0] in turns[turn][1].text for turn in question.evidence)
        if kind == "never":
            slot, subject = question.meta["slot"], question.meta["slot"].split()[0]
            statements = [s for s in STATEMENTS[slot.split()[-1]] if ("{n}" in s) == (" " in slot)]
            assert not any(re.fullmatch(pattern(s, subject), text) for s in statements for text in fact_turns)


STATEMENTS = defaultdict(tuple)
for attribute in (*phrases.ATTRIBUTES, *phrases.PERSON_ATTRIBUTES):
    STATEMENTS[attribute.key] += attribute.states + attribute.updates


def pattern(template, name=None):
    """A regular expression for what a template can say."""
    value = r"(?:an? )?\w[\w'-]*"
    parts = {"v": value, "an": value, "old": value, "old_an": value, "when": "[a-z]+ ?[A-Za-z]* ?[a-z]*"}
    parts["When"] = parts["when"].replace("[a-z]+", "[A-Z][a-z]+", 1)
    parts["n"] = name or f"(?:{'|'.join(phrases.PEOPLE)})"
    return re.sub(r"\\\{(\w+)\\\}", lambda m: parts[m.group(1)], re.escape(template))


@settings(max_examples=60, deadline=None)
@given(worlds, seeds, st.integers(0, 50))
def test_every_answer_follows_from_the_gold_operations(world, seed, index):
    check(generate(world, seed, index))


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(0, 8), st.integers(0, 4), st.integers(0, 3), st.integers(0, 5))
def test_other_shapes(seed, chunks, facts, updates, retracts, events):
    if chunks == 1:
        updates = retracts = 0
    shape = Shape(chunks, (0, facts), (0, updates), (0, retracts), (events, events), questions=20)
    task = shaped(WorldConfig(), seed, 0, shape, "own")
    assert len(task.chunks) == chunks
    check(task)


def test_drills_fill_the_memory_and_then_change_it():
    for task in (drill(WorldConfig(), 0, index) for index in range(50)):
        check(task)
        changes = [op.chunk for op in task.gold_operations if op.replaces]
        assert 1 <= len(changes) <= 3 and set(changes) == {1} and len(task.chunks) == DRILL.chunks
        assert all(op.chunk == 0 for op in task.gold_operations if not op.replaces)


def test_full_world_asks_every_ability_and_thins_out():
    def density(tokens):
        task = generate(WorldConfig(preset="full", tokens=tokens), 1, 0)
        check(task)
        length = sum(len(chunk.render()) for chunk in task.chunks)
        assert length == pytest.approx(4 * tokens, rel=0.01)
        assert {question.meta["kind"] for question in task.questions} == set(ABILITIES)
        assert {question.category for question in task.questions} == set(ABILITIES.values())
        return len(task.gold_operations) / sum(len(chunk.turns) for chunk in task.chunks)

    assert density(8_000) > 0.15 > 0.06 > density(150_000)


def values_of(generated):
    return {
        (op.content.rpartition(" ")[0].split(" ")[-1], op.content.partition(": ")[2])
        for task in generated
        for op in task.gold_operations
        if op.content
    }


@pytest.mark.parametrize("world", [DEMO, WorldConfig(preset="full", tokens=30_000)])
def test_splits_share_no_value(world):
    count = 150 if world.preset == "demo" else 2
    train = tasks(world, 0, 0, count)
    test = tasks(world.model_copy(update={"split": "test"}), 0, 0, count)
    train_values, test_values = ({value for _, value in values_of(generated)} for generated in (train, test))
    assert len(test_values) > 50 and not train_values & test_values
    train_text = set(re.findall(r"[\w'-]+", " ".join(turn.text for t in train for c in t.chunks for turn in c.turns)))
    if world.preset == "demo":  # not even in a distractor
        assert train_text & test_values == set()
    for pool, values in phrases.FULL_POOLS.items():
        held_out, rest = set(pool_values(pool, "test")), set(pool_values(pool, "train"))
        assert held_out | rest == set(values) and not held_out & rest
        assert len(held_out) == round(len(values) / 4) and len(set(values)) == len(values)


def test_generated_bytes_are_pinned():
    """Pin the bytes: a change affects recorded results and the shipped policy's training data."""
    import hashlib

    digest = hashlib.sha256()
    for world in (DEMO, WorldConfig(split="test"), WorldConfig(pseudo_values=0.5), SMALL):
        for task in tasks(world, 0, 0, 3):
            digest.update(task.model_dump_json().encode())
    assert digest.hexdigest()[:16] == "ffc136cc63dc38ca"


def test_pseudo_words_are_in_no_pool_and_never_in_the_test_split():
    pool_words = {value for values in phrases.FULL_POOLS.values() for value in values}
    generated = values_of(tasks(WorldConfig(pseudo_values=1.0), 0, 0, 20))
    assert not {value for _, value in generated} & pool_words
    assert all(
        value[0].isupper() == phrases.POOLS[key][0][0].isupper() for key, value in generated if key in phrases.POOLS
    )
    world = WorldConfig(split="test")
    assert generate(world.model_copy(update={"pseudo_values": 1.0}), 0, 0) == generate(world, 0, 0)


def test_options_of_the_other_preset_are_refused():
    with pytest.raises(ConfigError, match=r"world\.tokens"):
        generate(WorldConfig(tokens=100), 0, 0)
