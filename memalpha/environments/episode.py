"""One rollout under way: its environment, the next prompt and the turns so far."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic

from memalpha.environments.base import Environment, Prompt, Step, is_single_turn, sum_rewards
from memalpha.errors import MemalphaError, RewardError
from memalpha.policy.noise import noise_key
from memalpha.types import AnyTask, SampleRequest, Trajectory, Turn

if TYPE_CHECKING:
    from memalpha.environments.engine import RolloutEngine


REFLECTION_PROMPT = (
    "{prompt}\n\nYour reply:\n{attempt}\n\nReward {reward}. {feedback}\n{memory}What should the next reply do "
    "differently? Answer in one or two sentences."
)
"""Replaces the task's last user message (`{prompt}`) for a reflection."""

RETRY_PROMPT = "{prompt}\n\nAdvice: {reflection}"
"""Replaces the task's last user message for the retry."""

Messages = tuple[Mapping[str, str], ...]


def with_advice(messages: Messages, advice: str, template: str | None = None) -> Messages:
    """Insert advice into the last user message; return the messages unchanged if there is none.

    Args:
        messages: The task's messages.
        advice: Result of the reflection, or "".
        template: Text with `{prompt}` and `{reflection}` (default: `RETRY_PROMPT`).
    """
    if not advice:
        return messages
    return _fill(messages, template or RETRY_PROMPT, {"reflection": advice})


def reflection_messages(
    messages: Messages,
    attempt: str,
    reward: float,
    feedback: str,
    earlier: Sequence[str],
    template: str | None = None,
) -> Messages:
    """Build the messages that ask for a reflection on a reply.

    Args:
        messages: The task's messages; the last user message is replaced.
        attempt: The reply.
        reward: Its reward.
        feedback: Description of its errors.
        earlier: Advice that helped before, in the order shown.
        template: Text with the fields of `REFLECTION_PROMPT` (default: `REFLECTION_PROMPT`).
    """
    memory = "".join(f"- {' '.join(text.split())}\n" for text in earlier)
    parts = {
        "attempt": attempt,
        "reward": f"{reward:g}",
        "feedback": feedback,
        "memory": f"Earlier advice that helped:\n{memory}" if memory else "",
    }
    return _fill(messages, template or REFLECTION_PROMPT, parts)


def _fill(messages: Messages, template: str, parts: Mapping[str, str]) -> Messages:
    """Replace the last user message by the template; inserted texts are not expanded again."""
    user_indices = [index for index, message in enumerate(messages) if message["role"] == "user"]
    index = user_indices[-1] if user_indices else len(messages) - 1
    values = {**parts, "prompt": messages[index]["content"]}
    text = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)
    return (*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :])


@dataclass(frozen=True, slots=True)
class Start(Generic[AnyTask]):
    """Rollout to make.

    `number` is the index of its task within the step. `advice` is added to each of its prompts.
    """

    task: AnyTask
    number: int
    rollout: int = 0
    advice: str = ""


