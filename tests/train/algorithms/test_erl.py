"""ERL: rollouts of each role, their rows and gradient, and the state kept across a resume."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from runs import lines
from tiny import tiny_policy, tiny_tokenizer

from memalpha.agent.reader import ExtractiveReader
from memalpha.config import TrainConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.errors import ConfigError
from memalpha.policy.chat.text import plain_line
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms import ALGORITHMS, erl
from memalpha.train.algorithms.erl import INTERNALIZED, run_second_attempts
from memalpha.train.api import train
from memalpha.train.learner.distributed import SINGLE_PROCESS
from memalpha.train.rollouts.reflection import MemoryReflection, ReflectionMemory
from memalpha.train.rollouts.worker import RolloutWorker

EASY = {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8}
"""With a random policy every attempt with one right answer (an abstention) succeeds."""
TASKS = synthetic.tasks(WorldConfig(), 3, 0, 3)


def settings(**erl) -> TrainConfig:
    agent = {"prompt": "compact", "embedder": "hash", "max_new_tokens": 12}
    base = {"out": "unused", "agent": agent, "group_size": 3, "loss_constant": 16.0}
    return TrainConfig(**base, algorithm="erl", erl=EASY | erl)


def make_worker(config: TrainConfig, policy=None, world=SINGLE_PROCESS) -> RolloutWorker:
    policy = policy or tiny_policy()
    engine = memory_engine(policy, config.agent, HashEmbedder(16))
    rewards = MemoryReward(config.reward, policy.count_tokens)
    scorer = MemoryScorer(ExtractiveReader(), rewards, engine.environment.embedder)
    return RolloutWorker(engine, scorer, config, world, MemoryReflection(engine.environment, scorer))


def collect(config: TrainConfig, policy=None):
    algorithm = ALGORITHMS["erl"](config)
    groups, records = algorithm.collect(make_worker(config, policy), TASKS, 0)
    return algorithm, groups, records


def trajectories_of_role(groups, role: str):
    return [trajectory for group in groups for trajectory in group.trajectories if trajectory.role == role]


def imitated_turns(retry):
    """Return the turns of a second attempt that ended and whose calls all succeeded."""
    return [t for t in retry.turns if t.completion.stop_reason == "eos" and all(result.ok for result in t.results)]


def test_second_attempts_see_their_advice_and_internalized_rows_do_not():
    policy = tiny_policy()
    _, groups, _ = collect(settings(), policy)
    text = policy.tokenizer.decode
    reflections = {
        (o.task.id, o.rollout): text(o.turns[0].completion.completion_ids)
        for o in trajectories_of_role(groups, "reflection")
    }
    advice_count = 0
    retries = [retry for retry in trajectories_of_role(groups, "retry") if imitated_turns(retry)]
    for retry, internalized in zip(retries, trajectories_of_role(groups, INTERNALIZED), strict=True):
        assert internalized.reward is None and internalized.states == retry.states
        advice = reflections[retry.task.id, retry.rollout].replace("<|end|>", "").strip()
        line = f"advice\n{plain_line(advice)}\n" if advice else ""
        for turn, plain in zip(imitated_turns(retry), internalized.turns, strict=True):
            assert plain.completion.completion_ids == turn.completion.completion_ids
            assert plain.completion.logprobs == turn.completion.logprobs
            before, after = text(turn.completion.prompt_ids), text(plain.completion.prompt_ids)
            advice_count += bool(line)
            assert "advice\n" not in after and before.count(line) >= 1
            # the same ids except for the line of advice, so the memory is the second attempt's own
            head = list(after[: after.index("chunk ")].encode())
            assert before.replace(line, "", 1) == after
            size = len(policy.tokenizer(line)["input_ids"]) if line else 0
            ids, cut = (
                list(turn.completion.prompt_ids),
                len(policy.tokenizer(after[: after.index("chunk ")])["input_ids"]),
            )
            assert len(head) >= cut and ids[:cut] + ids[cut + size :] == list(plain.completion.prompt_ids)
    assert advice_count


def test_a_worker_that_cannot_reflect_is_named():
    worker = replace(make_worker(settings()), reflecting=None)
    with pytest.raises(ConfigError, match="give the worker a `reflecting`"):
        ALGORITHMS["erl"](settings()).collect(worker, TASKS, 0)


def test_the_memory_is_recalled_and_changes_only_with_the_weights():
    config, policy = settings(memory_top_k=2, keep_advice="success"), tiny_policy()
    algorithm, groups, _ = collect(config, policy)
    assert algorithm.state == {"reflections": []}  # an interrupted step changes nothing
    algorithm.finish_step(metrics := {})
    advice = [entry["advice"] for entry in algorithm.state["reflections"]]
    assert metrics["reflections_kept"] == len(advice) == len(set(advice)) > 2
    assert json.loads(json.dumps(algorithm.state)) == algorithm.state
    groups, _ = algorithm.collect(make_worker(config, policy), TASKS, 1)
    for reflection in trajectories_of_role(groups, "reflection"):
        prompt = policy.tokenizer.decode(reflection.turns[0].completion.prompt_ids)
        recalled = "".join(f"advice\n{plain_line(text)}\n" for text in advice[-2:])
        assert f"reflect\n{recalled}" in prompt and prompt.count("advice\n") == 2
    config = settings(enable_memory=False)
    algorithm, _, _ = collect(config, policy)
    algorithm.finish_step({})
    assert algorithm.state == {"reflections": []}


@pytest.mark.parametrize("gate", ["improvement", "success"])
def test_advice_is_kept_where_it_helped(monkeypatch, gate):
    """By default only if the retry beat the first attempt; the paper's gate also keeps it where nothing changed."""
    seconds = []

    def recorded(*args):
        for number, one in enumerate(run_second_attempts(*args)):
            first = replace(one.first, accuracy=(0.0, one.accuracy, 1.0)[number % 3])
            seconds.append(replace(one, first=first))
        return seconds

    monkeypatch.setattr(erl, "run_second_attempts", recorded)
    changes = {} if gate == "improvement" else {"keep_advice": gate}
    algorithm, _, _ = collect(settings(**changes))
    algorithm.finish_step({})
    gates = {
        "improvement": lambda one: one.accuracy > one.first.accuracy,
        "success": lambda one: one.accuracy >= EASY["reward_threshold"],
    }
    expected = {name: {one.advice for one in seconds if helped(one) and one.advice} for name, helped in gates.items()}
    assert expected["improvement"] != expected["success"] and all(expected.values())
    assert {entry["advice"] for entry in algorithm.state["reflections"]} == expected[gate]


