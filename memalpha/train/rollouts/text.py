"""`TextCollector`: a text run's rollouts, and what of a reply that is looked at again is said of it.

Feedback comes from a function of one's own, `feedback_func(prompts, completions, **columns) -> list[str]`, as in
erl-trainer, else from the rewards: what a reply lacks by name, never what was expected, unless `tell_answer` is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memalpha.agent.rollout import Start
from memalpha.config import ERLConfig, TextConfig
from memalpha.environments.base import is_scored
from memalpha.environments.builtin import TextGeneration, columns_of, prompt_of
from memalpha.environments.evaluate import text_records
from memalpha.environments.prompts import reflection_messages
from memalpha.environments.rollouts import Player
from memalpha.errors import ConfigError, RewardError
from memalpha.policy.base import Policy
from memalpha.qa.records import Record
from memalpha.rewards.base import called
from memalpha.rewards.event_loop import close_loop
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.rollouts.base import ReflectionCandidate, ScoredGroups, Scoring, drop_unscored
from memalpha.types import Reward, SampleRequest, TextTask, Trajectory, TrajectoryGroup

Groups = Sequence[TrajectoryGroup[TextTask]]
FeedbackFunction = Callable[..., Any]


class TextCollector:
    """The rollouts of a text run (`RolloutCollector`)."""

    def __init__(
        self,
        player: Player,
        config: TextConfig,
        world: World = SINGLE_PROCESS,
        feedback_func: FeedbackFunction | None = None,
    ) -> None:
        self.player, self.config, self.world = player, config, world
        self.feedback_func = feedback_func
        self.scoring_seconds = 0.0
        self._embedder: Embedder | None = None

    @property
    def policy(self) -> Policy:
        """What is trained."""
        return self.player.policy

    @property
    def embedder(self) -> Embedder:
        """For advice that is to be found by similarity; nothing else of a text run is embedded."""
        if self._embedder is None:
            self._embedder = load_embedder("static")
        return self._embedder

    def collect_attempts(self, tasks: Sequence[TextTask], step: int) -> ScoredGroups[TextTask]:
        """`group_size` sampled rollouts of each task, with rewards, and a record each; without those that have none."""
        groups, records = self.score(self.sample(tasks, step))
        return drop_unscored(self.world.gather(groups)), self.world.gather(records)

    def score(self, groups: Groups) -> ScoredGroups[TextTask]:
        """This process's groups with rewards (None where nothing can be said), and a record of each that has one."""
        begun = time.monotonic()
        found = self._score_groups(groups)
        self.scoring_seconds += time.monotonic() - begun
        return found

    def _score_groups(self, groups: Groups) -> ScoredGroups[TextTask]:
        found = self.player.scored(groups)
        return found, text_records(self.player, found)

    def sample(
        self, tasks: Sequence[TextTask], step: int, first: int = 0, turn: int = 0
    ) -> list[TrajectoryGroup[TextTask]]:
        """This process's share of the rollouts, not yet scored where that is done in batches."""
        place, mine = self.world.shard(tasks, turn)
        config = self.config
        return self.player.build(
            mine, config.group_size, config.temperature, seed=config.seed, step=step, first=first + place
        )

    def background_scoring(self) -> Scoring:
        """Reward functions are asked in another thread; an environment of one's own has given its rewards already."""
        return Scoring(
            has_endpoint=is_scored(self.player.environment),
            is_concurrent=False,
            start=lambda groups: lambda: self._score_groups(groups),
            cancel=close_loop,
        )

    def group_records(self, groups: Groups, records: Sequence[Record]) -> list[list[list[Record]]]:
        """As [group][trajectory][the one record, if it has a reward]."""
        rest = iter(records)
        return [[[next(rest)] if one.reward else [] for one in group.trajectories] for group in groups]

    def accuracy(self, trajectory: Trajectory[TextTask], records: Sequence[Record]) -> float | None:
        """How far the rollout is a success (`Player.reached`)."""
        return None if trajectory.reward is None else self.player.reached(trajectory.reward)

    def reflection_candidates(
        self, groups: Groups, records: Sequence[Record], first: int, settings: ERLConfig
    ) -> list[ReflectionCandidate]:
        """Attempts that have not succeeded (with algorithm 1: all), with feedback cut to its budget."""
        chosen = []
        for number, group in enumerate(groups, start=first):
            for attempt in group.trajectories:
                reached = self.accuracy(attempt, ()) or 0.0
                if settings.algorithm == 1 or reached < settings.reward_threshold:
                    chosen.append((number, attempt, reached))
        told = self._feedback([attempt for _, attempt, _ in chosen])
        return [
            ReflectionCandidate(number, attempt, reached, self._truncate(text, settings.feedback_tokens))
            for (number, attempt, reached), text in zip(chosen, told, strict=True)
        ]

    def reflection_prompt(self, tried: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """The attempt's last prompt and reply, its reward, feedback and earlier advice."""
        attempt, settings = tried.attempt, self.config.erl or ERLConfig()
        assert attempt.reward is not None
        reply, total = attempt.turns[-1].completion.text, attempt.reward.total
        template = settings.reflection_prompt
        return reflection_messages(attempt.states[-1], reply, total, tried.feedback, earlier, template)

    def sample_retries(self, starts: Sequence[Start[TextTask]], step: int) -> list[Trajectory[TextTask]]:
        """Second attempts: the prompt and the advice, nothing else of the first."""
        return self.player.run(starts, self.config.temperature, self.config.seed, step, role="retry")

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        """The prompts that its turns would have had."""
        return self.player.without_advice(trajectory)

    def _feedback(self, attempts: Sequence[Trajectory[TextTask]]) -> list[str]:
        if not attempts:
            return []
        tasks = [attempt.task for attempt in attempts]
        if self.feedback_func is None:
            return [self._describe_failure(attempt) for attempt in attempts]
        replies = [attempt.turns[-1].completion.text for attempt in attempts]
        prompts = [prompt_of(task) for task in tasks]
        told = called(self.feedback_func, "feedback_func", prompts, replies, columns_of(tasks))
        found = list(told) if isinstance(told, list | tuple) else [told]
        if len(found) != len(attempts) or not all(isinstance(text, str) for text in found):
            raise RewardError(f"feedback_func gave {found!r:.80} for {len(attempts)} replies: a text each is needed")
        return found

    def _describe_failure(self, attempt: Trajectory[TextTask]) -> str:
        """By component: what the reply lacks."""
        reward = attempt.reward
        assert reward is not None
        told = _describe_shortfalls(reward, _component_maxima(self.player))
        answer = attempt.task.columns.get("answer")
        if self.config.tell_answer and told and answer is not None:
            told += [f"The answer is {answer}."]
        return " ".join(told)

    def _truncate(self, text: str, budget: int) -> str:
        # No tokenizer makes more tokens than bytes.
        if len(text.encode()) <= budget or self.policy.count_tokens(text) <= budget:
            return text
        return text.encode()[:budget].decode(errors="ignore")


def _component_maxima(player: Player) -> dict[str, float]:
    environment = player.environment
    return {one.name: one.maximum for one in environment.rewards} if isinstance(environment, TextGeneration) else {}


def _describe_shortfalls(reward: Reward, maxima: Mapping[str, float]) -> list[str]:
    found = []
    for name, values in reward.components.items():
        value, most = values[0], maxima.get(name, 1.0)
        if value <= 0 < most:
            found.append(f"{name}: wrong.")
        elif value < most:
            found.append(f"{name}: {value:g} of {most:g}.")
    return found


def check_feedback_function(function: Any) -> FeedbackFunction | None:
    """Raise `ConfigError` for what cannot give feedback."""
    if function is not None and not callable(function):
        raise ConfigError(f"feedback_func: {function!r} is not callable")
    return function
