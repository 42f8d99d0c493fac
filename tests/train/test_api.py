"""The loop: files of a run, resume bit for bit, the token record against the checkpoints it was sampled from."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from run_kinds import small_config
from runs import interrupted, lines, same, weights
from safetensors.torch import load_file, save_file
from tiny import exact_logprobs
from transformers import AutoModelForCausalLM

from memalpha.config import TrainConfig
from memalpha.errors import CheckpointError, ConfigError
from memalpha.policy.decoding import DecodingQueue
from memalpha.report.page import write_report
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.api import train
from memalpha.train.trainers import trainer
from memalpha.train.trainers.memory_rl import MemoryEvaluations


@pytest.fixture(scope="module")
def whole(policy_path, tmp_path_factory):
    """Return the configuration and the summary of a run in one go that keeps its tokens."""
    folder = tmp_path_factory.mktemp("whole")
    changes = {"keep_tokens": True, "temperature": 0.9, "eval_tasks": 3, "tasks_per_step": 2, "group_size": 3}
    settings = small_config(TrainConfig, policy_path, folder, **changes)
    return settings, train(settings)


def test_a_run_writes_what_is_promised(whole):
    settings, summary = whole
    run = settings.out
    assert summary == json.loads((run / "summary.json").read_text())
    assert {"seed", "tasks", "questions", "policy_parameters", "minutes", "before", "after"} <= summary.keys()
    assert summary["baselines"].keys() == {"append_only", "oracle"}
    assert summary["baselines"]["oracle"]["accuracy"] > summary["baselines"]["append_only"]["accuracy"]
    assert summary["tasks"] == 3 and summary["questions"] == len(lines(run / "eval" / "after.jsonl"))
    for name in ("before", "after"):
        for line in lines(run / "eval" / f"{name}.jsonl"):
            assert {"task", "question_id", "ability", "question", "answer", "gold", "correct"} <= line.keys()
    example = json.loads((run / "eval" / "example.json").read_text())
    assert example["systems"].keys() == {"before", "after"}
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2, 3]
    assert [line.get("validation_accuracy") is not None for line in metrics] == [False, True, False, True]
    assert all(line["mismatch_max"] < 1e-4 < line["ratio_deviation"] for line in metrics)
    assert not same(weights(run, 0), weights(run, 4))
    assert (run / "checkpoints" / "best").resolve().name == f"step-{summary['best_step']}"


def test_turns_are_reproduced_from_the_checkpoint_of_their_step(whole):
    run = whole[0].out
    turns = lines(run / "turns.jsonl")
    assert len(turns) == 4 * 2 * 3 * 3, "steps x tasks x rollouts x chunks"
    for step in (0, 1):
        model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / f"step-{step}")
        for turn in [turn for turn in turns if turn["step"] == step]:
            expected = exact_logprobs(model, turn["prompt_ids"], turn["completion_ids"], turn["temperature"])
            assert torch.allclose(torch.tensor(turn["logprobs"], dtype=torch.float64), expected, atol=1e-5, rtol=0)


def rate_validations(monkeypatch, accuracies: dict[int, float]) -> None:
    """Let validations find these accuracies by step (0.2 where none is given)."""
    validate = MemoryEvaluations.validate

    def scripted(self, step, metrics):
        assert validate(self, step, metrics) == metrics.get("validation_accuracy")
        metrics["validation_accuracy"] = accuracies.get(step, 0.2)
        return metrics["validation_accuracy"]

    monkeypatch.setattr(MemoryEvaluations, "validate", scripted)


def test_ctrl_c_while_resuming_keeps_the_best(small, monkeypatch):
    settings = small(keep_checkpoints=1, max_steps=3)
    rate_validations(monkeypatch, {0: 0.9})
    train(settings)
    checkpoints = settings.out / "checkpoints"
    kept = {path.name for path in checkpoints.iterdir()}
    assert kept == {"step-0", "step-3", "best"}

    def press(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "load_checkpoint", press)
        with pytest.raises(KeyboardInterrupt):
            train(settings, max_steps=4)
    assert {path.name for path in checkpoints.iterdir()} == kept
    shutil.rmtree(checkpoints / "step-0")
    with pytest.raises(CheckpointError, match="step-0 is not there"):
        train(settings, max_steps=4)


def test_a_run_goes_on_from_the_start_it_had(small, policy_path, tmp_path):
    link, other = tmp_path / "best", tmp_path / "other"
    shutil.copytree(policy_path, other)
    file = other / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.dim() == 2)
    tensors[name][0, 0] += 1e-6
    save_file(tensors, file, metadata={"format": "pt"})
    link.symlink_to(policy_path)
    settings = small(policy=str(link), max_steps=0, beta=0.1)
    train(settings)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(CheckpointError, match=r"started from other weights than policy=.*best holds now"):
        train(settings, max_steps=1)
    link.unlink()
    link.symlink_to(policy_path)
    assert train(settings, max_steps=1)["steps"] == 1


def test_the_best_step_is_evaluated_wherever_one_stopped(small, monkeypatch, tmp_path):
    accuracies = {2: 0.5, 4: 0.4}
    rate_validations(monkeypatch, accuracies)
    whole = small(out=str(tmp_path / "whole"), keep_checkpoints=1)
    one_go = train(whole)
    assert one_go["best_step"] == 2
    assert {path.name for path in (whole.out / "checkpoints").iterdir()} == {"step-2", "step-4", "best"}
    for at_three, best_at_three in ((0.9, 3), (0.1, 2)):
        accuracies[3] = at_three
        parts = small(out=str(tmp_path / f"parts {at_three}"), keep_checkpoints=1)
        stopped = train(parts, max_steps=3)
        assert stopped["best_step"] == best_at_three, "the end of a run counts for that run"
        assert (parts.out / "checkpoints" / "best").resolve().name == f"step-{best_at_three}"
        gone_on = train(parts)
        assert {**gone_on, "minutes": 0, "learning_minutes": 0} == {**one_go, "minutes": 0, "learning_minutes": 0}
        assert (parts.out / "checkpoints" / "best").resolve().name == "step-2"


def test_a_run_out_of_time_stops_with_its_evaluation_and_resumes(small, monkeypatch):
    rate_validations(monkeypatch, {1: 0.8, 2: 0.9})
    steps = {"schedule_steps": 3, "save_every": 100, "validate_every": 100}
    settings = small(**steps, max_minutes=1e-9)
    for step in (1, 2):
        summary = train(settings)
        assert (summary["steps"], summary["stopped_by"]) == (step, "max_minutes")
        assert summary["best_step"] == step, "the end is evaluated"
        assert (settings.out / "checkpoints" / f"step-{step}").is_dir()
    summary = train(small(**steps, max_minutes=60))
    assert summary["steps"] == 3 and "stopped_by" not in summary, "the last step ended it"
    assert train(settings) == summary, "a finished run stays finished"


def test_text_that_utf8_cannot_hold_goes_through_a_whole_run(small, monkeypatch):
    """A model writes "\\ud800" in its JSON: half a surrogate pair, once read."""
    collect = DecodingQueue.collect
    arguments = ('"category": "semantic", "content": "half \\ud800"', '"category": "\\ud800", "content": "a"')
    calls = [f'{{"name": "memory_insert", "arguments": {{{text}}}}}' for text in arguments]
    calls += ['{"name": "memory_delete", "arguments": {"id": "\\udfff"}}', '{"name": "\\ud800", "arguments": {}}']
    calls += [
        '{"name": "memory_insert", "arguments": {"category": "semantic", "content": "late", "timestamp": "\\ud800"}}'
    ]
    text = "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls)

    def emit(queue):
        return [(ticket, replace(completion, text=text)) for ticket, completion in collect(queue)]

    monkeypatch.setattr(DecodingQueue, "collect", emit)
    settings = small(max_steps=1, keep_tokens=True, reader={"kind": "policy", "max_new_tokens": 4})
    train(settings)
    example = json.loads((settings.out / "eval" / "example.json").read_text(encoding="utf-8"))
    called = example["systems"]["after"]["chunks"][0]["calls"]
    assert called[0]["arguments"]["content"] == "half \ud800" and not called[0]["ok"]
    assert write_report(settings.out).read_text(encoding="utf-8")


def test_ignored_signals_and_handlers_of_others_stay():
    """As under nohup, for background jobs of a shell, and in programs with a handler of their own."""
    received: list[int] = []
    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: lambda number, frame: received.append(number)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with trainer.interrupt_on_sigterm(), trainer.defer_interrupt(print):
            assert {number: signal.getsignal(number) for number in handlers} == handlers
            os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_second_ctrl_c_stops_at_once():
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), trainer.defer_interrupt(done.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("went on")
    assert done == ["Ctrl-C: finishing this step first; again to stop at once"]


def test_sigterm_saves_as_ctrl_c_does(small):
    """Schedulers and `docker stop` send it."""
    settings = small(max_steps=50, schedule_steps=50, save_every=50)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    interrupted(settings, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    steps = len((settings.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    mark = json.loads((settings.out / "stopped.json").read_text())
    assert mark == {"step": steps, "reason": "Ctrl-C or SIGTERM interrupted the run"}
    assert f"step-{steps}" in {path.name for path in (settings.out / "checkpoints").iterdir()}


def test_a_curriculum_of_memory_tasks_moves_on(small, tmp_path):
    tasks = [
        task.model_copy(update={"meta": {"level": ("easy", "hard")[number % 2]}})
        for number, task in enumerate(synthetic.tasks(small().world, 3, 0, 12))
    ]
    save_jsonl(tasks, tmp_path / "mine.jsonl")
    levels = {task.id: task.meta["level"] for task in tasks}
    curriculum = {"order": ["easy", "hard"], "threshold": 0.01, "window": 40, "review": 0.0}
    changes = {"data": str(tmp_path / "mine.jsonl"), "curriculum": curriculum, "keep_tokens": True}
    config = small(**changes)
    train(config)
    state = json.loads((config.out / "checkpoints/step-4/state.json").read_text())
    assert state["curriculum"]["unlocked"] == 2
    for line in lines(config.out / "metrics.jsonl"):
        drawn = {turn["task"] for turn in lines(config.out / "turns.jsonl") if turn["step"] == line["step"]}
        assert {levels[task] for task in drawn} == {line["level"]}, "without a review, tasks of the newest level"
    with pytest.raises(ConfigError, match="curriculum: tasks of data=synthetic have no level: give a task file"):
        train(small(curriculum=curriculum))
    with pytest.raises(ConfigError, match=r"curriculum.column: task '.*' has no column 'grade'"):
        train(small(**{**changes, "curriculum": {**curriculum, "column": "grade"}}))
