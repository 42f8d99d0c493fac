"""Frozen policies and readers of runs on memory tasks; evaluations and examples that a run keeps in `eval/`.

`eval/example.json` is a walk through held-out conversations as plain JSON values. The training loop writes the file,
because it alone holds the trajectories; the report page reads it. Conversations are chosen by their gold operations,
never by a writer's result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from memalpha.agent.prompts import question_with_choices
from memalpha.agent.reader import Reader
from memalpha.agent.tools import load_tools
from memalpha.arguments import counted
from memalpha.config import ReaderConfig, SFTConfig, TrainConfig
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.errors import TrainingError
from memalpha.policy.base import Policy, with_prompt_style
from memalpha.policy.load import load_policy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.qa.evaluate import Evaluator
from memalpha.qa.reader import load_reader
from memalpha.qa.report import Record, Report
from memalpha.store.embedding import load_embedder
from memalpha.store.schema import load_schema
from memalpha.text_files import write_json
from memalpha.train.trainers.directory import RunDirectory
from memalpha.train.trainers.progress import Display
from memalpha.train.trainers.trainer import Evaluations, RunStart, load_with_defaults
from memalpha.types import Task, Trajectory

M = TypeVar("M", TrainConfig, SFTConfig)


class FrozenPolicies:
    """Policies that a run uses and does not train, loaded once per name, on the run's device and in its precision.

    Args:
        config: Settings of the run.
    """

    def __init__(self, config: TrainConfig | SFTConfig) -> None:
        self.config = config
        self._policies: dict[str, Policy] = {}

    def load(self, name: str, setting: str = "policy") -> Policy:
        """Load the policy that a setting names, or return it if it has been loaded."""
        if name not in self._policies:
            config = self.config
            endpoint = config.endpoint.kept_in(config.out)
            policy = load_policy(
                name,
                setting=setting,
                dtype=config.compute.dtype,
                device=config.compute.device,
                endpoint=endpoint,
                loading=config.compute,
                batching=config.sampling,
            )
            if isinstance(policy, TransformersPolicy):
                policy.model.requires_grad_(False)
            self._policies[name] = policy
        return self._policies[name]

    def load_reader(self, reader: ReaderConfig) -> Reader:
        """Load a reader; it refuses conflicts by default and uses the start policy if none is named."""
        setting = "policy" if reader.policy is None else "reader.policy"
        policy = self.load(reader.policy or self.config.policy, setting) if reader.is_model else None
        conflicts = reader.conflicts or "refuse"
        return load_reader(reader.model_copy(update={"policy": None, "conflicts": conflicts}), policy, frozen=True)

    def with_trained_prompts(self, config: M, trained: Policy) -> M:
        """Return the settings with writer and readers prompted in the style that each policy was trained in.

        Args:
            config: Settings of the run.
            trained: Policy that is trained; it also reads for readers that name none.
        """

        def prompted(reader: ReaderConfig) -> ReaderConfig:
            if not reader.is_model or "prompt" in reader.model_fields_set:
                return reader
            return with_prompt_style(reader, self.load(reader.policy, "reader.policy") if reader.policy else trained)

        updates = {"agent": with_prompt_style(config.agent, trained), "reader": prompted(config.reader)}
        if config.reward.reader is not None:
            updates["reward"] = config.reward.model_copy(update={"reader": prompted(config.reward.reader)})
        return config.model_copy(update=updates)


def load_writer(config: M, display: Display) -> tuple[M, RunStart, FrozenPolicies, MemoryWriting]:
    """Load the start policy of a memory run and what it writes with; schema and tools are checked before the weights.

    Args:
        config: Settings of the run.
        display: Shows settled defaults.

    Returns:
        Settings with the policies' own prompts, start, frozen policies, and environment of the rollouts.
    """
    schema, embedder = load_schema(config.agent.memory_schema), load_embedder(config.agent.embedder)
    load_tools(config.agent.tools)
    config, start = load_with_defaults(config, display)
    policies = FrozenPolicies(config)
    config = policies.with_trained_prompts(config, start.policy)
    start.policy.set_prompt_style(config.agent.prompt, config.agent.form)
    return config, start, policies, MemoryWriting(config.agent, start.policy.count_tokens, embedder, schema)


@dataclass(eq=False)
class TaskEvaluations(Evaluations):
    """Validates on tasks; evaluates held-out tasks before and after, kept in `eval/` of the run directory.

    Args:
        evaluator: Evaluates the trained policy.
        validation: Tasks that validate.
        held_out: Tasks that are evaluated before and after.
        directory: Run directory.
        display: Shows progress and results.
        notes: What to tell before the first evaluation.
        measures: Names of the results to show, and to validate by.
        score: Name of the result that is the validation's score.
        stop_below: See `check`; None: never stop.
    """

    evaluator: Evaluator[Any]
    validation: Sequence[Any]
    held_out: Sequence[Any]
    directory: RunDirectory
    display: Display
    _: KW_ONLY
    notes: Sequence[str] = ()
    measures: Sequence[str] = ("accuracy",)
    score: str = "accuracy"
    stop_below: float | None = None

    def __post_init__(self) -> None:
        self.saved = ["before"]  # files of eval/ that the summary needs
        self._first: list[Any] | None = None  # accuracy and standard error of the start's validation
        self._last: list[Any] = []

    def before(self) -> Report:
        """Evaluate the held-out tasks."""
        for note in self.notes:
            self.display.log(note)
        return self.evaluate("before")

    def validate(self, step: int, metrics: dict[str, Any]) -> float | None:
        """Return the score on the validation tasks."""
        if not self.validation:
            return None
        summary = self.evaluator.evaluate("validation", self.validation).summary
        metrics |= {f"validation_{name}": summary[name] for name in (*self.measures, "se")}
        self._last = [summary["accuracy"], summary["se"]]
        self._first = self._first or self._last
        return summary[self.score]

    def check(self, step: int) -> None:
        """Raise `TrainingError` if the accuracy has fallen more than `stop_below` standard errors below the start's."""
        if self.stop_below is None or not self._first or not self._last or None in (*self._first, *self._last):
            return
        (start, error), (accuracy, _) = self._first, self._last
        if error and accuracy < start - self.stop_below * error:
            raise TrainingError(
                f"stopped after step {step}: accuracy on {len(self.validation)} validation tasks is {accuracy:.3f}, "
                f"over {self.stop_below:g} standard errors ({error:.3f}) below the start's {start:.3f}. Start again in "
                "another out with a lower optimizer.learning_rate or with optimizer.target_kl; the best weights so far "
                "are in checkpoints/best. evaluation.stop_below=null goes on"
            )

    def state(self) -> dict[str, Any]:
        """Return the start's validation."""
        return {"first_validation": self._first}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the start's validation; raise `CheckpointError` now if an evaluation before training is gone."""
        self._first = state["first_validation"]
        for name in self.saved if self.held_out else ():
            self.directory.world.run_on_main(partial(self.directory.read_json, f"eval/{name}.json"))

    def summary(self) -> dict[str, Any]:
        """Evaluate the held-out tasks and return both evaluations."""
        return self.summarize(self.evaluate("after"))

    def summarize(self, after: Report) -> dict[str, Any]:
        """Return the evaluations before and after."""
        before = self.directory.world.run_on_main(lambda: self.directory.read_json("eval/before.json"))
        kind = {"task": after.summary["task"]} if "task" in after.summary else {}
        counts = {"tasks": len(self.held_out), "questions": len(after.records)}
        return {**kind, **counts, "before": before, "after": dict(after.summary)}

    def evaluate(self, name: str, evaluator: Evaluator[Any] | None = None) -> Report:
        """Evaluate on the held-out tasks; save `eval/<name>.json` and `eval/<name>.jsonl`.

        Args:
            name: Name of the evaluation.
            evaluator: Evaluates another policy; None evaluates the trained one.
        """
        title = f"evaluating {name} on {counted(len(self.held_out), 'held-out task')}"
        with self.display.task_progress(title) as progress:
            report = (evaluator or self.evaluator).evaluate(name, self.held_out, progress=progress)
        if self.directory.world.is_main:
            report.save(self.directory.path)
        results = ", ".join(f"{measure} {report.summary[measure]:.3f}" for measure in self.measures)
        self.display.log(f"{name}: {results}")
        return report


