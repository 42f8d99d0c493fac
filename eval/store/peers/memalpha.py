"""memalpha, durability "full"."""

import sqlite3

import numpy as np
from measure import DIM

from memalpha import MemoryStore


class Embedder:
    """Embedder with the benchmark's precomputed vectors."""

    name, dim = "bench", DIM

    def __init__(self, data):
        self._data = data

    def encode(self, texts):
        return np.array([self._data.vector(text) for text in texts], np.float32).reshape(len(texts), DIM)


def category(id):
    """Return one of two categories of equal size."""
    return "semantic" if id % 2 else "episodic"


class Peer:
    durability = "full"

    def __init__(self, folder, data):
        folder.mkdir(exist_ok=True)
        self._path = folder / "bench.db"
        self._store = MemoryStore.open(self._path, embedder=Embedder(data), durability=self.durability)
        self._names = {}

    def insert(self, ids, texts, users, days, vectors):
        rows = zip(ids, texts, users, days, strict=True)
        facts = [
            {"category": category(id), "content": text, "metadata": {"n": id, "user": user, "day": day}}
            for id, text, user, day in rows
        ]
        for id, entry in zip(ids, self._store.insert_many(facts, np.array(vectors, np.float32)), strict=True):
            self._names[id] = entry.id

    def add(self, id, text, user, day, vector):
        entry = self._store.insert(category(id), text, metadata={"n": id, "user": user, "day": day})
        self._names[id] = entry.id

    def search(self, text, vector, k, user=None, days=None):
        where = None if user is None else {"user": user}
        if days is not None:
            where = {"day": {"$gte": days[0], "$lt": days[1]}}
        return [hit.entry.metadata["n"] for hit in self._store.search(text, k, where=where, route="dense")]

    def search_default(self, text, user=None):
        """Search by words, meaning and categories, the default of a search."""
        return self._store.search(text, where=None if user is None else {"user": user})

    def delete(self, id):
        self._store.delete(self._names[id])

    def before_adds(self):
        """Copy the file, for `bare`."""
        self._before = self._store.snapshot()
        self._copy = self._path.with_name("bare.db")
        source, copy = sqlite3.connect(self._path), sqlite3.connect(self._copy)
        source.backup(copy)
        source.close()
        copy.close()

    def bare(self):
        """Return a function that writes each add's rows to the copy with bare SQLite, in one transaction each."""
        written = sqlite3.connect(self._path)
        tables = {}
        for table in ("operations", "versions", "vectors"):
            columns = [row[1] for row in written.execute(f"PRAGMA table_info({table})")]
            number = {"operations": "seq", "versions": "created", "vectors": "rowid"}[table]
            rows = written.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY {number} DESC LIMIT 100"
            ).fetchall()[::-1]
            statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            tables[statement] = rows
        written.close()
        copy = sqlite3.connect(self._copy, isolation_level=None)
        copy.execute("PRAGMA journal_mode = WAL")
        copy.execute(f"PRAGMA synchronous = {self.durability}")

        def once(number):
            copy.execute("BEGIN IMMEDIATE")
            for statement, rows in tables.items():
                copy.execute(statement, rows[number])
            copy.execute("COMMIT")

        return once

    def close(self):
        self._store.close()
        if hasattr(self, "_copy"):
            for suffix in ("", "-wal", "-shm"):
                self._copy.with_name(self._copy.name + suffix).unlink(missing_ok=True)
