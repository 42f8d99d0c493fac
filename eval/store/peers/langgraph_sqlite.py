"""LangGraph's SqliteStore with its vector index, a namespace for each user, the journal as it leaves it."""

import sys

try:
    import pysqlite3 as sqlite3  # where Python's own cannot load extensions

    sys.modules["sqlite3"] = sqlite3
except ImportError:
    import sqlite3

from langgraph.store.sqlite import SqliteStore
from peers import langgraph_memory


class Peer(langgraph_memory.Peer):
    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        self._rows = sqlite3.connect(folder / "bench.db", check_same_thread=False, isolation_level=None)
        self._store = SqliteStore(self._rows, index=langgraph_memory.index_of(data))
        self._store.setup()
        self._users = {}

    def close(self):
        self._rows.close()
