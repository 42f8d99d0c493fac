"""A judge for tests that replies as a function says."""

from __future__ import annotations

import re

from memalpha.types import Completion


class Says:
    """A judge whose replies are told by its prompt and the number of the asking."""

    def __init__(self, reply, name="says"):
        self.name, self.reply, self.batches = name, reply, []

    def sample(self, requests):
        self.batches.append(len(requests))
        return [Completion(self.reply(entry.messages[1]["content"], len(entry.messages) // 2)) for entry in requests]

    def count_tokens(self, text):
        return len(text)


def part(prompt: str, name: str) -> str:
    result = re.search(rf"<{name}>\n(.*?)\n</{name}>", prompt, re.S)
    return result[1] if result else ""
