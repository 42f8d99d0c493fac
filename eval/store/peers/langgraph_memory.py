"""LangGraph's InMemoryStore, a namespace for each user: nothing outlives the process."""

from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from measure import DIM


def index_of(data):
    """Return LangGraph's index configuration with the benchmark's vectors."""

    def embed(texts):
        return [data.vector(text).tolist() for text in texts]

    return {"dims": DIM, "embed": embed}


class Peer:
    def __init__(self, folder, data):
        self._store = InMemoryStore(index=index_of(data))
        self._users = {}

    def insert(self, ids, texts, users, days, vectors):
        rows = zip(ids, texts, users, days, strict=True)
        self._store.batch(
            [
                PutOp(("bench", user), str(id), {"text": text, "user": user, "day": day}, index=["text"])
                for id, text, user, day in rows
            ]
        )
        self._users.update(zip(ids, users, strict=True))

    def add(self, id, text, user, day, vector):
        self._users[id] = user
        self._store.put(("bench", user), str(id), {"text": text, "user": user, "day": day}, index=["text"])

    def search(self, text, vector, k, user=None, days=None):
        scope = ("bench",) if user is None else ("bench", user)
        day_filter = None if days is None else {"day": {"$gte": days[0], "$lt": days[1]}}
        return [int(item.key) for item in self._store.search(scope, query=text, filter=day_filter, limit=k)]

    def delete(self, id):
        self._store.delete(("bench", self._users[id]), str(id))

    def close(self):
        pass
