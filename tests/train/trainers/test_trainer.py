"""`Trainer` of parts that train nothing: what it calls, in which order, and what it restores."""

from __future__ import annotations

import json

import pytest

from memalpha.config import TrainConfig
from memalpha.train.learner.engine import Engine
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.start import load_start
from memalpha.train.trainers.trainer import Evaluations, Trainer, TrainingStep


class Counting(TrainingStep):
    """Add the step's number; press Ctrl-C in the preparation of `pressed`."""

    log_files = ("log.jsonl",)

    def __init__(self, directory: RunDirectory, calls: list[str], pressed: int | None) -> None:
        self.directory, self.calls, self.pressed = directory, calls, pressed
        self.scheduled_steps, self.total = 4, 0

    def prepare(self, step):
        if step == self.pressed:
            raise KeyboardInterrupt
        self.calls.append(f"prepare {step}")
        return step

    def train(self, batch, step):
        self.total += batch
        self.directory.append("log.jsonl", [{"step": step}])
        return {"total": self.total}

    def state(self, step):
        return {"total": self.total, "at": step}

    def restore(self, state):
        self.total = state["total"]

    def summary(self):
        return {"total": self.total}

    def close(self):
        self.calls.append("close")


class Scores(Evaluations):
    """Score step 2 best; remember how often a validation was asked for."""

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.count = calls, 0

    def before(self):
        self.calls.append("before")

    def validate(self, step, metrics):
        self.calls.append(f"validate {step}")
        self.count += 1
        metrics["validation"] = self.count
        return float(step == 2)

    def summary(self):
        return {"validations": self.count}

    def state(self):
        return {"validations": self.count}

    def restore(self, state):
        self.count = state["validations"]


def run(config: TrainConfig, pressed: int | None = None) -> tuple[dict | None, list[str]]:
    """Train with counting parts; return the summary (None: interrupted) and the calls."""
    calls: list[str] = []
    with RunDirectory(config.out) as directory:
        start = load_start(config)
        directory.claim(config)
        trainer = Trainer(
            config=config,
            directory=directory,
            start=start,
            engine=Engine(start.policy.model, config),
            training_step=Counting(directory, calls, pressed),
            evaluations=Scores(calls),
            display=Display(quiet=True),
        )
        if pressed is None:
            return trainer.train(), calls
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        return None, calls


def test_the_parts_are_called_in_order_and_their_states_restored(small):
    config = small(save_every=100, validate_every=2)
    _, calls = run(config, pressed=3)
    assert calls == ["before", "validate 0", "prepare 0", "prepare 1", "validate 2", "prepare 2", "close"]
    state = json.loads((config.out / "checkpoints" / "step-3" / "state.json").read_text())
    assert (state["total"], state["at"], state["validations"]) == (0 + 1 + 2, 3, 2), "Ctrl-C saved what was there"
    with (config.out / "log.jsonl").open("a") as file:
        file.write('{"step": 3}\n')  # a step whose checkpoint was never written
    summary, calls = run(config)
    assert calls == ["prepare 3", "validate 4", "close"], "nothing is evaluated twice"
    assert summary is not None
    assert (summary["total"], summary["validations"], summary["best_step"]) == (6, 3, 2)
    for name in ("log.jsonl", "metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in (config.out / name).read_text().splitlines()]
        assert steps == [0, 1, 2, 3]
    again, calls = run(config)
    assert again == summary and calls == ["close"], "a finished run trains nothing"


def test_a_run_out_of_time_stops_with_its_evaluation_and_resumes(small):
    config = small(save_every=100, validate_every=2, max_minutes=1e-9)
    for step in range(1, 4):
        summary, calls = run(config)
        assert summary is not None and (summary["steps"], summary["stopped_by"]) == (step, "max_minutes")
        assert calls[-3:] == [f"prepare {step - 1}", f"validate {step}", "close"], "the end is evaluated"
        assert (config.out / "checkpoints" / f"step-{step}").is_dir()
    summary, _ = run(small(save_every=100, validate_every=2, max_minutes=60))
    assert summary is not None and (summary["steps"], summary["total"]) == (4, 0 + 1 + 2 + 3)
    assert "stopped_by" not in summary, "the last step ended it"
    assert run(config)[0] == summary, "a finished run stays finished"
