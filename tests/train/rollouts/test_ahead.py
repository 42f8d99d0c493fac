"""Sampling ahead: whose weights a step learns from, what is dropped, and a queue that outlives a crash."""

from __future__ import annotations

import base64
import json
import zlib
from concurrent.futures import Future
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from run_kinds import python_inputs, small_config
from runs import lines, same, weights
from vllm_server import VllmServer

from memalpha.config import TextConfig, TrainConfig
from memalpha.environments import MemoryWriting, RolloutEngine
from memalpha.errors import CheckpointError, ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.store.state import MemoryState
from memalpha.train.api import train
from memalpha.train.learner.distributed import World
from memalpha.train.rollouts.ahead import ScoredGroup, ServerSource, decode_group, encode_group, make_source
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.weight_sync import make_sampler
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers import trainer
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.rl import ReinforcementStep

SHAPE = {"eval_tasks": 1, "validation_tasks": 0, "keep_tokens": True, "warmup_steps": 0}
SERVED = {**SHAPE, "agent": {"max_new_tokens": 4}, "staleness": 1}


def crash(monkeypatch, step: int) -> None:
    """Let runs end at `step`, between sampling and update, as a kill would: nothing is saved."""
    update = ReinforcementStep.train

    def train_or_crash(self, batch, number):
        if number == step:
            raise RuntimeError("killed")
        return update(self, batch, number)

    monkeypatch.setattr(ReinforcementStep, "train", train_or_crash)


def decoded(text: str) -> dict:
    return json.loads(zlib.decompress(base64.b64decode(text)))


@pytest.mark.parametrize("kind", [TrainConfig, TextConfig])
def test_steps_learn_from_older_weights_and_a_crash_changes_nothing(kind, policy_path, tmp_path, monkeypatch):
    def config(name: str):
        return small_config(kind, policy_path, tmp_path, **SHAPE, staleness=2, out=str(tmp_path / name))

    train(config("whole"), **python_inputs(config("whole")))
    turns = lines(tmp_path / "whole" / "turns.jsonl")
    assert {(turn["step"], turn["weights_step"]) for turn in turns} == {(0, 0), (1, 0), (2, 0), (3, 1)}
    metrics = lines(tmp_path / "whole" / "metrics.jsonl")
    assert [line["staleness_max"] for line in metrics] == [0, 1, 2, 2]
    assert [line["queued_groups"] / config("whole").tasks_per_step for line in metrics] == [2, 2, 1, 0]
    assert metrics[0]["mismatch_max"] < 1e-4 < 1e-3 < min(line["mismatch_max"] for line in metrics[1:])

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        crash(patch, 2)
        train(config("killed"), **python_inputs(config("killed")))
    state = json.loads((tmp_path / "killed" / "checkpoints" / "step-2" / "state.json").read_text())
    assert len(state["rollouts"]["groups"]) == 2 * config("killed").tasks_per_step
    for name in ("metrics.jsonl", "turns.jsonl"):  # what a kill inside a write leaves
        with (tmp_path / "killed" / name).open("a") as file:
            file.write('{"step": 2}\n{"step": 2, "half')
    train(config("killed"), **python_inputs(config("killed")))
    assert same(weights(tmp_path / "killed", 4), weights(tmp_path / "whole", 4))
    assert lines(tmp_path / "killed" / "turns.jsonl") == turns
    timed = ("seconds", "per_second")
    for line, expected in zip(lines(tmp_path / "killed" / "metrics.jsonl"), metrics, strict=True):
        assert {k: v for k, v in line.items() if not k.endswith(timed)} == {
            k: v for k, v in expected.items() if not k.endswith(timed)
        }


