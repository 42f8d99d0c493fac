"""PPO from rewards to the gradient of the second epoch against float64, on ragged episodes; KL control; settings.

`expected_gradient` follows the formulas one row and one token at a time, over the model's own forward pass and full
logits. It shares no code with the tested module.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny import tiny_model, tiny_policy

from memalpha.config import LoraConfig, TrainConfig, load_config
from memalpha.train.algorithms.ppo import PPO
from memalpha.train.learner.engine import Engine
from memalpha.train.learner.lora import add_lora
from memalpha.types import Chunk, Completion, Reward, SampleRequest, Task, Trajectory, TrajectoryGroup, Turn

TEMPERATURE, BETA, ENTROPY_COEF = 0.75, 0.2, 0.05
LOW, HIGH, CLIP = 0.1, 0.3, 0.15
EOS = 0


def settings(ppo=None, **changes) -> TrainConfig:
    base = {"out": "unused", "algorithm": "ppo", "epsilon": LOW, "epsilon_high": HIGH, "warmup_steps": 0}
    base |= {"learning_rate": 4e-4}
    base |= {"temperature": TEMPERATURE, "microbatch_tokens": 150, "head_tokens": 7, "ppo": ppo or {}}
    return TrainConfig(**{**base, **changes})


@lru_cache
def ragged_groups() -> tuple[TrajectoryGroup, ...]:
    """Sample groups of two and of one, with a turn of only EOS and turns cut at the limit."""
    policy, random, groups = tiny_policy(layers=1), np.random.default_rng(0), []
    for number, lengths in enumerate([(1, 3), (2,)]):
        task, trajectories = Task(id=f"t{number}", chunks=(Chunk(text="x"),) * 3), []
        for rollout, count in enumerate(lengths):
            requests = [
                SampleRequest(
                    ({"role": "user", "content": "x" * (9 + 3 * number + 4 * turn)},),
                    key=(number, rollout, turn),
                    temperature=TEMPERATURE,
                    max_new_tokens=4 + rollout,
                )
                for turn in range(count)
            ]
            completions = [perturb_logprobs(completion, random) for completion in policy.sample(requests)]
            if count == 3:
                completions[1] = replace(
                    completions[1], completion_ids=(EOS,), logprobs=(-5.0,), text="", stop_reason="stop"
                )
            r1, r3 = random.normal(size=2).tolist()
            turn_rewards = random.normal(size=(2, count))
            components = {
                "r1": (r1,) * count,
                "r3": (r3,) * count,
                "r2": tuple(turn_rewards[0]),
                "r4": tuple(turn_rewards[1]),
            }
            weights = {"r1": 1.0, "r2": 1.0, "r3": 0.5, "r4": 0.1}
            turns = tuple(sum(weights[name] * values[t] for name, values in components.items()) for t in range(count))
            reward = Reward(turns, components, weights, float(np.mean(turns)), shared=frozenset({"r1", "r3"}))
            turn_records = tuple(Turn(t, completion) for t, completion in enumerate(completions))
            trajectories.append(Trajectory(task, rollout, turn_records, (), reward))
        groups.append(TrajectoryGroup(task, tuple(trajectories)))
    stops = [
        turn.completion.stop_reason
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]
    assert set(stops) == {"stop", "length"}
    return tuple(groups)


def perturb_logprobs(completion: Completion, random: np.random.Generator) -> Completion:
    """Add noise to the sampled log-probs, so that first ratios are not 1."""
    noise = 0.3 * random.normal(size=len(completion.logprobs))
    return replace(completion, logprobs=tuple(np.asarray(completion.logprobs) + noise))


def make_engine(config: TrainConfig, *, lora: bool = False) -> Engine:
    """Build an engine away from its reference, with non-zero values."""
    model = tiny_model(layers=1)
    adapted = add_lora(model, LoraConfig(r=4), "tiny") if lora else model
    rate = PPO(config).value_learning_rate
    engine = Engine(
        adapted, config, PPO(config).loss_settings, reference=config.loss.beta > 0, value_learning_rate=rate
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in engine.trainable.values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return engine


def score64(model, head, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs, entropies and values of a turn's tokens from full float64 logits and states."""
    completion = turn.completion
    out = model(input_ids=torch.tensor([completion.prompt_ids + completion.completion_ids]), output_hidden_states=True)
    before = slice(len(completion.prompt_ids) - 1, -1)
    table = torch.log_softmax(out.logits[0, before] / TEMPERATURE, -1)
    states = out.hidden_states[-1][0, before]
    values = states @ head["value_head.weight"][0] + head["value_head.bias"]
    return table[range(len(table)), completion.completion_ids], -(table.exp() * table).sum(-1), values


