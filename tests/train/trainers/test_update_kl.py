"""The KL of an update, beside float64 forward passes of the checkpoints, and the rate that it holds."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import lines
from tiny import exact_logprobs
from transformers import AutoModelForCausalLM

from memalpha.errors import TrainingError
from memalpha.train.api import train
from memalpha.train.trainers.evaluations import TaskEvaluations
from memalpha.train.trainers.rl import MAX_RATE_SCALE

SHAPE = {"eval_tasks": 1, "validation_tasks": 0, "minibatches": 1}


def test_the_kl_of_an_update_is_that_of_the_checkpoints_around_it(small, tmp_path):
    train(small(**SHAPE, keep_tokens=True, max_steps=2))
    run = tmp_path / "run"
    models = [AutoModelForCausalLM.from_pretrained(run / f"checkpoints/step-{step}") for step in range(3)]
    for step, line in enumerate(lines(run / "metrics.jsonl")):
        turns = [turn for turn in lines(run / "turns.jsonl") if turn["step"] == step and turn["advantage"]]
        trained = turns[:: max(1, math.ceil(len(turns) / 8))]
        before, after = (
            torch.cat([exact_logprobs(model, turn["prompt_ids"], turn["completion_ids"]) for turn in trained])
            for model in models[step : step + 2]
        )
        ratio = (after - before).numpy()
        assert line["update_kl"] == pytest.approx(float((np.expm1(ratio) - ratio).mean()), rel=1e-3, abs=1e-9)


def test_the_rate_follows_the_kl_within_a_factor_of_two(small, tmp_path):
    free = small(**SHAPE, out=str(tmp_path / "free"), max_steps=2)
    train(free)
    measured = [line["update_kl"] for line in lines(free.out / "metrics.jsonl")]
    for factor, end in ((1e-4, 1 / MAX_RATE_SCALE), (1e4, MAX_RATE_SCALE)):
        held = small(**SHAPE, out=str(tmp_path / f"held{factor}"), max_steps=2, target_kl=max(measured) * factor)
        train(held)
        metrics = lines(held.out / "metrics.jsonl")
        assert [line["rate_scale"] for line in metrics] == [1.0, end]
        for line, other in zip(metrics, lines(free.out / "metrics.jsonl"), strict=True):
            assert line["learning_rate"] == pytest.approx(other["learning_rate"] * line["rate_scale"])


@pytest.mark.parametrize(("accuracy", "stops"), [(0.29, True), (0.31, False), (0.9, False)])
def test_a_run_that_falls_stops_with_words(accuracy, stops):
    scores = iter((0.6, accuracy))
    evaluator: Any = SimpleNamespace(
        evaluate=lambda name, tasks: SimpleNamespace(summary={"accuracy": next(scores), "se": 0.1})
    )
    unused: Any = None
    evaluations = TaskEvaluations(evaluator, [unused] * 40, (), unused, unused, stop_below=3.0)
    evaluations.check(0)  # a resumed run has not validated yet
    for step in (0, 10):
        evaluations.validate(step, {})
    if not stops:
        evaluations.check(10)
        return
    with pytest.raises(TrainingError, match=r"stopped after step 10: accuracy on 40 validation tasks is 0.290.*0.600"):
        evaluations.check(10)
