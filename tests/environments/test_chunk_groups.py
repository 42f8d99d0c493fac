"""Chunk groups: one memory before each chunk, rewards of a turn alone, questions that can be answered by then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.agent.reader import ExtractiveReader
from memalpha.agent.tools import Insert
from memalpha.config import AgentConfig, ReaderConfig, RewardConfig, WorldConfig, training_config
from memalpha.environments.engine import Start
from memalpha.environments.memory_writing import ask_at_every_chunk, memory_engine, roll_out_chunks
from memalpha.errors import ConfigError
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward, memory_tokens
from memalpha.qa.report import summarize
from memalpha.store.embedding import load_embedder
from memalpha.tasks.synthetic import worlds
from memalpha.train.algorithms.advantages import group_advantages
from memalpha.train.rollouts.ahead import ScoredGroup, decode_group, encode_group
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.types import Chunk, Question, SpeakerTurn, Task

AGENT = AgentConfig(prompt="compact", embedder="hash", max_new_tokens=48)


@pytest.fixture(scope="module")
def engine():
    return memory_engine(load_policy("tiny"), AGENT, load_embedder("hash"))


@pytest.fixture(scope="module")
def tasks():
    return [ask_at_every_chunk(task) for task in worlds.tasks(WorldConfig(preset="demo", pseudo_values=0.6), 3, 0, 3)]


@pytest.fixture(scope="module")
def scored(engine, tasks):
    groups = roll_out_chunks(engine, tasks, range(3), 4, 1.0, seed=5, step=2)
    rewards = MemoryReward(RewardConfig(), engine.policy.count_tokens)
    scorer = MemoryScorer(ExtractiveReader(ReaderConfig()), rewards, load_embedder("hash"))
    return scorer, *scorer.score(groups)


def test_all_replies_of_a_chunk_read_the_same_memory_and_one_goes_on(scored):
    _, groups, _ = scored
    chosen = set()
    for group in groups:
        first = group.trajectories[0]
        assert first.before[0].list() == []
        for chunk in range(len(group.task.chunks)):
            turns = [trajectory.turns[chunk] for trajectory in group.trajectories]
            assert {turn.completion.prompt_ids for turn in turns} == {turns[0].completion.prompt_ids}
            assert {turn.chunk for turn in turns} == {chunk}
            after = [trajectory.states[chunk] for trajectory in group.trajectories]
            for turn, state in zip(turns, after, strict=True):
                expected = first.before[chunk]
                for operation in turn.operations:
                    expected = expected.apply(operation)
                assert state == expected
            if chunk + 1 < len(first.before):
                chosen.add(after.index(first.before[chunk + 1]))
    assert len(chosen) > 1, "the reply that goes on is drawn, not always the same"


def test_what_is_sampled_depends_on_the_task_alone(engine, tasks, scored):
    [alone] = roll_out_chunks(engine, tasks[1:2], [1], 4, 1.0, seed=5, step=2)
    beside = scored[1][1]
    for one, other in zip(alone.trajectories, beside.trajectories, strict=True):
        assert one.states == other.states
        ids = [[turn.completion.completion_ids for turn in trajectory.turns] for trajectory in (one, other)]
        assert ids[0] == ids[1]


@pytest.mark.parametrize("argument", ["", ', "importance": "very"', ', "id": "x#1"'])
def test_a_reply_changes_the_memory_as_in_a_whole_conversation(argument):
    call = '<tool_call>{"name": "%s", "arguments": {"category": "semantic", "content": "Ana likes tea."%s}}</tool_call>'
    text = "".join(call % (name, argument) for name in ("memory_insert", "memory_insert", "memory_note"))
    agent = AgentConfig(tools=("test_chunk_groups:Note",), embedder="hash")
    engine = memory_engine(ScriptedPolicy("fixed", text=text), agent, load_embedder("hash"))
    chunks = [Chunk(text=text, index=index) for index, text in enumerate(("one", "two"))]
    task = Task(id="t", chunks=chunks, questions=())
    [group] = roll_out_chunks(engine, [task], [0], 2, 1.0, seed=0, step=0)
    [whole] = engine.run([Start(task, 0)], 1.0)
    for chunk_wise in group.trajectories:
        assert [turn.results for turn in chunk_wise.turns] == [turn.results for turn in whole.turns]
        assert chunk_wise.states == whole.states


class Note(Insert):
    """Insert under another name."""

    name, line = "memory_note", "!content"


def test_rewards_belong_to_their_turn(engine, scored):
    scorer, groups, records = scored
    answers = iter(scorer.group_records(groups, records))
    for group in groups:
        for trajectory, of_trajectory in zip(group.trajectories, next(answers), strict=True):
            reward = trajectory.reward
            assert not reward.shared
            for chunk in range(len(trajectory.turns)):
                pairs = zip(group.task.questions, of_trajectory, strict=True)
                scores = [record.score for question, record in pairs if question.asked_after_chunk == chunk]
                assert reward.components["r1"][chunk] == pytest.approx(sum(scores) / len(scores) if scores else 0.0)
                read = sum(engine.policy.count_tokens(chunk.render()) for chunk in group.task.chunks[: chunk + 1])
                size = memory_tokens(trajectory.states[chunk], engine.policy.count_tokens)
                assert reward.components["r3"][chunk] == pytest.approx(max(0.0, 1 - size / read))
        advantages = group_advantages(group, scale="none")
        assert sum(advantages[rollout][0] for rollout in range(4)) == pytest.approx(0.0, abs=1e-9)
    summary = summarize(records, [trajectory for group in groups for trajectory in group.trajectories])
    assert summary["update_hit"] is not None, "changes are counted against the memory that was read"


def test_a_group_survives_its_checkpoint(scored):
    scorer, groups, records = scored
    [answers, *_] = scorer.group_records(groups, records)
    text = encode_group(ScoredGroup(7, groups[0], answers, 2))
    back = decode_group(text, lambda number: groups[0].task, groups[0].trajectories[0].before[0]).group
    assert back == replace(groups[0], trajectories=back.trajectories)
    for one, other in zip(back.trajectories, groups[0].trajectories, strict=True):
        assert (one.states, one.before, one.reward, one.turns) == (
            other.states,
            other.before,
            other.reward,
            other.turns,
        )


TURNS = [SpeakerTurn(speaker="a", text=f"line {n}", id=f"{n // 2}.{n % 2}") for n in range(8)]
CHUNKS = tuple(Chunk(turns=tuple(TURNS[2 * n : 2 * n + 2]), index=n) for n in range(4))


@pytest.mark.parametrize(
    ("answers", "evidence", "asked", "chunks"),
    [
        (("Oslo",), ("1.0",), None, [1, 2, 3]),  # from its evidence to the end
        (("Oslo",), ("0.0", "2.1"), None, [2, 3]),  # all of its evidence
        (("Oslo",), ("1.0",), 2, [1, 2]),  # not after its own chunk
        ((), ("2.0",), None, [2, 3]),  # taken back in chunk 2
        ((), (), None, [3]),  # never said: it may still be said and taken back
        ((), (), 1, [1]),
        (("Oslo",), (), None, [0, 1, 2, 3]),  # nothing is known of its evidence
        (("Oslo",), ("D9:9",), None, [3]),  # evidence that is no turn of the conversation
        (("Oslo",), ("3.0",), 1, [1]),  # asked before its evidence
    ],
)
def test_a_question_counts_while_its_answer_holds(answers, evidence, asked, chunks):
    question = Question(id="q", question="Where?", answers=answers, evidence=evidence, asked_after_chunk=asked)
    task = ask_at_every_chunk(Task(id="t", chunks=CHUNKS, questions=(question,)))
    assert [item.asked_after_chunk for item in task.questions] == chunks
    assert {item.id for item in task.questions} == {"q"}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_every_question_of_a_world_is_asked_at_its_own_chunk(seed):
    [task] = worlds.tasks(WorldConfig(preset="demo"), seed, 0, 1)
    asked = {(item.question, item.asked_after_chunk) for item in ask_at_every_chunk(task).questions}
    last = len(task.chunks) - 1
    own = {(q.question, last if q.asked_after_chunk is None else q.asked_after_chunk) for q in task.questions}
    assert own <= asked


def test_chunk_groups_are_spread_evenly_over_the_tasks():
    worker: Any = SimpleNamespace(chunk_share=0.3, config=SimpleNamespace(tasks_per_step=4))
    taken = [RolloutWorker.is_chunked(worker, step, number) for step in range(10) for number in range(4)]
    assert [sum(taken[:count]) for count in range(1, 41)] == [3 * count // 10 for count in range(1, 41)]


def test_the_demo_gives_way_to_algorithms_of_whole_conversations():
    assert [
        training_config("demo", overrides).sampling.groups  # pyright: ignore[reportAttributeAccessIssue]
        for overrides in ({}, {"algorithm": "rloo"}, {"algorithm": "ppo"}, {"reward": {"model": {"path": "judge"}}})
    ] == ["chunk", "chunk", "conversation", "conversation"]
    with pytest.raises(ConfigError, match=r"sampling.groups: algorithm=ppo"):
        training_config("demo", {"algorithm": "ppo", "groups": "chunk"})
