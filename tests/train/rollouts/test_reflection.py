"""Which attempts are looked at again, what they are told, and the memory of advice."""

from __future__ import annotations

import json

import pytest
from tiny import tiny_policy

from memalpha.agent.builder import Builder
from memalpha.agent.reader import ExtractiveReader
from memalpha.config import AgentConfig, ERLSettings, WorldConfig
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate_memory
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.rollouts.reflection import (
    ReflectionCandidate,
    ReflectionMemory,
    accuracy,
    extract_advice,
    group_records,
    join_feedback,
    memory_reflection_requests,
    reflection_candidates,
)
from memalpha.types import Question, Task

EMBEDDER = HashEmbedder(32)
TASKS = synthetic.tasks(WorldConfig(), 3, 0, 4)


def attempts(kind: str, tasks=TASKS, rollouts: int = 2, prompt: str = "compact"):
    builder = Builder(ScriptedPolicy(kind), AgentConfig(prompt=prompt, embedder="hash"), EMBEDDER)
    groups = builder.build(tasks, rollouts)
    answers = evaluate_memory(groups, ExtractiveReader(), embedder=EMBEDDER)
    return builder, groups, [record for group in answers for one in group for record in one]


def test_success_is_at_least_the_threshold():
    builder, groups, records = attempts("oracle")
    reached = [accuracy(one) for group in group_records(groups, records) for one in group]
    assert set(reached) == {1.0}
    assert (
        reflection_candidates(groups, records, 0, builder, ERLSettings()) == []
    )  # with ">" no attempt would ever succeed
    everything = reflection_candidates(groups, records, 5, builder, ERLSettings(algorithm=1))
    assert [(one.task_index, one.attempt.rollout) for one in everything] == [
        (n, r) for n in (5, 6, 7, 8) for r in (0, 1)
    ]
    assert {one.feedback for one in everything} == {""}


def test_the_gate_asks_for_right_answers_only():
    builder, groups, records = attempts("append-only")
    share = {
        (number, one.rollout): accuracy(of_one)
        for number, (group, of_group) in enumerate(zip(groups, group_records(groups, records), strict=True))
        for one, of_one in zip(group.trajectories, of_group, strict=True)
    }
    limit = sorted(share.values())[4]
    gated = reflection_candidates(groups, records, 0, builder, ERLSettings(reward_threshold=limit))
    assert [(one.task_index, one.attempt.rollout) for one in gated] == [key for key, at in share.items() if at < limit]
    assert all(one.accuracy == share[one.task_index, one.attempt.rollout] for one in gated)
    for one in reflection_candidates(groups, records, 0, builder, ERLSettings()):
        wrong = [r for r in group_records(groups, records)[one.task_index][one.attempt.rollout] if not r.correct]
        assert one.feedback.count("ask: ") == len(wrong) > 0
        assert all(f"ask: {record.question}" in one.feedback for record in wrong)


def test_a_task_without_questions_has_nothing_to_reflect_on():
    silent = TASKS[0].model_copy(update={"questions": ()})
    builder, groups, records = attempts("append-only", [silent, TASKS[1]])
    assert {one.task_index for one in reflection_candidates(groups, records, 0, builder, ERLSettings(algorithm=1))} == {
        1
    }
    assert accuracy([]) is None


def test_the_same_task_twice_in_a_step_is_not_mixed_up():
    builder, groups, records = attempts("append-only", [TASKS[0], TASKS[0]], rollouts=1)
    first, second = reflection_candidates(groups, records, 0, builder, ERLSettings())
    assert (first.task_index, second.task_index) == (0, 1) and first.feedback == second.feedback


