"""Callbacks of a run: which events come when, what they may ask for, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from memalpha.errors import ConfigError, TrainingError
from memalpha.train.api import train


class Recorder(TrainerCallback):
    """Note every event with the step it came at."""

    def __init__(self, stop_at: int | None = None, save_at: int | None = None) -> None:
        self.events: list[tuple[str, int]] = []
        self.values: dict[str, list] = {}
        self.stop_at, self.save_at = stop_at, save_at

    def _note(self, event, state, value=None) -> None:
        self.events.append((event, state.global_step))
        self.values.setdefault(event, []).append(value)

    def on_train_begin(self, args, state, control, **kwargs):
        assert kwargs["model"] is not None and kwargs["processing_class"] is not None
        self._note("begin", state, state.max_steps)

    def on_step_begin(self, args, state, control, **kwargs):
        self._note("step begins", state)

    def on_step_end(self, args, state, control, metrics, **kwargs):
        self._note("step", state, metrics)
        control.should_save = state.global_step == self.save_at
        control.should_training_stop = state.global_step == self.stop_at

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self._note("evaluate", state, metrics)

    def on_save(self, args, state, control, checkpoint, **kwargs):
        self._note("save", state, checkpoint)

    def on_train_end(self, args, state, control, summary, **kwargs):
        self._note("end", state, summary)


def test_events_come_in_order_with_what_they_need(small):
    recorder, lines = Recorder(), []
    settings = small(max_steps=2)
    summary = train(settings, callbacks=[recorder], on_step=lines.append)
    assert recorder.events == [
        *(("begin", 0), ("evaluate", 0), ("save", 0), ("step begins", 0), ("step", 1)),
        *(("step begins", 1), ("evaluate", 2), ("step", 2), ("save", 2), ("end", 2)),
    ]
    written = [json.loads(line) for line in (settings.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1] and lines == recorder.values["step"]
    assert json.loads(json.dumps(lines)) == written
    assert set(recorder.values["evaluate"][-1]) == {"validation_accuracy", "validation_se"}
    assert all((path / "model.safetensors").is_file() for path in recorder.values["save"])
    assert recorder.values["end"] == [summary] and recorder.values["begin"] == [2]
    assert train(settings, callbacks=[recorder]) == json.loads((settings.out / "summary.json").read_text())
    assert len(recorder.events) == 10, "a finished run has no events"


def test_a_callback_stops_a_run_and_saves_and_the_same_command_resumes(small):
    recorder = Recorder(stop_at=2, save_at=1)
    settings = small(max_steps=3)
    assert train(settings, callbacks=[recorder])["stopped_by"] == "callback"
    assert ("save", 1) in recorder.events and ("save", 2) in recorder.events
    resumed = train(settings, callbacks=TrainerCallback)
    assert resumed["steps"] == 3 and "stopped_by" not in resumed


def test_an_exception_of_the_users_function_keeps_the_trained_steps(small):
    error, settings = ValueError("mine"), small(max_steps=2)

    def fail(metrics):
        raise error

    with pytest.raises(ValueError, match="mine") as raised:
        train(settings, on_step=fail)
    assert raised.value is error
    assert (settings.out / "checkpoints" / "step-1" / "state.json").is_file()
    stopped = json.loads((settings.out / "stopped.json").read_text())
    assert stopped["step"] == 1 and stopped["reason"].startswith("ValueError: mine")


def test_what_is_no_callback_is_refused_before_anything_starts(small, tmp_path):
    for hooks, message in (
        ({"callbacks": [print]}, "derive its class from transformers.TrainerCallback"),
        ({"callbacks": print}, "<built-in function print>: derive its class"),
        ({"on_step": 3}, "on_step 3: a function is needed"),
        (
            {"on_step": lambda step, metrics: None},
            r"on_step: a function of the metrics .*missing a required argument: 'metrics'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            train(small(), **hooks)

    class Asking(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_evaluate = True

    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"evaluation\.eval_steps says when"):
        train(small(max_steps=1), callbacks=[Asking])
    with pytest.raises(ConfigError, match=r"EarlyStoppingCallback reads args\.load_best_model_at_end, which"):
        train(small(report_to=["none"], max_steps=1), callbacks=EarlyStoppingCallback())


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        ("torch.nn.utils.clip_grad_norm_", r"learning ran out of memory: set compute\.gradient_checkpointing"),
        (
            "memalpha.policy.transformers.TransformersPolicy.__init__",
            r"loading the models ran out of memory: take a smaller model",
        ),
        (
            "memalpha.policy.transformers.TransformersPolicy.open_queue",
            r"sampling ran out of memory: lower sampling\.batch_tokens",
        ),
    ],
)
def test_full_memory_ends_with_the_settings_that_need_less(small, monkeypatch, function, advice):
    def run_out(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation.")

    monkeypatch.setattr(function, run_out)
    with pytest.raises(TrainingError, match=rf"Tried to allocate 2\.00 GiB\.: {advice}"):
        train(small(max_steps=1))
