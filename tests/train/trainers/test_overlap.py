"""A step in parts: bit for bit the parts one after the other, whoever answers first; learning while others wait."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hostile import HostileServer, whimsical
from safetensors.torch import load_file

from memalpha.config import TrainConfig
from memalpha.environments import memory_engine
from memalpha.errors import ConfigError, PolicyError, TrainingError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.qa.reader import load_reader
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.base import annotate
from memalpha.train.api import train
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.futures import Pipeline
from memalpha.train.learner.lora import add_lora
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.memory_rl import memory_trainer
from memalpha.train.trainers.overlap import OverlapPipeline, Part

PARTS = 3
PATIENCE = 30.0
"""Seconds after which what waits for the trainer gives up, so that a test fails and does not hang."""
VARIANTS = {
    "one update": {},
    "an update a part": {"minibatches": PARTS, "beta": 0.5, "old_logprobs": "recomputed", "importance_cap": 2.0},
    "adapters": {"beta": 0.5, "lora": {"r": 2}, "algorithm": "rloo", "entropy_coef": 0.01, "loss_type": "dapo"},
    "KL in the reward": {"beta": 0.5, "kl_in": "reward", "kl_estimator": "k1", "old_logprobs": "recomputed"},
    "rows of their own length": {"loss_type": "grpo", "entropy_coef": 0.1, "beta": 0.5, "importance_cap": 2.0}
    | {"old_logprobs": "recomputed"},
}


@pytest.fixture
def judged(small, tmp_path):
    """A function: (server, name, changes) -> configuration of a run in parts that `server` judges."""

    def made(server: HostileServer, name: str, **changes) -> TrainConfig:
        judge = {"judges": [server.name], "endpoint": {"retries": 0, "cache": None}}
        base = {"overlap": PARTS, "minibatches": 1, "tasks_per_step": 4, "schedule_steps": 2, "group_size": 2}
        base |= {"eval_tasks": 1, "validation_tasks": 0, "agent": {"max_new_tokens": 6}, "out": str(tmp_path / name)}
        base |= {"reward": {"metric": "judge", "content": "judge", "judge": judge}}
        return small(**{**base, **changes})

    return made


class Parts:
    """What a run needs for its steps, from a fresh policy."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        policy = TransformersPolicy.from_pretrained(config.policy)
        model = policy.model if config.lora is None else add_lora(policy.model, config.lora, "tiny")
        self.algorithm = ALGORITHMS[config.algorithm](config)
        self.engine = Engine(model, config, self.algorithm.loss_settings, reference=config.loss.beta > 0)
        embedder = load_embedder(config.agent.embedder)
        rewards = MemoryReward(config.reward, policy.count_tokens)
        scorer = MemoryScorer(load_reader(config.reader), rewards, embedder)
        self.worker = RolloutWorker(memory_engine(policy, config.agent, embedder), scorer, config)
        self.overlap = OverlapPipeline(self.worker, self.algorithm, self.engine, config)

    def tasks(self, step: int):
        return synthetic.tasks(self.config.world, self.config.seed, 4 * step, self.config.tasks_per_step)

    def steps(self, count: int = 2):
        """What `count` steps learnt, and the weights after."""
        with self.overlap:
            found = [self.overlap.learn(self.overlap.start_step(self.tasks(step), step), 1e-2) for step in range(count)]
        return found, self.weights()

    def weights(self) -> torch.Tensor:
        return torch.cat([value.detach().flatten() for value in self.engine.trainable.values()])


class NotByOthers(HashEmbedder):
    """Embeds for whoever samples alone: a scorer's vectors are made in advance."""

    def encode(self, texts):
        assert threading.current_thread() is threading.main_thread()
        return super().encode(texts)


def one_by_one(parts: Parts) -> Parts:
    """With no threads at all."""
    parts.overlap.learner._pipeline = Pipeline(inline=True)
    parts.overlap._pipelines = [Pipeline(inline=True)]
    return parts


