"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) with a value head on the policy's trunk.

    A_t, R_t = GAE over all tokens of a rollout, in order, across its contexts                  (`gae`, 1506.02438)
    loss     = mean over tokens of  - min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps_high) A_t)
                                    + vf_coef max((V_t - R_t)^2, (clip(V_t, V_old - c, V_old + c) - R_t)^2) / 2
                                    - entropy_coef H_t  [+ beta k_t with kl_in=loss]

Details that matter, and deviations:

* An episode is a rollout over all chunks, because a turn's writes pay in later contexts. The value after a turn's last
  token is that before the next turn's first token, and 0 after the last turn. Turns cut at `max_new_tokens` count too.
* A turn's own components (r2, r4) are rewards of its last token, shared ones (r1, r3) of the episode's last token.
* `kl_in=reward`: each token costs `beta` times its KL estimate (`kl_estimator=k1` is usual), which V then predicts too.
* `beta` is fixed, or follows an episode's KL with `kl_target` (Ziegler et al. 2019, 1909.08593, section 2.2):
  beta *= 1 + clip((KL - target) / target, -0.2, 0.2) n / horizon after n rollouts. Checkpoints keep it.
* V is a level plus a linear map of the hidden state that predicts a token. The map starts at 0, is float32 and has its
  own learning rate. The level is the mean return of the first step; without it the value loss drowns the policy for
  many steps (`eval/LOG.md`). Policy and V share all layers; `vf_coef` weights V's pull on them.
* Advantages are whitened over the tokens of a step, not of a minibatch; returns are not. Values, advantages and old
  log-probs are those before the step's first update, in all epochs (`num_iterations`).
* There are no groups: several rollouts of a task are several episodes; as many different tasks teach more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from memalpha.config import ReinforcementConfig
from memalpha.config.algorithms import PPOConfig
from memalpha.train.algorithms.advantages import split_reward
from memalpha.train.algorithms.base import (
    Algorithm,
    Annotation,
    Scorer,
    add_reference_kl,
    build_rows,
    compute_old_logprobs,
)
from memalpha.train.learner.losses import LossSettings
from memalpha.types import Trajectory, TrajectoryGroup


class PPO(Algorithm):
    """PPO with one row per turn and one advantage per token. `state`: the KL coefficient and the value level."""

    def __init__(self, config: ReinforcementConfig) -> None:
        super().__init__(config)
        self.settings = config.ppo or PPOConfig()
        self.state = {"beta": config.loss.beta, "level": None}

    @property
    def loss_settings(self) -> LossSettings:
        """Settings of the loss, with the clip range of values."""
        return replace(super().loss_settings, cliprange_value=self.settings.cliprange_value)

    @property
    def value_learning_rate(self) -> float:
        """Learning rate of the value head."""
        return self.settings.value_learning_rate or 10 * self.config.optimizer.peak_rate

    def annotate(self, groups: Sequence[TrajectoryGroup[Any]], score: Scorer) -> Annotation:
        """Return one row per turn, in the order of groups, trajectories, turns, with values, returns and advantages.

        Metrics are those of value function and KL; the next state has the adapted KL coefficient and the value level.
        """
        settings, beta, level = self.settings, self.state["beta"], self.state["level"]
        config = self.config.replace(beta=beta)
        rows = build_rows(groups, config.loss.entropy_coef)
        old = compute_old_logprobs(rows, score, config) if beta else []
        rows, costs = add_reference_kl(rows, score, config, old)
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        row_values = score.values(rows)
        values = _join_turns(row_values, episodes)
        rewards = token_rewards(episodes, costs or [np.zeros_like(row) for row in row_values])
        if level is None:
            discounted = [gae(row, np.zeros_like(row), gamma=settings.gamma, lam=1.0)[1] for row in rewards]
            level = float(np.concatenate(discounted).mean())
        estimates = [
            gae(r, v + level, gamma=settings.gamma, lam=settings.lam) for r, v in zip(rewards, values, strict=True)
        ]
        advantages, returns = [a for a, _ in estimates], [r - level for _, r in estimates]
        metrics = {"explained_variance": explained_variance(values, returns)}
        if beta:
            gaps = (
                logprobs - row.reference for logprobs, row in zip(old, rows, strict=True) if row.reference is not None
            )
            kl = sum(float(gap.sum()) for gap in gaps) / len(episodes)
            metrics |= {"kl": kl, "kl_coef": beta}
            if settings.kl_target is not None:
                error = float(np.clip(kl / settings.kl_target - 1.0, -0.2, 0.2))
                beta *= 1.0 + error * len(episodes) / settings.kl_horizon
        boundaries = np.cumsum([len(row) for row in row_values])[:-1]
        targets = [whiten(advantages), returns]
        per_row = [np.split(np.concatenate(part).astype(np.float32), boundaries) for part in targets]
        weight = np.float32(settings.vf_coef)
        rows = [
            replace(row, advantages=a, values=v, returns=r, vf=row.pg * weight)
            for row, v, a, r in zip(rows, row_values, *per_row, strict=True)
        ]
        return Annotation(rows, metrics, {"beta": beta, "level": level})


def token_rewards(episodes: Sequence[Trajectory[Any]], costs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return each token's reward minus its cost, one array per episode.

    `costs` has one array per turn, in the order of episodes and turns.
    """
    rows = [-np.asarray(cost, dtype=np.float64) for cost in costs]
    remaining = iter(rows)
    for episode in episodes:
        shared, turn_rewards = split_reward(episode)
        for value, row in zip(turn_rewards, islice(remaining, len(turn_rewards)), strict=True):
            row[-1] += value
        row[-1] += shared
    return _join_turns(rows, episodes)


def _join_turns(rows: Iterable[np.ndarray], episodes: Sequence[Trajectory[Any]]) -> list[np.ndarray]:
    """Concatenate arrays of turns into one array per episode."""
    remaining = iter(rows)
    return [np.concatenate(list(islice(remaining, len(episode.turns)))) for episode in episodes]


def gae(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages (T,) and returns (T,) of one episode's tokens, float64 (Schulman et al. 2016, 1506.02438).

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)              V(s_T) = 0
        A_t     = sum_{l = 0}^{T - t - 1} (gamma lam)^l delta_{t + l}
        R_t     = A_t + V(s_t)                                 TD(lam) return, the target of the value function

    lam = 0 gives the one-step error, lam = 1 the discounted rewards to come minus the value. An episode is every token
    that one rollout sampled, in order, across all its contexts. So the state after a turn's last token is the state
    before the next turn's first token.

    Args:
        rewards: Reward of each token (T,).
        values: Value before each token (T,).
        gamma: Discount per token.
        lam: Trade-off between bias (0) and variance (1).
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    deltas = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    advantages, running = np.empty_like(deltas), 0.0
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + gamma * lam * running
        advantages[t] = running
    return advantages, advantages + values


def whiten(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Shift and scale rows to mean 0 and standard deviation 1 over all tokens together; equal values become 0."""
    tokens = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
    mean, deviation = tokens.mean(), tokens.std()
    return [(row - mean) / (deviation + 1e-8) for row in rows]


def explained_variance(values: Sequence[np.ndarray], returns: Sequence[np.ndarray]) -> float:
    """Return 1 - Var(R - V) / Var(R) over all tokens; 0 if all returns are equal.

    1 is a perfect value function, 0 one without information, and a negative result one that misleads.
    """
    target = np.concatenate([np.asarray(row, dtype=np.float64) for row in returns])
    error = target - np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
    return 1.0 - float(error.var() / target.var()) if target.var() > 0 else 0.0
