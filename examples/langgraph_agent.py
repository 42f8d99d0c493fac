"""A LangGraph agent whose long-term memory is a memalpha store (`pip install langgraph`).

`reply` is a stand-in for a chat model, so the example runs offline; call a model there.

    python examples/langgraph_agent.py
"""

from uuid import uuid4

from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from memalpha import MemoryStore
from memalpha.integrations.langgraph import LangGraphStore


def reply(message, notes):
    """Return an answer from the notes, as a model would."""
    return f"You said: {notes[0]}" if message.endswith("?") and notes else "I see."


def talk(state: MessagesState, config, *, store: BaseStore):
    """Search the user's notes, answer, and keep the message."""
    user = ("users", config["configurable"]["user"])
    message = state["messages"][-1].content
    notes = [item.value["text"] for item in store.search(user, query=message, limit=3)]
    store.put(user, str(uuid4()), {"text": message})
    return {"messages": [("assistant", reply(message, notes))]}


def main():
    """Hold two conversations with Ana and one with Tom, who has no notes yet."""
    memory = MemoryStore.open(":memory:")
    graph = StateGraph(MessagesState).add_node(talk).add_edge(START, "talk").add_edge("talk", END)
    agent = graph.compile(store=LangGraphStore(memory))
    for user, message in (("ana", "I live in Porto."), ("ana", "Where do I live?"), ("tom", "Where do I live?")):
        state = agent.invoke({"messages": [("user", message)]}, {"configurable": {"user": user}})
        print(f"{user}: {message} -> {state['messages'][-1].content}")
    print(memory.undo().kind, "undone")  # every put is in the log of the store
    memory.close()


if __name__ == "__main__":
    main()
