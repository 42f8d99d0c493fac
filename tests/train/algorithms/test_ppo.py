"""PPO from rewards to the gradient of the second epoch against float64, on ragged episodes; KL control; settings.

`expected` is written from the formulas, one row and one token at a time, over the model's own forward pass and whole
logits; it shares no code with what it tests.
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
from memalpha.train.learner.losses import LossSettings
from memalpha.types import Chunk, Completion, Reward, SampleRequest, Task, Trajectory, TrajectoryGroup, Turn

HEAT, BETA, BONUS = 0.75, 0.2, 0.05
LOW, HIGH, CLIP = 0.1, 0.3, 0.15
EOS = 0


def settings(ppo=None, **changes) -> TrainConfig:
    base = {"out": "unused", "algorithm": "ppo", "epsilon": LOW, "epsilon_high": HIGH, "warmup_steps": 0}
    base |= {"temperature": HEAT, "microbatch_tokens": 150, "head_tokens": 7, "ppo": ppo or {}}
    return TrainConfig(**{**base, **changes})


@lru_cache
def ragged_groups() -> tuple[TrajectoryGroup, ...]:
    """Groups of two and of one; episodes of one to three turns; a turn of only EOS, and turns cut at the limit."""
    policy, random, groups = tiny_policy(layers=1), np.random.default_rng(0), []
    for number, lengths in enumerate([(1, 3), (2,)]):
        task, trajectories = Task(id=f"t{number}", chunks=(Chunk(text="x"),) * 3), []
        for rollout, count in enumerate(lengths):
            requests = [
                SampleRequest(
                    ({"role": "user", "content": "x" * (9 + 3 * number + 4 * turn)},),
                    key=(number, rollout, turn),
                    temperature=HEAT,
                    max_new_tokens=4 + rollout,
                )
                for turn in range(count)
            ]
            said = [noisy(completion, random) for completion in policy.sample(requests)]
            if count == 3:
                said[1] = replace(said[1], completion_ids=(EOS,), logprobs=(-5.0,), text="", stop_reason="stop")
            r1, r3 = random.normal(size=2).tolist()
            own = random.normal(size=(2, count))
            components = {"r1": (r1,) * count, "r3": (r3,) * count, "r2": tuple(own[0]), "r4": tuple(own[1])}
            weights = {"r1": 1.0, "r2": 1.0, "r3": 0.5, "r4": 0.1}
            turns = tuple(sum(weights[name] * values[at] for name, values in components.items()) for at in range(count))
            reward = Reward(turns=turns, components=components, weights=weights, total=float(np.mean(turns)))
            made = tuple(Turn(at, completion) for at, completion in enumerate(said))
            trajectories.append(Trajectory(task, rollout, made, (), reward))
        groups.append(TrajectoryGroup(task, tuple(trajectories)))
    stops = [turn.completion.stop_reason for group in groups for one in group.trajectories for turn in one.turns]
    assert set(stops) == {"stop", "length"}
    return tuple(groups)


def noisy(completion: Completion, random: np.random.Generator) -> Completion:
    """Sampled a little off-policy, so that ratios are not 1 at first."""
    noise = 0.3 * random.normal(size=len(completion.logprobs))
    return replace(completion, logprobs=tuple(np.asarray(completion.logprobs) + noise))


def engine(config: TrainConfig, *, lora: bool = False) -> Engine:
    """Away from its reference, with values that are not 0."""
    model = tiny_model(layers=1)
    adapted = add_lora(model, LoraConfig(r=4), "tiny") if lora else model
    rate = PPO(config).value_learning_rate
    made = Engine(
        adapted, config, LossSettings.from_config(config), reference=config.loss.beta > 0, value_learning_rate=rate
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.trainable.values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return made


def score64(model, head, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, entropies and values of a turn's tokens, from whole float64 logits and states."""
    said = turn.completion
    out = model(input_ids=torch.tensor([said.prompt_ids + said.completion_ids]), output_hidden_states=True)
    before = slice(len(said.prompt_ids) - 1, -1)
    table = torch.log_softmax(out.logits[0, before] / HEAT, -1)
    states = out.hidden_states[-1][0, before]
    values = states @ head["value_head.weight"][0] + head["value_head.bias"]
    return table[range(len(table)), said.completion_ids], -(table.exp() * table).sum(-1), values


def episodes() -> list[Trajectory]:
    return [trajectory for group in ragged_groups() for trajectory in group.trajectories]