@pytest.mark.parametrize("name", VARIANTS)
def test_pipelined_parts_equal_the_same_parts_one_after_the_other(judged, name):
    threads: set[str] = set()
    with HostileServer(whimsical) as server:
        server.delay = 0.01
        settings = judged(server, "unused", **VARIANTS[name])
        pipelined = Parts(settings)
        rate = pipelined.worker.scorer.rewards.reward

        def noted(*args):
            threads.add(threading.current_thread().name)
            return rate(*args)

        pipelined.worker.scorer.rewards.reward = noted  # type: ignore[method-assign]
        pipelined.worker.engine.environment.embedder = NotByOthers()
        pipelined.worker.scorer = replace(pipelined.worker.scorer, embedder=NotByOthers())
        results, weights = pipelined.steps()
        sequential = one_by_one(Parts(settings))
        expected, weights_one_by_one = sequential.steps()
    assert threads == {f"memalpha scores {number}" for number in range(PARTS)}
    assert torch.equal(weights, weights_one_by_one)
    for one, two in zip(results, expected, strict=True):
        assert (one.stats, one.mismatch) == (two.stats, two.mismatch)
        assert [group.trajectories for group in one.groups] == [group.trajectories for group in two.groups]
        assert one.records == two.records
        assert len({tuple(row.advantages) for row in one.samples}) > 1, "there was something to learn"


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "an update a part"])
def test_parts_add_up_to_the_whole_step(judged, name):
    """The one optimizer step is that of overlap=1, whatever the loss is divided by."""
    with HostileServer(whimsical) as server:
        parts = Parts(judged(server, "unused", **VARIANTS[name]))
        whole = Parts(judged(server, "unused", **VARIANTS[name], overlap=1))
        gradients = [gradient_of(one.engine) for one in (parts, whole)]
        [learnt], _ = parts.steps(1)
        groups, _ = whole.worker.collect_attempts(whole.tasks(0), 0)
        rows = annotate(whole.algorithm, groups, whole.engine).rows
        mismatch: dict[str, float] = {}
        if whole.config.loss.old_logprobs == "recomputed":
            rows, mismatch = whole.engine.recompute_old_logprobs(rows, whole.config.loss.importance_cap)
        stats = whole.engine.update(rows, 1e-2)
        whole.overlap.close()
    assert [row.completion_ids for row in learnt.samples] == [row.completion_ids for row in rows]
    [figures] = learnt.stats
    assert figures["loss"] == pytest.approx(stats["loss"], rel=1e-4, abs=1e-6)
    assert figures["grad_norm"] == pytest.approx(stats["grad_norm"], rel=1e-4)
    assert figures["tokens"] == stats["tokens"] and figures["entropy"] == pytest.approx(stats["entropy"])
    assert learnt.mismatch.keys() == mismatch.keys()
    [ours], [expected] = gradients
    assert float((ours - expected).norm() / expected.norm()) < 1e-5


def gradient_of(engine: Engine) -> list[torch.Tensor]:
    """The gradients that the engine's optimizer will step with."""
    results: list[torch.Tensor] = []
    step = engine.optim_step

    def noted(rate: float) -> float:
        results.append(torch.cat([value.grad.flatten().double() for value in engine.trainable.values()]))
        return step(rate)

    engine.optim_step = noted  # type: ignore[method-assign]
    return results


class Gate:
    """Holds a server's answers about some tasks until it is opened, and notes what happens in which order."""

    def __init__(self, server: HostileServer, tasks) -> None:
        self.texts = [chunk.render() for task in tasks for chunk in task.chunks]
        self.events: list[str] = []
        self.opened = threading.Event()
        self.until = time.monotonic() + PATIENCE
        self.server, self.said = server, server.reply
        server.hold, server.reply = self.hold, self.reply

    def about(self, prompt: str) -> bool:
        return any(text in prompt for text in self.texts)

    def hold(self, prompt: str) -> bool:
        return self.about(prompt) and not self.opened.is_set() and time.monotonic() < self.until

    def reply(self, prompt: str, body):
        if self.about(prompt):
            self.events.append("answered")
        return self.said(prompt, body)

    def note(self, event: str) -> None:
        self.events.append(event)
        self.opened.set()


@pytest.mark.parametrize("minibatches", [1, PARTS])
def test_a_part_is_learnt_from_while_the_last_is_still_being_judged(judged, minibatches):
    with HostileServer(whimsical) as server:
        parts = Parts(judged(server, "unused", minibatches=minibatches))
        gate = Gate(server, parts.tasks(0)[-1:])
        learn = parts.engine.forward_backward

        def noted(rows):
            gate.note("learning")
            return learn(rows)

        parts.engine.forward_backward = noted  # type: ignore[method-assign]
        parts.steps(1)
    assert gate.events.index("learning") < gate.events.index("answered")
    assert gate.events.count("learning") == PARTS


