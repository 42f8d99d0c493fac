"""Reward of a memory-writing rollout: r_t = r1 + r2_t + beta r3 + gamma r4_t.

| component | meaning                                                                        | shared by        |
|-----------|--------------------------------------------------------------------------------|------------------|
| r1        | mean score over the task's questions                                           | all turns        |
| r2_t      | share of the turn's calls that executed                                        | -                |
| r3        | 1 - memory tokens / conversation tokens                                        | all turns        |
| r4_t      | share of the turn's operations whose content is valid                          | -                |
| model     | score of a reward model for the final memory (`reward.model`)                  | all turns        |
| own names | functions of your own (`reward.functions`)                                     | all turns        |

Gold operations decide validity in r4, or a judge that sees the chunk (`content=judge`), or the chunk's own words
(`content=copied`): a write is valid if it invents no name, number or value. With `content=state` r4 says what the turn
did to the facts of the gold operations, in any words (`state_change`). With `metric=judge` a judge scores r1 too. With
no gold operations and no judge or `copied` r4 has weight 0: validity is never assumed. `reward.accuracy` and
`reward.calls` are the weights of r1 and r2.

In a chunk group (`environments.memory_writing`) r1 and r3 belong to their turn. The questions are asked of the memory
after it, and the size of that memory is compared with what was read by then.

Preset `published` follows the code of Mem-alpha (arXiv 2509.25911). A duplicate is a failed call, deleting an unknown
id or inserting an empty content a success, no call is worth 0 in r2 and r4, a delete is never valid, and r3 is not
clamped.

Preset `default` repairs these. Only writes that changed the memory and failed calls count in r2; duplicates and skips
neither earn nor dilute. A turn without a failed call has r2 = 1. Deletes are judged like any write. Writing nothing has
r4 = 1 where the chunk has nothing to remember, else 0. r3 is at least 0.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from memalpha.agent.tools import CHANGING_CODES
from memalpha.arguments import check_count, name_errors, to_float
from memalpha.config import RewardConfig
from memalpha.config.common import MemoryFunction, import_object
from memalpha.errors import ConfigError, DataError, RewardError
from memalpha.policy.load import load_reward_model
from memalpha.qa.memory_pairs import conversation_messages, state_text
from memalpha.qa.scoring.judge import load_judge
from memalpha.qa.scoring.stats import group_values, mean
from memalpha.store.schema import MemorySchema
from memalpha.store.search.lexical import words
from memalpha.store.state import MemoryState
from memalpha.store.values import is_copied, normalize, value_words
from memalpha.types import LARGEST_REWARD, Reward, Task, ToolResult, Trajectory, TrajectoryGroup, Turn

if TYPE_CHECKING:
    from memalpha.qa.report import Record
    from memalpha.qa.scoring.judge import ContentVerdicts


def memory_tokens(state: MemoryState, count_tokens: Callable[[str], int]) -> int:
    """Return the size of a memory: core text and contents of live entries, a line each."""
    lines = [*([state.core] if state.core else []), *(entry.content for entry in state.list())]
    return _count(count_tokens, "\n".join(lines)) if lines else 0


def conversation_tokens(task: Task, count_tokens: Callable[[str], int]) -> int:
    """Return the size of the rendered chunks, without prompts."""
    return sum(_count(count_tokens, chunk.render()) for chunk in task.chunks)


def _count(count_tokens: Callable[[str], int], text: str) -> int:
    return check_count("count_tokens: its result", count_tokens(text), error=ConfigError)


def load_functions(config: RewardConfig) -> list[tuple[MemoryFunction, Callable[..., Any]]]:
    """Import the functions of `reward.functions`. Raises `ConfigError` for a name that leads to no function."""
    functions: list[tuple[MemoryFunction, Callable[..., Any]]] = []
    for part in config.functions:
        function = import_object(part.function, f"reward.functions.{part.name}")
        if inspect.isclass(function) or not callable(function):
            raise ConfigError(
                f"reward.functions.{part.name}: {part.function!r} is no function (trajectory, records) -> float"
            )
        functions.append((part, function))
    return functions


class MemoryReward:
    """Reward of memory-writing rollouts by one preset.

    Attributes:
        config: Preset, weights, metric, judge and reward model.
        count_tokens: Counts tokens of memory and conversation.
        judge: Judge of the configuration, or None.
        model: Reward model of the configuration, or None.

    Raises:
        PolicyError: The judge or the reward model cannot be loaded.
        ConfigError: See `load_functions`.
    """

    def __init__(self, config: RewardConfig, count_tokens: Callable[[str], int]) -> None:
        self.config = config
        self.count_tokens = count_tokens
        self.judge = load_judge(config.judge) if config.judge is not None else None
        model = config.model
        self.model = load_reward_model(model.path, device=model.device) if model is not None else None
        self.functions = load_functions(config)

    def score_by_model(self, groups: Sequence[TrajectoryGroup]) -> dict[int, float]:
        """Score the final memories by the reward model in one batch; {} without a reward model.

        Returns:
            Scores by `id` of the trajectory.

        Raises:
            PolicyError: A conversation is longer than the model takes.
        """
        if self.model is None:
            return {}
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        prompts = [conversation_messages(trajectory.task) for trajectory in trajectories]
        scores = self.model.score(prompts, [state_text(trajectory.states[-1]) for trajectory in trajectories])
        return {id(trajectory): score for trajectory, score in zip(trajectories, scores, strict=True)}

    def reward(
        self,
        trajectory: Trajectory,
        records: Sequence[Record],
        contents: Sequence[ContentVerdicts] | None = None,
        model_score: float | None = None,
    ) -> Reward:
        """Compute reward components and totals per turn.

        Args:
            trajectory: Rollout to score.
            records: Records of its questions; r1 is 0 without any.
            contents: The judge's verdicts on each turn's writes (`content=judge`); they replace gold operations.
            model_score: Score of the reward model; required if the configuration has one.

        Raises:
            ValueError: The configuration has a reward model and `model_score` is missing.
            RewardError: A function of `reward.functions` returned no finite number.
        """
        task, turns, published = trajectory.task, trajectory.turns, self.config.preset == "published"
        if trajectory.before:  # each turn has a memory, and questions, of its own
            pairs = zip(map(task.asked_after, task.questions), records, strict=True)
            scores = group_values((chunk, record.score) for chunk, record in pairs)
            r1 = [mean(scores.get(chunk.index, [])) or 0.0 for chunk in task.chunks]
            read_by_then = accumulate(_count(self.count_tokens, chunk.render()) for chunk in task.chunks)
            sizes_and_states = zip(read_by_then, trajectory.states[: len(turns)], strict=False)
            r3 = [self._compression(size, state) for size, state in sizes_and_states]
        else:
            r1 = [mean([record.score for record in records]) or 0.0] * len(turns)
            read_tokens = conversation_tokens(task, self.count_tokens)
            r3 = [self._compression(read_tokens, state) for state in trajectory.states[-1:] or (None,)] * len(turns)
        r2 = [_call_share(turn, published) for turn in turns]
        r4, is_judged = [0.0] * len(turns), True
        if self.config.content == "copied":
            r4 = [_copied_share(turn, task.chunks[turn.chunk].render()) for turn in turns]
        elif contents is not None:
            r4 = [_judged_share(turn, content, published) for turn, content in zip(turns, contents, strict=True)]
        elif task.gold_operations and self.config.content == "state":
            before = trajectory.before or (None, *trajectory.states)
            steps = zip(turns, before, trajectory.states, strict=False)
            r4 = [state_change(task, turn.chunk, earlier, later) for turn, earlier, later in steps]
        elif task.gold_operations:
            gold, judge = GoldFacts(task), _published_valid_share if published else _valid_share
            r4 = [judge(turn, gold, task, trajectory.states[index]) for index, turn in enumerate(turns)]
        else:
            is_judged = False
        weights = {"r1": self.config.accuracy, "r2": self.config.calls, "r3": self.config.beta}
        weights["r4"] = self.config.gamma if is_judged else 0.0
        components = {"r1": tuple(r1), "r2": tuple(r2), "r3": tuple(r3), "r4": tuple(r4)}
        shared = set[str]() if trajectory.before else {"r1", "r3"}
        if self.config.model is not None:
            if model_score is None:
                raise ValueError("reward.model: this trajectory was not scored by it")
            weights["model"], components["model"] = self.config.model.weight, (model_score,) * len(turns)
            shared.add("model")
        for part, function in self.functions:
            weights[part.name] = part.weight
            where = f"reward.functions.{part.name}: {part.function}"
            with name_errors(f"{where} raised", RewardError):
                result = function(trajectory, records)
            value = to_float(result, where, error=RewardError)
            if abs(part.weight * value) > LARGEST_REWARD / 2:
                problem = f"its weight {part.weight:g} must keep it below {LARGEST_REWARD / 2:g}"
                raise RewardError(f"{where} gave {value:g}: {problem}")
            components[part.name] = (value,) * len(turns)
            shared.add(part.name)
        named = components.items()
        totals = tuple(sum(weights[name] * values[turn] for name, values in named) for turn in range(len(turns)))
        return Reward(totals, components, weights, mean(totals) or 0.0, frozenset(shared))

    def notes(self, tasks: Sequence[Task], scope: str = "tasks") -> list[str]:
        """Return notes for the run's log: the number of tasks without gold operations, where r4 is off.

        Args:
            tasks: Tasks to count.
            scope: Words for what these tasks are, such as "held-out tasks".
        """
        missing = sum(not task.gold_operations for task in tasks)
        if not missing or not self.config.gamma or self.config.content not in ("gold", "state"):
            return []
        return [f"reward: r4 is off (weight 0) for {missing} of {len(tasks)} {scope}: they carry no gold operations"]

    def _compression(self, read_tokens: int, state: MemoryState | None) -> float:
        """Return 1 - tokens of the memory / tokens of the chunks that were read."""
        if not read_tokens or state is None:
            return 0.0
        r3 = 1.0 - memory_tokens(state, self.count_tokens) / read_tokens
        return r3 if self.config.preset == "published" else max(0.0, r3)


def _call_share(turn: Turn, published: bool) -> float:
    if published:
        calls = _published_calls(turn)
        succeeded = sum(result.code in CHANGING_CODES or _succeeds_as_published(result) for result in calls)
        return succeeded / len(calls) if calls else 0.0
    succeeded = sum(result.code in CHANGING_CODES for result in turn.results)
    failed = sum(not result.ok for result in turn.results)
    return succeeded / (succeeded + failed) if failed else 1.0


def _valid_share(turn: Turn, gold: GoldFacts, task: Task, state: MemoryState) -> float:
    live = Counter(comparable_fact(entry.category, entry.content) for entry in state.entries.values())
    verdicts = [_is_valid(result, gold, turn.chunk, live) for result in turn.results]
    share = mean([verdict for verdict in verdicts if verdict is not None])
    return float(not task.gold_at(turn.chunk)) if share is None else share


def _judged_share(turn: Turn, content: ContentVerdicts, published: bool) -> float:
    """Return the share of valid writes by a judge's verdicts; see `_valid_share` and `_published_valid_share`."""
    if published:
        calls = _published_calls(turn)
        return sum(value for value in content.writes if value is not None) / len(calls) if calls else 0.0
    pairs = zip(turn.results, content.writes, strict=True)
    verdicts = [0.0 if result.code == "duplicate" else value for result, value in pairs]
    share = mean([value for value in verdicts if value is not None])
    return content.nothing or 0.0 if share is None else share