def expected(begin, now, config: TrainConfig) -> torch.Tensor:
    """The gradient at `now`, (model, head) in float64, of samples annotated at `begin`."""
    own, start = config.ppo, tiny_model(layers=1).double()
    old, old_values, advantages, returns, earnings = {}, {}, {}, {}, {}
    for e, episode in enumerate(episodes()):
        weights, components, flat, earned = episode.reward.weights, episode.reward.components, [], []
        for t, turn in enumerate(episode.turns):
            with torch.no_grad():
                logprobs, _, values = score64(*begin, turn)
                reference = torch.log_softmax(
                    start(input_ids=torch.tensor([turn.completion.prompt_ids + turn.completion.completion_ids])).logits[
                        0, len(turn.completion.prompt_ids) - 1 : -1
                    ]
                    / HEAT,
                    -1,
                )[range(len(logprobs)), turn.completion.completion_ids]
            sampled = torch.tensor(turn.completion.logprobs, dtype=torch.float64)
            old[e, t] = logprobs if config.loss.old_logprobs == "recomputed" else sampled
            old_values[e, t] = values
            for i in range(len(sampled)):
                flat.append((e, t, i))
                penalty = (
                    config.loss.beta * float(old[e, t][i] - reference[i]) if config.loss.kl_in == "reward" else 0.0
                )
                earned.append(-penalty)
            earned[-1] += weights["r2"] * components["r2"][t] + weights["r4"] * components["r4"][t]
        earned[-1] += weights["r1"] * components["r1"][0] + weights["r3"] * components["r3"][0]
        earnings[e] = flat, earned
    level = np.mean(
        [
            sum(own.gamma ** (j - k) * earned[j] for j in range(k, len(earned)))
            for _, earned in earnings.values()
            for k in range(len(earned))
        ]
    )
    for flat, earned in earnings.values():
        values = [float(old_values[e, t][i]) + level for e, t, i in flat] + [0.0]
        deltas = [r + own.gamma * values[k + 1] - values[k] for k, r in enumerate(earned)]
        for k, place in enumerate(flat):
            advantages[place] = sum((own.gamma * own.lam) ** (j - k) * deltas[j] for j in range(k, len(deltas)))
            returns[place] = advantages[place] + values[k] - level
    if own.whiten_advantages:
        every = np.array(list(advantages.values()))
        advantages = {place: (a - every.mean()) / every.std() for place, a in advantages.items()}
    loss, tokens = torch.zeros((), dtype=torch.float64), len(advantages)
    for (e, t), before in old.items():
        new, entropy, values = score64(*now, episodes()[e].turns[t])
        for i in range(len(before)):
            ratio, a, target = (new[i] - before[i]).exp(), advantages[e, t, i], returns[e, t, i]
            surrogate = torch.min(ratio * a, ratio.clip(1 - LOW, 1 + HIGH) * a)
            errors = (values[i] - target) ** 2
            if own.cliprange_value is not None:
                near = values[i].clip(old_values[e, t][i] - CLIP, old_values[e, t][i] + CLIP)
                errors = torch.max(errors, (near - target) ** 2)
            loss = loss - surrogate - config.loss.entropy_coef * entropy[i] + own.vf_coef * 0.5 * errors
    (loss / tokens).backward()
    return torch.cat(
        [part.grad.flatten() for part in now[0].parameters() if part.requires_grad]
        + [part.grad.flatten() for part in now[1].values()]
    )


