"""ERL: rollouts of each role, their rows and gradient, and the state kept across a resume."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import oracle
import pytest
import torch
from oracle import Net64
from tiny import tiny_policy, tiny_tokenizer

from memalpha.agent.reader import ExtractiveReader
from memalpha.config import TrainConfig, WorldConfig
from memalpha.environments import memory_engine
from memalpha.errors import ConfigError
from memalpha.qa.evaluate import MemoryScorer
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.api import train
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.learner.engine import Engine
from memalpha.train.rollouts.reflection import MemoryReflection, ReflectionMemory
from memalpha.train.rollouts.second_attempts import INTERNALIZED, run_second_attempts
from memalpha.train.rollouts.worker import RolloutWorker

EASY = {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8}
"""With a random policy every attempt with one right answer (an abstention) succeeds."""
TASKS = synthetic.tasks(WorldConfig(), 3, 0, 3)


def settings(**erl) -> TrainConfig:
    return TrainConfig(
        out="unused",
        agent={"prompt": "compact", "embedder": "hash", "max_new_tokens": 12},
        group_size=3,
        algorithm="erl",
        loss_constant=16.0,
        erl=EASY | erl,
    )


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


def test_rewards_of_each_role():
    algorithm, groups, records = collect(settings())
    attempts, retries = trajectories_of_role(groups, "attempt"), trajectories_of_role(groups, "retry")
    reflections, internalized = trajectories_of_role(groups, "reflection"), trajectories_of_role(groups, INTERNALIZED)
    assert len(attempts) == len(retries) == len(reflections) == 9
    imitated_counts = {(retry.task.id, retry.rollout): len(imitated_turns(retry)) for retry in retries}
    assert {(trajectory.task.id, trajectory.rollout): len(trajectory.turns) for trajectory in internalized} == {
        at: n for at, n in imitated_counts.items() if n
    }
    assert 0 < sum(imitated_counts.values()) < sum(len(retry.turns) for retry in retries)
    assert len(records) == sum(
        len(trajectory.task.questions) for trajectory in attempts
    )  # only first attempts have records
    assert len({trajectory.task.id for group in groups for trajectory in group.trajectories}) == 3
    assert all(len({trajectory.role for trajectory in group.trajectories}) == 1 for group in groups)
    for attempt, reflection, retry in zip(attempts, reflections, retries, strict=True):
        assert retry.task == reflection.task == attempt.task
        assert retry.parent == reflection.parent == attempt.rollout
        assert reflection.reward.total == reflection.reward.turns[0] == retry.reward.total
        assert retry.turns != attempt.turns
    algorithm.finish_step(metrics := {})
    assert metrics["gated"] == metrics["retry_success"] == 1.0 and metrics["internalized_rows"] == sum(
        len(o.turns) for o in internalized
    )
    assert not any(name.startswith("accuracy") for name in metrics)


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
        line = f"advice\n{' '.join(advice.splitlines())}\n" if advice else ""
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


def test_scoring_time_covers_both_attempts(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("memalpha.train.rollouts.worker.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    config = settings()
    worker = make_worker(config)
    worker.collect_attempts(TASKS, 0)
    assert worker.scoring_seconds == 1.0, "one tick per scoring"
    ALGORITHMS["erl"](config).collect(worker, TASKS, 0)
    assert worker.scoring_seconds == 3.0


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
        recalled = "".join(f"advice\n{' '.join(text.splitlines())}\n" for text in advice[-2:])
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

    monkeypatch.setattr("memalpha.train.algorithms.erl.run_second_attempts", recorded)
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


def test_without_reflection_the_feedback_is_the_advice():
    policy = tiny_policy()
    algorithm, groups, _ = collect(settings(algorithm=2, reward_threshold=1.0, enable_reflection=False,
                                              reflection_tokens=256), policy)  # fmt: skip
    assert not trajectories_of_role(groups, "reflection") and trajectories_of_role(groups, "retry")
    for retry in trajectories_of_role(groups, "retry"):
        assert "advice\nask: " in policy.tokenizer.decode(retry.turns[0].completion.prompt_ids)
    algorithm.finish_step({})
    assert algorithm.state == {"reflections": []}


def test_an_empty_reflection_is_trained_but_not_stored():
    policy = tiny_policy()
    sample = policy.sample

    def silent(requests):
        return [
            replace(reply, text=" \n", completion_ids=(0,), logprobs=reply.logprobs[:1])
            if len(r.key) == 6 and r.key[-1] == 1
            else reply
            for r, reply in zip(requests, sample(requests), strict=True)
        ]

    policy.sample = silent
    algorithm, groups, _ = collect(settings(), policy)
    algorithm.finish_step(metrics := {})
    assert metrics["empty_advice"] == 9 and metrics["reflections_kept"] == 0
    assert all("advice\n" not in policy.tokenizer.decode(turn.completion.prompt_ids)
               for retry in trajectories_of_role(groups, "retry") for turn in retry.turns)  # fmt: skip
    rows = algorithm.annotate(groups, None)
    assert sum(row.role == "reflection" and row.pg.all() for row in rows) == 9


def test_groups_of_one_have_no_advantage_and_roles_are_not_compared():
    algorithm, groups, _ = collect(settings(algorithm=2, reward_threshold=0.01))
    groups = [
        group if group.trajectories[0].role == "attempt" else replace(group, trajectories=group.trajectories[:1])
        for group in collect(settings())[1]
    ]
    rows = algorithm.annotate(groups, None)
    assert {row.role for row in rows} == {"attempt", "reflection", "retry", INTERNALIZED}
    assert all(not row.advantages.any() for row in rows if row.role != "attempt")
    assert any(row.advantages.any() for row in rows if row.role == "attempt")
    assert all(row.pg.any() != row.ce.any() for row in rows)


def test_without_gated_attempts_it_is_grpo():
    algorithm, groups, _ = collect(settings(algorithm=2))
    assert {row.role for group in groups for row in group.trajectories} == {"attempt"}
    grpo = ALGORITHMS["grpo"](TrainConfig(out="unused", group_size=3))
    for row, grpo_row in zip(algorithm.annotate(groups, None), grpo.annotate(groups, None), strict=True):
        assert row.prompt_ids == grpo_row.prompt_ids and (row.advantages == grpo_row.advantages).all()
    algorithm.finish_step(metrics := {})
    assert metrics["gated"] == 0 and metrics["retry_accuracy"] is None


def test_updates_of_both_algorithms():
    for number, parts in ((1, 1), (2, 2)):
        algorithm, groups, _ = collect(settings())
        rows = algorithm.annotate(groups, None)
        algorithm = ALGORITHMS["erl"](settings(algorithm=number))
        updates = list(algorithm.updates(rows).values())
        assert len(updates) == parts and sum(map(len, updates)) == len(rows)
        assert {row.role == INTERNALIZED for row in updates[-1]} == ({True} if parts == 2 else {True, False})
        assert algorithm.config.loss.scale_rewards == ("batch" if number == 1 else "group")
    assert (
        TrainConfig(out="x", algorithm="erl", erl={"algorithm": 1}, scale_rewards="none").loss.scale_rewards == "none"
    )


@pytest.mark.parametrize("changes", [{}, {"internalization_coef": 0.3}])
def test_the_gradient_of_the_joint_loss(changes):
    config, policy = settings(**changes), tiny_policy()
    algorithm, groups, _ = collect(config, policy)
    with torch.no_grad():  # move away from the sampler, so that ratios are not 1
        generator = torch.Generator().manual_seed(1)
        for weight in policy.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.01)
    engine = Engine(policy.model, config, ALGORITHMS[config.algorithm](config).loss_settings)
    samples = algorithm.annotate(groups, engine)
    engine.forward_backward(engine.normalized(samples))
    sampled = [group for group in groups if group.trajectories[0].role != INTERNALIZED]
    weight = {"r1": 1.0, "r3": config.reward.beta}
    parts = [
        [
            (
                sum(
                    w * trajectory.reward.components[name][0]
                    for name, w in weight.items()
                    if name in trajectory.reward.components
                ),
                [
                    sum(
                        trajectory.reward.weights[n] * v[t]
                        for n, v in trajectory.reward.components.items()
                        if n not in weight
                    )
                    for t in range(len(trajectory.turns))
                ],
            )
            for trajectory in group.trajectories
        ]
        for group in sampled
    ]
    advantages = oracle.turn_advantages(parts, "mean", "batch", config.loss.advantage_floor)
    values = [value for group in advantages for trajectory in group for value in trajectory]
    net = Net64(policy.model)
    rows = list(map(oracle.row_of, samples))
    policy_rows = [
        oracle.replace(row, advantages=torch.full_like(row.old, value))
        for row, value in zip(rows, values, strict=False)
    ]
    internalized_rows = rows[len(values) :]
    attempts = sum(len(trajectory.turns) for trajectory in trajectories_of_role(groups, "attempt"))
    losses = oracle.clip_loss(
        oracle.logprobs64(net, policy_rows), policy_rows, config.loss.epsilon, config.loss.epsilon
    )
    loss = oracle.reduce(losses, "dr_grpo", config.loss.loss_constant)
    imitated_turns = sum(-new.sum() for new in oracle.logprobs64(net, internalized_rows))
    loss = loss + config.erl.internalization_coef * imitated_turns / (config.loss.loss_constant * attempts)
    gradient = oracle.flat({name: parameter.grad for name, parameter in engine.trainable.items()}, net.weights)
    assert oracle.relative_error(gradient, oracle.gradient(loss, net.weights)) < 1e-5


def test_tasks_are_split_over_processes(monkeypatch):
    config, policy = settings(), tiny_policy()
    alone = make_worker(config, policy)
    groups, records = alone.collect_attempts(TASKS, 0)
    memory = ReflectionMemory([], config.erl, alone.reflecting.embedder)
    expected = run_second_attempts(alone, groups, records, memory, config.erl, 0)
    monkeypatch.setattr(World, "gather_bytes", lambda self, values: list(values))
    parts = [
        run_second_attempts(make_worker(config, policy, World(rank, 2)), groups, records, memory, config.erl, 0)
        for rank in (0, 1)
    ]
    assert [len(part) for part in parts] == [3, 6]
    for second in (*parts[0], *parts[1]):
        [same] = [other for other in expected if other.first == second.first]
        for name in ("retry", "reflection", "internalized"):
            one, other = getattr(second, name), getattr(same, name)
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.role, one.parent, one.rollout) == (other.role, other.parent, other.rollout)
                assert [state.list() for state in one.states] == [state.list() for state in other.states]
    for single, shared in zip(expected, [*parts[0], *parts[1]], strict=True):
        for a, b in (
            (single.retry, shared.retry),
            (single.reflection, shared.reflection),
            (single.internalized, shared.internalized),
        ):
            for x, y in zip(
                a.turns if a else (), b.turns if b else (), strict=True
            ):  # log-probs depend on the batch in their last digits
                assert (x.completion.prompt_ids, x.results) == (y.completion.prompt_ids, y.results)
                assert x.completion.completion_ids == y.completion.completion_ids
        assert (single.first.task_index, single.accuracy, single.retry.reward) == (
            shared.first.task_index,
            shared.accuracy,
            shared.retry.reward,
        )


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
        assert prompt != text and recalled == " ".join(best.splitlines())


@pytest.mark.parametrize("algorithm", [1, 2])
def test_a_run_records_every_role(small, algorithm):
    erl = EASY | {"memory_retrieval": "similarity", "memory_top_k": 1, "keep_advice": "success"}
    if algorithm == 2:
        erl = EASY | {"algorithm": 2, "reward_threshold": 1.0, "internalization_margin": 0.01}
    config = small(algorithm="erl", erl=erl, keep_tokens=True, save_every=1)
    summary = train(config)
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert all({"gated", "retry_accuracy", "reflections_kept", "internalized_rows"} <= set(line) for line in lines)
    trajectories = [json.loads(line) for line in (config.out / "trajectories.jsonl").read_text().splitlines()]
    assert {"attempt", "reflection", "retry"} <= {line["role"] for line in trajectories}
    turns = [json.loads(line) for line in (config.out / "turns.jsonl").read_text().splitlines()]
    assert {line["role"] for line in turns} == {"attempt", "reflection", "retry"}
    assert len({(line["step"], line["task"], line["rollout"], line["role"], line["chunk"]) for line in turns}) == len(
        turns
    )
    assert sum(len(line["completion_ids"]) for line in turns) == sum(line["sampled_tokens"] for line in lines)
    assert "retry_accuracy" not in json.dumps(summary)
    if erl["algorithm"] == 1:
        reflections = json.loads((config.out / "checkpoints/step-4/state.json").read_text())["algorithm"]["reflections"]
        assert lines[-1]["reflections_kept"] == len(reflections) > lines[0]["reflections_kept"]
        assert_recalled_by_similarity(config, turns, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"algorithm": "grpo", "erl": {}}, "has no effect with algorithm=grpo"),
        ({"erl": {"enable_memory": False, "memory_size": 3}}, "memory_size: has no effect with enable_memory=false"),
        ({"erl": {"enable_internalization": False, "internalization_coef": 2.0}}, "internalization_coef"),
        ({"erl": {"memory_top_k": 4, "memory_size": 3}}, "memory_top_k: more than memory_size=3 cannot be shown"),
        ({"erl": {"reward_threshold": 0.0}}, "reward_threshold"),
        ({"erl": {"algorithm": 3}}, "algorithm"),
    ],
)
def test_invalid_settings_are_refused(small, changes, message):
    with pytest.raises(ConfigError, match=message):
        small(**{"algorithm": "erl", **changes})
