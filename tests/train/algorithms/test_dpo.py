"""DPO over rollouts: its gradient against float64 from groups to weights, pairs that stay together, whole runs."""

from __future__ import annotations

from dataclasses import replace

import oracle
import pytest
import torch
from runs import lines
from safetensors.torch import load_file
from test_algorithms_float64 import annotated, bare_rows, engine, found_gradient, groups, nets, settings

from memalpha.config import TrainConfig, training_config
from memalpha.errors import ConfigError
from memalpha.train.algorithms.dpo import DPO
from memalpha.train.api import train
from memalpha.types import TrajectoryGroup

WAYS = {
    "sigmoid": {"beta": 0.3},
    "cdpo": {"beta": 0.3, "label_smoothing": 0.15},
    "ipo": {"beta": 0.3, "loss_type": "ipo"},
    "reference-free": {"beta": 0.05, "reference_free": True},
}


def pairs(kind: str) -> list[tuple[list[oracle.Row], list[oracle.Row]]]:
    """(chosen rows, rejected rows) of each group: its rollouts of the highest and the lowest total."""
    found = []
    for group, rows in zip(groups(kind), bare_rows(kind), strict=True):
        totals = [trajectory.reward.total for trajectory in group.trajectories]
        found.append((rows[totals.index(max(totals))], rows[totals.index(min(totals))]))
    return found


@pytest.mark.parametrize(("way", "kind"), [*((way, "qwen") for way in WAYS), ("sigmoid", "adapters"), ("ipo", "llama")])
def test_the_gradient_is_that_of_whole_trajectories(way, kind):
    """Sides of one to four contexts, whose log-probs add up; however rows are split into micro-batches."""
    changes = WAYS[way]
    net = nets(kind)[2]
    ipo = changes.get("loss_type") == "ipo"
    expected_loss = oracle.trajectory_preferences(
        net,
        pairs(kind),
        changes["beta"],
        changes.get("loss_type", "sigmoid"),
        smoothing=changes.get("label_smoothing", 0.0),
        reference_free=changes.get("reference_free", False),
        average=ipo,
    )
    expected = oracle.gradient(expected_loss, net.weights)
    for tokens in (10**9, 150, 1):
        config = settings(algorithm="dpo", dpo=changes, microbatch_tokens=tokens)
        made = engine(config, kind)
        algorithm = DPO(config)
        rows = algorithm.refresh(algorithm.annotate(groups(kind), made), made)
        assert len({len(rows) for rows, _ in pairs(kind)} | {len(rows) for _, rows in pairs(kind)}) > 1
        assert oracle.relative_error(found_gradient(made, rows, net.weights), expected) < 1e-5, tokens
        line = {"loss": -1.0, "old_kl": 0.0, "entropy": 1.0}
        algorithm.finish_step(line)
        assert line["loss"] == pytest.approx(expected_loss.item(), rel=1e-5)
        assert line["pairs"] == 2 and "old_kl" not in line and "entropy" in line


def test_weights_are_those_of_the_moment():
    """A second update on the same rows is weighed anew, from the weights that the first has made."""
    config = settings(algorithm="dpo", dpo={"beta": 0.3})
    made, algorithm = engine(config), DPO(config)
    rows = algorithm.annotate(groups("qwen"), made)
    made.update(algorithm.refresh(rows, made), 1e-3)
    again = algorithm.refresh(rows, made)
    net = oracle.Net64(made.model)
    expected = oracle.gradient(oracle.trajectory_preferences(net, pairs("qwen"), 0.3), net.weights)
    assert oracle.relative_error(found_gradient(made, again, net.weights), expected) < 1e-5
    stale = found_gradient(made, annotated(config, engine(config)), net.weights)
    assert oracle.relative_error(stale, expected) > 1e-3


def flat(group: TrajectoryGroup) -> TrajectoryGroup:
    return TrajectoryGroup(
        group.task,
        tuple(replace(one, reward=replace(one.reward, total=0.5)) for one in group.trajectories),
    )