def doubled(made: Engine):
    head = {name: part.detach().double().requires_grad_() for name, part in made.value_head.items()}
    return copy.deepcopy(made.model).double(), head


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("ppo", "changes"),
    [
        ({"lam": 0.9, "gamma": 0.97, "cliprange_value": CLIP}, {"entropy_coef": BONUS}),
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
    made = engine(config, lora=lora)
    begin = doubled(made)
    samples = PPO(config).annotate(ragged_groups(), made)
    if config.loss.old_logprobs == "recomputed":
        samples, _ = made.recompute_old_logprobs(samples)
    first = made.update(samples, 3e-3)
    assert first["value_loss"] > 0 and (first["old_max"] < 1e-5) == (config.loss.old_logprobs == "recomputed")
    second = made.forward_backward(made.normalized(samples))
    assert second["clipped"] > 0
    ours = torch.cat([parameter.grad.flatten().double() for parameter in made.trainable.values()])
    theirs = expected(begin, doubled(made), config)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_rewards_stand_at_the_last_tokens_of_turns_and_episode():
    """With values 0, lam 1 and no discount a token's return is all that its episode earns from it on."""
    config = settings({"lam": 1.0, "whiten_advantages": False})
    made = Engine(tiny_model(layers=1), config, value_learning_rate=1e-3)
    ppo = PPO(config)
    rows = iter(ppo.annotate(ragged_groups(), made))
    assert ppo.state["level"] is None, "a step that is given up has changed nothing"
    ppo.finish_step({})
    level = ppo.state["level"]
    for episode in episodes():
        weights, parts = episode.reward.weights, episode.reward.components
        left = [weights["r2"] * parts["r2"][t] + weights["r4"] * parts["r4"][t] for t in range(len(episode.turns))]
        left[-1] += weights["r1"] * parts["r1"][0] + weights["r3"] * parts["r3"][0]
        for t, turn in enumerate(episode.turns):
            row = next(rows)
            assert row.completion_ids == turn.completion.completion_ids
            assert row.advantages == pytest.approx(sum(left[t:]) - level, rel=1e-5)
            assert row.returns == pytest.approx(row.advantages, rel=1e-6) and not row.values.any()
    assert next(rows, None) is None
    later = ppo.annotate(ragged_groups()[:1], made)
    ppo.finish_step({})
    assert ppo.state["level"] == level
    assert later[0].returns == pytest.approx(later[0].advantages)


def test_the_coefficient_follows_the_kl():
    """Ziegler et al.: up by at most a fifth of what `n / horizon` allows when the KL is above target, else down."""
    config = settings({"kl_target": 1e-6, "kl_horizon": 30}, beta=BETA)
    made, ppo = engine(config), PPO(config)
    assert ppo.state["beta"] == BETA
    ppo.annotate(ragged_groups(), made)
    line = {}
    ppo.finish_step(line)
    assert line["kl_coef"] == BETA and line["kl"] > 0
    assert ppo.state["beta"] == pytest.approx(BETA * (1 + 0.2 * 3 / 30))
    again = PPO(config)
    again.state = dict(ppo.state)
    rows = again.annotate(ragged_groups(), made)
    assert np.unique(np.concatenate([row.kl for row in rows])) == pytest.approx(ppo.state["beta"])
    far = PPO(settings({"kl_target": 1e6, "kl_horizon": 30}, beta=BETA))
    far.annotate(ragged_groups(), made)
    far.finish_step({})
    assert far.state["beta"] == pytest.approx(BETA * (1 - 0.2 * 3 / 30))
    fixed = PPO(settings(beta=BETA))
    fixed.annotate(ragged_groups(), made)
    fixed.finish_step(line)
    assert fixed.state["beta"] == BETA


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_kl_is_that_of_the_log_probs_that_the_ratio_has(kl_in):
    config = settings(beta=BETA, kl_in=kl_in)
    made, kl = engine(config), {}
    rows = PPO(config).annotate(ragged_groups(), made)
    for old, logprobs in (
        ("sampled", [row.logprobs for row in rows]),
        ("recomputed", made.forward(rows)),
    ):
        ppo = PPO(settings(beta=BETA, kl_in=kl_in, old_logprobs=old))
        ppo.annotate(ragged_groups(), made)
        ppo.finish_step(kl)
        gaps = [float((own - row.reference).sum()) for own, row in zip(logprobs, rows, strict=True)]
        assert kl["kl"] == pytest.approx(sum(gaps) / len(episodes()), rel=1e-5)
        kl[old] = kl["kl"]
    assert abs(kl["sampled"] - kl["recomputed"]) > 0.01


@pytest.mark.parametrize(
    ("changes", "said"),
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
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        settings(**changes)


def test_picking_ppo_is_its_vetted_setting():
    config = TrainConfig(out="unused", algorithm="ppo")
    assert (config.sampling.group_size, config.tasks_per_step, config.loss.loss_type) == (1, 64, "dapo")
    assert TrainConfig(out="unused", algorithm="ppo", group_size=8).sampling.group_size == 8
    whole = settings({"gamma": 0.9})
    assert TrainConfig.model_validate_json(whole.model_dump_json()) == whole, "as config.yaml of a run has it"
    assert PPO(config).value_learning_rate == pytest.approx(10 * config.optimizer.learning_rate)
    assert load_config(TrainConfig, "ppo") == load_config(
        TrainConfig, "demo", {"algorithm": "ppo", "out": "runs/ppo", "group_size": 1, "tasks_per_step": 64}
    )
