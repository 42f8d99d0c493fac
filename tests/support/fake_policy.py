"""A policy for tests that replies as a function says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memalpha.types import Completion, SampleRequest


class FakePolicy:
    """A policy that replies with `reply(request)`, a text or a completion, and keeps its batches of requests."""

    def __init__(self, reply: Callable[[SampleRequest], str | Completion], name: str = "fake", prompt: str = "full"):
        self.reply, self.name, self.prompt = reply, name, prompt
        self.batches: list[list[SampleRequest]] = []

    @property
    def requests(self) -> list[SampleRequest]:
        return [request for batch in self.batches for request in batch]

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        self.batches.append([*requests])
        replies = [self.reply(request) for request in requests]
        return [reply if isinstance(reply, Completion) else Completion(reply) for reply in replies]

    def count_tokens(self, text: str) -> int:
        return len(text.split())