RESULT_FIELDS = ("ok", "code", "message", "entry_id", "category", "content", "before")
ENTRY_FIELDS = ("id", "category", "content", "timestamp")
ANSWER_FIELDS = ("question_id", "ability", "question", "gold", "answer", "correct")
"""Attributes of a call's result, of an entry and of a record in `eval/example.json`."""
EXAMPLES = 4
"""Conversations that a run records."""
MAX_CHARACTERS = 200_000
"""Text of all recorded conversations; the first is recorded whatever its length."""

Systems = Mapping[str, tuple[Trajectory, Sequence[Record]]]


def choose_examples(tasks: Sequence[Task]) -> list[int]:
    """Return indices of tasks to walk through, by their gold operations.

    Tasks with an update and a delete come first, then tasks with an update, then the others, each in order. After the
    first, a task is skipped if it would bring the text of all beyond `MAX_CHARACTERS`.

    Args:
        tasks: Held-out tasks.
    """
    kinds = [{operation.kind for operation in task.gold_operations} for task in tasks]
    order = sorted(
        range(len(tasks)), key=lambda index: (not {"update", "delete"} <= kinds[index], "update" not in kinds[index])
    )
    chosen: list[int] = []
    size = 0
    for index in order:
        if len(chosen) == EXAMPLES:
            break
        length = sum(len(chunk.render()) for chunk in tasks[index].chunks)
        if not chosen or size + length <= MAX_CHARACTERS:
            chosen.append(index)
            size += length
    return chosen


