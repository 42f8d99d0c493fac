"""Feedback on replies to text tasks that are reflected on.

Feedback comes from the user's function `feedback_func(prompts, completions, **columns) -> list[str]`, as in
erl-trainer. Without one it comes from the rewards: it names the parts that a reply misses, and never the expected
answer unless `tell_answer` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memalpha.config import ERLSettings
from memalpha.environments.prompts import reflection_messages
from memalpha.errors import ConfigError, RewardError
from memalpha.qa.records import Record
from memalpha.rewards.base import call_function
from memalpha.rewards.environments import TextGeneration, columns_of, prompt_of
from memalpha.rewards.evaluate import TextScorer
from memalpha.store.embedding import Embedder, load_embedder
from memalpha.train.rollouts.worker import Reflecting, ReflectionCandidate
from memalpha.types import Reward, SampleRequest, TextTask, Trajectory

FeedbackFunction = Callable[..., Any]


class TextReflection(Reflecting[TextTask]):
    """Feedback and prompts for second attempts at text tasks (`worker.Reflecting`).

    Args:
        scorer: Scorer of the attempts; its environment says what their parts are worth.
        settings: Settings of the algorithm.
        count_tokens: Token counter of the policy.
        feedback_func: The user's feedback function; None takes feedback from the rewards.
    """

    def __init__(
        self,
        scorer: TextScorer,
        settings: ERLSettings,
        count_tokens: Callable[[str], int],
        feedback_func: FeedbackFunction | None = None,
    ) -> None:
        self.scorer: TextScorer = scorer
        self.settings, self.count_tokens = settings, count_tokens
        self.feedback_func = feedback_func
        self._embedder: Embedder | None = None

    @property
    def embedder(self) -> Embedder:
        """Embedder for advice that is recalled by similarity; a text run embeds nothing else."""
        if self._embedder is None:
            self._embedder = load_embedder("static")
        return self._embedder

    def feedback(
        self, attempts: Sequence[Trajectory[TextTask]], records: Sequence[Sequence[Record]], budget: int
    ) -> list[str]:
        """Describe what went wrong in each attempt, in at most `budget` tokens.

        Args:
            attempts: Rollouts to reflect on.
            records: Scored answers of each attempt; unused, since text tasks have no questions.
            budget: Tokens of one description, at most.
        """
        return [self._truncate(text, budget) for text in self._describe_failures(attempts)]

    def prompt(self, candidate: ReflectionCandidate, earlier: Sequence[str]) -> tuple[Mapping[str, str], ...]:
        """Return the prompt of a reflection: the last prompt and reply, the reward, feedback and earlier advice."""
        attempt = candidate.attempt
        assert attempt.reward is not None
        reply, total = attempt.turns[-1].completion.text, attempt.reward.total
        template = self.settings.reflection_prompt
        return reflection_messages(attempt.states[-1], reply, total, candidate.feedback, earlier, template)

    def without_advice(self, trajectory: Trajectory[TextTask]) -> list[SampleRequest]:
        return [SampleRequest(messages) for messages in trajectory.states]

    def _describe_failures(self, attempts: Sequence[Trajectory[TextTask]]) -> list[str]:
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
        sentences = _describe_shortfalls(reward, _component_maxima(self.scorer.environment))
        answer = attempt.task.columns.get("answer")
        if self.settings.tell_answer and sentences and answer is not None:
            sentences += [f"The answer is {answer}."]
        return " ".join(sentences)

    def _truncate(self, text: str, budget: int) -> str:
        # No tokenizer makes more tokens than bytes.
        if len(text.encode()) <= budget or self.count_tokens(text) <= budget:
            return text
        return text.encode()[:budget].decode(errors="ignore")


def _component_maxima(environment: Any) -> dict[str, float]:
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