def test_a_server_samples_ahead_and_a_crash_loses_no_group(small, policy_path, tmp_path, monkeypatch):
    save = ServerSource.state

    def state_with_a_queue(self):  # the server would fill it in time; the test must not depend on when
        while self._running and not self.scored:
            self._receive(self._results.get())
        return save(self)

    with VllmServer(policy_path) as server:
        config = small(**SERVED, sampler={"url": server.url})
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
            patch.setattr(ServerSource, "state", state_with_a_queue)
            crash(patch, 2)
            train(config)
        state = json.loads((config.out / "checkpoints" / "step-2" / "state.json").read_text())["rollouts"]
        queued = [decoded(text) for text in state["groups"]]
        assert len(queued) == 1 and state["learned"] == 2
        train(config)
    turns, metrics = lines(config.out / "turns.jsonl"), lines(config.out / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2, 3]
    assert sum(line["dropped_groups"] for line in metrics) == 0
    rollouts = {(turn["task"], turn["rollout"], turn["chunk"]) for turn in turns}
    assert len(rollouts) == len(turns) and len({turn["task"] for turn in turns}) == 4, "each group is learned once"
    assert all(0 <= turn["step"] - turn["weights_step"] <= 1 for turn in turns)
    assert any(turn["step"] - turn["weights_step"] == 1 for turn in turns)
    for trajectory in queued[0]["trajectories"]:
        sampled = [turn["completion"]["completion_ids"] for turn in trajectory["turns"]]
        place = (queued[0]["task"], trajectory["rollout"])
        learned = [turn["completion_ids"] for turn in turns if (turn["task"], turn["rollout"]) == place]
        assert sampled == learned, "what was in the queue is learned as it was sampled"


def test_a_server_that_dies_ends_the_run_with_its_queue_saved_and_another_goes_on(small, policy_path):
    shape = {**SERVED, "tasks_per_step": 2, "keep_tokens": False, "save_every": 100, "validation_tasks": 1}
    with VllmServer(policy_path) as server:
        config = small(**shape, sampler={"url": server.url, "retries": 0, "timeout": 5.0})
        take = ServerSource.take

        def take_after_a_fault(self, step):
            server.fault = "no-echo" if step == 2 else ""
            return take(self, step)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(PolicyError, match="does not repeat the ids"):
            patch.setattr(ServerSource, "take", take_after_a_fault)
            train(config)
    assert (config.out / "checkpoints" / "step-2" / "state.json").is_file(), "what is done is saved"
    with VllmServer(policy_path) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_better_validation", lambda earlier, later: earlier or later)
        summary = train(small(**shape, sampler={"url": server.url}))
        assert summary["steps"] == 4 > summary["best_step"]
        best = load_policy(config.out / "checkpoints" / "best").model.state_dict()
        served = server.policy.model.state_dict()
        assert all(torch.equal(best[name], value) for name, value in served.items()), "the best weights are evaluated"
    with pytest.raises(CheckpointError, match=r"sampling\.sampler: 'a server' there, None now"):
        RunDirectory(config.out).check_settings(small(**shape))


@pytest.fixture
def source(small, policy_path):
    """A source whose server is never asked, two tasks a step and staleness 1."""
    config = small(sampler={"url": "vllm:http://127.0.0.1:9"}, staleness=1, tasks_per_step=2)
    policy = make_sampler(load_policy(policy_path), config)
    tasks = TaskSource(config)
    writing = MemoryWriting(config.agent, policy.count_tokens)
    scorer = MemoryScorer(SimpleNamespace(conflicts="none", name="", policy=None), SimpleNamespace(judge=None), None)
    worker = RolloutWorker(RolloutEngine(policy, writing), scorer, config)
    policy.version = 0
    source = make_source(tasks, worker)
    yield source
    source.close()


def admit(source, version: int) -> list[int]:
    """Let the source start groups with weights of `version`; return their numbers."""
    before = set(source._running)
    source.policy.version = version
    source._admit()
    return [number for number in source._running if number not in before]