def test_feedback_is_bounded_in_whole_answers():
    _, groups, records = attempts("append-only", prompt="full")
    builder, _, _ = attempts("append-only", prompt="full")
    one = reflection_candidates(groups, records, 0, builder, ERLSettings())[0]
    parts = one.feedback.split("\n\n")
    assert all(part.startswith("Question: ") and "\nLost: " in part for part in parts)
    from memalpha.qa.error_analysis import with_error_classes

    told = [record for record in with_error_classes(groups, records) if record.feedback]
    whole = join_feedback(told, "full", len, 10**6)
    half = join_feedback(told, "full", len, len(whole) // 2)
    assert half and len(half) <= len(whole) // 2 and set(half.split("\n\n")) < set(whole.split("\n\n"))
    assert join_feedback(told, "full", len, 20) == told[0].feedback[:20]
    assert join_feedback([], "full", len, 20) == ""


def test_prompts_of_reflections():
    builder, groups, records = attempts("append-only", prompt="full")
    tried = reflection_candidates(groups, records, 0, builder, ERLSettings())
    requests = memory_reflection_requests(builder, tried, [["Note pets."]] * len(tried), 40, 0.7, 11, 2)
    assert len({request.key for request in requests}) == len(requests)
    for one, request in zip(tried, requests, strict=True):
        text = request.messages[1]["content"]
        assert one.feedback in text and "- Note pets." in text
        assert all(entry.content in text for entry in one.attempt.states[-1].list()[-8:])
        assert (request.temperature, request.max_new_tokens, request.tools) == (0.7, 40, ())
        assert request.key == (11, 2, one.task_index, one.attempt.rollout, 0, 1)


def test_advice_is_the_reply_behind_its_thinking():
    assert extract_advice("<think>hm\n</think>\n Note pets. \n") == "Note pets."
    assert extract_advice(" city, no pet") == "city, no pet"
    assert extract_advice("<think>without end") == extract_advice(" \n") == ""


def filled(*texts: str, **settings) -> ReflectionMemory:
    memory = ReflectionMemory([], ERLSettings(**settings), EMBEDDER)
    for step, text in enumerate(texts):
        memory.add(text, step=step)
    return memory


def kept(memory: ReflectionMemory) -> list[str]:
    return [entry["advice"] for entry in memory.as_json()]


def test_the_oldest_advice_goes_first_and_nothing_is_kept_twice():
    memory = filled("a", "b", "a", "", "c", "\x00", "d", memory_size=3)
    assert kept(memory) == ["b", "c", "d"]
    assert [entry["from"] for entry in memory.as_json()] == [{"step": 1}, {"step": 4}, {"step": 6}]
    assert memory.recall(["x", "y"]) == [["b", "c", "d"]] * 2
    assert filled("a", "b", "c", memory_top_k=2).recall(["x"]) == [["b", "c"]]
    assert filled().recall(["x", "y"]) == [[], []]


def test_advice_by_similarity():
    memory = filled("note pets and animals", "update the city", "delete the phone", "say no more",
                    memory_retrieval="similarity", memory_top_k=1)  # fmt: skip
    assert memory.recall(["ask: which city?", "ask: which phone?"]) == [["update the city"], ["delete the phone"]]
    assert filled(memory_retrieval="similarity").recall(["x"]) == [[]]


@pytest.mark.parametrize("by", ["recency", "similarity"])
def test_what_is_kept_comes_back_from_json(by):
    texts = [f"advice {number % 7} on {number}" for number in range(12)]
    memory = filled(*texts, memory_size=5, memory_retrieval=by)
    again = ReflectionMemory(json.loads(json.dumps(memory.as_json())), memory.config, EMBEDDER)
    assert again.as_json() == memory.as_json()
    assert again.recall(["advice 3", "on 11"]) == memory.recall(["advice 3", "on 11"])
    for one in (memory, again):
        one.add("more")
    assert again.as_json() == memory.as_json() and kept(again) == [*texts[-4:], "more"]


def test_a_question_without_an_answer_is_told_too():
    task = Task(
        id="t", chunks=TASKS[0].chunks, gold_operations=TASKS[0].gold_operations,
        questions=(Question(id="q", question="What is my shoe size?", answers=("9",)),),
    )  # fmt: skip
    builder, groups, records = attempts("append-only", [task], rollouts=1)
    [one] = reflection_candidates(groups, records, 0, builder, ERLSettings())
    assert one.accuracy == 0.0 and one.feedback.startswith("ask: What is my shoe size?\nanswer:")


def test_lessons_are_left_out_until_a_reflection_fits():
    """The oldest first, and of a prompt that is long without them all."""
    policy = tiny_policy()
    builder = Builder(policy, AgentConfig(prompt="compact", embedder="hash"), HashEmbedder(8))
    lessons = ["first " + "a" * 100, "second " + "b" * 100, "third " + "c" * 100]

    def told(positions: int) -> str:
        policy.positions = positions
        attempt = attempts("oracle", TASKS[:1], 1)[1][0].trajectories[0]
        (results,) = memory_reflection_requests(
            builder, [ReflectionCandidate(0, attempt, 0.0, "wrong")], [lessons], 20, 1.0, 0, 0
        )
        return results.messages[0]["content"]

    whole = told(10**6)
    assert all(lesson in whole for lesson in lessons)
    room = len(policy.render([{"role": "user", "content": whole}])) + 20
    assert told(room) == whole
    assert [lesson in told(room - 1) for lesson in lessons] == [False, True, True]
