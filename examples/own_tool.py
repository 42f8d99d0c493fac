"""A tool of your own for the writer: `memory_merge` joins two entries into one.

python examples/own_tool.py
PYTHONPATH=examples memalpha read ana.db chat.txt --policy MODEL --set 'tools=[own_tool:Merge]'
"""

from pydantic import Field

from memalpha import MemoryAgent, MemoryStore
from memalpha.agent.tools import Tool
from memalpha.config import AgentConfig
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.types import Operation


class Merge(Tool):
    """Join two entries that belong together into the first one."""

    name = "memory_merge"
    rule = "joins two entries that belong together into the first one; the second one ends."
    line = "&id other content"

    id: str = Field(description="id of the entry that stays")
    other: str = Field(description="id of the entry that ends")
    content: str = Field(description="what both say, in one sentence")

    def changes(self):
        """Return the ids of both entries."""
        return self.id, self.other

    def apply(self, memory):
        """Return the operations: the first entry says what both say, the second one ends."""
        kept, ended = memory.get(self.id), memory.get(self.other)
        return [Operation("update", kept.id, content=self.content), Operation("delete", ended.id)]


if __name__ == "__main__":
    store = MemoryStore.open(":memory:")
    tea, jug = store.insert("semantic", "Ana likes tea."), store.insert("semantic", "Ana takes milk in it.")
    writer = ScriptedPolicy("fixed", text=f"&{tea.id} {jug.id} Ana likes tea with milk.")
    agent = MemoryAgent(writer, store, AgentConfig(tools=("own_tool:Merge",), form="lines"))
    print([result.code for result in agent.read("Ana: Tea with milk, please.").results], store.list()[0].content)