def test_the_capacity_follows_the_servers_weights(source):
    assert admit(source, 0) == [0, 1, 2, 3] and admit(source, 0) == []
    for number in (1, 2):
        source._receive(ScoredGroup(number, None, [], 0))
    assert admit(source, 0) == [], "queued groups count, too"
    assert admit(source, 1) == [4, 5]
    source._choose()
    source.commit(0)
    assert admit(source, 1) == [], "no group starts with weights that are too old for the step that would learn from it"
    source.unfinished = [1]
    assert admit(source, 2) == [1, 6], "unfinished groups come first"


def test_stale_groups_are_dropped_whole_and_counted(source):
    old, recent = (SimpleNamespace(completion=SimpleNamespace(weights_step=step)) for step in (0, 1))
    source.scored = {number: ScoredGroup(number, None, [], oldest) for number, oldest in ((0, 0), (1, 1), (2, 2))}
    slow, fresh, *others = admit(source, 2)
    source._running[slow][0].turns.append(old)
    source._running[fresh][0].turns.append(recent)
    source._drop_stale(1)
    assert list(source.scored) == [1, 2] and list(source._running) == [fresh, *others]
    assert source._pool.waiting == [episode for number in (fresh, *others) for episode in source._running[number]]
    source._choose()
    assert source.commit(2)["dropped_groups"] == 2 and source._dropped == 0


def test_an_error_waits_for_the_next_step(source):
    """A step that was learned is recorded and saved, whatever has happened to the server."""
    source.policy.version = 0
    source._sampling = Future()
    source._sampling.add_done_callback(lambda sampling: source._results.put(None))
    source._sampling.set_exception(PolicyError("no server"))
    assert source.state()["groups"] == []
    for wait in (lambda: source.take(0), lambda: source._receive(None)):
        with pytest.raises(PolicyError, match="no server"):
            wait()


def test_closing_cancels_what_is_scored(source):
    cancelled = Event()
    source.worker.scorer = SimpleNamespace(cancel=cancelled.set)
    source._sampling = source._thread.submit(cancelled.wait)
    source.close()
    assert cancelled.is_set() and source._sampling.done()


def test_a_group_is_the_same_after_a_checkpoint(small, policy_path):
    config = small()
    [task] = TaskSource(config).batch(0)[:1]
    writing = MemoryWriting(config.agent, len)
    [group] = RolloutEngine(ScriptedPolicy("oracle"), writing).roll_out([task], 2)
    turn = group.trajectories[0].turns[0]
    odd = replace(turn.completion, text="half \ud83d", logprobs=(-0.1, -1 / 3), completion_ids=(3, 1), weights_step=4)
    changed = replace(group.trajectories[0], turns=(replace(turn, completion=odd), *group.trajectories[0].turns[1:]))
    scored = ScoredGroup(7, replace(group, trajectories=(changed, group.trajectories[1])), [[], []], 4)
    text, empty = encode_group(scored), MemoryState.empty(writing.schema)
    again = decode_group(text, lambda number: task, empty)
    assert again == scored and again.group.trajectories[0].turns == changed.turns
    for trajectory, expected in zip(again.group.trajectories, scored.group.trajectories, strict=True):
        assert [state.list() for state in trajectory.states] == [state.list() for state in expected.states]
        assert len(expected.states[-1].list()) > 1
    with pytest.raises(CheckpointError, match="put the data back"):
        decode_group(text, lambda number: task.model_copy(update={"id": "another"}), empty)


def test_what_cannot_be_sampled_ahead_is_refused(source):
    source.worker.world = World(0, 2)
    with pytest.raises(ConfigError, match="2 processes cannot learn beside a server yet"):
        make_source(source.tasks, source.worker)
    source.worker.world = World()

    make_alone = source.worker.engine.environment

    def make_together():
        environment = make_alone()
        environment.lock_step = True
        return environment

    source.worker.engine.environment = make_together
    with pytest.raises(ConfigError, match="set lock_step=False"):
        make_source(source.tasks, source.worker)
