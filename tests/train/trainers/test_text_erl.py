"""ERL on text tasks: its seven phases, each seen in what was sampled and in what is trained."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from run_kinds import upper
from tiny import rewriting, tiny_policy

from memalpha.config import TextConfig
from memalpha.environments import RolloutEngine
from memalpha.errors import RewardError
from memalpha.rewards.environments import TextGeneration
from memalpha.rewards.evaluate import TextScorer
from memalpha.train.algorithms import ALGORITHMS
from memalpha.train.algorithms.erl import INTERNALIZED
from memalpha.train.api import train
from memalpha.train.rollouts.worker import RolloutWorker
from memalpha.train.trainers.text_rl import TextReflection
from memalpha.types import TextTask

TASKS = [TextTask(id=str(n), prompt=f"say {n}", columns={"answer": str(n)}) for n in range(3)]


def half(completions):
    return [0.5 for _ in completions]


def settings(**erl) -> TextConfig:
    tell = erl.pop("tell_answer", False)
    return TextConfig(
        out="unused", group_size=4, max_new_tokens=1, algorithm="erl", erl={"reflection_tokens": 4, **erl},
        tell_answer=tell,
    )  # fmt: skip


class Ends:
    """The tiny policy, whose replies of one token count as ended (so that they can be internalized)."""

    def __new__(cls):
        policy = tiny_policy()
        policy.open_queue = rewriting(policy.open_queue, partial(replace, stop_reason="eos"))
        return policy


def collected(config: TextConfig, rewards=(upper,), feedback=None, policy=None, algorithm=None, step=0):
    policy = policy or Ends()
    environment = TextGeneration(list(rewards))
    engine = RolloutEngine(policy, environment, max_new_tokens=config.sampling.max_new_tokens,
                           retry_prompt=config.erl.retry_prompt)  # fmt: skip
    scorer = TextScorer(environment)
    reflection = TextReflection(scorer, config.erl, policy.count_tokens, feedback)
    worker = RolloutWorker(engine, scorer, config, reflecting=reflection)
    algorithm = algorithm or ALGORITHMS["erl"](config)
    groups, records = algorithm.collect(worker, TASKS, step)
    return algorithm, groups, records, policy


def of_role(groups, role: str):
    return [one for group in groups for one in group.trajectories if one.role == role]


def asked(policy, one) -> str:
    return policy.tokenizer.decode(one.turns[0].completion.prompt_ids)


def test_the_seven_phases():
    algorithm, groups, records, policy = collected(settings())
    attempts, reflections = of_role(groups, "attempt"), of_role(groups, "reflection")
    retries, own = of_role(groups, "retry"), of_role(groups, INTERNALIZED)
    # 1. first attempts with rewards; records are theirs alone
    assert len(attempts) == 12 == len(records) and all(one.reward is not None for one in attempts)
    # 2. the gate: those that have not succeeded
    failed = [one for one in attempts if one.reward.total < 1]
    assert [(one.task.id, one.rollout) for one in reflections] == [(one.task.id, one.rollout) for one in failed]
    assert 0 < len(failed) < 12
    # 3. reflections see prompt, attempt, feedback and reward
    for attempt, reflection in zip(failed, reflections, strict=True):
        text = asked(policy, reflection)
        assert f"{attempt.task.prompt}\n\nYour reply:\n" in text and "Reward 0. upper: wrong." in text
        assert attempt.turns[0].completion.text in text and "Earlier advice" not in text
        assert "answer" not in text.replace("Answer in one", ""), "what was expected is not told"
    # 4. second attempts see prompt and advice alone; the reflection earns their reward
    for reflection, retry in zip(reflections, retries, strict=True):
        output = reflection.turns[0].completion.text.strip()
        advice = f"\n\nAdvice: {output}" if output else ""
        assert asked(policy, retry) == f"<|user|>{retry.task.prompt}{advice}<|assistant|>"
        assert retry.parent == retry.rollout and reflection.reward.total == retry.reward.total
    # 5. what helped is kept, when the weights have moved
    assert algorithm.state == {"reflections": []}
    algorithm.finish_step(line := {})
    helped = [one for one in retries if one.reward.total == 1]
    assert 0 < len(algorithm.state["reflections"]) <= len(helped) and line["gated"] == len(failed) / 12
    assert line["retry_success"] == len(helped) / len(retries) == line["retry_accuracy"]
    # 6. one policy gradient over all three roles
    rows = algorithm.annotate(groups, None)
    assert {row.role for row in rows if row.pg.any()} == {"attempt", "reflection", "retry"}
    # 7. internalization: the second attempt's ids on the task's own prompt
    assert [(one.task.id, one.rollout) for one in own] == [(one.task.id, one.rollout) for one in helped]
    for one, retry in zip(own, helped, strict=True):
        assert asked(policy, one) == f"<|user|>{one.task.prompt}<|assistant|>"
        assert one.turns[0].completion.completion_ids == retry.turns[0].completion.completion_ids
    cross = [row for row in rows if row.ce.any()]
    assert len(cross) == len(own) and all(np.allclose(row.ce, len(own) / 12) for row in cross)
    assert list(algorithm.updates(rows)) == ["", INTERNALIZED]
    # and the next step's reflections are shown what was kept
    _, groups, _, _ = collected(settings(), policy=policy, algorithm=algorithm, step=1)
    text = asked(policy, of_role(groups, "reflection")[0])
    assert "Earlier advice that helped:\n- " in text


def test_feedback_from_the_rewards_and_from_a_function():
    _, groups, _, policy = collected(settings(), rewards=(upper, half))
    assert all("upper: wrong. half: 0.5 of 1." in asked(policy, one) for one in of_role(groups, "reflection"))
    _, groups, _, policy = collected(settings(tell_answer=True))
    for one in of_role(groups, "reflection"):
        assert f"upper: wrong. The answer is {one.task.columns['answer']}.\n" in asked(policy, one)
    batches = []

    def own(prompts, completions, answer):
        batches.append(len(prompts))
        return [
            f"{prompt} is not {text!r} but {own}"
            for prompt, text, own in zip(prompts, completions, answer, strict=True)
        ]

    _, groups, _, policy = collected(settings(), feedback=own)
    reflections = of_role(groups, "reflection")
    assert batches == [len(reflections)]
    assert all(f"but {one.task.columns['answer']}\n" in asked(policy, one) for one in reflections)

    async def later(completions):
        return ["too late"] * len(completions)

    _, groups, _, policy = collected(settings(), feedback=later)
    assert all("too late" in asked(policy, one) for one in of_role(groups, "reflection"))
    with pytest.raises(RewardError, match="a text each is needed"):
        collected(settings(), feedback=lambda prompts, completions, answer: ["one"])
    with pytest.raises(RewardError, match=r"'feedback_func' raised KeyError"):
        collected(settings(), feedback=lambda prompts, completions, answer: {}["x"])


def test_templates_and_thresholds_are_the_user_s():
    config = settings(reflection_prompt="{prompt}|{attempt}|{reward}", retry_prompt="{reflection} > {prompt}",
                      reward_threshold=0.4)  # fmt: skip
    _, groups, _, policy = collected(config, rewards=(half, upper))
    assert not of_role(groups, "reflection"), "half of the first reward is enough"
    config = settings(reflection_prompt="{prompt}|{attempt}|{reward}", retry_prompt="{reflection} > {prompt}")
    _, groups, _, policy = collected(config)
    for reflection, retry in zip(of_role(groups, "reflection"), of_role(groups, "retry"), strict=True):
        assert asked(policy, reflection).endswith("|0<|assistant|>")
        if output := reflection.turns[0].completion.text.strip():
            assert asked(policy, retry) == f"<|user|>{output} > {retry.task.prompt}<|assistant|>"


def test_a_run_needs_no_settings_of_erl(tmp_path):
    few = {"group_size": 2, "tasks_per_step": 2, "eval_tasks": 2, "validation_tasks": 2, "max_new_tokens": 8}
    summary = train("arithmetic", algorithm="erl", out=tmp_path, max_steps=1, **few)
    assert summary["steps"] == 1