def test_the_next_parts_are_sampled_while_the_first_is_judged(judged):
    with HostileServer(whimsical) as server:
        parts = Parts(judged(server, "unused"))
        gate = Gate(server, parts.tasks(0)[:1])
        roll_out, calls = parts.worker.engine.roll_out, []

        def noted(*args, **more):
            calls.append(more["first_index"])
            if len(calls) == PARTS:
                gate.note("sampling the last")
            return roll_out(*args, **more)

        parts.worker.engine.roll_out = noted  # type: ignore[method-assign]
        parts.steps(1)
    assert calls == [0, 1, 2], "4 tasks in parts of 1, 1 and 2"
    assert gate.events.index("sampling the last") < gate.events.index("answered")


def files(run: Path) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / "step-2"
    return {
        f"{file.name} {name}": value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()
    }


def assert_same_run(one: Path, two: Path) -> None:
    first, second = files(one), files(two)
    assert first.keys() == second.keys() and first
    assert all(torch.equal(first[name], second[name]) for name in first)
    timeless = [
        [
            {name: value for name, value in json.loads(line).items() if "second" not in name}
            for line in text.splitlines()
        ]
        for text in ((run / "metrics.jsonl").read_text() for run in (one, two))
    ]
    assert timeless[0] == timeless[1] and len(timeless[0]) == 2


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("memalpha s", "memalpha l"))]


def test_runs_in_parts_end_at_an_outage_or_a_ctrl_c_and_go_on_bit_for_bit(judged):
    with HostileServer(whimsical) as server:
        whole, outage, pressed = (judged(server, name, save_every=1) for name in ("whole", "outage", "pressed"))
        summary = train(whole)
        assert summary["steps"] == 2 and not workers()
        _, second = [json.loads(line) for line in (whole.out / "metrics.jsonl").read_text().splitlines()]
        assert 0 < second["wait_seconds"] < second["sample_seconds"] + second["train_seconds"]
        last = Gate(server, synthetic.tasks(whole.world, whole.seed, 7, 1))
        last.opened.set()
        server.fault = lambda prompt, nth: "400" if last.about(prompt) else None
        with pytest.raises(PolicyError, match="not now"):
            train(outage)
        assert not workers() and not (outage.out / "checkpoints" / "step-2").exists()
        server.fault = lambda prompt, nth: None
        train(outage)

        server.seen.clear()
        held = Gate(server, synthetic.tasks(whole.world, whole.seed, 4, 1))

        def press() -> None:
            while not any(held.about(prompt) for prompt in list(server.seen)):
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            train(pressed)
        thread.join()
        assert not workers() and not held.opened.is_set() and time.monotonic() < held.until, "it did not wait"
        assert (pressed.out / "checkpoints" / "step-1").exists()
        held.opened.set()
        train(pressed)
    assert_same_run(whole.out, outage.out)
    assert_same_run(whole.out, pressed.out)


def test_without_an_endpoint_there_is_nothing_to_wait_for(small, capfd):
    parts = Parts(small(overlap=2, minibatches=2))
    assert parts.overlap.learner._pipeline._thread is None and not workers()
    learnt, _ = parts.steps(1)
    assert len(learnt[0].stats) == 2 and parts.overlap.wait_seconds > 0
    with RunDirectory(small().out) as directory:
        memory_trainer(small(overlap=2, minibatches=2), directory)
    assert "overlap=2: neither reader nor judge is behind an endpoint" in " ".join(capfd.readouterr().err.split())


def test_an_algorithm_that_trains_other_rows_is_found_out(small):
    parts = Parts(small(overlap=2, minibatches=1))
    annotate = parts.algorithm.annotate
    parts.algorithm.annotate = lambda groups, score: annotate(groups, score)[1:]  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="overlap: this algorithm trains other tokens than were sampled"):
        parts.steps(1)
    part: Part = Parts(small(overlap=2, minibatches=1)).overlap.start_step(parts.tasks(0), 0)[0]
    with pytest.raises(TrainingError, match="overlap: this algorithm scores rows that were not sampled"):
        part.forward(part.rows)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"overlap": 3, "minibatches": 1}, "overlap: 3 parts need a task each, tasks_per_step is 2"),
        ({"minibatches": 3}, "overlap: a minibatch is a part or the whole step: set minibatches=2 or minibatches=1"),
        ({"num_iterations": 2}, "overlap: num_iterations=2 needs all rewards of a step at once: set overlap=1"),
        ({"scale_rewards": "batch"}, "overlap: scale_rewards=batch needs all rewards"),
    ],
)
def test_what_needs_the_whole_step_is_refused(small, changes, told):
    with pytest.raises(ConfigError, match=told):
        small(**{"overlap": 2, "minibatches": 2, **changes})
