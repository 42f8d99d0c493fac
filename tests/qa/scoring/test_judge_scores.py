"""Judges in rewards and beside other metrics: one batch a step, the parts of the reward, and what a failure does."""

from dataclasses import replace

import pytest
from hostile import HostileServer
from rollout import EMBEDDER, delete, insert, roll, skip, update
from scripted_judge import Says, part

from memalpha.agent.reader import ExtractiveReader, parse_cited
from memalpha.config import RewardConfig, build_config
from memalpha.errors import ConfigError, PolicyError
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.scoring.judge import Judge, judge_records
from memalpha.qa.scoring.metrics import cited_scores
from memalpha.types import Chunk, Question, Task, TrajectoryGroup

TASK = Task(
    id="t",
    chunks=(
        Chunk(text="I live in Oslo and have a cat.", timestamp="2024-05-01"),
        Chunk(text="I moved to Rome."),
        Chunk(text="Bye!"),
    ),
    questions=(
        Question(id="city", question="Which city?", answers=("Roma",), meta={"metric": "judge"}),
        Question(id="boat", question="Which boat?"),
    ),
)


def sensible(prompt: str, _: int) -> str:
    """Rome is Roma; what is written is valid if its words are in the chunk; writing nothing is right after "Bye!"."""
    chunk, answer, written = (part(prompt, name) for name in ("part of the conversation", "answer", "written"))
    if part(prompt, "deleted entry"):
        return "valid" if "moved" in chunk else "invalid"
    if chunk and not written:
        return "valid" if chunk == "Bye!" else "invalid"
    if chunk:
        return "valid" if written.split()[-1] in chunk else "invalid"
    if "cannot be answered" in prompt:
        return "correct" if answer == "unknown" else "wrong"
    return "correct" if answer == "Rome" else "wrong"


def model(reply=sensible, **settings) -> tuple[MemoryReward, Says]:
    """A reward model whose judge is `reply`; the configured one is a stand-in."""
    rewards = MemoryReward(build_config(RewardConfig, {"judge": {"judges": ["scripted:fixed"]}, **settings}, "x"), len)
    rewards.judge = Judge([says := Says(reply)])
    return rewards, says


def scored(rewards, *rollouts):
    groups, records = MemoryScorer(ExtractiveReader(), rewards, EMBEDDER).score([TrajectoryGroup(TASK, rollouts)])
    return [trajectory.reward for trajectory in groups[0].trajectories], records


GOOD = roll(TASK, [insert("city: Oslo"), insert("pet: cat")], [update("city: Oslo", "city: Rome")], [skip])
MIXED = [insert("city: Oslo"), insert("pet: dog"), insert("city: Oslo")]
BAD = roll(TASK, MIXED, [delete("city: Oslo")], [insert("said bye")], rollout=1)
LAZY = roll(TASK, [], [skip], rollout=2)


def test_r1_by_a_judge():
    rewards, says = model(metric="judge")
    rewarded, records = scored(rewards, GOOD, LAZY)
    scores = [(item.answer, item.score, item.correct) for item in records[:2]]
    assert scores == [("Rome", 1.0, True), ("unknown", 1.0, True)]
    assert [item.components["r1"][0] for item in rewarded] == [1.0, 0.5]
    assert [item.weights["r4"] for item in rewarded] == [0.0, 0.0], "no gold operations, and contents are not asked for"
    assert len(says.batches) == 1


def test_r4_by_a_judge_that_sees_the_chunk():
    rewards, says = model(content="judge")
    rewarded, _ = scored(rewards, GOOD, BAD, LAZY)
    assert [item.components["r4"] for item in rewarded] == [
        (1.0, 1.0, 1.0),
        (pytest.approx(1 / 3), 1.0, 0.0),  # an exact duplicate is not valid, a delete is judged
        (0.0, 0.0, 1.0),  # writing nothing is right where there is nothing
    ]
    assert {item.weights["r4"] for item in rewarded} == {0.1} and len(says.batches) == 1
    assert any("(2024-05-01)\nI live in Oslo" in prompt for prompt in says.prompts)
    assert not any("Which city?" in prompt for prompt in says.prompts), "r1 has its own metric"