def _copied_share(turn: Turn, chunk: str) -> float:
    """Return the share of writes that invent no value; 1 without a write. Duplicates are invalid."""
    verdicts = [
        result.code != "duplicate" and is_copied(result.content or "", f"{chunk}\n{result.before or ''}")
        for result in turn.results
        if result.code in ("inserted", "updated", "core_updated", "duplicate")
    ]
    return sum(verdicts) / len(verdicts) if verdicts else 1.0


BESIDE = 0.5
"""What an update is worth in `state_change` if the value that it replaces still stands in an entry."""
IDLE = 0.2
"""What an entry costs in `state_change` that states no fact."""


def state_change(task: Task, chunk: int, before: MemoryState | None, after: MemoryState) -> float:
    """Return what the reading of a chunk did to the facts of the gold operations, in [-1, 1].

    A fact stands in a memory if an entry has all words of its value, so notes may have any form. Of the chunk's
    operations an insert counts 1 if its fact stands, an update 1 if the new value stands and the old one in no other
    entry, else `BESIDE`, and a delete of what stood 1 if it is gone. A fact that stood, still holds and stands no more
    costs 1, an entry written that states no fact `IDLE`. The sum is divided by the number of operations, at least 1.

    Args:
        task: Task with gold operations.
        chunk: Index of the chunk.
        before: Memory before the chunk; None is an empty one.
        after: Memory after it.
    """
    entries = after.list()
    contents = {} if before is None else {entry.id: entry.content for entry in before.list()}
    of_entries = _words_of_lines(entry.content for entry in entries)
    old = [] if before is None else _words_of_lines([*contents.values(), *before.core.splitlines()])
    new = [*of_entries, *_words_of_lines(after.core.splitlines())]
    live: dict[str, frozenset[str]] = {}
    for operation in sorted(task.gold_operations, key=lambda operation: operation.chunk):
        if operation.chunk < chunk:
            live.pop(operation.replaces or "", None)
            if value := value_words(operation.content):
                live[operation.content] = value
    values: list[frozenset[str]] = []
    score, count = 0.0, 0
    for operation in task.gold_at(chunk):
        ended, value = live.pop(operation.replaces or "", None), value_words(operation.content)
        is_gone = ended is None or not any(ended <= found and not (value and value <= found) for found in new)
        if value:
            values.append(value)
            stands = any(value <= found for found in new)
            score, count = score + stands * (1.0 if is_gone else BESIDE), count + 1
        elif ended is not None and any(ended <= found for found in old):
            score, count = score + is_gone, count + 1
    for value in live.values():
        score -= any(value <= found for found in old) and not any(value <= found for found in new)
    stated = [*live.values(), *values]
    for entry, found in zip(entries, of_entries, strict=True):
        if contents.get(entry.id) != entry.content and not any(value <= found for value in stated):
            score -= IDLE
    return max(-1.0, score / max(1, count))


