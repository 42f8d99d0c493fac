"""Supervised runs: the loss and gradient of TRL's SFTTrainer, resume bit for bit, every source, refusals."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from run_kinds import small_config
from runs import lines
from tiny import tiny_policy

import memalpha
from memalpha.config import SFTConfig, TrainConfig, merge, training_config
from memalpha.errors import CheckpointError, ConfigError, DataError, TrainingError
from memalpha.policy.load import load_policy
from memalpha.report.page import write_report
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.load import load_tasks
from memalpha.train.api import train
from memalpha.train.data.samples import cross_entropy_sample
from memalpha.train.learner.engine import Engine, normalize
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.trainers import sft


@pytest.fixture
def supervised(policy_path, tmp_path):
    """A function: overrides -> configuration of a run of a second on 20 short rows, in `tmp_path / "run"`."""
    return partial(small_config, SFTConfig, policy_path, tmp_path)


@pytest.fixture
def sampling(supervised, ending_policy):
    """The same for `source=best`."""
    base = {"source": "best", "policy": str(ending_policy), "agent": {"max_new_tokens": 24}, "group_size": 3}
    return lambda **changes: supervised(**merge(base, changes))


# ------------------------------------------------------------------------------------------------------ against TRL


def test_loss_and_gradient_are_those_of_trl_s_sft_trainer(tmp_path, monkeypatch):
    """On the same token rows, with a completion mask: one batch of rows of different lengths, float32."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig as TheirConfig
    from trl import SFTTrainer

    disable_progress_bars()
    rng = np.random.default_rng(0)
    lengths = zip(rng.integers(3, 40, 7), rng.integers(1, 20, 7), strict=True)
    rows = [tuple(rng.integers(3, 250, length).tolist() for length in pair) for pair in lengths]
    theirs, ours = tiny_policy(scale=1.0), tiny_policy(scale=1.0)
    data = Dataset.from_list([{"input_ids": p + c, "completion_mask": [0] * len(p) + [1] * len(c)} for p, c in rows])
    plain = {"report_to": [], "max_length": None, "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    plain |= {"completion_only_loss": True, "disable_tqdm": True}
    arguments = TheirConfig(output_dir=str(tmp_path), per_device_train_batch_size=len(rows), **plain)
    trainer = SFTTrainer(theirs.model, arguments, train_dataset=data, processing_class=theirs.tokenizer)
    [batch] = trainer.get_train_dataloader()
    expected = trainer.compute_loss(trainer.model, batch)
    expected.backward()

    learner = Engine(ours.model, training_config(TrainConfig(out=tmp_path, microbatch_tokens=100)))
    samples = normalize([cross_entropy_sample(p, c) for p, c in rows], "token")
    stats = learner.forward_backward(samples)
    assert stats["loss"] == pytest.approx(float(expected), rel=1e-5)
    reference = {name: parameter.grad for name, parameter in theirs.model.named_parameters()}
    for name, parameter in learner.trainable.items():
        assert parameter.grad is not None and reference[name] is not None
        worst = (parameter.grad - reference[name]).abs().max() / reference[name].abs().max()
        assert worst <= 1e-5, (name, float(worst))


# ------------------------------------------------------------------------------------------------------------- runs


def test_a_run_writes_what_is_promised(supervised):
    agent = {"max_new_tokens": 12}
    settings = supervised(evaluate=True, eval_tasks=2, agent=agent)
    summary = memalpha.train(settings)
    run = settings.out
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["tasks"] == 2 and summary["questions"] == len(lines(run / "eval" / "after.jsonl"))
    assert summary["after"]["validation_loss"] < summary["before"]["validation_loss"]
    assert {"accuracy", "validation_loss"} <= summary["before"].keys()
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(4))
    assert [line.get("validation_loss") is not None for line in metrics] == [False, True] * 2
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
    assert summary["tokens"] == sum(line["tokens"] for line in metrics)
    assert (summary["rows"], summary["validation_rows"]) == (18, 2)
    best = load_policy(run / "checkpoints" / "best")
    assert best.name.endswith("best") and "Cross-entropy" in write_report(run).read_text()


# ---------------------------------------------------------------------------------------------------------- sources