def test_a_task_without_a_pair_gives_no_rows():
    config = settings(algorithm="dpo")
    made, algorithm = engine(config), DPO(config)
    first, second = groups("qwen")
    assert not algorithm.annotate([flat(first), flat(second)], made)
    line = {"tokens": 0}
    algorithm.finish_step(line)
    assert line == {"tokens": 0, "pairs": 0}
    assert {row.task for row in algorithm.annotate([flat(first), second], made)} == {second.task.id}
    wide = settings(algorithm="dpo", dpo={"margin": 100.0})
    assert not DPO(wide).annotate(groups("qwen"), made)


# ----------------------------------------------------------------------------------------------------------- whole runs


def test_a_run_keeps_pairs_together_and_goes_on_bit_for_bit(small, tmp_path, monkeypatch):
    made = []
    refresh = DPO.refresh

    def note(self, samples, score):
        made.append([(row.unit, float(row.advantages[0])) for row in samples])
        return refresh(self, samples, score)

    monkeypatch.setattr(DPO, "refresh", note)
    changes = {"algorithm": "dpo", "dpo": {"beta": 0.2}, "num_iterations": 2, "tasks_per_step": 3, "schedule_steps": 2}
    changes |= {"eval_tasks": 1, "validation_tasks": 1, "save_every": 1}
    whole, parts = small(out=str(tmp_path / "whole"), **changes), small(out=str(tmp_path / "parts"), **changes)
    train(whole)
    assert any(len({unit for unit, _ in rows}) == 1 for rows in made), "a step is split into minibatches"
    for rows in made:
        assert all({side for unit, side in rows if unit == name} == {1.0, -1.0} for name, _ in rows)
    for line in lines(whole.out / "metrics.jsonl"):
        assert 0 <= line["pairs"] <= 3
        assert ("margins" in line) == ("accuracies" in line) == bool(line["pairs"])
    for stop in (1, None):
        train(parts.model_copy(update={"max_steps": stop}))
    one, two = (load_file(run / "checkpoints/step-2/model.safetensors") for run in (whole.out, parts.out))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_step_without_any_pair_changes_nothing(small, monkeypatch):
    settings = small(algorithm="dpo", dpo={"margin": 1e6}, schedule_steps=2)
    train(settings)
    found = lines(settings.out / "metrics.jsonl")
    assert [line["pairs"] for line in found] == [0, 0] and [line["tokens"] for line in found] == [0, 0]
    one, two = (load_file(settings.out / f"checkpoints/step-{step}/model.safetensors") for step in (0, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(
            ({name: value}, f"{name}: has no effect with algorithm=dpo")
            for name, value in (
                ("epsilon", 0.1),
                ("loss_type", "dapo"),
                ("beta", 0.1),
                ("entropy_coef", 0.1),
                ("scale_rewards", "none"),
                ("importance_sampling_level", "sequence"),
                ("old_logprobs", "recomputed"),
            )
        ),
        ({"kl_in": "reward"}, "kl_in: has no effect with algorithm=dpo"),
        ({"dpo": {"loss_type": "ipo", "label_smoothing": 0.1}}, "label_smoothing: has no effect with loss_type=ipo"),
        ({"dpo": {"margin": -1}}, "dpo.margin: "),
        ({"algorithm": "grpo", "dpo": {}}, "dpo: has no effect with algorithm=grpo"),
    ],
)
def test_impossible_settings_are_refused(changes, told):
    with pytest.raises(ConfigError, match=told):
        training_config("demo", {"algorithm": "dpo", **changes})


def test_any_configuration_takes_the_algorithm():
    settings = training_config("demo", {"algorithm": "dpo", "dpo": {"beta": 0.5}})
    assert isinstance(settings, TrainConfig) and settings.dpo is not None and settings.dpo.beta == 0.5
    assert isinstance(training_config("dpo"), TrainConfig) and training_config("dpo").algorithm == "dpo"
