"""New weights in the middle of completions: each span has the log-probs of the weights that it names, none is lost."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from run_kinds import small_config
from runs import lines
from spans import span_gaps
from vllm_server import VllmServer

from memalpha.config import TextConfig, TrainConfig
from memalpha.errors import ConfigError, PolicyError
from memalpha.policy.load import load_policy
from memalpha.policy.vllm.in_flight import InFlightRequests
from memalpha.policy.vllm.policy import VllmQueue
from memalpha.train.api import train
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.train.rollouts.episode_sources import ServerSource
from memalpha.train.rollouts.weight_sync import WeightSync, make_sampler
from memalpha.train.trainers.rl import ReinforcementStep
from memalpha.types import SampleRequest

IN_FLIGHT = {"staleness": 1, "in_flight_updates": True, "keep_tokens": True}
SHAPE = {**IN_FLIGHT, "eval_tasks": 1, "validation_tasks": 0, "warmup_steps": 0, "tasks_per_step": 1, "group_size": 2}
PROMPTS = [SampleRequest(({"role": "user", "content": text},), max_new_tokens=8) for text in ("Who?", "Where is it?")]
ASKED = [replace(PROMPTS[i % 2], key=(i,), temperature=0.7) for i in range(4)]


def crash(monkeypatch, step: int) -> None:
    """Let runs end at `step`, between sampling and update, as a kill would: nothing is saved."""
    update = ReinforcementStep.train

    def train_or_crash(self, batch, number):
        if number == step:
            raise RuntimeError("killed")
        return update(self, batch, number)

    monkeypatch.setattr(ReinforcementStep, "train", train_or_crash)


@pytest.fixture
def unequal_lengths(monkeypatch):
    """Let replies of random policies end at any token: many ids are ends."""
    monkeypatch.setattr("memalpha.policy.transformers._eos_ids", lambda *_: frozenset(range(30)))


def check_run(config, policy_path) -> Counter:
    """Check a finished run's turns and metrics; return the number of turns by their number of spans."""
    turns, metrics = lines(config.out / "turns.jsonl"), lines(config.out / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2, 3]
    rollouts = [(turn["task"], turn["rollout"], turn["chunk"]) for turn in turns]
    assert len(set(rollouts)) == len(rollouts), "each group is learned once"
    assert len({turn["task"] for turn in turns}) == 4 * config.tasks_per_step
    state = json.loads((config.out / "checkpoints" / "step-4" / "state.json").read_text())["rollouts"]
    dropped, left = sum(line["dropped_groups"] for line in metrics), len(state["groups"]) + len(state["unfinished"])
    assert state["next"] == 4 * config.tasks_per_step + dropped + left, "no group is lost"
    paths = [policy_path, *(config.out / "checkpoints" / f"step-{step}" for step in (1, 2, 3))]
    models = {step: load_policy(path).model.double() for step, path in enumerate(paths)}
    ages: Counter = Counter()
    for turn in turns:
        spans = turn.get("weights_spans") or [(turn["weights_step"], len(turn["completion_ids"]))]
        assert spans[0][0] == turn["weights_step"] >= turn["step"] - config.sampling.staleness
        gaps = span_gaps(models, turn["prompt_ids"], turn["completion_ids"], turn["logprobs"], spans)
        for (own, count), gap in zip(spans, gaps, strict=True):
            assert gap[own] < 1e-4
            ages[turn["step"], turn["step"] - own] += count
    for line in metrics:
        total = sum(count for (step, _), count in ages.items() if step == line["step"])
        for age in range(config.sampling.staleness + 1):
            assert line[f"tokens_of_age_{age}"] == pytest.approx(ages[line["step"], age] / total)
    return Counter(len(turn.get("weights_spans", [0])) for turn in turns)


@pytest.mark.usefixtures("unequal_lengths")
def test_a_run_goes_on_with_completions_under_way(small, policy_path, monkeypatch):
    config = small(**SHAPE, learning_rate=3e-2, sampling={"dtype": "float64"})
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        crash(patch, 2)
        train(config)
    state = json.loads((config.out / "checkpoints" / "step-2" / "state.json").read_text())["rollouts"]
    assert state["unfinished"] and state["next"] == 2 + len(state["groups"]) + len(state["unfinished"])
    train(config)
    assert check_run(config, policy_path)[2] > 0


