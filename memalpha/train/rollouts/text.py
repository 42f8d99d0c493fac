"""Collect and score the rollouts of a text run, with feedback on replies that are reflected on.

Feedback comes from the user's function `feedback_func(prompts, completions, **columns) -> list[str]`, as in
erl-trainer. Without one it comes from the rewards: it names the parts that a reply misses, and never the expected
answer unless `tell_answer` is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memalpha.agent.rollout import Start
from memalpha.config import ERLSettings, TextConfig
from memalpha.environments.base import is_single_turn
from memalpha.environments.builtin import TextGeneration, columns_of, prompt_of
from memalpha.environments.evaluate import text_records
from memalpha.environments.prompts import reflection_messages
from memalpha.environments.rollouts import Player
from memalpha.errors import ConfigError, RewardError
from memalpha.policy.base import Policy
from memalpha.qa.records import Record
from memalpha.rewards.base import call_function
from memalpha.rewards.event_loop import close_loop
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.train.learner.distributed import SINGLE_PROCESS, World
from memalpha.train.rollouts.base import ReflectionCandidate, ScoredGroups, Scoring, drop_unscored
from memalpha.types import Reward, SampleRequest, TextTask, Trajectory, TrajectoryGroup

Groups = Sequence[TrajectoryGroup[TextTask]]
FeedbackFunction = Callable[..., Any]


class TextCollector:
    """Collect the rollouts of a text run (`RolloutCollector`)."""

    def __init__(
        self,
        player: Player,
        config: TextConfig,
        world: World = SINGLE_PROCESS,
        feedback_func: FeedbackFunction | None = None,
    ) -> None:
        """Hold what sampling and scoring need.

        Args:
            player: Plays episodes of the environment with the policy.
            config: Configuration of the run.
            world: Processes that share the tasks.
            feedback_func: The user's feedback function; None takes feedback from the rewards.
        """
        self.player, self.config, self.world = player, config, world
        self.feedback_func = feedback_func
        self.scoring_seconds = 0.0
        self._embedder: Embedder | None = None

    @property
    def policy(self) -> Policy:
        """The trained policy."""
        return self.player.policy

    @property
    def embedder(self) -> Embedder:
        """Embedder for advice that is recalled by similarity; a text run embeds nothing else."""
        if self._embedder is None:
            self._embedder = load_embedder("static")
        return self._embedder

    def collect_attempts(self, tasks: Sequence[TextTask], step: int) -> ScoredGroups[TextTask]:
        """Sample `group_size` rollouts of each task; return those with rewards, and one record each."""
        groups, records = self.score(self.sample(tasks, step))
        return drop_unscored(self.world.gather(groups)), self.world.gather(records)

    def score(self, groups: Groups) -> ScoredGroups[TextTask]:
        """Score this process's groups; a rollout without a reward has no record."""
        start = time.monotonic()
        scored = self._score_groups(groups)
        self.scoring_seconds += time.monotonic() - start
        return scored

    def _score_groups(self, groups: Groups) -> ScoredGroups[TextTask]:
        scored = self.player.score(groups)
        return scored, text_records(self.player, scored)

    def sample(
        self, tasks: Sequence[TextTask], step: int, first: int = 0, offset: int = 0
    ) -> list[TrajectoryGroup[TextTask]]:
        """Sample this process's shard of the rollouts; an environment of the user's own scores them as it plays.

        Args:
            tasks: Tasks of the step, or of a part of it.
            step: Step number; keys the sampling noise.
            first: Index of `tasks[0]` within the step.
            offset: Process that takes the first shard, as in `World.shard`.

        Returns:
            One group of `group_size` rollouts per task of the shard.
        """
        index, shard = self.world.shard(tasks, offset)
        config = self.config
        return self.player.build(
            shard,
            config.sampling.group_size,
            config.sampling.temperature,
            seed=config.seed,
            step=step,
            first_index=first + index,
        )

    def background_scoring(self) -> Scoring:
        """Return scoring for another thread; an environment of the user's own has scored the rollouts already."""
        return Scoring(
            has_endpoint=is_single_turn(self.player.environment),
            is_concurrent=False,
            start=lambda groups: lambda: self._score_groups(groups),
            cancel=close_loop,
        )

    def group_records(self, groups: Groups, records: Sequence[Record]) -> list[list[list[Record]]]:
        """Group records as [group][trajectory][record]; a trajectory without a reward has no record."""
        remaining = iter(records)
        return [
            [[next(remaining)] if trajectory.reward else [] for trajectory in group.trajectories] for group in groups
        ]

    def accuracy(self, trajectory: Trajectory[TextTask], records: Sequence[Record]) -> float | None:
        """Return how far the rollout is a success (`Player.success`); None without a reward."""
        return None if trajectory.reward is None else self.player.success(trajectory.reward)

    def reflection_candidates(
        self, groups: Groups, records: Sequence[Record], first: int, settings: ERLSettings
    ) -> list[ReflectionCandidate]:
        """Return the attempts to reflect on, with feedback cut to its budget.

        With algorithm 2 these are the attempts that did not succeed, with algorithm 1 all.

        Args:
            groups: Scored groups.
            records: Not used: rewards hold the accuracy.
            first: Index of the first group's task within the step.
            settings: Success threshold, feedback budget and the variant of the algorithm.
        """
        selected = []
        for task_index, group in enumerate(groups, start=first):
            for attempt in group.trajectories:
                accuracy = self.accuracy(attempt, ()) or 0.0
                if settings.algorithm == 1 or accuracy < settings.reward_threshold:
                    selected.append((task_index, attempt, accuracy))
        feedback = self._feedback([attempt for _, attempt, _ in selected])
        return [
            ReflectionCandidate(task_index, attempt, accuracy, self._truncate(text, settings.feedback_tokens))
            for (task_index, attempt, accuracy), text in zip(selected, feedback, strict=True)
        ]

    def reflection_prompt(
        self, candidate: ReflectionCandidate, earlier: Sequence[str]
    ) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection: the last prompt and reply, the reward, feedback and earlier advice."""
        attempt, settings = candidate.attempt, self.config.erl or ERLSettings()
        assert attempt.reward is not None
        reply, total = attempt.turns[-1].completion.text, attempt.reward.total
        template = settings.reflection_prompt
        return reflection_messages(attempt.states[-1], reply, total, candidate.feedback, earlier, template)

    def sample_retries(self, starts: Sequence[Start[TextTask]], step: int) -> list[Trajectory[TextTask]]:
        """Sample second attempts, whose prompts hold the task and the advice only."""
        return self.player.run(starts, self.config.sampling.temperature, self.config.seed, step, role="retry")

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        """Return each turn's prompt without advice."""
        return self.player.without_advice(trajectory)

    def _feedback(self, attempts: Sequence[Trajectory[TextTask]]) -> list[str]:
        if not attempts:
            return []
        tasks = [attempt.task for attempt in attempts]
        if self.feedback_func is None:
            return [self._describe_failure(attempt) for attempt in attempts]
        replies = [attempt.turns[-1].completion.text for attempt in attempts]
        prompts = [prompt_of(task) for task in tasks]
        result = call_function(self.feedback_func, "feedback_func", prompts, replies, columns_of(tasks))
        texts = list(result) if isinstance(result, list | tuple) else [result]
        if len(texts) != len(attempts) or not all(isinstance(text, str) for text in texts):
            raise RewardError(f"feedback_func gave {texts!r:.80} for {len(attempts)} replies: a text each is needed")
        return texts

    def _describe_failure(self, attempt: Trajectory[TextTask]) -> str:
        """Describe what the reply misses, part by part."""
        reward = attempt.reward
        assert reward is not None
        sentences = _describe_shortfalls(reward, _component_maxima(self.player))
        answer = attempt.task.columns.get("answer")
        if self.config.erl is not None and self.config.erl.tell_answer and sentences and answer is not None:
            sentences += [f"The answer is {answer}."]
        return " ".join(sentences)

    def _truncate(self, text: str, budget: int) -> str:
        # No tokenizer makes more tokens than bytes.
        if len(text.encode()) <= budget or self.policy.count_tokens(text) <= budget:
            return text
        return text.encode()[:budget].decode(errors="ignore")


def _component_maxima(player: Player) -> dict[str, float]:
    environment = player.environment
    return {part.name: part.maximum for part in environment.rewards} if isinstance(environment, TextGeneration) else {}


def _describe_shortfalls(reward: Reward, maxima: Mapping[str, float]) -> list[str]:
    sentences = []
    for name, values in reward.components.items():
        value, maximum = values[0], maxima.get(name, 1.0)
        if value <= 0 < maximum:
            sentences.append(f"{name}: wrong.")
        elif value < maximum:
            sentences.append(f"{name}: {value:g} of {maximum:g}.")
    return sentences


def check_feedback_function(function: Any) -> FeedbackFunction | None:
    """Raise `ConfigError` if the feedback function is not callable; return it."""
    if function is not None and not callable(function):
        raise ConfigError(f"feedback_func: {function!r} is not callable")
    return function