def assert_recalled_by_similarity(config: TrainConfig, turns, step: int) -> None:
    """Assert that each reflection prompt of the step holds the memory entry most similar to its feedback."""
    state = json.loads((config.out / f"checkpoints/step-{step}/state.json").read_text())
    memory = ReflectionMemory(state["algorithm"]["reflections"], config.erl, load_embedder("hash"))
    prompts = [line["prompt_ids"] for line in turns if line["role"] == "reflection" and line["step"] == step]
    assert len(memory.as_json()) > 1 and prompts
    for text in map(tiny_tokenizer().decode, prompts):
        prompt = text.removeprefix("<|user|>reflect\nadvice\n").removesuffix("<|assistant|>")
        recalled, _, feedback = prompt.partition("\n")
        [[best]] = memory.recall(["" if feedback == "all right" else feedback])
        assert prompt != text and recalled == plain_line(best)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_a_run_records_every_role(small, algorithm):
    erl = EASY | {"memory_retrieval": "similarity", "memory_top_k": 1, "keep_advice": "success"}
    if algorithm == 2:
        erl = EASY | {"algorithm": 2, "reward_threshold": 1.0}
    shape = {"schedule_steps": 2, "eval_tasks": 1, "validation_tasks": 0}
    config = small(algorithm="erl", erl=erl, keep_tokens=True, **shape)
    summary = train(config)
    metrics = lines(config.out / "metrics.jsonl")
    assert all({"gated", "retry_accuracy", "reflections_kept", "internalized_rows"} <= set(line) for line in metrics)
    trajectories = lines(config.out / "trajectories.jsonl")
    assert {"attempt", "reflection", "retry"} <= {line["role"] for line in trajectories}
    turns = lines(config.out / "turns.jsonl")
    assert {line["role"] for line in turns} == {"attempt", "reflection", "retry"}
    assert len({(line["step"], line["task"], line["rollout"], line["role"], line["chunk"]) for line in turns}) == len(
        turns
    )
    assert sum(len(line["completion_ids"]) for line in turns) == sum(line["sampled_tokens"] for line in metrics)
    assert "retry_accuracy" not in json.dumps(summary)
    if erl["algorithm"] == 1:
        reflections = json.loads((config.out / "checkpoints/step-2/state.json").read_text())["algorithm"]["reflections"]
        assert metrics[-1]["reflections_kept"] == len(reflections) > metrics[0]["reflections_kept"]
        assert_recalled_by_similarity(config, turns, 1)