def test_the_best_rollouts_are_its_own_samples(sampling, capfd):
    settings = sampling(rounds=2, tasks=3)
    summary = train(settings)
    output = capfd.readouterr().err
    assert all(f"round {number}/2: " in output for number in (1, 2)) and "rows of the best rollouts of" in output
    run = settings.out
    policies = {0: load_policy(settings.policy), 2: load_policy(run / "checkpoints" / "step-2")}
    ends = policies[0].eos_ids  # type: ignore[attr-defined]
    rounds = {step: [row for row in lines(run / "rows.jsonl") if row["step"] == step] for step in policies}
    assert all(rounds.values()) and not {r["task"] for r in rounds[0]} & {r["task"] for r in rounds[2]}
    for rows in rounds.values():
        assert len({(row["task"], row["rollout"]) for row in rows}) == len({row["task"] for row in rows}), "one a task"
        assert not any(row["validation"] for row in rows) and all(row["completion_ids"][-1] in ends for row in rows)
    sampled = [line for line in lines(run / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in sampled] == [0, 2]
    assert "validation_accuracy" in lines(run / "metrics.jsonl")[1] and summary["before"] == {}


def test_rollouts_that_are_all_alike_are_refused(sampling, monkeypatch):
    monkeypatch.setattr(sft, "best_rollouts", lambda groups: [])
    with pytest.raises(TrainingError, match="source=best: of 4 tasks none has a rollout that is better"):
        train(sampling())


def test_an_earlier_run_s_rollouts(small, supervised, ending_policy, tmp_path):
    changes = {"keep_tokens": True, "max_steps": 2, "agent": {"max_new_tokens": 24}}
    earlier = small(out=str(tmp_path / "earlier"), policy=str(ending_policy), **changes)
    train(earlier)
    summary = train(supervised(source=str(earlier.out), policy=str(ending_policy)))
    turns = {tuple(turn["completion_ids"]): turn for turn in lines(earlier.out / "turns.jsonl")}
    results = lines(supervised().out / "rows.jsonl")
    assert summary["rows"] and all(tuple(row["completion_ids"]) in turns for row in results)
    with pytest.raises(DataError, match="begin and end"):
        train(supervised(source=str(earlier.out), agent={"prompt": "full"}, out=str(tmp_path / "other")))


def test_a_user_s_file(supervised, tmp_path):
    settings = supervised(validation_tasks=9)
    summary = train(settings)
    assert (summary["rows"], summary["validation_rows"]) == (16, 4), "at most a fifth validates"
    path = tmp_path / "mine.jsonl"
    path.unlink()
    (settings.out / "summary.json").unlink()
    assert train(settings)["rows"] == 16, "it goes on with the rows it began with"
    path = tmp_path / "one.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(DataError, match=r"has nothing but what validates .*validation_tasks=0"):
        train(supervised(source=str(path), out=str(tmp_path / "one")))


def test_rows_and_accuracy_of_the_validation_tasks_validate(supervised, tmp_path):
    """Reinforcement on the same file validates on tasks that its supervised start has not imitated."""
    tasks, path = load_tasks("synthetic", limit=8), tmp_path / "named.jsonl"
    save_jsonl(tasks, tmp_path / "tasks.jsonl")
    rows = [{"task": task.id, "prompt": f"chunk {n}", "completion": "x"} for task in tasks for n in range(2)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    agent = {"max_new_tokens": 12}
    settings = supervised(
        source=str(path), data=str(tmp_path / "tasks.jsonl"), evaluate=True, eval_tasks=1, agent=agent
    )
    start = train(settings)["start_validation"].keys()
    assert {"validation_accuracy", "validation_loss"} <= start <= lines(settings.out / "metrics.jsonl")[-1].keys()
    state = json.loads((settings.out / "checkpoints" / "best" / "state.json").read_text())
    assert state["best"]["score"] >= 0, "an accuracy, not minus a loss"
    validating, imitated = (
        {row["task"] for row in lines(settings.out / "rows.jsonl") if row["validation"] is part}
        for part in (True, False)
    )
    assert validating == {task.id for task in TaskSource(settings).validation}
    assert validating and imitated and not validating & imitated


@pytest.mark.parametrize(
    ("source", "told"),
    [("golf", "source: 'golf' is none: give gold"), (".", r"source: \. holds no turns.jsonl: .*keep_tokens=true")],
)
def test_a_source_that_is_none_is_refused_before_anything_is_loaded(supervised, monkeypatch, source, told):
    monkeypatch.setattr(sft, "TaskSource", None)
    with pytest.raises(ConfigError, match=told):
        train(supervised(source=source))
    assert not supervised().out.exists()


def test_rows_that_are_gone_are_named(supervised):
    settings = supervised(max_steps=2)
    train(settings)
    path = settings.out / "rows.jsonl"
    path.write_text(path.read_text().replace('"step": -1', '"step": 0'))
    with pytest.raises(CheckpointError, match="lacks the rows of this run"):
        train(settings, max_steps=4)
    path.write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"rows.jsonl cannot be read \('step'\)"):
        train(settings, max_steps=4)


def test_epochs_and_steps_replace_each_other(supervised):
    assert supervised(epochs=3, max_steps=99).max_steps == 99, "how long it is, the rows say"
    by_rows = training_config(supervised(), {"epochs": 3})
    assert (by_rows.optimizer.epochs, by_rows.optimizer.schedule_steps) == (3, 50)
    by_steps = training_config(by_rows, {"schedule_steps": 7}).optimizer
    assert (by_steps.epochs, by_steps.schedule_steps) == (None, 7)
