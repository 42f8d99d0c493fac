"""Work of one training step: prompts, replies, answers and rows, in tokens.

Lengths come from the run's own tasks, prompts and tokenizer. Where only a reply would tell, the bound of the settings
is taken; what a script with the gold operations (or without them, every line of a user) would write gives the expected
length beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memalpha.agent.agent import build_request
from memalpha.agent.prompts import reader_messages
from memalpha.config import (
    AgentConfig,
    ReaderConfig,
    RewardModelConfig,
    SFTConfig,
    TextConfig,
    TrainConfig,
)
from memalpha.config.preferences import PairsConfig
from memalpha.config.training import AnyTraining
from memalpha.environments.base import is_single_turn
from memalpha.environments.engine import RolloutEngine
from memalpha.environments.memory_writing import MemoryWriting
from memalpha.policy.base import with_prompt_style
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.policy.transformers import TransformersPolicy
from memalpha.store.embedding import load_embedder
from memalpha.train.algorithms import build_algorithm
from memalpha.train.data.demonstrations import load_best_rollouts, load_rows
from memalpha.train.data.preferences import read_pairs
from memalpha.train.data.rewards import read_reward_examples
from memalpha.train.rollouts.epochs import schedule_steps, shuffled_item
from memalpha.train.rollouts.memory_tasks import TaskSource
from memalpha.train.rollouts.text_inputs import build_environment
from memalpha.train.rollouts.text_tasks import TextTaskSource
from memalpha.train.trainers.pairs import load_lines
from memalpha.types import Completion, Observation, SampleRequest, Task, TextTask

MEASURED_TASKS = 4
"""Tasks whose prompts are measured; a step's others are taken as alike."""
JUDGED_TOKENS = 400
"""Assumed tokens of a judge's prompt."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of a prompt and of its reply."""

    prompt: int
    completion: int

    @property
    def length(self) -> int:
        """Tokens of both."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a frozen policy in one step.

    Attributes:
        policy: Name of the policy; None for a rule, which costs no tokens.
        rows: Prompt and longest answer of each call.
    """

    policy: str | None = None
    rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of one step.

    Attributes:
        kind: Kind of run.
        rows: Rows of the step with replies of the most tokens that are allowed.
        expected: The same rows with the lengths that are expected; None if nothing tells.
        rollouts: Rollouts that are sampled side by side; 0 if the policy samples nothing in a step.
        shared: Rows that begin with one prompt and are computed once.
        trained: Share of the rows that are trained on.
        updates: Optimizer steps, each on an equal share of the rows.
        scorings: Forward passes over all rows without a gradient.
        has_reference: True if log-probs of the start policy are needed.
        has_values: True if a value head is trained.
        reader: Answers to the questions.
        judge: Judgements of answers and contents.
        steps: Steps of the run.
        notes: What the plan had to assume.
    """

    kind: str
    rows: Sequence[Row]
    expected: Sequence[Row] | None = None
    rollouts: int = 0
    shared: int = 1
    trained: float = 1.0
    updates: int = 1
    scorings: int = 0
    has_reference: bool = False
    has_values: bool = False
    reader: Calls = Calls()
    judge: Calls = Calls()
    steps: int = 0
    notes: Sequence[str] = field(default=())


def plan_workload(config: AnyTraining, policy: TransformersPolicy) -> Workload:
    """Return the work of one step.

    Args:
        config: Settings of the run.
        policy: Policy that renders and counts prompts; it needs no weights.

    Raises:
        ConfigError: The settings do not fit each other.
        DataError: The data are missing or do not fit the policy.
    """
    if isinstance(config, TextConfig):
        return _text_workload(config, policy)
    if isinstance(config, PairsConfig):
        return _pairs_workload(config, policy)
    return _imitation_workload(config, policy) if isinstance(config, SFTConfig) else _memory_workload(config, policy)


# ----------------------------------------------------------------------------------------------------- memory writers


class _LengthRecorder:
    """A scripted writer that keeps the lengths of its prompts and replies in the tokens of `policy`."""

    def __init__(self, script: ScriptedPolicy, policy: TransformersPolicy) -> None:
        self.name = script.name
        self.count_tokens = policy.count_tokens
        self.rows: list[Row] = []
        self._script, self._policy = script, policy

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return the script's replies."""
        replies = self._script.sample(requests)
        for request, reply in zip(requests, replies, strict=True):
            prompt = len(self._policy.render_request(request))
            self.rows.append(Row(prompt, self.count_tokens(reply.text) + 1))
        return replies