def _words_of_lines(lines: Iterable[str]) -> list[frozenset[str]]:
    return [frozenset(words(line)) for line in lines]


def _published_valid_share(turn: Turn, gold: GoldFacts, task: Task, state: MemoryState) -> float:
    writes = [result for result in turn.results if result.code in ("inserted", "updated")]
    valid_count = sum(gold.holds(result.category, result.content, turn.chunk) for result in writes)
    calls = _published_calls(turn)
    return valid_count / len(calls) if calls else 0.0


def _published_calls(turn: Turn) -> list[ToolResult]:
    """Return all calls but skips: the published system has no explicit no-op."""
    return [result for result in turn.results if result.code != "skipped"]


def _succeeds_as_published(result: ToolResult) -> bool:
    """Return True for a refused call that Mem-alpha's code reports as executed.

    These are a delete whose id is unknown or missing, and an insert whose content is empty or no text.
    """
    name, arguments = result.call.name, result.call.arguments
    if name == "memory_delete":
        return result.code == "unknown_id" or (result.code == "invalid_arguments" and not arguments)
    if name != "memory_insert" or set(arguments) != {"category", "content"}:
        return False
    is_empty = isinstance(arguments["content"], str) and not arguments["content"].strip()
    return (result.code == "invalid_content" and is_empty) or (
        result.code == "invalid_arguments" and not isinstance(arguments["content"], str)
    )


