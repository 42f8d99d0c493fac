"""The state world: each fact in its situation, the same bytes for the same numbers, held-out sentences apart."""

from __future__ import annotations

from collections import Counter

import pytest

from memalpha.config import WorldConfig
from memalpha.errors import ConfigError
from memalpha.store.schema import load_schema
from memalpha.store.state import MemoryState
from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.tasks.formats.jsonl import find_problems
from memalpha.tasks.synthetic.phrases import ATTRIBUTES, POOLS
from memalpha.tasks.synthetic.state_world import SITUATIONS
from memalpha.tasks.synthetic.worlds import generate, tasks
from memalpha.types import Operation

WORLD = WorldConfig(preset="state", split="test")


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_situation_is_asked_and_the_task_is_sound(split) -> None:
    for task in tasks(WorldConfig(preset="state", split=split), 3, 0, 5):
        counts = Counter(question.meta["situation"] for question in task.questions)
        assert counts.keys() == SITUATIONS.keys() and sum(counts.values()) == 20
        assert list(find_problems(task)) == []
        for question in task.questions:
            text = "\n".join(chunk.render() for chunk in task.chunks)
            values = [*question.answers, *question.meta["stale"], *filter(None, [question.meta["false"]])]
            assert all(value in text for value in values) and len(set(values)) == len(values)


def test_the_gold_operations_make_the_state_that_is_asked_for() -> None:
    task = generate(WORLD, 1, 0)
    states = [MemoryState.empty(load_schema("mem-alpha"))]
    for chunk in range(len(task.chunks)):
        state = states[-1]
        for gold in task.gold_at(chunk):
            id = next((entry.id for entry in state.list() if entry.content == gold.replaces), None)
            content = gold.content or None
            state = state.apply(Operation(gold.kind, id, gold.category if id is None else None, content))
        states.append(state)
    for question in task.questions:
        at = len(task.chunks) if question.asked_after_chunk is None else question.asked_after_chunk + 1
        held = [entry.content for entry in states[at].list() if entry.content.startswith(f"{question.meta['slot']}: ")]
        assert held == [f"{question.meta['slot']}: {answer}" for answer in question.answers]


def test_equal_numbers_give_equal_bytes_and_length_is_as_asked() -> None:
    assert generate(WORLD, 1, 2) == generate(WORLD, 1, 2) != generate(WORLD, 2, 2)
    long = generate(WORLD.model_copy(update={"tokens": 8000}), 0, 0)
    assert 7500 < sum(len(chunk.render()) for chunk in long.chunks) / 4 < 9500
    with pytest.raises(ConfigError, match="drills"):
        generate(WORLD.model_copy(update={"drills": 0.5}), 0, 0)


def test_held_out_sentences_are_others_and_hold_no_value() -> None:
    data = load_shipped_yaml("state_world.yaml")
    trained = {sentence for topic in ATTRIBUTES for sentence in (*topic.states, *topic.questions, *topic.distractors)}
    for key, topic in data["topics"].items():
        sentences = {sentence for group in topic.values() for sentence in group}
        assert sentences.isdisjoint(trained) and set(topic) == {"states", "questions", "distractors"}
        values = {value.lower() for value in POOLS[key]}
        assert values.isdisjoint(" ".join(sentences).lower().replace(",", " ").replace(".", " ").split()), key
    assert data["topics"].keys() == {topic.key for topic in ATTRIBUTES}
    for name, frames in data["frames"]["train"].items():
        assert {str(frame) for frame in frames}.isdisjoint(str(frame) for frame in data["frames"]["test"][name])
