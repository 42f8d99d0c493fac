"""DPO over rollouts: the gradient in float64 from groups to weights, pairs that stay together, full runs."""

from __future__ import annotations

import oracle
import pytest
from float64_groups import annotate_rows, engine_gradient, groups, make_engine, nets, oracle_rows, settings
from runs import lines

from memalpha.train.algorithms.dpo import DPO
from memalpha.train.api import train

VARIANTS = {
    "sigmoid": {"beta": 0.3},
    "cdpo": {"beta": 0.3, "label_smoothing": 0.15},
    "ipo": {"beta": 0.3, "loss_type": "ipo"},
    "reference-free": {"beta": 0.05, "reference_free": True},
}


def pairs(kind: str) -> list[tuple[list[oracle.Row], list[oracle.Row]]]:
    """Return (chosen rows, rejected rows) of each group, by highest and lowest total reward."""
    result = []
    for group, rows in zip(groups(kind), oracle_rows(kind), strict=True):
        totals = [trajectory.reward.total for trajectory in group.trajectories]
        result.append((rows[totals.index(max(totals))], rows[totals.index(min(totals))]))
    return result


@pytest.mark.parametrize(
    ("variant", "kind"), [*((variant, "qwen") for variant in VARIANTS), ("sigmoid", "adapters"), ("ipo", "llama")]
)
def test_the_gradient_covers_whole_trajectories(variant, kind):
    """Log-probs of a side's one to four contexts add up, in several micro-batches."""
    changes = VARIANTS[variant]
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
    config = settings(algorithm="dpo", dpo=changes, microbatch_tokens=150)
    engine = make_engine(config, kind)
    algorithm = DPO(config)
    annotation = algorithm.annotate(groups(kind), engine)
    rows = algorithm.refresh(annotation.rows, engine)
    assert len({len(rows) for rows, _ in pairs(kind)} | {len(rows) for _, rows in pairs(kind)}) > 1
    assert oracle.relative_error(engine_gradient(engine, rows, net.weights), expected) < 1e-5
    metrics = {"loss": -1.0, "old_kl": 0.0, "entropy": 1.0}
    algorithm.finish_step(metrics)
    assert metrics["loss"] == pytest.approx(expected_loss.item(), rel=1e-5)
    assert annotation.metrics == {"pairs": 2} and "old_kl" not in metrics and "entropy" in metrics


def test_refresh_uses_the_current_weights():
    """A second update on the same rows is weighted with the weights after the first."""
    config = settings(algorithm="dpo", dpo={"beta": 0.3})
    engine, algorithm = make_engine(config), DPO(config)
    rows = algorithm.annotate(groups("qwen"), engine).rows
    engine.update(algorithm.refresh(rows, engine), 1e-3)
    second_rows = algorithm.refresh(rows, engine)
    net = oracle.Net64(engine.model)
    expected = oracle.gradient(oracle.trajectory_preferences(net, pairs("qwen"), 0.3), net.weights)
    assert oracle.relative_error(engine_gradient(engine, second_rows, net.weights), expected) < 1e-5
    stale = engine_gradient(engine, annotate_rows(config, make_engine(config)), net.weights)
    assert oracle.relative_error(stale, expected) > 1e-3


# ------------------------------------------------------------------------------------------------------------ full runs


def test_a_run_keeps_pairs_together(small, monkeypatch):
    updates = []
    refresh = DPO.refresh

    def record(self, samples, score):
        updates.append([(row.unit, float(row.advantages[0])) for row in samples])
        return refresh(self, samples, score)

    monkeypatch.setattr(DPO, "refresh", record)
    changes = {"algorithm": "dpo", "dpo": {"beta": 0.2}, "num_iterations": 2, "tasks_per_step": 3, "schedule_steps": 2}
    changes |= {"eval_tasks": 1, "validation_tasks": 1, "save_every": 1}
    config = small(**changes)
    train(config)
    assert any(len({unit for unit, _ in rows}) == 1 for rows in updates), "a step must be split into minibatches"
    for rows in updates:
        assert all({side for unit, side in rows if unit == name} == {1.0, -1.0} for name, _ in rows)
    for line in lines(config.out / "metrics.jsonl"):
        assert 0 <= line["pairs"] <= 3
        assert ("margins" in line) == ("accuracies" in line) == bool(line["pairs"])