@dataclass(frozen=True, slots=True)
class _MeasuredTasks:
    """Rows of some tasks, one rollout each, and the mean tokens of an entry of their memories."""

    bound: list[Row]
    expected: list[Row]
    entry_tokens: float
    has_gold: bool


def _measure_tasks(
    tasks: Sequence[Task], agent: AgentConfig, policy: TransformersPolicy, script: str | None = None
) -> _MeasuredTasks:
    """Measure prompts and replies of tasks.

    Args:
        tasks: Tasks to write a memory over.
        agent: Prompt settings.
        policy: Policy that renders and counts.
        script: Kind of scripted policy (default: the oracle, or add-all without gold operations).
    """
    writing = MemoryWriting(agent, policy.count_tokens, load_embedder("hash"))
    has_gold = all(task.gold_operations for task in tasks)
    recorder = _LengthRecorder(ScriptedPolicy(script or ("oracle" if has_gold else "add-all")), policy)
    groups = RolloutEngine(recorder, writing).roll_out(tasks)
    contents = [
        entry.content
        for group in groups
        for trajectory in group.trajectories
        for entry in trajectory.states[-1].entries.values()
    ]
    entry_tokens = sum(map(policy.count_tokens, contents)) / len(contents) if contents else 0.0
    bound = []
    for task in tasks:
        for index, chunk in enumerate(task.chunks):
            bare = policy.render_request(build_request(Observation(chunk, "", ()), agent, writing.schema))
            view = min(agent.view_tokens, index * agent.max_new_tokens)
            bound.append(Row(len(bare) + view, agent.thinking_tokens + agent.max_new_tokens))
    return _MeasuredTasks(bound, recorder.rows, entry_tokens, has_gold)


def _memory_workload(config: TrainConfig, policy: TransformersPolicy) -> Workload:
    source = TaskSource(config)
    agent = with_prompt_style(config.agent, policy)
    algorithm = build_algorithm(config)
    writing = MemoryWriting(agent, policy.count_tokens, load_embedder("hash"))
    source.check(policy, agent, writing.schema, algorithm.advice_tokens)
    tasks = source.batch(0)
    measured_tasks = tasks[:MEASURED_TASKS]
    measured = _measure_tasks(measured_tasks, agent, policy)
    rollouts = len(tasks) * config.sampling.group_size
    times = rollouts / len(measured_tasks)
    notes = []
    if len(tasks) > len(measured_tasks):
        notes.append(f"prompts were measured on {len(measured_tasks)} of a step's {len(tasks)} tasks")
    expected = _repeat(measured.expected, times)
    if not measured.has_gold:
        expected = [Row(row.prompt, agent.thinking_tokens + agent.max_new_tokens) for row in expected]
        notes.append("the tasks carry no gold operations: expected replies are not known, the most are taken")
    bound = _repeat(measured.bound, times)
    if config.algorithm == "erl":
        notes.append("erl: every attempt is taken to be reflected on and tried again")
        advice = algorithm.advice_tokens
        bound += [Row(row.prompt + advice, row.completion) for row in bound]
        expected += [Row(row.prompt + advice, row.completion) for row in expected]
    questions = [question for task in measured_tasks for question in task.questions]
    per_task = getattr(config.sampling, "questions_per_task", None)
    count = times * len(questions)
    if per_task is not None:
        count = times * sum(min(per_task, len(task.questions)) for task in measured_tasks)
    reader = _reader_calls(
        config.reward.reader or config.reader,
        config.policy,
        policy,
        [question.question for question in questions],
        measured.entry_tokens,
        round(count),
    )
    return Workload(
        "memory writer",
        bound,
        expected,
        rollouts=rollouts,
        trained=2 / config.sampling.group_size if config.algorithm == "dpo" else 1.0,
        updates=config.optimizer.minibatches * config.optimizer.num_iterations,
        scorings=_scorings(config, needs_reference=algorithm.needs_reference),
        has_reference=algorithm.needs_reference,
        has_values=algorithm.value_learning_rate is not None,
        reader=reader,
        judge=_judge_calls(config, round(count), rollouts),
        steps=config.max_steps or config.optimizer.schedule_steps,
        notes=notes,
    )


