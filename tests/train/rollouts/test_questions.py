"""At most so many questions a step: the same for all rollouts of a task, drawn anew each step, all in evaluations."""

from __future__ import annotations

from run_kinds import text_tasks

from memalpha.config import WorldConfig
from memalpha.tasks.synthetic import worlds as synthetic
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