def episodes() -> list[Trajectory]:
    return [trajectory for group in ragged_groups() for trajectory in group.trajectories]


def expected_gradient(start_weights, now, config: TrainConfig) -> torch.Tensor:
    """Return the gradient at `now`, a float64 (model, head), of samples annotated at `start_weights`."""
    ppo, start = config.ppo, tiny_model(layers=1).double()
    old, old_values, advantages, returns, rewards_by_episode = {}, {}, {}, {}, {}
    for e, episode in enumerate(episodes()):
        weights, components, tokens_of_episode, token_rewards = (
            episode.reward.weights,
            episode.reward.components,
            [],
            [],
        )
        for t, turn in enumerate(episode.turns):
            with torch.no_grad():
                logprobs, _, values = score64(*start_weights, turn)
                reference = torch.log_softmax(
                    start(input_ids=torch.tensor([turn.completion.prompt_ids + turn.completion.completion_ids])).logits[
                        0, len(turn.completion.prompt_ids) - 1 : -1
                    ]
                    / TEMPERATURE,
                    -1,
                )[range(len(logprobs)), turn.completion.completion_ids]
            sampled = torch.tensor(turn.completion.logprobs, dtype=torch.float64)
            old[e, t] = logprobs if config.loss.old_logprobs == "recomputed" else sampled
            old_values[e, t] = values
            for i in range(len(sampled)):
                tokens_of_episode.append((e, t, i))
                penalty = (
                    config.loss.beta * float(old[e, t][i] - reference[i]) if config.loss.kl_in == "reward" else 0.0
                )
                token_rewards.append(-penalty)
            token_rewards[-1] += weights["r2"] * components["r2"][t] + weights["r4"] * components["r4"][t]
        token_rewards[-1] += weights["r1"] * components["r1"][0] + weights["r3"] * components["r3"][0]
        rewards_by_episode[e] = tokens_of_episode, token_rewards
    level = np.mean(
        [
            sum(ppo.gamma ** (j - k) * token_rewards[j] for j in range(k, len(token_rewards)))
            for _, token_rewards in rewards_by_episode.values()
            for k in range(len(token_rewards))
        ]
    )
    for tokens_of_episode, token_rewards in rewards_by_episode.values():
        values = [float(old_values[e, t][i]) + level for e, t, i in tokens_of_episode] + [0.0]
        deltas = [r + ppo.gamma * values[k + 1] - values[k] for k, r in enumerate(token_rewards)]
        for k, token in enumerate(tokens_of_episode):
            advantages[token] = sum((ppo.gamma * ppo.lam) ** (j - k) * deltas[j] for j in range(k, len(deltas)))
            returns[token] = advantages[token] + values[k] - level
    if ppo.whiten_advantages:
        all_advantages = np.array(list(advantages.values()))
        advantages = {token: (a - all_advantages.mean()) / all_advantages.std() for token, a in advantages.items()}
    loss, tokens = torch.zeros((), dtype=torch.float64), len(advantages)
    for (e, t), before in old.items():
        new, entropy, values = score64(*now, episodes()[e].turns[t])
        for i in range(len(before)):
            ratio, a, target = (new[i] - before[i]).exp(), advantages[e, t, i], returns[e, t, i]
            surrogate = torch.min(ratio * a, ratio.clip(1 - LOW, 1 + HIGH) * a)
            errors = (values[i] - target) ** 2
            if ppo.cliprange_value is not None:
                clipped = values[i].clip(old_values[e, t][i] - CLIP, old_values[e, t][i] + CLIP)
                errors = torch.max(errors, (clipped - target) ** 2)
            loss = loss - surrogate - config.loss.entropy_coef * entropy[i] + ppo.vf_coef * 0.5 * errors
    (loss / tokens).backward()
    return torch.cat(
        [part.grad.flatten() for part in now[0].parameters() if part.requires_grad]
        + [part.grad.flatten() for part in now[1].values()]
    )


