"""A tool of a user's own that makes two operations."""

from __future__ import annotations

from pydantic import Field

from memalpha.agent.tools import Tool
from memalpha.types import Operation


class Merge(Tool):
    """Join two entries into the first one."""

    name = "memory_merge"
    rule = "joins two entries."
    line = "&id other content"

    id: str = Field(description="the entry that stays")
    other: str = Field(description="the entry that ends")
    content: str = Field(description="what both say")

    def changes(self):
        return self.id, self.other

    def apply(self, memory):
        return [Operation("update", self.id, content=self.content), Operation("delete", self.other)]