def _scorings(config: TrainConfig | TextConfig, *, needs_reference: bool) -> int:
    """Return the number of forward passes over a step's rows that have no gradient."""
    recomputed = config.loss.old_logprobs == "recomputed"
    of_algorithm = {"ppo": 1, "dpo": config.optimizer.num_iterations}.get(config.algorithm, 0)
    return int(needs_reference) + int(recomputed) + of_algorithm


def _reader_calls(
    reader: ReaderConfig,
    start: str,
    policy: TransformersPolicy,
    questions: Sequence[str],
    entry_tokens: float,
    count: int,
) -> Calls:
    """Return the reader's calls for `count` questions like these."""
    if reader.kind != "policy" or not questions:
        return Calls(None, [Row(0, 0)] * count)
    reader = with_prompt_style(reader, policy)
    lengths = [len(policy.render(reader_messages(question, (), reader))) for question in questions]
    notes = round(reader.k * (entry_tokens + 4))
    prompts = _repeat(
        [Row(length + notes, reader.thinking_tokens + reader.max_new_tokens) for length in lengths],
        count / len(lengths),
    )
    return Calls(reader.policy or start, prompts)


def _judge_calls(config: TrainConfig, questions: int, rollouts: int) -> Calls:
    judge = config.reward.judge
    if judge is None:
        return Calls()
    count = (questions if config.reward.metric == "judge" else 0) + (
        rollouts if config.reward.content == "judge" else 0
    )
    return Calls(
        ", ".join(judge.judges),
        [Row(JUDGED_TOKENS, judge.thinking_tokens + judge.max_new_tokens)] * (count * len(judge.judges)),
    )


