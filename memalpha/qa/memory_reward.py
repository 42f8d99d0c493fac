"""The reward of a rollout: r_t = r1 + r2_t + beta r3 + gamma r4_t.

r1 is the mean score over the task's questions and r3 = 1 - memory tokens / conversation tokens, shared by all turns;
r2_t is the share of a turn's calls that executed, r4_t the share of its operations whose content is valid by the task's
gold operations, or by a judge that sees the chunk (`content=judge`; r1 too is a judge's with `metric=judge`). With
neither, r4 is off, its weight 0: it is never assumed. Weights of r1 and r2 other than 1 are `reward.accuracy` and
`reward.calls`; `reward.model` adds what a reward model gives the final memory (`model`, shared by all turns).

`published` is Mem-alpha (arXiv 2509.25911) as its code has it: a duplicate is a failed call, deleting an unknown id a
success, no call is worth 0 in r2 and r4, a delete is never valid, r3 is not clamped. `default` repairs these: only
writes that changed the memory and failed calls count in r2 (duplicates and skips neither earn nor dilute), a turn
without a failed call has r2 = 1; deletes are judged like any write; writing nothing has r4 = 1 where the chunk has
nothing to remember and 0 where it has; r3 is at least 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memalpha.config import RewardConfig
from memalpha.policy.base import load_reward_model
from memalpha.qa.memory_pairs import conversation_messages, state_text
from memalpha.qa.scoring.gold import GoldFacts, is_valid
from memalpha.qa.scoring.judge import load_judge
from memalpha.store.state import MemoryState
from memalpha.types import Reward, Task, ToolResult, Trajectory, TrajectoryGroup, Turn

if TYPE_CHECKING:
    from memalpha.qa.records import Record
    from memalpha.qa.scoring.judge_scores import ContentVerdicts

CHANGING_CODES = ("inserted", "updated", "deleted", "core_updated")


def memory_tokens(state: MemoryState, count_tokens: Callable[[str], int]) -> int:
    """Size of a memory: its core text and the contents of its live entries, a line each."""
    lines = [*([state.core] if state.core else []), *(entry.content for entry in state.list())]
    return count_tokens("\n".join(lines)) if lines else 0


def conversation_tokens(task: Task, count_tokens: Callable[[str], int]) -> int:
    """Size of what was read: the chunks as rendered, without any prompt around them."""
    return sum(count_tokens(chunk.render()) for chunk in task.chunks)


class MemoryReward:
    """Rewards by one preset; `count_tokens` measures memory and conversation alike.

    `judge` and `model` (a reward model) are the configuration's, if it has them. Raises `PolicyError` where one is not
    there.
    """

    def __init__(self, config: RewardConfig, count_tokens: Callable[[str], int]) -> None:
        self.config = config
        self.count_tokens = count_tokens
        self.judge = load_judge(config.judge) if config.judge is not None else None
        model = config.model
        self.model = load_reward_model(model.path, device=model.device) if model is not None else None

    def score_by_model(self, groups: Sequence[TrajectoryGroup]) -> dict[int, float]:
        """What the reward model gives the final memories, by `id` of their trajectories, in one batch; nothing without
        one. Raises `PolicyError` for a conversation that is longer than it takes."""
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
        """Components and totals per turn; `records` are this trajectory's questions (none: r1 is 0).

        `contents`: what the judge says of each turn's writes (`content=judge`), in the place of gold operations;
        `modelled`: what the reward model gives the final memory, where there is one.
        """
        task, turns, published = trajectory.task, trajectory.turns, self.config.preset == "published"
        r1 = sum(record.score for record in records) / len(records) if records else 0.0
        r3 = self._compression(trajectory)
        r2 = [_published_call_share(turn) if published else _call_share(turn) for turn in turns]
        r4 = [0.0] * len(turns)
        if contents is not None:
            judge_turn = _published_judged_share if published else _judged_share
            r4 = [judge_turn(turn, content) for turn, content in zip(turns, contents, strict=True)]
        elif task.gold_operations:
            gold, judge = GoldFacts(task), _published_valid_share if published else _valid_share
            r4 = [judge(turn, gold, task, trajectory.states[index]) for index, turn in enumerate(turns)]
        weights = {
            "r1": self.config.accuracy,
            "r2": self.config.calls,
            "r3": self.config.beta,
            "r4": self.config.gamma if contents is not None or task.gold_operations else 0.0,
        }
        components = {"r1": (r1,) * len(turns), "r2": tuple(r2), "r3": (r3,) * len(turns), "r4": tuple(r4)}
        if self.config.model is not None:
            if model_score is None:
                raise ValueError("reward.model: this trajectory was not scored by it")
            weights["model"], components["model"] = self.config.model.weight, (model_score,) * len(turns)
        totals = tuple(
            sum(weights[name] * values[place] for name, values in components.items()) for place in range(len(turns))
        )
        return Reward(totals, components, weights, sum(totals) / len(totals) if totals else 0.0)

    def notes(self, tasks: Sequence[Task]) -> list[str]:
        """What a run must say about its reward: how many tasks have no gold operations, so that r4 is off for them."""
        missing = sum(not task.gold_operations for task in tasks)
        if not missing or not self.config.gamma or self.config.content == "judge":
            return []
        return [f"reward: r4 is off (weight 0) for {missing} of {len(tasks)} tasks: they carry no gold operations"]

    def _compression(self, trajectory: Trajectory) -> float:
        conversation = conversation_tokens(trajectory.task, self.count_tokens)
        if not conversation or not trajectory.states:
            return 0.0
        r3 = 1.0 - memory_tokens(trajectory.states[-1], self.count_tokens) / conversation
        return r3 if self.config.preset == "published" else max(0.0, r3)


def _call_share(turn: Turn) -> float:
    succeeded = sum(result.code in CHANGING_CODES for result in turn.results)
    failed = sum(not result.ok for result in turn.results)
    return succeeded / (succeeded + failed) if failed else 1.0


def _valid_share(turn: Turn, gold: GoldFacts, task: Task, state: MemoryState) -> float:
    verdicts = [is_valid(result, gold, turn.chunk, state) for result in turn.results]
    verdicts = [verdict for verdict in verdicts if verdict is not None]
    if not verdicts:
        return float(not task.gold_at(turn.chunk))
    return sum(verdicts) / len(verdicts)


def _judged_share(turn: Turn, content: ContentVerdicts) -> float:
    """As `_content`, by a judge."""
    pairs = zip(turn.results, content.writes, strict=True)
    verdicts = [0.0 if result.code == "duplicate" else value for result, value in pairs]
    verdicts = [value for value in verdicts if value is not None]
    if not verdicts:
        return content.nothing or 0.0
    return sum(verdicts) / len(verdicts)


def _published_call_share(turn: Turn) -> float:
    calls = _published_calls(turn)
    succeeded = sum(result.code in CHANGING_CODES or _deletes_unknown_id(result) for result in calls)
    return succeeded / len(calls) if calls else 0.0


def _published_valid_share(turn: Turn, gold: GoldFacts, task: Task, state: MemoryState) -> float:
    calls = _published_calls(turn)
    valid_count = sum(
        result.code in ("inserted", "updated") and gold.holds(result.category, result.content, turn.chunk)
        for result in calls
    )
    return valid_count / len(calls) if calls else 0.0


def _published_judged_share(turn: Turn, content: ContentVerdicts) -> float:
    """As `_content_published`, by a judge."""
    calls = _published_calls(turn)
    return sum(value for value in content.writes if value is not None) / len(calls) if calls else 0.0


def _published_calls(turn: Turn) -> list[ToolResult]:
    """All calls; the published system has no explicit no-op, so a skip is no call."""
    return [result for result in turn.results if result.code != "skipped"]


def _deletes_unknown_id(result: ToolResult) -> bool:
    return result.call.name == "memory_delete" and result.code == "unknown_id"
