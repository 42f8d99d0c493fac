"""ERL: what is collected for each role, which rows come of it, their gradient, and the state that goes on."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import oracle
import pytest
import torch
from oracle import Net64
from runs import weights
from tiny import tiny_policy, tiny_tokenizer

from memalpha.agent.builder import Builder
from memalpha.agent.reader import ExtractiveReader
from memalpha.config import TrainConfig, WorldConfig
from memalpha.errors import ConfigError
from memalpha.qa.memory_reward import MemoryReward
from memalpha.store.embedding import HashEmbedder, load_embedder
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.api import train
from memalpha.train.learner.distributed import World
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.losses import LossSettings
from memalpha.train.rollouts.memory import MemoryCollector
from memalpha.train.rollouts.reflection import ReflectionMemory
from memalpha.train.rollouts.second_attempts import INTERNALIZED, run_second_attempts

EASY = {"algorithm": 1, "reward_threshold": 0.01, "reflection_tokens": 8}
"""Of a random policy every attempt with one right answer (an abstention) succeeds."""
TASKS = synthetic.tasks(WorldConfig(), 3, 0, 3)


def settings(**erl) -> TrainConfig:
    return TrainConfig(
        out="unused",
        agent={"prompt": "compact", "embedder": "hash", "max_new_tokens": 12},
        group_size=3,
        algorithm="erl",
        erl=EASY | erl,
    )


def collector(config: TrainConfig, policy=None, world=None) -> MemoryCollector:
    policy = policy or tiny_policy()
    builder = Builder(policy, config.agent, HashEmbedder(16))
    rewards = MemoryReward(config.reward, policy.count_tokens)
    return MemoryCollector(builder, ExtractiveReader(), rewards, config, *([world] if world else []))


def collected(config: TrainConfig, policy=None):
    algorithm = ALGORITHMS["erl"](config)
    groups, records = algorithm.collect(collector(config, policy), TASKS, 0)
    return algorithm, groups, records


def of_role(groups, role: str):
    return [one for group in groups for one in group.trajectories if one.role == role]


def imitated(retry):
    """The turns of a second attempt that ended and whose calls all went well."""
    return [t for t in retry.turns if t.completion.stop_reason == "eos" and all(result.ok for result in t.results)]


def test_roles_and_what_they_earn():
    algorithm, groups, records = collected(settings())
    attempts, retries = of_role(groups, "attempt"), of_role(groups, "retry")
    reflections, own = of_role(groups, "reflection"), of_role(groups, INTERNALIZED)
    assert len(attempts) == len(retries) == len(reflections) == 9
    kept = {(retry.task.id, retry.rollout): len(imitated(retry)) for retry in retries}
    assert {(one.task.id, one.rollout): len(one.turns) for one in own} == {at: n for at, n in kept.items() if n}
    assert 0 < sum(kept.values()) < sum(len(retry.turns) for retry in retries)
    assert len(records) == sum(len(one.task.questions) for one in attempts)  # the attempts' alone
    assert len({one.task.id for group in groups for one in group.trajectories}) == 3
    assert all(len({one.role for one in group.trajectories}) == 1 for group in groups)
    for attempt, reflection, retry in zip(attempts, reflections, retries, strict=True):
        assert retry.task == reflection.task == attempt.task
        assert retry.parent == reflection.parent == attempt.rollout
        assert reflection.reward.total == reflection.reward.turns[0] == retry.reward.total
        assert retry.turns != attempt.turns
    algorithm.finish_step(line := {})
    assert line["gated"] == line["retry_success"] == 1.0 and line["internalized_rows"] == sum(len(o.turns) for o in own)
    assert not any(name.startswith("accuracy") for name in line)


def test_second_attempts_see_their_advice_and_internalized_rows_do_not():
    policy = tiny_policy()
    _, groups, _ = collected(settings(), policy)
    text = policy.tokenizer.decode
    told = {(o.task.id, o.rollout): text(o.turns[0].completion.completion_ids) for o in of_role(groups, "reflection")}
    seen = 0
    retries = [retry for retry in of_role(groups, "retry") if imitated(retry)]
    for retry, own in zip(retries, of_role(groups, INTERNALIZED), strict=True):
        assert own.reward is None and own.states == retry.states
        said = told[retry.task.id, retry.rollout].replace("<|end|>", "").strip()
        line = f"advice\n{' '.join(said.splitlines())}\n" if said else ""
        for turn, plain in zip(imitated(retry), own.turns, strict=True):
            assert plain.completion.completion_ids == turn.completion.completion_ids
            assert plain.completion.logprobs == turn.completion.logprobs
            before, after = text(turn.completion.prompt_ids), text(plain.completion.prompt_ids)
            seen += bool(line)
            assert "advice\n" not in after and before.count(line) >= 1
            # token by token: the same ids but for the line of advice, so the memory is the second attempt's own
            head = list(after[: after.index("chunk ")].encode())
            assert before.replace(line, "", 1) == after
            size = len(policy.tokenizer(line)["input_ids"]) if line else 0
            ids, cut = (
                list(turn.completion.prompt_ids),
                len(policy.tokenizer(after[: after.index("chunk ")])["input_ids"]),
            )
            assert len(head) >= cut and ids[:cut] + ids[cut + size :] == list(plain.completion.prompt_ids)
    assert seen


def test_the_wait_for_rewards_is_that_of_both_attempts(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("memalpha.train.rollouts.memory.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    config = settings()
    made = collector(config)
    made.collect_attempts(TASKS, 0)
    assert made.scoring_seconds == 1.0, "a tick a scoring"
    ALGORITHMS["erl"](config).collect(made, TASKS, 0)
    assert made.scoring_seconds == 3.0


def test_the_memory_fills_is_recalled_and_changes_only_with_the_weights():
    config, policy = settings(memory_top_k=2), tiny_policy()
    algorithm, groups, _ = collected(config, policy)
    assert algorithm.state == {"reflections": []}  # a step that is broken off has changed nothing
    algorithm.finish_step(line := {})
    kept = [entry["advice"] for entry in algorithm.state["reflections"]]
    assert line["reflections_kept"] == len(kept) == len(set(kept)) > 2
    assert json.loads(json.dumps(algorithm.state)) == algorithm.state
    groups, _ = algorithm.collect(collector(config, policy), TASKS, 1)
    for one in of_role(groups, "reflection"):
        prompt = policy.tokenizer.decode(one.turns[0].completion.prompt_ids)
        told = "".join(f"advice\n{' '.join(text.splitlines())}\n" for text in kept[-2:])
        assert f"reflect\n{told}" in prompt and prompt.count("advice\n") == 2
    config = settings(enable_memory=False)
    algorithm, _, _ = collected(config, policy)
    algorithm.finish_step({})
    assert algorithm.state == {"reflections": []}


def test_without_reflection_the_feedback_itself_is_the_advice():
    policy = tiny_policy()
    algorithm, groups, _ = collected(settings(algorithm=2, reward_threshold=1.0, enable_reflection=False,
                                              reflection_tokens=256), policy)  # fmt: skip
    assert not of_role(groups, "reflection") and of_role(groups, "retry")
    for one in of_role(groups, "retry"):
        assert "advice\nask: " in policy.tokenizer.decode(one.turns[0].completion.prompt_ids)
    algorithm.finish_step({})
    assert algorithm.state == {"reflections": []}


def test_an_empty_reflection_is_trained_and_kept_nowhere():
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
    algorithm, groups, _ = collected(settings(), policy)
    algorithm.finish_step(line := {})
    assert line["empty_advice"] == 9 and line["reflections_kept"] == 0
    assert all("advice\n" not in policy.tokenizer.decode(turn.completion.prompt_ids)
               for one in of_role(groups, "retry") for turn in one.turns)  # fmt: skip
    rows = algorithm.annotate(groups, None)
    assert sum(row.role == "reflection" and row.pg.all() for row in rows) == 9


def test_groups_of_one_have_no_advantage_and_roles_are_not_compared():
    algorithm, groups, _ = collected(settings(algorithm=2, reward_threshold=0.01))
    groups = [
        group if group.trajectories[0].role == "attempt" else replace(group, trajectories=group.trajectories[:1])
        for group in collected(settings())[1]
    ]
    rows = algorithm.annotate(groups, None)
    assert {row.role for row in rows} == {"attempt", "reflection", "retry", INTERNALIZED}
    assert all(not row.advantages.any() for row in rows if row.role != "attempt")
    assert any(row.advantages.any() for row in rows if row.role == "attempt")
    assert all(row.pg.any() != row.ce.any() for row in rows)


def test_nothing_gated_is_grpo():
    algorithm, groups, _ = collected(settings(algorithm=2))
    assert {one.role for group in groups for one in group.trajectories} == {"attempt"}
    grpo = ALGORITHMS["grpo"](TrainConfig(out="unused", group_size=3))
    for one, two in zip(algorithm.annotate(groups, None), grpo.annotate(groups, None), strict=True):
        assert one.prompt_ids == two.prompt_ids and (one.advantages == two.advantages).all()
    algorithm.finish_step(line := {})
    assert line["gated"] == 0 and line["retry_accuracy"] is None


def test_updates_of_both_algorithms():
    for number, parts in ((1, 1), (2, 2)):
        algorithm, groups, _ = collected(settings())
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
    algorithm, groups, _ = collected(config, policy)
    with torch.no_grad():  # away from the sampler, so that ratios are not 1
        generator = torch.Generator().manual_seed(1)
        for weight in policy.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.01)
    engine = Engine(policy.model, config, LossSettings.from_config(config))
    samples = algorithm.annotate(groups, engine)
    engine.forward_backward(engine.normalized(samples))
    sampled = [group for group in groups if group.trajectories[0].role != INTERNALIZED]
    weight = {"r1": 1.0, "r3": config.reward.beta}
    parts = [
        [
            (
                sum(w * one.reward.components[name][0] for name, w in weight.items() if name in one.reward.components),
                [
                    sum(one.reward.weights[n] * v[t] for n, v in one.reward.components.items() if n not in weight)
                    for t in range(len(one.turns))
                ],
            )
            for one in group.trajectories
        ]
        for group in sampled
    ]
    advantages = oracle.turn_advantages(parts, "mean", "batch", config.loss.advantage_floor)
    values = [value for group in advantages for one in group for value in one]
    net = Net64(policy.model)
    rows = list(map(oracle.row_of, samples))
    policy_rows = [
        oracle.replace(row, advantages=torch.full_like(row.old, value))
        for row, value in zip(rows, values, strict=False)
    ]
    own = rows[len(values) :]
    attempts = sum(len(one.turns) for one in of_role(groups, "attempt"))
    losses = oracle.clip_loss(
        oracle.logprobs64(net, policy_rows), policy_rows, config.loss.epsilon, config.loss.epsilon
    )
    loss = oracle.reduce(losses, "dr_grpo", config.loss.loss_constant)
    imitated = sum(-new.sum() for new in oracle.logprobs64(net, own))
    loss = loss + config.erl.internalization_coef * imitated / (config.loss.loss_constant * attempts)
    found = oracle.flat({name: parameter.grad for name, parameter in engine.trainable.items()}, net.weights)
    assert oracle.relative_error(found, oracle.gradient(loss, net.weights)) < 1e-5


def test_processes_share_the_tasks(monkeypatch):
    config, policy = settings(), tiny_policy()
    alone = collector(config, policy)
    groups, records = alone.collect_attempts(TASKS, 0)
    memory = ReflectionMemory([], config.erl, alone.builder.embedder)
    whole = run_second_attempts(alone, groups, records, memory, config.erl, 0)
    monkeypatch.setattr(World, "gather", lambda self, values: list(values))
    parts = [
        run_second_attempts(collector(config, policy, World(rank, 2)), groups, records, memory, config.erl, 0)
        for rank in (0, 1)
    ]
    assert [len(part) for part in parts] == [3, 6]
    for one, two in zip(whole, [*parts[0], *parts[1]], strict=True):
        for a, b in ((one.retry, two.retry), (one.reflection, two.reflection), (one.internalized, two.internalized)):
            for x, y in zip(
                a.turns if a else (), b.turns if b else (), strict=True
            ):  # log-probs differ in last digits, by the batch
                assert (x.completion.prompt_ids, x.results) == (y.completion.prompt_ids, y.results)
                assert x.completion.completion_ids == y.completion.completion_ids
        assert (one.first.task_index, one.accuracy, one.retry.reward) == (
            two.first.task_index,
            two.accuracy,
            two.retry.reward,
        )


def assert_shown_by_similarity(config: TrainConfig, turns, step: int) -> None:
    """Each reflection of the step was shown what of the memory of then is most similar to its own feedback."""
    state = json.loads((config.out / f"checkpoints/step-{step}/state.json").read_text())
    memory = ReflectionMemory(state["algorithm"]["reflections"], config.erl, load_embedder("hash"))
    prompts = [line["prompt_ids"] for line in turns if line["role"] == "reflection" and line["step"] == step]
    assert len(memory.as_json()) > 1 and prompts
    for text in map(tiny_tokenizer().decode, prompts):
        told = text.removeprefix("<|user|>reflect\nadvice\n").removesuffix("<|assistant|>")
        shown, _, feedback = told.partition("\n")
        [[best]] = memory.recall(["" if feedback == "all right" else feedback])
        assert told != text and shown == " ".join(best.splitlines())


@pytest.mark.parametrize(
    "erl",
    [
        EASY | {"memory_retrieval": "similarity", "memory_top_k": 1},
        EASY | {"algorithm": 2, "reward_threshold": 1.0, "internalization_margin": 0.01},
    ],
)
def test_stopping_and_going_on_equals_one_go(small, tmp_path, erl):
    whole = small(out=str(tmp_path / "whole"), algorithm="erl", erl=erl, keep_tokens=True)
    summary = train(whole)
    parts = small(out=str(tmp_path / "parts"), algorithm="erl", erl=erl, keep_tokens=True)
    for stop in (1, 3):
        train(parts.model_copy(update={"max_steps": stop}))
    train(parts)
    for step in (1, 2, 4):
        one, two = weights(whole.out, step), weights(parts.out, step)
        assert all(torch.equal(one[name], two[name]) for name in one)
        states = [
            json.loads((run / f"checkpoints/step-{step}/state.json").read_text()) for run in (whole.out, parts.out)
        ]
        assert states[0]["algorithm"] == states[1]["algorithm"]
    lines = [json.loads(line) for line in (whole.out / "metrics.jsonl").read_text().splitlines()]
    assert all({"gated", "retry_accuracy", "reflections_kept", "internalized_rows"} <= set(line) for line in lines)
    shown = [json.loads(line) for line in (whole.out / "trajectories.jsonl").read_text().splitlines()]
    assert {"attempt", "reflection", "retry"} <= {line["role"] for line in shown}
    turns = [json.loads(line) for line in (whole.out / "turns.jsonl").read_text().splitlines()]
    assert {line["role"] for line in turns} == {"attempt", "reflection", "retry"}
    assert len({(line["step"], line["task"], line["rollout"], line["role"], line["chunk"]) for line in turns}) == len(
        turns
    )
    assert sum(len(line["completion_ids"]) for line in turns) == sum(line["sampled_tokens"] for line in lines)
    assert "retry_accuracy" not in json.dumps(summary)
    if erl["algorithm"] == 1:
        kept = json.loads((parts.out / "checkpoints/step-4/state.json").read_text())["algorithm"]["reflections"]
        assert lines[-1]["reflections_kept"] == len(kept) > lines[0]["reflections_kept"]
        assert_shown_by_similarity(whole, turns, 3)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"algorithm": "grpo", "erl": {}}, "has no effect with algorithm=grpo"),
        ({"erl": {"enable_memory": False, "memory_size": 3}}, "memory_size: has no effect with enable_memory=false"),
        ({"erl": {"enable_internalization": False, "internalization_coef": 2.0}}, "internalization_coef"),
        ({"erl": {"memory_top_k": 4, "memory_size": 3}}, "memory_top_k: more than memory_size=3 cannot be shown"),
        ({"erl": {"reward_threshold": 0.0}}, "reward_threshold"),
        ({"erl": {"algorithm": 3}}, "algorithm"),
    ],
)
def test_what_cannot_be_is_refused(small, wrong, says):
    with pytest.raises(ConfigError, match=says):
        small(**{"algorithm": "erl", **wrong})