_Fact = tuple[str, str]
_CORE = "core"


def comparable_fact(category: str | None, content: str | None) -> _Fact:
    """Return category and normalized content for comparison."""
    return category or _CORE, normalize(content or "")


class GoldFacts:
    """Facts of a task, with the chunks during which each holds."""

    def __init__(self, task: Task) -> None:
        self._spans: dict[_Fact, list[tuple[int, int | None]]] = {}
        self._replaced: dict[_Fact, set[_Fact]] = {}
        self.judges_core = any(operation.kind == "core_update" for operation in task.gold_operations)
        core: _Fact | None = None
        for operation in sorted(task.gold_operations, key=lambda operation: operation.chunk):
            category = _CORE if operation.kind == "core_update" else operation.category
            previous = core if operation.kind == "core_update" else comparable_fact(category, operation.replaces)
            if operation.kind != "insert" and previous in self._spans and self._spans[previous][-1][1] is None:
                self._spans[previous][-1] = (self._spans[previous][-1][0], operation.chunk)
            if operation.kind != "delete":
                current = comparable_fact(category, operation.content)
                spans = self._spans.setdefault(current, [])
                if not spans or spans[-1][1] is not None:  # a repetition while the fact holds opens no new span
                    spans.append((operation.chunk, None))
                if operation.kind == "update" and previous is not None:
                    self._replaced.setdefault(current, set()).update({previous}, self._replaced.get(previous, ()))
                core = current if operation.kind == "core_update" else core

    def holds(self, category: str | None, content: str | None, chunk: int) -> bool:
        """Return True if a fact is true after `chunk`.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        spans = self._spans.get(comparable_fact(category, content), ())
        return any(start <= chunk and (end is None or chunk < end) for start, end in spans)

    def has_ended(self, category: str | None, content: str | None, chunk: int) -> bool:
        """Return True if a fact was true once and no longer is after `chunk`.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        was_true = any(start <= chunk for start, _ in self._spans.get(comparable_fact(category, content), ()))
        return was_true and not self.holds(category, content, chunk)

    def outdated_by(self, category: str | None, content: str | None, chunk: int) -> set[_Fact]:
        """Return the facts that gold updates replaced by this one, step by step, and that no longer hold.

        Args:
            category: Category; None is the core memory.
            content: Content, compared after `normalize`.
            chunk: Index of the chunk.
        """
        replaced = self._replaced.get(comparable_fact(category, content), set())
        return {fact for fact in replaced if self.has_ended(*fact, chunk)}


