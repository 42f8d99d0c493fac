"""Episodes under way over one sampling queue, each at its own pace; further ones may start at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memalpha.environments.base import Environment, Step
from memalpha.environments.episode import RunningEpisode, WrapErrors
from memalpha.errors import RewardError
from memalpha.policy.base import SamplingQueue


class EpisodePool:
    """Ask for the next turn of each episode as soon as its own turn has ended.

    Episodes of environments that step together in lock-step wait for each other. A pool belongs to one thread, except
    for `is_paused`.

    Args:
        queue: Queue of the policy.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling noise.
        role: Role of all trajectories, part of the noise key.

    Attributes:
        is_paused: True holds the next turns back; those under way go on. `submit` asks for them later.
        waiting: Episodes whose next turn is held back.
    """

    def __init__(self, queue: SamplingQueue, temperature: float, seed: int, role: str = "attempt") -> None:
        self.queue, self.temperature, self.seed, self.role = queue, temperature, seed, role
        self.is_paused = False
        self._running: dict[int, RunningEpisode] = {}
        self.waiting: list[RunningEpisode] = []

    @property
    def in_flight(self) -> int:
        """Number of turns under way."""
        return len(self._running)

    def submit(self, episodes: Sequence[RunningEpisode] = ()) -> None:
        """Ask for the next turns of `episodes` and of those that were held back, unless the pool is paused."""
        self.waiting += episodes
        if self.is_paused or not self.waiting:
            return
        ready, self.waiting = self.waiting, []
        requests = [episode.next_request(self.temperature, self.seed, self.role) for episode in ready]
        self._running.update(zip(self.queue.submit(requests), ready, strict=True))

    def collect(self) -> list[RunningEpisode]:
        """Wait for a completion, step the environments and ask for the next turns; return episodes that have ended.

        Raises:
            RewardError: An environment fails, or gives no observation to reply to.
            PolicyError: The policy cannot answer.
        """
        waits = any(is_lock_step(episode.environment) for episode in self._running.values())
        completions = self._collect_all() if waits else self.queue.collect()
        replied = []
        for ticket, completion in completions:
            episode = self._running.pop(ticket)
            episode.completion = completion
            replied.append(episode)
        if not replied:
            return []
        step_environments(replied)
        self.submit([episode for episode in replied if not episode.has_ended()])
        return [episode for episode in replied if episode.done]

    def drop(self, episodes: Iterable[RunningEpisode]) -> None:
        """Ask for no more turns of these episodes, which are held back."""
        dropped = {id(episode) for episode in episodes}
        self.waiting = [episode for episode in self.waiting if id(episode) not in dropped]

    def close(self) -> None:
        """Drop all turns under way."""
        self.queue.close()
        self._running, self.waiting = {}, []

    def _collect_all(self) -> list[tuple[int, Any]]:
        completions: list[tuple[int, Any]] = []
        while len(completions) < len(self._running):
            completions += self.queue.collect()
        return sorted(completions, key=lambda pair: pair[0])


def step_environments(episodes: Sequence[RunningEpisode]) -> None:
    """Step the environments of episodes that have a new completion."""
    together = getattr(type(episodes[0].environment), "step_together", None)
    if together is None:
        for episode in episodes:
            with WrapErrors(episode.where):
                result: Any = episode.environment.step(episode.reply)
                step = Step(*result)
            episode.take(step)
        return
    name = type(episodes[0].environment).__name__
    with WrapErrors(f"environment {name}"):
        steps = list(together([episode.environment for episode in episodes], [e.reply for e in episodes]))
    if len(steps) != len(episodes):
        raise RewardError(f"environment {name}: step_together gave {len(steps)} steps for {len(episodes)} episodes")
    for episode, result in zip(episodes, steps, strict=True):
        with WrapErrors(episode.where):
            step = Step(*result)
        episode.take(step)


def is_lock_step(environment: Environment) -> bool:
    """Return True if the environment's episodes wait for each other."""
    return hasattr(type(environment), "step_together") and getattr(environment, "lock_step", True)
