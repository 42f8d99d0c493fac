"""Question sub-sampling: a training step asks some of a task's questions, so that reader calls stay affordable.

The idea is Mem-alpha's `sub_sample_question_ratio` (arXiv 2509.25911 and its code); here the limit is a number. The
draw depends on (seed, step, task) alone. So all rollouts of a group are asked the same questions, second attempts
included, on any number of processes and after a resume.
"""

from __future__ import annotations

from random import Random

from memalpha.types import AnyTask, Task


def draw_questions(task: AnyTask, count: int | None, seed: int, step: int) -> AnyTask:
    """Return the task with at most `count` of its questions, in their order.

    Args:
        task: Task of the step; a task without more questions, or a text task, is returned unchanged.
        count: Most questions; None keeps all.
        seed: Seed of the run.
        step: Step number.
    """
    if count is None or not isinstance(task, Task) or len(task.questions) <= count:
        return task
    indices = sorted(Random(f"questions|{seed}|{step}|{task.id}").sample(range(len(task.questions)), count))
    return task.model_copy(update={"questions": tuple(task.questions[index] for index in indices)})