def copy_float64(engine: Engine):
    head = {name: part.detach().double().requires_grad_() for name, part in engine.value_head.items()}
    return copy.deepcopy(engine.model).double(), head


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("ppo", "changes"),
    [
        ({"lam": 0.9, "gamma": 0.97, "cliprange_value": CLIP}, {"entropy_coef": ENTROPY_COEF}),
        ({"lam": 1.0, "cliprange_value": None}, {"beta": BETA, "kl_in": "reward", "kl_estimator": "k1"}),
        (
            {"lam": 0.5, "cliprange_value": CLIP, "whiten_advantages": False, "vf_coef": 0.5},
            {"beta": BETA, "kl_in": "reward", "kl_estimator": "k1", "old_logprobs": "recomputed"},
        ),
    ],
    ids=["entropy", "kl", "recomputed"],
)
def test_gradient_of_the_second_epoch_equals_float64(lora, ppo, changes):
    config = settings(ppo, loss_type="dapo", **changes)
    engine = make_engine(config, lora=lora)
    start_weights = copy_float64(engine)
    samples = PPO(config).annotate(ragged_groups(), engine).rows
    if config.loss.old_logprobs == "recomputed":
        samples, _ = engine.recompute_old_logprobs(samples)
    first = engine.update(samples, 3e-3)
    assert first["value_loss"] > 0 and (first["old_max"] < 1e-5) == (config.loss.old_logprobs == "recomputed")
    second = engine.forward_backward(engine.normalized(samples))
    assert second["clipped"] > 0
    actual = torch.cat([parameter.grad.flatten().double() for parameter in engine.trainable.values()])
    expected = expected_gradient(start_weights, copy_float64(engine), config)
    assert float((actual - expected).norm() / expected.norm()) < 1e-5


def test_rewards_belong_to_the_last_tokens_of_turns_and_episode():
    """With values 0, lam 1 and no discount, a token's return is the sum of its episode's later rewards."""
    config = settings({"lam": 1.0, "whiten_advantages": False})
    engine = Engine(tiny_model(layers=1), config, value_learning_rate=1e-3)
    ppo = PPO(config)
    annotation = ppo.annotate(ragged_groups(), engine)
    rows = iter(annotation.rows)
    assert ppo.state["level"] is None, "an interrupted step changes nothing"
    ppo.state = annotation.state
    level = ppo.state["level"]
    for episode in episodes():
        weights, parts = episode.reward.weights, episode.reward.components
        turn_rewards = [
            weights["r2"] * parts["r2"][t] + weights["r4"] * parts["r4"][t] for t in range(len(episode.turns))
        ]
        turn_rewards[-1] += weights["r1"] * parts["r1"][0] + weights["r3"] * parts["r3"][0]
        for t, turn in enumerate(episode.turns):
            row = next(rows)
            assert row.completion_ids == turn.completion.completion_ids
            assert row.advantages == pytest.approx(sum(turn_rewards[t:]) - level, rel=1e-5)
            assert row.returns == pytest.approx(row.advantages, rel=1e-6) and not row.values.any()
    assert next(rows, None) is None
    later = ppo.annotate(ragged_groups()[:1], engine)
    assert later.state["level"] == level
    assert later.rows[0].returns == pytest.approx(later.rows[0].advantages)


