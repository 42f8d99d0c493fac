"""The walked conversation: chosen by its gold operations, told step by step, readable by the report page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memalpha.config import WorldConfig
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import evaluate
from memalpha.qa.report import Report
from memalpha.report.page import ENVIRONMENT
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.trainers.evaluations import choose_examples, walk_trajectory, write_examples
from memalpha.types import GoldOperation, Task


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return synthetic.tasks(WorldConfig(split="test"), 0, 0, 12)


@pytest.fixture(scope="module")
def report(tasks: list[Task]) -> Report:
    return evaluate(ScriptedPolicy("oracle"), tasks, "extractive")


def test_the_first_task_with_a_change_and_a_retraction_is_chosen(tasks: list[Task]) -> None:
    def kinds(task: Task) -> set[str]:
        return {operation.kind for operation in task.gold_operations}

    first, *more = choose_examples(tasks)
    assert {"update", "delete"} <= kinds(tasks[first])
    assert not any({"update", "delete"} <= kinds(task) for task in tasks[:first])
    assert len({first, *more}) == 4 and all({"update", "delete"} <= kinds(tasks[index]) for index in more)
    plain = Task.model_validate({"id": "p", "chunks": [{"text": "x"}]})
    changed = plain.model_copy(
        update={"gold_operations": (GoldOperation(kind="update", chunk=0, category="semantic", content="a: b"),)}
    )
    assert choose_examples([plain]) == [0] and choose_examples([plain, changed]) == [1, 0]


def test_the_walk_tells_what_happened(tasks: list[Task], report: Report) -> None:
    number = choose_examples(tasks)[0]
    trajectory = report.groups[number].trajectories[0]
    walked = walk_trajectory(trajectory, report.records)
    assert len(walked["chunks"]) == len(tasks[number].chunks)
    codes = [call["code"] for step in walked["chunks"] for call in step["calls"]]
    assert codes == [result.code for turn in trajectory.turns for result in turn.results]
    assert {"inserted", "updated", "deleted"} <= set(codes)
    for step, state in zip(walked["chunks"], trajectory.states, strict=True):
        assert {entry["id"]: entry["content"] for entry in step["memory"]} == {
            key: entry.content for key, entry in state.entries.items()
        }
    assert [answer["question_id"] for answer in walked["answers"]] == [q.id for q in tasks[number].questions]
    assert all(0 <= answer["asked_after_chunk"] < len(tasks[number].chunks) for answer in walked["answers"])


def test_a_choice_is_shown_with_its_options(tasks: list[Task], report: Report) -> None:
    number = choose_examples(tasks)[0]
    trajectory = report.groups[number].trajectories[0]
    first, *others = tasks[number].questions
    choice = first.model_copy(update={"meta": {**first.meta, "choices": {"A": "Rome", "B": "Porto"}}})
    task = tasks[number].model_copy(update={"questions": (choice, *others)})
    walked = walk_trajectory(replace(trajectory, task=task), report.records)
    assert walked["answers"][0]["question"] == f"{first.question}\n(a) Rome\n(b) Porto"


def test_the_file_is_what_the_page_reads(tasks: list[Task], report: Report, tmp_path: Path) -> None:
    number = choose_examples(tasks)[0]
    path = tmp_path / "eval" / "example.json"
    write_examples(path, [(tasks[number], {"before": (report.groups[number].trajectories[0], report.records)})])
    template = ENVIRONMENT.get_template("conversations.html")
    html = template.render(example=json.loads(path.read_text(encoding="utf-8")))
    for question in tasks[number].questions:
        assert question.question.split()[0] in html
    assert html.count('class="card"') == len(tasks[number].chunks)  # one system: one column a chunk
    assert "Before training" in html and "After training" not in html