@pytest.fixture
def synced(small, policy_path, tmp_path):
    """A function: server -> sync of a fresh engine with it, and requests under way over the policy on it."""

    def connect(server: VllmServer, lora=None):
        config = small(sampler={"url": server.url, "retries": 1, "max_wait": 0.01, "concurrency": 3}, lora=lora)
        local = load_policy(policy_path)
        local.eos_ids = frozenset()
        model = local.model if config.lora is None else add_lora(local.model, config.lora, str(policy_path))
        policy = make_sampler(local, config)
        sync = WeightSync(policy, Engine(model, config), config, PROMPTS, tmp_path / "handed over")
        return sync, VllmQueue(policy, InFlightRequests(policy))

    return connect


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_a_server_goes_on_with_the_tokens_so_far(policy_path, synced, lora):
    """One completion has three tokens, two wait at the server and one for a slot when new weights come."""
    with VllmServer(policy_path) as server:
        sync, queue = synced(server, lora)
        models = {}
        sync.refresh()
        server.hold = (3, 20.0)
        models[0] = copy.deepcopy(sync.engine.model).double()
        before = server.arrived
        queue.submit(ASKED)
        wait_for(lambda: server.hold is None and server.arrived == before + 3)
        with queue.in_flight.interrupted():
            assert not queue.in_flight._at_server
            with torch.no_grad():
                for parameter in sync.engine.model.parameters():
                    parameter += 0.1 * torch.randn_like(parameter) * parameter.requires_grad
            sync.engine.weights_step = 1
            sync.refresh()
        models[1] = copy.deepcopy(sync.engine.model).double()
        completions = {}
        while len(completions) < len(ASKED):
            completions.update(queue.collect())
        sync.confirm()
    assert sorted(completion.weights_spans for completion in completions.values()) == [(), (), (), ((0, 3), (1, 5))]
    for completion in completions.values():
        spans = completion.weights_spans or ((1, 8),)
        gaps = span_gaps(
            models, completion.prompt_ids, completion.completion_ids, completion.logprobs, spans, temperature=0.7
        )
        assert completion.weights_step == spans[0][0]
        assert all(gap[own] < 1e-4 < 1e-2 < gap[1 - own] for (own, _), gap in zip(spans, gaps, strict=True))
        if len(spans) > 1:
            [rest] = [body for body in server.requests if body["max_tokens"] == 5]
            assert rest["prompt"] == [*completion.prompt_ids, *completion.completion_ids[:3]]
            assert sum(body["seed"] == rest["seed"] for body in server.requests) == 1, "noise of its own"


def test_a_server_that_breaks_off_unasked_or_cannot_is_refused(policy_path, synced):
    with VllmServer(policy_path) as server:
        sync, queue = synced(server)
        sync.refresh()
        server.hold = (3, 20.0)
        answer = queue.policy.client.start(queue.policy.token_requests(ASKED)[0])
        wait_for(lambda: server.hold is None)
        queue.policy.client.call("POST", "/abort_requests", {})
        assert len(answer.result().ids) == 8 and queue.policy.client.retries == 1, "asked for again as a whole"
        server.fault, server.hold = "no-abort", (3, 1.0)
        queue.submit(ASKED)
        wait_for(lambda: server.hold is None)
        refused = pytest.raises(PolicyError, match="start the server with VLLM_SERVER_DEV_MODE=1, or set in_flight")
        with refused, queue.in_flight.interrupted():
            pass
        queue.close()


@pytest.mark.usefixtures("unequal_lengths")
def test_a_run_beside_a_server_updates_it_within_completions(small, policy_path, monkeypatch):
    take, admit = ServerSource.take, ServerSource._admit
    with VllmServer(policy_path) as server:

        def take_in_this_order(self, step):
            with self._changed:
                if step == 1:
                    self._changed.wait_for(lambda: self._failure or not self._running)
                if step == 3:
                    self._changed.wait_for(lambda: self._failure or 3 in self.scored)
            return take(self, step)

        def admit_and_hold(self, version):
            if (groups := admit(self, version)) and version == 1:
                server.hold = (2, 20.0)  # a completion of the new group waits for the update of the next step
            return groups

        monkeypatch.setattr(ServerSource, "take", take_in_this_order)
        monkeypatch.setattr(ServerSource, "_admit", admit_and_hold)
        agent = {"max_new_tokens": 6}
        config = small(**{**SHAPE, "staleness": 2}, validate_every=4, agent=agent, sampler={"url": server.url})
        train(config)
    assert check_run(config, policy_path)[2] > 0


def test_what_has_no_use_is_refused(small, policy_path, tmp_path):
    for kind in (TrainConfig, TextConfig):
        with pytest.raises(ConfigError, match="in_flight_updates: has no effect with staleness=0"):
            small_config(kind, policy_path, tmp_path, in_flight_updates=True)
