"""Training, validation and held-out tasks of a memory run, and the checks on them before training starts."""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.agent.prompts import writer_messages
from memalpha.config import AgentConfig, RunConfig, SFTConfig, TrainConfig
from memalpha.errors import ConfigError, DataError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.scoring.gold import check_categories
from memalpha.store.schema import MemorySchema
from memalpha.tasks.catalog import MODULES
from memalpha.tasks.datasets import babi
from memalpha.tasks.splits import load_evaluation_tasks, load_training_tasks
from memalpha.tasks.synthetic import worlds as synthetic
from memalpha.train.rollouts.epochs import shuffled_item
from memalpha.types import Chunk, Observation, Task

HELD_OUT_SEED = -1
"""Seed of synthetic validation and evaluation tasks: the same for every run, so that runs compare on equal tasks."""


class TaskSource:
    """A run's tasks: `batch(position)` for training, `validation` and `held_out` fixed.

    Synthetic: training tasks are made by number from the run's seed and never repeat; validation tasks come from the
    training split without pseudo-words, held-out tasks from `eval_data`, else from `eval_world` (default: the test
    split, whose values never occur in training). bAbI: streams of official training stories, other ones to validate;
    held out are streams of official test stories (`eval_babi`, else `babi`). Another named data set: its training
    split (`tasks.splits`), divided as a task file is; as `eval_data` it gives its first evaluation split. A task file:
    without `eval_data` its last fifth is held out, the last fifth of the rest validates (`eval_tasks` and
    `validation_tasks` at most), the others are shuffled anew each pass.

    Raises `ConfigError` for tasks that would be trained and evaluated on, and for a data set without a training split
    unless `train_on_evaluation_split` is set. Raises `DataError` for too few tasks and for tasks without a question.
    """

    def __init__(self, config: TrainConfig | SFTConfig) -> None:
        self.config = config
        self.file_tasks: list[Task] = []
        given = None if config.eval_data is None else load_evaluation_tasks(config.eval_data, config.eval_tasks)
        if config.train_on_evaluation_split and config.data in ("synthetic", "babi"):
            raise ConfigError(
                f"train_on_evaluation_split: has no effect with data={config.data}, which trains on its training split "
                "and evaluates on its test split; leave it out"
            )
        if config.data == "synthetic":
            if config.world.split == "test":
                raise ConfigError("world.split: the test split is for evaluation only; train with split=train")
            world = config.world.model_copy(update={"pseudo_values": 0.0})
            self.validation = synthetic.tasks(world, HELD_OUT_SEED, 0, config.validation_tasks)
            test = config.eval_world or config.world.model_copy(update={"split": "test"})
            self.held_out = given or synthetic.tasks(test, HELD_OUT_SEED, 0, config.eval_tasks)
        elif config.data == "babi":
            self.validation = babi.streams(config.babi, "validation", 0, 0, config.validation_tasks)
            test = config.eval_babi or config.babi
            self.held_out = given or babi.streams(
                test, "test", 0, 0, min(config.eval_tasks, babi.streams_per_epoch(test))
            )
        else:
            rest = load_training_tasks(config.data, on_evaluation_split=config.train_on_evaluation_split)
            _check_task_count(rest, config)
            cut = len(rest) if given else len(rest) - min(config.eval_tasks, len(rest) // 5)
            rest, self.held_out = rest[:cut], given or rest[cut:]
            cut = len(rest) - min(config.validation_tasks, max(1, len(rest) // 5))
            self.file_tasks, self.validation = rest[:cut], rest[cut:]
            if not any(task.questions for task in self.file_tasks):
                raise DataError(
                    f"data: none of the {cut} tasks of {config.data} that are trained on has a question, so nothing "
                    "can be rewarded: add questions to them"
                )
        if given:
            self._check_no_overlap(given)
        if not any(task.questions for task in self.held_out):
            source = f"eval_data: {config.eval_data}" if given else f"data: the last fifth of {config.data}"
            raise ConfigError(f"{source} holds no question, so nothing can be evaluated")

    def batch(self, position: int) -> list[Task]:
        """The `tasks_per_step` tasks from number `position` on."""
        config = self.config
        if config.data == "babi":
            return babi.streams(config.babi, "train", config.seed, position, config.tasks_per_step)
        if not self.file_tasks:
            return synthetic.tasks(config.world, config.seed, position, config.tasks_per_step)
        return [self._from_file(position + i) for i in range(config.tasks_per_step)]

    def check(self, policy: TransformersPolicy, agent: AgentConfig, schema: MemorySchema, advice: int = 0) -> None:
        """Raise `DataError` for a task file with gold operations in other categories than the schema's, or a chunk that
        would not fit beside a full view, `advice` tokens of advice and a full reply."""
        for place, tasks in self._tasks_by_origin():
            check_categories(tasks, schema, place)
        if policy.positions is None:
            return
        fixed = len(policy.render(*writer_messages(Observation(Chunk(text="."), "", ()), agent, schema)))
        room = policy.positions - fixed - agent.view_tokens - advice - agent.max_new_tokens
        told = f", {advice} of advice" if advice else ""
        for place, task in ((place, task) for place, tasks in self._tasks_by_origin() for task in tasks):
            for number, chunk in enumerate(task.chunks):
                length = policy.count_tokens(f"{chunk.timestamp or ''}\n{chunk.render()}")
                if length > room:
                    raise DataError(
                        f"{place}: chunk {number} of task {task.id!r} has {length} tokens, policy {policy.name!r} has "
                        f"room for {max(room, 0)} ({policy.positions} less {fixed} of the prompt{told}, "
                        f"agent.view_tokens={agent.view_tokens} and agent.max_new_tokens={agent.max_new_tokens}): "
                        "split the chunk"
                    )

    def _tasks_by_origin(self) -> list[tuple[str, list[Task]]]:
        """The tasks that were read from a file, each list with its key and file."""
        data, given = self.config.data, self.config.eval_data
        found = [(f"data: {data}", [*self.file_tasks, *self.validation])] if self.file_tasks else []
        if given or self.file_tasks:
            found.append((f"eval_data: {given}" if given else f"data: {data}", self.held_out))
        return found

    def _check_no_overlap(self, held_out: Sequence[Task]) -> None:
        """Refuse tasks that are trained on; a synthetic world's by their ids, for it has no end.

        Short chunks ("Thanks, bye!") recur in all conversations, so a task counts as a copy when half of its text is.
        Ids say nothing between two splits of named data sets, which number their rows from 0 each.
        """
        config, seen = self.config, [*self.file_tasks, *self.validation]
        by_text_alone = config.eval_data in MODULES and bool(self.file_tasks) and config.data in MODULES
        ids = set() if by_text_alone else {task.id for task in seen}
        texts = {
            chunk.render(): task.id for task in (seen if by_text_alone else self.file_tasks) for chunk in task.chunks
        }
        made = None
        if config.data == "babi":
            made = babi.stream(config.babi, "train", config.seed, 0).id.removesuffix("0")
        elif not self.file_tasks:
            made = synthetic.generate(config.world, config.seed, 0).id.removesuffix("0")
        for task in held_out:
            if task.id in ids or (made and task.id.startswith(made) and task.id.removeprefix(made).isdigit()):
                raise ConfigError(f"eval_data: task {task.id!r} of {config.eval_data} is among the training tasks")
            read = [chunk.render() for chunk in task.chunks]
            shared = sorted((text for text in read if text in texts), key=len)
            if shared and 2 * sum(map(len, shared)) >= sum(map(len, read)):
                raise ConfigError(
                    f"eval_data: {len(shared)} of {len(read)} chunks of task {task.id!r} of {config.eval_data}, half "
                    f"of its text or more, are word for word in training tasks (the longest in {texts[shared[-1]]!r}): "
                    "held-out tasks must be others"
                )

    def _from_file(self, number: int) -> Task:
        return shuffled_item(self.file_tasks, number, str(self.config.seed))


def _check_task_count(tasks: Sequence[Task], config: RunConfig) -> None:
    if config.eval_data is None:
        needed, why = 5, "of which a fifth is held out (or name other tasks as eval_data)"
    else:
        needed, why = 2 if config.validation_tasks else 1, "of which one validates (or set validation_tasks=0)"
    if len(tasks) < needed:
        raise DataError(f"data: {config.data} has {len(tasks)} tasks, training needs at least {needed}, {why}")
