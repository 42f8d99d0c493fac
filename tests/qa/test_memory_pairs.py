"""Pairs of memories: the better is the better, every kind of fault is what it says, texts are what a judge sees."""

import json
from collections import Counter

import pytest
from rollout import gold

from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.memory_pairs import (
    FAULTS,
    conversation_messages,
    memory_pairs,
    memory_text,
    state_text,
    write_memory_pairs,
)
from memalpha.qa.memory_reward import GoldFacts
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic import worlds as synthetic

TASKS = synthetic.tasks(WorldConfig(split="test"), 0, 0, 25)


def facts(text):
    """Count the (category, content) pairs that a text lists."""
    pairs_by_fault, category = Counter(), ""
    for line in text.splitlines()[1:]:
        if line.startswith("- "):
            pairs_by_fault[category, line[2:]] += 1
        else:
            category = line
    return pairs_by_fault


def truth(task, text):
    """(facts that hold and are there, all that is there)."""
    truths, there = GoldFacts(task), facts(text)
    right = {fact for fact in there if truths.holds(*fact, len(task.chunks) - 1)}
    return right, there


def test_the_best_memory_is_the_oracles():
    both = [("semantic", "tea"), ("episodic", "ran")]
    assert memory_text(both) == memory_text(both[::-1]) == "memory\nepisodic\n- ran\nsemantic\n- tea"
    pair_list = memory_engine(ScriptedPolicy("oracle"), AgentConfig(embedder="hash"), HashEmbedder(16)).roll_out(TASKS)
    best = {group.task.id: state_text(group.trajectories[0].states[-1]) for group in pair_list}
    flawless, changed_facts = 0, Counter()
    for pair in memory_pairs(TASKS, 4):
        flawless += pair.chosen == best[pair.task]
        assert pair.rejected != pair.chosen
        right, chosen = facts(best[pair.task]), facts(pair.chosen)
        changed_facts[max((right - chosen).total(), (chosen - right).total())] += 1
    assert 30 < flawless < 70
    assert changed_facts.keys() == {0, 1, 2, 3} and changed_facts[1] > 5, "a chosen memory has up to three faults"


def test_the_worse_memory_has_the_faults_that_it_is_said_to_have():
    of = {task.id: task for task in TASKS}
    pairs_by_fault = memory_pairs(TASKS, 12, seed=1)
    counts = Counter(pair.fault for pair in pairs_by_fault)
    assert counts.keys() == set(FAULTS) and min(counts.values()) >= 40
    assert {pair.grade for pair in pairs_by_fault} == {1, 2, 3}
    for pair in pairs_by_fault:
        good, better = truth(of[pair.task], pair.chosen)
        left, worse = truth(of[pair.task], pair.rejected)
        gained, lost = worse - better, better - worse
        assert left <= good or pair.fault == "duplicate", "a fault makes nothing right"
        if pair.fault == "missing":
            assert not gained and lost.total() == pair.grade and len(good) - len(left) <= pair.grade
        elif pair.fault in ("duplicate", "chitchat"):
            assert not lost and gained.total() == pair.grade
        elif pair.fault == "wrong":
            assert lost.total() == gained.total() == pair.grade
        elif pair.fault == "category":
            assert {content for _, content in lost} == {content for _, content in gained}
        else:
            truth_of_task = GoldFacts(of[pair.task])
            assert all(truth_of_task.has_ended(*fact, len(of[pair.task].chunks) - 1) for fact in gained)


def test_equal_arguments_give_equal_pairs_and_a_file_that_is_read(tmp_path):
    pairs = memory_pairs(TASKS[:3], 6)
    assert pairs == memory_pairs(TASKS[:3], 6) != memory_pairs(TASKS[:3], 6, seed=1)
    write_memory_pairs(tmp_path / "more" / "pairs.jsonl", pairs)
    lines = [json.loads(line) for line in (tmp_path / "more" / "pairs.jsonl").read_text().splitlines()]
    assert [line["chosen"] for line in lines] == [pair.chosen for pair in pairs]
    assert lines[0]["prompt"] == list(conversation_messages(TASKS[0]))
    assert all(chunk.render() in lines[0]["prompt"][0]["content"] for chunk in TASKS[0].chunks)


def test_other_tasks_than_synthetic_ones_and_refusals():
    operations = (gold("core_update", 0, "Ana, 30", category=""), gold("insert", 0, "lives in Rome"))
    task = TASKS[0].model_copy(update={"gold_operations": operations})
    for pair in memory_pairs([task], 6):
        assert pair.chosen.startswith("memory\ncore: Ana, 30\n") and pair.fault in ("missing", "duplicate", "chitchat")
    with pytest.raises(DataError, match="has no gold operations: what a good memory would be is not known"):
        memory_pairs([TASKS[0].model_copy(update={"gold_operations": ()})], 1)
    bare = task.model_copy(update={"gold_operations": task.gold_operations[:1]})
    with pytest.raises(DataError, match="leave nothing that could be remembered wrongly"):
        memory_pairs([bare], 1)
