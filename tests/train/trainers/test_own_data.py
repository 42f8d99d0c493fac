"""From a user's task files to a trained writer and its evaluation by `settings_of_run`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memalpha.agent.reader import ExtractiveReader
from memalpha.config import WorldConfig
from memalpha.errors import EvaluationError
from memalpha.qa.from_config import load_run_settings, run_evaluation
from memalpha.report.page import write_report
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.api import train
from memalpha.types import Chunk, Question, SpeakerTurn, Task


def test_the_evaluation_of_a_run_directory_is_the_runs_own(small, tmp_path):
    mine, held = tmp_path / "mine.jsonl", tmp_path / "held.jsonl"
    save_jsonl(synthetic.tasks(WorldConfig(), 0, 0, 8), mine)
    save_jsonl(synthetic.tasks(WorldConfig(), 9, 0, 3), held)
    settings = small(data=str(mine), eval_data=str(held), eval_tasks=3, max_steps=1, reward={"metric": "contains"})
    summary = train(settings)
    for system, trained in (
        ({}, summary["after"]),
        ({"systems": "scripted:oracle"}, summary["baselines"]["oracle"]),
        ({"systems": "scripted:append-only"}, summary["baselines"]["append_only"]),
    ):
        [report] = run_evaluation(load_run_settings(settings.out, system))
        results, tokens = report.summary, {"memory_tokens", "conversation_tokens"}  # the run counts the writer's own
        for key in trained.keys() - tokens - {"by_ability", "reward"}:
            assert results[key] == trained[key], key
        for ability, figures in trained["by_ability"].items():
            assert {key: results["by_ability"][ability][key] for key in figures} == figures
    assert summary["baselines"]["oracle"]["accuracy"] > summary["baselines"]["append_only"]["accuracy"]


def test_a_reader_that_never_answers_stops_the_run(small, monkeypatch):
    """Every memory would earn the same, the oracle's as well, and hours would teach nothing."""
    answer = ExtractiveReader.answer
    monkeypatch.setattr(
        ExtractiveReader, "answer", lambda *args, **options: [replace(a, text="") for a in answer(*args, **options)]
    )
    changes = {"agent": {"max_new_tokens": 40}, "policy": "tiny", "eval_tasks": 1}
    generate, bare = synthetic.tasks, {"gold_operations": ()}  # only the memories that the start itself writes can tell
    monkeypatch.setattr(synthetic, "tasks", lambda *args: [one.model_copy(update=bare) for one in generate(*args)])
    with pytest.raises(EvaluationError, match=r"reader extractive.*: all \d+ answers .* are empty.*reader\.kind"):
        train(small(**changes))
    assert not (small().out / "metrics.jsonl").exists() and not (small().out / "summary.json").exists()


def test_without_gold_operations_a_run_says_that_the_ceiling_is_unchecked(small, tmp_path, capfd):
    tasks = [
        task.model_copy(update={"gold_operations": ()}) if index % 2 else task
        for index, task in enumerate(synthetic.tasks(WorldConfig(), 0, 0, 8))
    ]
    file, held_out = tmp_path / "tasks.jsonl", tmp_path / "held-out.jsonl"
    save_jsonl(tasks, file)
    save_jsonl(synthetic.tasks(WorldConfig(), 9, 0, 2), held_out)
    settings = small(data=str(file), eval_data=str(held_out), eval_tasks=3, max_steps=0, validation_tasks=4)
    train(settings)
    messages = capfd.readouterr().err
    assert "r4 is off (weight 0) for 4 of 10 tasks (training, validation, held-out): they carry no gold" in messages
    assert "ceiling" not in messages, "the held-out tasks have gold operations"

    silent = []
    for task in tasks[:2]:
        questions = tuple(q.model_copy(update={"evidence": ()}) for q in task.questions)
        silent.append(task.model_copy(update={"id": f"held-{task.id}", "questions": questions}))
    save_jsonl(silent, held_out)
    save_jsonl(synthetic.tasks(WorldConfig(), 5, 0, 8), file)
    summary = train(settings.model_copy(update={"out": tmp_path / "without-gold"}))
    messages = capfd.readouterr().err
    assert "the reader's ceiling could not be checked: not all held-out tasks carry gold operations, and no" in messages
    assert "r4 is off (weight 0) for 1 of 10 tasks" in messages
    assert summary["baselines"].keys() == {"add_all"}, "the one that needs no gold operations"
    page = write_report(tmp_path / "without-gold").read_text(encoding="utf-8")
    assert "No oracle: not every held-out task" in page and "keeps every line" in page


def test_without_gold_operations_the_evidence_gives_the_ceiling(small, tmp_path, capfd):
    """The notes of these turns are no `name: value`, which the reader of the demo needs."""
    turns = [
        SpeakerTurn(speaker="Ana", text=f"We went with number {number} in the end.", id=f"t{number}")
        for number in (1, 2)
    ]
    tasks = []
    for number, turn in enumerate(turns, 1):
        asked = {"id": "q", "question": "Which number did they take?", "answers": (str(number),)}
        question = Question(**asked, evidence=(turn.id,))
        tasks.append(Task(id=f"task-{number}", chunks=(Chunk(turns=(turn,)),), questions=(question,)))
    held_out = tmp_path / "held-out.jsonl"
    save_jsonl(tasks, held_out)
    train(small(eval_data=str(held_out), eval_tasks=2, max_steps=0))
    messages = capfd.readouterr().err
    assert (
        "extractive (floor) answers 0% of the answerable questions that name evidence (2) from that evidence"
        in messages
    )
    assert "could not be checked" not in messages
    unnamed = [task.questions[0].model_copy(update={"evidence": ()}) for task in tasks]
    save_jsonl(
        [task.model_copy(update={"questions": (item,)}) for task, item in zip(tasks, unnamed, strict=True)], held_out
    )
    train(small(eval_data=str(held_out), eval_tasks=2, max_steps=0, out=str(tmp_path / "unnamed")))
    assert (
        "(floor) answers nothing from what the policy writes, nor from all that was said: reader.kind=copy"
        in capfd.readouterr().err
    )