def test_the_coefficient_follows_the_kl():
    """Beta rises by at most a fifth of `n / horizon` if the KL is above target, else it falls (Ziegler et al.)."""
    config = settings({"kl_target": 1e-6, "kl_horizon": 30}, beta=BETA)
    engine, ppo = make_engine(config), PPO(config)
    assert ppo.state["beta"] == BETA
    annotation = ppo.annotate(ragged_groups(), engine)
    assert annotation.metrics["kl_coef"] == BETA and annotation.metrics["kl"] > 0
    ppo.state = annotation.state
    assert ppo.state["beta"] == pytest.approx(BETA * (1 + 0.2 * 3 / 30))
    resumed = PPO(config)
    resumed.state = dict(ppo.state)
    rows = resumed.annotate(ragged_groups(), engine).rows
    assert np.unique(np.concatenate([row.kl for row in rows])) == pytest.approx(ppo.state["beta"])
    far = PPO(settings({"kl_target": 1e6, "kl_horizon": 30}, beta=BETA))
    assert far.annotate(ragged_groups(), engine).state["beta"] == pytest.approx(BETA * (1 - 0.2 * 3 / 30))
    fixed = PPO(settings(beta=BETA))
    assert fixed.annotate(ragged_groups(), engine).state["beta"] == BETA


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_kl_uses_the_log_probs_of_the_ratio(kl_in):
    config = settings(beta=BETA, kl_in=kl_in)
    engine, kl = make_engine(config), {}
    rows = PPO(config).annotate(ragged_groups(), engine).rows
    for old, logprobs in (
        ("sampled", [row.logprobs for row in rows]),
        ("recomputed", engine.forward(rows)),
    ):
        ppo = PPO(settings(beta=BETA, kl_in=kl_in, old_logprobs=old))
        kl |= ppo.annotate(ragged_groups(), engine).metrics
        gaps = [float((row_logprobs - row.reference).sum()) for row_logprobs, row in zip(logprobs, rows, strict=True)]
        assert kl["kl"] == pytest.approx(sum(gaps) / len(episodes()), rel=1e-5)
        kl[old] = kl["kl"]
    assert abs(kl["sampled"] - kl["recomputed"]) > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "grpo", "ppo": {}}, "ppo: has no effect with algorithm=grpo"),
        ({"ppo": {"kl_target": 1.0}}, "kl_target: beta follows it"),
        ({"ppo": {"kl_horizon": 5.0}}, "kl_horizon: has no effect"),
        ({"scale_rewards": "group"}, "ppo compares no rollouts"),
        ({"loss_type": "dr_grpo"}, "loss_type: ppo's clipped loss is a mean over tokens"),
        ({"loss_type": "cispo"}, "loss_type: ppo's clipped loss is a mean over tokens"),
        ({"importance_sampling_level": "sequence"}, "an advantage a token, so a ratio a token"),
        ({"algorithm": "grpo", "ppo": None, "group_size": 1}, "at least 2"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        settings(**changes)


def test_choosing_ppo_gives_its_vetted_settings():
    config = TrainConfig(out="unused", algorithm="ppo", learning_rate=4e-4)
    assert (config.sampling.group_size, config.tasks_per_step, config.loss.loss_type) == (1, 64, "dapo")
    assert TrainConfig(out="unused", algorithm="ppo", group_size=8).sampling.group_size == 8
    config_with_ppo = settings({"gamma": 0.9})
    assert TrainConfig.model_validate_json(config_with_ppo.model_dump_json()) == config_with_ppo, (
        "as config.yaml of a run has it"
    )
    assert PPO(config).value_learning_rate == pytest.approx(10 * config.optimizer.learning_rate)
    assert load_config(TrainConfig, "ppo") == load_config(
        TrainConfig, "demo", {"algorithm": "ppo", "out": "runs/ppo", "group_size": 1, "tasks_per_step": 64}
    )
