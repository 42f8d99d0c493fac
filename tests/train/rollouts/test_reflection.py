"""Which attempts are looked at again, what they are told, and the memory of advice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tiny import tiny_policy

from memalpha.agent.reader import ExtractiveReader
from memalpha.config import AgentConfig, ERLSettings, RewardConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import MemoryScorer, evaluate_memory
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import HashEmbedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.rollouts.reflection import (
    MemoryReflection,
    ReflectionCandidate,
    ReflectionMemory,
    join_feedback,
    reflection_requests,
)

EMBEDDER = HashEmbedder(32)
TASKS = synthetic.tasks(WorldConfig(), 3, 0, 4)


def attempts(kind: str, tasks=TASKS, rollouts: int = 2, prompt: str = "compact"):
    engine = memory_engine(ScriptedPolicy(kind), AgentConfig(prompt=prompt, embedder="hash"), EMBEDDER)
    groups = engine.roll_out(tasks, rollouts)
    answers = evaluate_memory(groups, ExtractiveReader(), embedder=EMBEDDER)
    return reflection_of(engine), groups, answers


def reflection_of(engine) -> MemoryReflection:
    rewards = MemoryReward(RewardConfig(), engine.policy.count_tokens)
    return MemoryReflection(engine.environment, MemoryScorer(ExtractiveReader(), rewards, EMBEDDER))


def requests_of(reflection, policy, candidates, earlier, *settings):
    return reflection_requests(policy, reflection.prompt, candidates, earlier, *settings)


def test_the_gate_asks_for_right_answers_only():
    reflection, groups, answers = attempts("append-only")
    share = {
        (number, one.rollout): reflection.scorer.accuracy(None, of_one)
        for number, (group, of_group) in enumerate(zip(groups, answers, strict=True))
        for one, of_one in zip(group.trajectories, of_group, strict=True)
    }
    limit = sorted(share.values())[4]
    gated = reflection.candidates(groups, answers, 0, ERLSettings(reward_threshold=limit))
    assert [(one.task_index, one.attempt.rollout) for one in gated] == [key for key, at in share.items() if at < limit]
    assert all(one.accuracy == share[one.task_index, one.attempt.rollout] for one in gated)
    for one in reflection.candidates(groups, answers, 0, ERLSettings()):
        wrong = [r for r in answers[one.task_index][one.attempt.rollout] if not r.correct]
        assert one.feedback.count("ask: ") == len(wrong) > 0
        assert all(f"ask: {record.question}" in one.feedback for record in wrong)


def test_feedback_is_bounded_in_whole_answers():
    _, groups, answers = attempts("append-only", prompt="full")
    reflection, _, _ = attempts("append-only", prompt="full")
    one = reflection.candidates(groups, answers, 0, ERLSettings())[0]
    parts = one.feedback.split("\n\n")
    assert all(part.startswith("Question: ") and "\nLost: " in part for part in parts)
    from memalpha.qa.error_analysis import with_error_classes

    records = [record for group in answers for one in group for record in one]
    told = [record for record in with_error_classes(groups, records) if record.feedback]
    whole = join_feedback(told, "full", len, 10**6)
    half = join_feedback(told, "full", len, len(whole) // 2)
    assert half and len(half) <= len(whole) // 2 and set(half.split("\n\n")) < set(whole.split("\n\n"))
    assert join_feedback(told, "full", len, len(whole)) == whole
    assert join_feedback(told, "full", len, len(half)) == half
    assert len(join_feedback(told, "full", len, len(half) - 1)) < len(half)
    umlauts = [replace(told[0], feedback="ü" * 10)]  # two bytes each: as many tokens as the budget stay whole
    assert join_feedback(umlauts, "full", len, 10) == "ü" * 10 and join_feedback(umlauts, "full", len, 9) == "ü" * 4
    assert join_feedback(told, "full", len, 20) == told[0].feedback[:20]
    assert join_feedback([], "full", len, 20) == ""


def filled(*texts: str, **settings) -> ReflectionMemory:
    memory = ReflectionMemory([], ERLSettings(**settings), EMBEDDER)
    for step, text in enumerate(texts):
        memory.add(text, step=step)
    return memory


def kept(memory: ReflectionMemory) -> list[str]:
    return [entry["advice"] for entry in memory.as_json()]


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


def test_lessons_are_left_out_until_a_reflection_fits():
    """The oldest first, and of a prompt that is long without them all."""
    policy = tiny_policy()
    reflection = reflection_of(memory_engine(policy, AgentConfig(prompt="compact", embedder="hash"), HashEmbedder(8)))
    lessons = ["first " + "a" * 100, "second " + "b" * 100, "third " + "c" * 100]

    def told(positions: int | None) -> str:
        policy.positions = positions
        attempt = attempts("oracle", TASKS[:1], 1)[1][0].trajectories[0]
        (results,) = requests_of(
            reflection, policy, [ReflectionCandidate(0, attempt, 0.0, "wrong")], [lessons], 20, 1.0, 0, 0
        )
        return results.messages[0]["content"]

    whole = told(10**6)
    assert all(lesson in whole for lesson in lessons)
    room = len(policy.render([{"role": "user", "content": whole}])) + 20
    assert told(room) == whole
    assert told(None) == whole, "a model that states no longest context"
    assert [lesson in told(room - 1) for lesson in lessons] == [False, True, True]
