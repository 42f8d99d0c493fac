"""LangGraph's InMemoryStore: nothing outlives the process."""

from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from measure import DIM


def index_of(data):
    """What LangGraph is told of vectors."""

    def embed(texts):
        return [data.vector(text).tolist() for text in texts]

    return {"dims": DIM, "embed": embed}


class Peer:
    def __init__(self, folder, data):
        self._store = InMemoryStore(index=index_of(data))

    def insert(self, ids, texts, users, days, vectors):
        rows = zip(ids, texts, users, days, strict=True)
        self._store.batch(
            [
                PutOp(("bench",), str(id), {"text": text, "user": user, "day": day}, index=["text"])
                for id, text, user, day in rows
            ]
        )

    def add(self, id, text, user, day, vector):
        self._store.put(("bench",), str(id), {"text": text, "user": user, "day": day}, index=["text"])

    def search(self, text, vector, k, user=None, days=None):
        chosen = None if user is None else {"user": user}
        if days is not None:
            chosen = {"day": {"$gte": days[0], "$lt": days[1]}}
        return [int(item.key) for item in self._store.search(("bench",), query=text, filter=chosen, limit=k)]

    def delete(self, id):
        self._store.delete(("bench",), str(id))

    def close(self):
        pass
