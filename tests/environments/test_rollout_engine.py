"""The rollout engine: every episode at its own pace, samples as in lock-step, a memory as an environment."""

from __future__ import annotations

from collections import Counter

import pytest
from tiny import tiny_policy

from memalpha.config import AgentConfig, WorldConfig
from memalpha.environments import MemoryWriting, RolloutEngine, Step, memory_engine
from memalpha.environments.engine import Environment
from memalpha.errors import RewardError
from memalpha.policy.base import BatchQueue
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.store.embedding import CachedEmbedder, HashEmbedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.types import Chunk, SampleRequest, Task, TextTask

AGENT = AgentConfig(prompt="compact", embedder="hash", max_new_tokens=6)
TASKS = [TextTask(id=str(n), prompt=f"count to {n}") for n in (1, 4, 2)]
CALL = '<tool_call>\n{"name": "memory_insert", "arguments": {"category": "episodic", "content": "%s"}}\n</tool_call>'


class CountTo:
    """An episode of as many turns as its task says."""

    def reset(self, task):
        self.left = int(task.prompt.split()[-1])
        return task.prompt

    def step(self, reply):
        self.left -= 1
        return Step(1.0, self.left == 0, "next")


class OneByOne(BatchQueue):
    """Completes one request at a time, the newest first, so that episodes run at very different paces."""

    def collect(self):
        if not self._requests:
            return []
        ticket, request = self._requests.popitem()
        return [(ticket, self.policy.sample([request])[0])]

    def submit(self, requests):
        self._requests = getattr(self, "_requests", {})
        tickets = super().submit(requests)
        self._requests |= dict(zip(tickets, requests, strict=True))
        return tickets


def paced(policy):
    policy.open_queue = lambda: OneByOne(policy)
    return policy


def ids(groups):
    return [[[turn.completion.completion_ids for turn in one.turns] for one in group.trajectories] for group in groups]


def test_the_pace_of_the_others_changes_no_sample():
    tasks = synthetic.tasks(WorldConfig(), 3, 0, 2)
    tasks[1] = tasks[1].model_copy(update={"chunks": tasks[1].chunks[:1], "questions": ()})
    policy, embedder = tiny_policy(), HashEmbedder(16)
    policy.open_queue = lambda: BatchQueue(policy)
    in_batches = memory_engine(policy, AGENT, embedder).roll_out(tasks, 2, 1.0, seed=3, step=5)
    one_by_one = memory_engine(paced(policy), AGENT, embedder).roll_out(tasks, 2, 1.0, seed=3, step=5)
    assert ids(in_batches) == ids(one_by_one)
    for first, second in zip(in_batches, one_by_one, strict=True):
        for one, other in zip(first.trajectories, second.trajectories, strict=True):
            assert [state.entries for state in one.states] == [state.entries for state in other.states]


def test_progress_counts_chunks_or_episodes():
    seen = []
    tasks = [Task(id=str(n), chunks=(Chunk(text="."),) * n) for n in (1, 3)]
    memory_engine(ScriptedPolicy("add-all"), AGENT).roll_out(tasks, progress=lambda *counts: seen.append(counts))
    assert seen == [(2, 4), (3, 4), (4, 4)]
    seen.clear()
    policy = ScriptedPolicy("fixed", text="1")
    RolloutEngine(policy, CountTo).roll_out(TASKS, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (2, 3), (3, 3)]


def test_episodes_that_step_together_wait_for_each_other():
    class Together(CountTo):
        @staticmethod
        def step_together(environments, replies):
            calls.append(len(environments))
            return [one.step(reply) for one, reply in zip(environments, replies, strict=True)]

    class AtOwnPace(Together):
        lock_step = False

    for environment, expected in ((Together, [3, 2, 1, 1]), (AtOwnPace, [1] * 7)):
        calls: list[int] = []
        RolloutEngine(paced(ScriptedPolicy("fixed", text="1")), environment).roll_out(TASKS)
        assert calls == expected
    Together.step_together = staticmethod(lambda environments, replies: [])
    with pytest.raises(RewardError, match="environment Together: step_together gave 0 steps for 3 episodes"):
        RolloutEngine(ScriptedPolicy("fixed", text="1"), Together).roll_out(TASKS)


def test_a_memory_is_an_environment_like_any_other():
    task = Task(id="t", chunks=(Chunk(text="one"), Chunk(text="two")))
    episode = MemoryWriting(AGENT, len, HashEmbedder(8))()
    assert isinstance(episode, Environment)
    episode.advice = "keep names"
    first = episode.reset(task)
    assert isinstance(first, SampleRequest) and "keep names" in str(first.messages) and episode.turns == 2
    step = episode.step(CALL % "a fact")
    assert not step.done and step.reward is None and step.results[0].ok and len(step.operations) == 1
    assert isinstance(step.observation, SampleRequest) and "a fact" in str(step.observation.messages)
    before = episode.state
    last = episode.step("nothing to call")
    assert last.done and last.observation is None and not last.operations
    assert before.entries == episode.state.entries and len(before.entries) == 1


def test_rewards_of_some_steps_only_are_refused():
    class Sometimes(CountTo):
        def step(self, reply):
            step = super().step(reply)
            return step._replace(reward=None) if step.done else step

    engine = RolloutEngine(ScriptedPolicy("fixed", text="1"), Sometimes)
    with pytest.raises(RewardError, match=r"environment Sometimes, task '4': 3 of 4 steps have a reward: all or none"):
        engine.roll_out([TASKS[1]])


def test_the_texts_of_a_turn_are_embedded_in_one_batch():
    """Episodes that step together embed what their next searches need in one call, and each text once."""

    class Counting(HashEmbedder):
        def encode(self, texts):
            new = [text for text in dict.fromkeys(texts) if text not in seen]
            seen.update(new)
            batches.extend([new] if new else [])
            return super().encode(texts)

    seen, batches = set(), []
    agent = AgentConfig(prompt="compact", embedder="hash", view_recent=1, view_related=2)
    tasks = synthetic.tasks(WorldConfig(), 0, 0, 4)
    groups = memory_engine(ScriptedPolicy("append-only"), agent, Counting(16)).roll_out(tasks)
    searches = max(len(task.chunks) for task in tasks) - 1
    assert len(batches) == searches, "the first chunk finds an empty memory; each later one needs one batch"
    last_searched = [group.trajectories[0].states[-2].entries.values() for group in groups]
    assert {entry.content for entries in last_searched for entry in entries} <= seen


def test_a_cache_smaller_than_the_memories_embeds_no_text_again():
    class Counting(HashEmbedder):
        def encode(self, texts):
            embedded.extend(texts)
            return super().encode(texts)

    embedded: list[str] = []
    chunks = [Chunk(text=f"Bo's code number {index} is {index * 37}.", index=index) for index in range(30)]
    agent = AgentConfig(embedder="hash", view_recent=2, view_related=3)
    engine = memory_engine(load_policy("add_all"), agent, CachedEmbedder(Counting(16), size=16))
    (group,) = engine.roll_out([Task(id="t", chunks=tuple(chunks))])
    assert len(group.trajectories[0].states[-1].entries) == 30
    assert max(Counter(embedded).values()) == 1
