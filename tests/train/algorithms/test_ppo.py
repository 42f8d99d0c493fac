"""PPO: the level of values, KL control, advantage estimation, settings. Its gradient: `test_algorithms_float64`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from float64_groups import groups, make_engine, settings

from memalpha.config import TrainConfig, training_config
from memalpha.train.algorithms.ppo import PPO
from memalpha.types import Trajectory, TrajectoryGroup, Turn

BETA, EPISODES = 0.2, 7


def ppo_settings(ppo=None, **changes) -> TrainConfig:
    return settings(**{"algorithm": "ppo", "ppo": ppo or {}, **changes})


def test_the_level_is_that_of_the_first_step():
    """With values 0, lam 1 and no discount, returns are rewards to come minus the level."""
    config = ppo_settings({"lam": 1.0})
    engine, ppo = make_engine(config), PPO(config)
    annotation = ppo.annotate(groups("qwen"), engine)
    assert ppo.state["level"] is None, "an interrupted step changes nothing"
    ppo.state = annotation.state
    later = ppo.annotate(groups("qwen")[:1], engine)
    assert later.state["level"] == annotation.state["level"] != 0.0
    for row, first in zip(later.rows, annotation.rows, strict=False):
        assert (row.returns == first.returns).all() and not row.values.any()


def likelier_groups() -> list[TrajectoryGroup]:
    """Return the groups with higher log-probs of the sampler, so that its KL to the start is above 0."""

    def likelier(turn: Turn) -> Turn:
        logprobs = tuple(value + 0.1 for value in turn.completion.logprobs)
        return replace(turn, completion=replace(turn.completion, logprobs=logprobs))

    def changed(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, turns=tuple(map(likelier, trajectory.turns)))

    return [replace(group, trajectories=tuple(map(changed, group.trajectories))) for group in groups("qwen")]


def test_the_coefficient_follows_the_kl():
    """Beta rises by at most a fifth of `n / horizon` if the KL is above target, else it falls (Ziegler et al.)."""
    groups = likelier_groups()
    config = ppo_settings({"kl_target": 1e-6, "kl_horizon": 30}, beta=BETA)
    engine, ppo = make_engine(config), PPO(config)
    assert ppo.state["beta"] == BETA
    annotation = ppo.annotate(groups, engine)
    assert annotation.metrics["kl_coef"] == BETA and annotation.metrics["kl"] > 0
    ppo.state = annotation.state
    assert ppo.state["beta"] == pytest.approx(BETA * (1 + 0.2 * EPISODES / 30))
    resumed = PPO(config)
    resumed.state = dict(ppo.state)
    rows = resumed.annotate(groups, engine).rows
    assert np.unique(np.concatenate([row.kl for row in rows])) == pytest.approx(ppo.state["beta"])
    far = PPO(ppo_settings({"kl_target": 1e6, "kl_horizon": 30}, beta=BETA))
    assert far.annotate(groups, engine).state["beta"] == pytest.approx(BETA * (1 - 0.2 * EPISODES / 30))
    fixed = PPO(ppo_settings(beta=BETA))
    assert fixed.annotate(groups, engine).state["beta"] == BETA


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_kl_uses_the_log_probs_of_the_ratio(kl_in):
    config = ppo_settings(beta=BETA, kl_in=kl_in)
    engine, kl = make_engine(config), {}
    rows = PPO(config).annotate(groups("qwen"), engine).rows
    for old, logprobs in (("sampled", [row.logprobs for row in rows]), ("recomputed", engine.forward(rows))):
        ppo = PPO(ppo_settings(beta=BETA, kl_in=kl_in, old_logprobs=old))
        kl |= ppo.annotate(groups("qwen"), engine).metrics
        gaps = [float((row_logprobs - row.reference).sum()) for row_logprobs, row in zip(logprobs, rows, strict=True)]
        assert kl["kl"] == pytest.approx(sum(gaps) / EPISODES, rel=1e-5)
        kl[old] = kl["kl"]
    assert abs(kl["sampled"] - kl["recomputed"]) > 0.01


def test_ppo_alone_learns_from_single_rollouts():
    assert training_config("demo", {"algorithm": "ppo", "group_size": 1}).sampling.group_size == 1
