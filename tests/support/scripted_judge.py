"""A judge for tests that replies as a function says."""

from __future__ import annotations

import re

from memalpha.types import Completion


class Says:
    """A judge whose replies are told by its prompt and the number of the asking."""

    def __init__(self, reply, name="says"):
        self.name, self.reply, self.batches, self.prompts = name, reply, [], []

    def sample(self, requests):
        self.batches.append(len(requests))
        self.prompts += (prompts := [entry.messages[1]["content"] for entry in requests])
        return [
            Completion(self.reply(prompt, len(entry.messages) // 2))
            for prompt, entry in zip(prompts, requests, strict=True)
        ]

    def count_tokens(self, text):
        return len(text)


def part(prompt: str, name: str) -> str:
    result = re.search(rf"<{name}>\n(.*?)\n</{name}>", prompt, re.S)
    return result[1] if result else ""