def walk_trajectory(trajectory: Trajectory, records: Sequence[Record]) -> dict[str, Any]:
    """Return one writer's walk: `chunks` (calls with results, memory after each) and `answers`."""
    steps = []
    for chunk, state in enumerate(trajectory.states):
        calls = [
            {"name": result.call.name, "arguments": dict(result.call.arguments), "raw": result.call.raw}
            | {name: getattr(result, name) for name in RESULT_FIELDS}
            for turn in trajectory.turns
            if turn.chunk == chunk
            for result in turn.results
        ]
        memory = [{name: getattr(entry, name) for name in ENTRY_FIELDS} for entry in state.list()]
        steps.append({"calls": calls, "core": state.core, "memory": memory})
    task = trajectory.task
    asked = {
        item.id: {"question": question_with_choices(item, dated=False), "asked_after_chunk": task.asked_after(item)}
        for item in task.questions
    }
    answers = [
        {name: getattr(record, name) for name in ANSWER_FIELDS} | asked[record.question_id]
        for record in records
        if record.task == task.id
    ]
    return {"chunks": steps, "answers": answers}


def write_examples(path: Path, examples: Sequence[tuple[Task, Systems]]) -> None:
    """Write `eval/example.json`: chunks and walks of the first task, the others under "more".

    The file is ASCII: a model's text may hold half a surrogate pair, which UTF-8 cannot encode.

    Args:
        path: File to write.
        examples: Tasks, each with trajectory and records by system name (`before`, `after`).
    """
    first, *more = (
        {
            "task": task.id,
            "chunks": [{"timestamp": chunk.timestamp, "text": chunk.render()} for chunk in task.chunks],
            "systems": {name: walk_trajectory(trajectory, records) for name, (trajectory, records) in systems.items()},
        }
        for task, systems in examples
    )
    write_json(path, {**first, "more": more} if more else first)


def add_walks(path: Path, walks: Mapping[str, tuple[Trajectory, Sequence[Record]]]) -> None:
    """Add the trained weights' walks, `after`, to `eval/example.json`.

    Args:
        path: File of `write_examples`.
        walks: Trajectory and records by task id; tasks of the file that are missing here stay as they are.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    for example in (value, *value.get("more", ())):
        if example["task"] in walks:
            example["systems"]["after"] = walk_trajectory(*walks[example["task"]])
    write_json(path, value)