def test_r4_as_published():
    rewards, says = model(content="judge", preset="published")
    rewarded, _ = scored(rewards, GOOD, BAD, LAZY)
    assert [item.components["r4"] for item in rewarded] == [
        (1.0, 1.0, 0.0),
        (pytest.approx(1 / 3), 0.0, 0.0),  # a delete is never valid
        (0.0, 0.0, 0.0),  # no call is worth nothing
    ]
    assert len(says.batches) == 1


def test_a_failing_judge_raises_and_is_never_zero():
    rewards, _ = model(lambda prompt, _: "hm" if "Which boat" in prompt else "correct", metric="judge")
    with pytest.raises(PolicyError, match=r"no judge gave a readable verdict on answer 'unknown' to 'Which boat\?'"):
        scored(rewards, GOOD)
    with HostileServer(fault=lambda *_: "403") as server:
        config = {"metric": "judge", "judge": {"judges": [server.name]}}
        rewards = MemoryReward(build_config(RewardConfig, config, "x"), len)
        with pytest.raises(PolicyError, match="does not take the key"):
            scored(rewards, GOOD)


def test_settings_of_a_judged_reward():
    for settings in ({"metric": "judge"}, {"content": "judge"}):
        with pytest.raises(ConfigError, match="judge needs one"):
            build_config(RewardConfig, settings, "x")
    with pytest.raises(ConfigError, match="has no effect"):
        build_config(RewardConfig, {"judge": {"judges": ["a"]}}, "x")
    config = build_config(RewardConfig, {"metric": "judge", "judge": {"judges": ["a"]}}, "x")
    assert str(config.kept_in("run").judge.endpoint.cache) == "run/answers.sqlite"
    assert config.kept_in("run").kept_in("other") == config.kept_in("run")
    assert RewardConfig().kept_in("run") == RewardConfig()


def test_judged_beside_other_metrics():
    _, records = scored(MemoryReward(RewardConfig(), len), GOOD, LAZY)
    assert [item.score for item in records] == [0.0, 1.0, 0.0, 1.0], "Rome is not Roma to the letter"
    judged, failed = judge_records(records, [TASK], Judge([says := Says(sensible)]))
    assert not failed and len(says.batches) == 1
    assert [item.scores for item in judged] == [{"judge": 1.0}, {"judge": 1.0}, {"judge": 0.0}, {"judge": 1.0}]
    assert [item.score for item in judged] == [1.0, 1.0, 0.0, 1.0], "a question whose own metric it is takes it over"
    rubric = TASK.questions[0].model_copy(update={"meta": {"metric": "rubric", "rubric": ["a", "b"]}})
    points = TASK.model_copy(update={"questions": (rubric,)})
    half = Judge([Says(lambda prompt, _: "full" if "<point>\na" in prompt else "none")])
    (item,), _ = judge_records([replace(records[0], scores={"rubric": 0.0})], [points], half)
    assert (item.score, item.correct, item.scores) == (0.5, True, {"judge": 0.5, "rubric": 0.5})
    named = cited_scores(parse_cited("Answer: a\nEvidence: [1]\nReasoning: so"), 0.0, [True])
    (item,), _ = judge_records([replace(records[0], scores=named)], [points], half)
    assert item.scores["cited.answer"] == 0.5 and item.scores["cited"] == pytest.approx((0.2 + 0.5 + 0.1) / 1.5)
    plain = [replace(item, scores={"f1": 0.5}) for item in records]
    judged, failed = judge_records(plain, [TASK], Judge([Says(lambda p, _: "hm" if "boat" in p else "wrong")]))
    assert [item.question_id for item in judged] == ["city", "city"] and judged[0].scores == {"f1": 0.5, "judge": 0.0}
    assert [line["question_id"] for line in failed] == ["boat", "boat"]
    assert failed[0]["score"] is None and list(failed[0]["votes"][0]["replies"]) == ["hm"]