def check_categories(tasks: Iterable[Task], schema: MemorySchema, data_source: str) -> None:
    """Check that the schema has a category for every gold operation.

    Args:
        tasks: Tasks with gold operations.
        schema: Schema of the writer.
        data_source: Key and file of the tasks, for the error message.

    Raises:
        DataError: A gold operation is of a category that the schema lacks.
    """
    for task in tasks:
        for number, operation in enumerate(task.gold_operations):
            core = operation.kind == "core_update"
            if schema.core if core else operation.category in schema.category_names:
                continue
            raise DataError(
                f"{data_source}: gold_operations[{number}] of task {task.id!r} is of "
                f"{'the core memory' if core else f'category {operation.category!r}'}, which schema "
                f"{schema.describe()} does not have: set agent.memory_schema to the schema that the file was written "
                "for (mem-alpha, life, or a YAML file)"
            )


def _is_valid(result: ToolResult, gold: GoldFacts, chunk: int, live: Counter[_Fact]) -> bool | None:
    """Return True if a call made the memory truer; None if it is no write or cannot be judged.

    An insert or update is valid if its content holds in its category and no other live entry says the same. An insert
    is valid only if no live entry states what a gold update replaced by it: beside the old value the memory
    contradicts itself. An update is valid only if the replaced content no longer holds. A delete is valid if the
    removed content held once and no longer does. Removing what was never true is not judged: a writer could earn by
    tidying up its own junk. An exact duplicate is not valid.

    `chunk` is the index of the chunk that was read, `live` counts the facts of the memory after it.
    """
    if result.code == "duplicate":
        return False
    if result.code == "core_updated":
        return gold.holds(None, result.content, chunk) if gold.judges_core else None
    if result.code == "deleted":
        if gold.has_ended(result.category, result.before, chunk):
            return True
        return False if gold.holds(result.category, result.before, chunk) else None
    if result.code not in ("inserted", "updated"):
        return None
    if not gold.holds(result.category, result.content, chunk):
        return False
    if result.code == "updated" and gold.holds(result.category, result.before, chunk):
        return False
    if result.code == "inserted" and not gold.outdated_by(result.category, result.content, chunk).isdisjoint(live):
        return False
    return live[comparable_fact(result.category, result.content)] <= 1


def count_changes_by_id(trajectory: Trajectory) -> Counter[str]:
    """Count gold changes ("update", "delete") whose old content was live before their chunk, and hits ("update hit").

    An update is a hit if the same entry then holds the new content, a delete if the entry no longer exists.
    """
    count: Counter[str] = Counter()
    for chunk in range(1, len(trajectory.states)):
        changes = [operation for operation in trajectory.task.gold_at(chunk) if operation.kind in ("update", "delete")]
        if not changes:
            continue
        before = trajectory.before[chunk] if trajectory.before else trajectory.states[chunk - 1]
        after = trajectory.states[chunk].entries
        ids = group_values((comparable_fact(old.category, old.content), old.id) for old in before.entries.values())
        for operation in changes:
            if not (stored := ids.get(comparable_fact(operation.category, operation.replaces))):
                continue
            new = comparable_fact(operation.category, operation.content)
            now = {id: comparable_fact(after[id].category, after[id].content) for id in stored if id in after}
            count[operation.kind] += 1
            count[f"{operation.kind} hit"] += new in now.values() if operation.kind == "update" else not now
    return count