@dataclass(slots=True)
class RunningEpisode:
    """One rollout under way: its environment, the next prompt and the turns so far."""

    engine: RolloutEngine[Any]
    start: Start[Any]
    step: int = 0  # training step, part of the noise key
    environment: Environment = field(init=False)
    request: SampleRequest | None = None  # None: the next prompt is the conversation
    messages: Messages = ()  # without advice
    opening: int = 0  # number of messages that the environment gave at once; advice goes into them
    completion: Any = None
    turns: list[Turn] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.environment = self.engine.make_environment()
        if hasattr(self.environment, "advice"):
            self.environment.advice = self.start.advice  # type: ignore[attr-defined]
        with WrapErrors(self.where):
            self._observe(self.environment.reset(self.start.task))
        system_prompt = self.engine.system_prompt
        if self.request is None and system_prompt is not None and self.messages[0]["role"] != "system":
            self.messages = ({"role": "system", "content": system_prompt}, *self.messages)
            self.opening += 1

    @property
    def where(self) -> str:
        """Environment and task, for messages."""
        shared = self.engine.environment
        name = type(shared if is_single_turn(shared) else self.environment).__name__
        return f"environment {name}, task {self.start.task.id!r}"

    @property
    def reply(self) -> str:
        """Text of the last completion."""
        return self.completion.text

    @property
    def turns_expected(self) -> int:
        """Number of turns, 1 if the environment does not know it."""
        return getattr(self.environment, "turns", 1)

    @property
    def turns_done(self) -> int:
        """Part of `turns_expected` that is done."""
        return len(self.turns) if hasattr(self.environment, "turns") else int(self.done)

    def next_request(self, temperature: float, seed: int, role: str) -> SampleRequest:
        """Return the next prompt with its noise key.

        Args:
            temperature: Sampling temperature.
            seed: Seed of the sampling noise.
            role: Role of the trajectory.
        """
        key = noise_key(seed, self.step, self.start.number, self.start.rollout, len(self.turns), role)
        if self.request is not None:
            return replace(self.request, key=key, temperature=temperature)
        return self.conversation_request(key, temperature)

    def conversation_request(self, key: tuple[int, ...] = (), temperature: float = 0.0) -> SampleRequest:
        """Return the next prompt of a conversation, with advice unless its environment inserts advice itself.

        Args:
            key: Key of the sampling noise.
            temperature: Sampling temperature.
        """
        opening = self.messages[: self.opening]
        if not hasattr(self.environment, "advice"):
            opening = with_advice(opening, self.start.advice, self.engine.retry_prompt)
        return SampleRequest(
            (*opening, *self.messages[self.opening :]),
            key=key,
            temperature=temperature,
            max_new_tokens=self.engine.max_new_tokens,
            thinking_tokens=self.engine.thinking_tokens,
            chat_template_kwargs=self.engine.chat_template_kwargs,
        )

    def take(self, step: Step) -> None:
        """Record the step of the last completion and set the next prompt."""
        self.turns.append(Turn(len(self.turns), self.completion, step.calls, step.results, step.operations))
        has_state = hasattr(self.environment, "state")
        self.states.append(self.environment.state if has_state else self.messages)  # type: ignore[attr-defined]
        if step.reward is not None:
            self.rewards.append(step.reward)
        self.done = bool(step.done) or (self.request is None and len(self.turns) == self.engine.max_turns)
        if self.done:
            return
        if step.observation is None:
            raise RewardError(f"{self.where}: a step that is not the last has no observation to reply to")
        with WrapErrors(self.where):
            self._observe(step.observation)

    def has_ended(self) -> bool:
        """Return True if the episode is over, or its conversation has outgrown the policy's context."""
        if self.done or self.request is not None:
            return self.done
        engine = self.engine
        positions, render = getattr(engine.policy, "positions", None), getattr(engine.policy, "render_request", None)
        if positions is not None and render is not None:
            reply_tokens = engine.thinking_tokens + engine.max_new_tokens
            self.done = len(render(self.conversation_request())) + reply_tokens > positions
            engine.outgrown += self.done
        return self.done

    def trajectory(self, role: str) -> Trajectory[Any]:
        """Return the finished rollout."""
        if self.rewards and len(self.rewards) < len(self.turns):
            raise RewardError(
                f"{self.where}: {len(self.rewards)} of {len(self.turns)} steps have a reward: all or none"
            )
        reward = sum_rewards(self.rewards, self.where) if self.rewards else None
        return Trajectory(self.start.task, self.start.rollout, tuple(self.turns), tuple(self.states), reward, role)

    def _observe(self, observation: Prompt) -> None:
        """Set the next prompt."""
        if isinstance(observation, SampleRequest):
            self.request = observation
        elif isinstance(observation, str) and self.turns:
            exchange = ({"role": "assistant", "content": self.reply}, {"role": "user", "content": observation})
            self.messages = (*self.messages, *exchange)
        else:
            self.messages = _messages(observation)
            self.opening = len(self.messages)


def _messages(prompt: Any) -> Messages:
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    messages = tuple(dict[str, str](message) for message in prompt)
    if not messages or any(not {"role", "content"} <= set(message) for message in messages):
        raise RewardError(f"an observation is a text or messages with role and content, not {prompt!r}")
    return messages


class WrapErrors:
    """Re-raise foreign exceptions as `RewardError` prefixed with the environment's name."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, MemalphaError):
            raise RewardError(f"{self.where} raised {type(error).__name__}: {error}".rstrip(": ")) from error
