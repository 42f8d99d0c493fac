"""At most so many questions a step: the same for all rollouts of a task, drawn anew each step, all in evaluations."""

from __future__ import annotations

from collections import defaultdict

from run_kinds import text_tasks

from memalpha.config import WorldConfig
from memalpha.qa.evaluate import MemoryScorer
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.api import train
from memalpha.train.rollouts.worker import draw_questions

TASKS = synthetic.tasks(WorldConfig(), 0, 0, 4)


def test_the_draw_depends_on_seed_step_and_task_alone():
    task = TASKS[0]
    count = len(task.questions)
    draws = {(seed, step): draw_questions(task, 2, seed, step).questions for seed in range(3) for step in range(20)}
    assert draws == {key: draw_questions(task, 2, *key).questions for key in draws}
    assert all(len(drawn) == 2 for drawn in draws.values()) and len(set(map(str, draws.values()))) > 10
    for drawn in draws.values():  # in the task's order
        assert [question for question in task.questions if question in drawn] == list(drawn)
    asked = [question.id for drawn in draws.values() for question in drawn]
    assert set(asked) == {question.id for question in task.questions}
    assert draw_questions(task, None, 0, 0) is task and draw_questions(task, count, 0, 0) is task
    text = text_tasks(1)[0]
    assert draw_questions(text, 1, 0, 0) is text


def scored_groups(monkeypatch):
    """Record (task id, role, question ids) of everything that is scored."""
    scored, score = [], MemoryScorer.score

    def recorded(self, groups):
        for group in groups:
            for item in group.trajectories:
                scored.append((item.task.id, item.role, tuple(question.id for question in item.task.questions)))
        return score(self, groups)

    monkeypatch.setattr(MemoryScorer, "score", recorded)
    return scored


def test_a_run_asks_every_rollout_the_same_and_evaluations_all(small, monkeypatch):
    scored = scored_groups(monkeypatch)
    erl = {"algorithm": "erl", "erl": {"reflection_tokens": 8, "reward_threshold": 1.0}}
    train(small(questions_per_task=2, max_steps=2, **erl))
    by_task = defaultdict(set)
    for task, role, questions in scored:
        by_task[task, role].add(questions)
    trained = {task for task, role in by_task if role == "retry"}
    assert trained
    for task in trained:
        assert by_task[task, "attempt"] == by_task[task, "retry"]
        assert [len(questions) for questions in by_task[task, "retry"]] == [2]
    others = {questions for (task, _), drawn in by_task.items() if task not in trained for questions in drawn}
    assert others and all(len(questions) > 2 for questions in others)