def _imitation_workload(config: SFTConfig, policy: TransformersPolicy) -> Workload:
    needs_tasks = config.source in ("best", "gold", "erl") or config.source.startswith("scripted:")
    source = TaskSource(config) if needs_tasks or config.evaluation.evaluate else None
    agent = with_prompt_style(config.agent, policy)
    writing = MemoryWriting(agent, policy.count_tokens, load_embedder("hash"))
    notes: list[str] = []
    if config.source.endswith(".jsonl"):
        rows = [_row(sample) for unit in load_rows(Path(config.source), policy) for sample in unit]
    elif Path(config.source).is_dir():
        units, _ = load_best_rollouts(Path(config.source), policy, agent, writing.schema)
        rows = [_row(sample) for unit in units for sample in unit]
    else:
        assert source is not None
        source.check(policy, agent, writing.schema)
        tasks = source.batch(0)[: 2 * MEASURED_TASKS]
        script = config.source.removeprefix("scripted:") if config.source.startswith("scripted:") else None
        measured = _measure_tasks(tasks, agent, policy, script)
        rows = measured.expected
        notes.append(f"rows were measured on {len(tasks)} of {config.tasks} tasks")
        if config.source in ("best", "erl"):
            rows = measured.bound
            notes.append(
                f"source={config.source}: the rollouts that give the rows are sampled before a round and are not in "
                "the time of a step"
            )
    rows = sorted(rows, key=lambda row: -row.length)
    count = config.optimizer.batch_rows
    step = [rows[index * len(rows) // count] for index in range(count)]  # the same spread of lengths
    return Workload(
        "imitation",
        step,
        None if config.source in ("best", "erl") else step,
        steps=config.max_steps or schedule_steps(config, len(rows), count),
        notes=notes,
    )


# ----------------------------------------------------------------------------------------------------------- text tasks


def _text_workload(config: TextConfig, policy: TransformersPolicy) -> Workload:
    source = TextTaskSource(config)
    environment = build_environment(config)
    engine = RolloutEngine[TextTask](
        policy,
        environment,
        system_prompt=config.system_prompt,
        max_new_tokens=config.sampling.max_new_tokens,
        thinking_tokens=config.sampling.thinking_tokens,
        chat_template_kwargs=config.sampling.chat_template_kwargs,
        max_turns=config.max_turns,
    )
    algorithm = build_algorithm(config)
    prompts = [len(policy.render_request(engine.first_request(task))) for task in source.batch(0)]
    most, notes = config.sampling.thinking_tokens + config.sampling.max_new_tokens, list(source.notes)
    rows = [Row(prompt, most) for prompt in prompts for _ in range(config.sampling.group_size)]
    if not is_single_turn(environment):
        notes.append(f"an episode is taken to last all {config.max_turns} turns, each with a full reply")
        rows = [
            Row(min(row.prompt + turn * most, (policy.positions or 1 << 30) - most), most)
            for row in rows
            for turn in range(config.max_turns)
        ]
    if config.algorithm == "erl":
        notes.append("erl: every attempt is taken to be reflected on and tried again")
        rows = [*rows, *(Row(row.prompt + algorithm.advice_tokens, row.completion) for row in rows)]
    judged = [part for part in config.rewards if getattr(part, "kind", "") == "judge"]
    return Workload(
        "text policy",
        rows,
        rollouts=len(prompts) * config.sampling.group_size,
        shared=config.sampling.group_size if is_single_turn(environment) else 1,
        trained=2 / config.sampling.group_size if config.algorithm == "dpo" else 1.0,
        updates=config.optimizer.minibatches * config.optimizer.num_iterations,
        scorings=_scorings(config, needs_reference=algorithm.needs_reference),
        has_reference=algorithm.needs_reference,
        has_values=algorithm.value_learning_rate is not None,
        judge=Calls("judge", [Row(JUDGED_TOKENS + most, 0)] * (len(judged) * len(rows))) if judged else Calls(),
        steps=config.max_steps or config.optimizer.schedule_steps,
        notes=notes,
    )


# ---------------------------------------------------------------------------------------------------------------- pairs


def _pairs_workload(config: PairsConfig, policy: TransformersPolicy) -> Workload:
    if isinstance(config, RewardModelConfig):
        objectives = list(config.objectives)
        examples, _ = load_lines(config, lambda path: read_reward_examples(path, policy, objectives), "line")
        lines = [[Row(len(prompt), len(reply)) for prompt, reply in example.rows] for example in examples]
    else:
        pairs, _ = load_lines(config, lambda path: read_pairs(path, policy), "pair")
        lines = [[_row(sample) for sample in pair.rows("0")] for pair in pairs]
    count = config.optimizer.batch_pairs
    step = [row for index in range(count) for row in shuffled_item(lines, index, str(config.seed))]
    has_reference = not isinstance(config, RewardModelConfig) and not config.dpo.reference_free  # type: ignore[attr-defined]
    return Workload(
        "reward model" if isinstance(config, RewardModelConfig) else "preferences",
        step,
        step,
        scorings=0 if isinstance(config, RewardModelConfig) else 1 + has_reference,
        has_reference=has_reference,
        steps=config.max_steps or schedule_steps(config, len(lines), count),
    )


def _row(sample: object) -> Row:
    return Row(len(sample.prompt_ids), len(sample.completion_ids))  # type: ignore[attr-defined]


def _repeat(rows: Sequence[Row], times: float) -> list[Row]:
    """Return the rows `times` times; a part of a time is the first rows."""
    repeats, rest = divmod(round(times * len(rows)), len(rows))
    return [*(list(rows) * repeats), *rows[:rest]]
